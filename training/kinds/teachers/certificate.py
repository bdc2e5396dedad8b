"""The certificate of teachers: how far one record can move the mean of what they say."""

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from training.bundles.certificate import (
    FLOATING_POINT,
    NO_OTHER_FIGURE,
    ONE_BY_ONE,
    ONE_LINEAGE,
    ONE_RECORD,
    PSEUDORANDOM_NOISE,
    TRAINING_SUCCEEDED,
    ProvenCertificate,
)
from training.features.maps import AnyFeatureMap
from training.fields import Several

Rule = Literal["votes", "probabilities"]

TEMPERATURE = 8.0
"""The factor of the mean before it is made private. The most likely class does not depend on it."""

MOST_TEACHERS = 10_000

BY_RECORD: Literal["by a keyed hash of the record"] = "by a keyed hash of the record"
BY_UNIT: Literal["by a keyed hash of the unit"] = "by a keyed hash of the unit"

_ROUNDING = 2.0**-48
_UP = 1 + 2.0**-40

ASSUMPTIONS = (
    ONE_RECORD,
    "Bounds, classes, columns and their names and encodings, feature map, the number of teachers, their architecture, "
    "their training, and the mechanism and the price of their answers were chosen without looking at the private "
    "records. Choosing any of them by results on the private records, or by this model's exact answers, whatever they "
    "are about, is not covered.",
    "What a teacher becomes and answers is a function of its own part and of public numbers: the same arithmetic on "
    "the same numbers gives the same bits, whatever other teachers are computed beside it.",
    TRAINING_SUCCEEDED,
    ONE_LINEAGE,
    ONE_BY_ONE,
    "The weights, the noise key, this file's digest of them and the lineage key, which also says a record's part, "
    "stay with the owner; only priced answers leave.",
    *PSEUDORANDOM_NOISE,
    FLOATING_POINT,
    NO_OTHER_FIGURE,
)


class TeachersCertificate(ProvenCertificate):
    """m networks on disjoint parts of the records, answering by the mean of their votes or probabilities."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = ASSUMPTIONS

    assumptions: Several[str] = ASSUMPTIONS
    release: Literal["teachers"] = "teachers"
    """Its kind, by which bundles are loaded. Each answer is paid for: it is no release that is paid for once."""
    feature_map: AnyFeatureMap
    teachers: int = Field(ge=2, le=MOST_TEACHERS)
    """m."""
    parts: Literal["by a keyed hash of the record", "by a keyed hash of the unit"] = BY_RECORD
    hidden: Several[int]
    """The widths of the hidden layers; none for linear teachers."""
    activation: Literal["tanh", "relu"]
    rule: Rule
    """The form of a teacher's answer: a vote for its most likely class, or its probabilities."""
    temperature: float = TEMPERATURE
    logit_sensitivity: float
    """Sensitivity in L2 of the mean, times the temperature."""

    @model_validator(mode="after")
    def _widths_are_possible(self) -> Self:
        if not all(1 <= width <= 2**16 for width in self.hidden):
            raise ValueError("every hidden layer has between 1 and 65536 neurons")
        return self

    @model_validator(mode="after")
    def _parts_are_those_of_units(self) -> Self:
        if (self.unit is not None) != (self.parts == BY_UNIT):
            raise ValueError("teachers of units have the parts of their units, and only these")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of every layer, the first and the last among them."""
        return (self.feature_map.dimension, *self.hidden, len(self.classes))

    def derived(self) -> dict[str, float]:
        """Return the temperature of this version, and the sensitivity of the mean."""
        return {"temperature": TEMPERATURE, "logit_sensitivity": mean_sensitivity(self.teachers, len(self.classes))}


def mean_sensitivity(teachers: int, classes: int) -> float:
    """Return how far one record moves TEMPERATURE times the mean of m teachers' answers, in L2, as computed.

    Proof. A record's part is a function of that record (`training.kinds.teachers.train`), and each teacher of its own
    part, so adding or removing a record changes one teacher. A unit's part is a function of its name, and all its
    records are in it: adding or removing them changes one teacher, too. What a teacher says is a vector p of
    non-negative numbers of sum at most 1, on an integer grid and whatever its weights are
    (`training.kinds.teachers.bundle`): a vote, probabilities, or the public answer of a teacher without records. For
    two such vectors ||p - q||^2 = ||p||^2 + ||q||^2 - 2 <p, q> <= 1 + 1 - 0, since ||p||^2 <= (sum p)^2 <= 1 and <p, q>
    >= 0. The sum over the teachers is one of integers, exact, and moves by at most sqrt(2) grid units; times
    TEMPERATURE / m, rounded twice, each of C numbers up to TEMPERATURE is off by at most 2^-51 TEMPERATURE for either
    neighbour.
    """
    return (TEMPERATURE * math.sqrt(2) / teachers + _ROUNDING * TEMPERATURE * math.sqrt(classes)) * _UP
