"""The noisy counts of held-back records, as a certificate has them, and the prediction sets that follow from them."""

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.disclosure import Declared, DisclosedModel, Released
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.prefix_sums import WHOLE, PrefixSums
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.fields import Several
from dpserve.training.inputs.records import Units
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.coverage import PER_MILLE, least_probabilities, margins
from dpserve.training.pay_once.scores import SETS

if TYPE_CHECKING:
    from dpserve.training.pay_once.certificate import ReleaseCertificate

By = Literal["all", "class"]

LEAST_RECORDS = 20_000
"""Declared number of records from which on one in ten is held back, if sets then say enough."""
_USUAL_ONE_IN, _SMALL_ONE_IN, _LEAST_ONE_IN, _MOST_ONE_IN, _MOST_HELD = 10, 6, 4, 1000, 20_000
_ASKED, _ENOUGH = 900, 0.96
"""Sets for a coverage, in thousandths, say enough where at most such a share of like records has its class in them."""

ASSUMPTIONS = (
    "Prediction sets: the coverage is that of records exchangeable with the training's, as further ones from the same "
    "source are, if it is chosen without looking at the sets or at the noisy counts. It is a share of all records, and "
    "of those of each class where sets are by class, and says nothing of a single row or of rows chosen in other ways.",
    "The records that were held back were chosen by coins, which nobody kept, and trained nothing. Their exact counts "
    "were deleted, unseen: that is the owner's word.",
)
"""Further assumptions of a model with prediction sets."""


class PredictionSets(DisclosedModel):
    """Prediction sets of a pay-once model: what was released of the records held back."""

    model_config = ConfigDict(extra="forbid")

    by: Declared[By]
    """Whether coverage holds for all records together, or also for those of each class."""
    one_in: Declared[int] = Field(ge=2, le=_MOST_ONE_IN)
    """One in so many records, or units, was held back: the chance of each by itself."""
    mu: Declared[float] = Field(gt=0, allow_inf_nan=False)
    """The cost of the noisy counts to a record that was held back: mu-GDP."""
    cells: Declared[Literal[42]] = 42
    law: Declared[Literal["Gaussian on whole steps"]] = "Gaussian on whole steps"
    released: Annotated[Several[Several[float]], Released("counts")]
    """The noisy numbers, (groups, cells): `dpserve.mechanisms.prefix_sums`."""
    _least: dict[int, Floats] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _numbers_are_on_the_grid(self) -> "PredictionSets":
        noisy, step = self.noisy, self.sums.vector.step
        if noisy.shape[1:] != (self.cells,) or not np.array_equal(np.rint(noisy / step) * step, noisy):
            raise ValueError("the noisy counts are not those of so many cells, on the grid of noise that mu gives")
        return self

    @property
    def sums(self) -> PrefixSums:
        """The mechanism that released the counts."""
        return PrefixSums(self.mu, len(self.released), self.cells)

    @property
    def noisy(self) -> Floats:
        """The noisy numbers, (groups, cells)."""
        return np.array(self.released, dtype=np.float64)

    def least(self, coverage: int, classes: int) -> Floats:
        """Return the least probability of each class in a set, (C,). coverage: in thousandths; classes: how many."""
        if coverage not in self._least:
            groups = [[one] for one in range(len(self.released))]
            self._least[coverage] = np.array(least_probabilities(self.sums, self.noisy, coverage, groups))
        return np.broadcast_to(self._least[coverage], classes)

    def sets_of(self, probabilities: Floats, coverage: int) -> Mask:
        """Return which classes are in the sets of rows, (n, C). probabilities: (n, C). coverage: in thousandths."""
        inside: Mask = probabilities >= self.least(coverage, probabilities.shape[1])
        return inside


class Counts(Step):
    """The counts of the records that were held back, by the probability that the model gives their class.

    Given the model, the cell of a record that was held back is a function of it, in an array of one row, and no other
    record's cell changes: the counts are mu-GDP (`PrefixSums`). Each record, or unit, has a coin of its own that says
    whether it is held back; `dpserve.training.pay_once.releases.composed` says what counts and training cost together.
    Of a unit that is held back all records are, and their parts add up to 1.
    """

    name = "counts"
    part = "held back"

    def is_needed_by(self, certificate: "ReleaseCertificate") -> bool:
        """Return whether it has prediction sets."""
        return certificate.prediction_sets is not None

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:  # noqa: ARG002 - the sets have their mu
        """Return what the counts of the certificate's classes cost. Raises ValueError for those of others."""
        sets, classes = certificate.prediction_sets, len(certificate.classes)
        if sets is None:
            return Cost()
        if len(sets.released) != groups_of(sets.by, classes):
            raise ValueError(f"prediction sets count all records together, or those of {classes} classes apart")
        return sets.sums.cost

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The records that the coverage holds for, and the owner's word."""
        return ASSUMPTIONS


COUNTS = Counts()


def groups_of(by: By, classes: int) -> int:
    """Return into how many groups records are counted: one of all, or one of each class."""
    return 1 if by == "all" else classes


def one_in(records: int | None, mu: float | None = None, groups: int = 1) -> int:
    """Return one in how many records is held back: as few as sets need to say enough, from usual to one in four.

    records: declared, None where that is not known. mu: of the counts, None likewise. groups: of `groups_of`.
    Where one in four would leave every class in each set, or it cannot be known, no more than usual are held back. One
    in three cost 0.04 of log loss beside one in four, in the mean of nine public tables of 750 to 1,700 records at
    epsilon 1.
    """
    usual = usual_one_in(records)
    if records is None or mu is None:
        return usual
    of_group, margin, asked = records / groups, _margin(mu, _ASKED), _ASKED / PER_MILLE
    if asked + margin / (of_group / _LEAST_ONE_IN) >= 1:
        return usual
    enough = margin / (_ENOUGH - asked)
    return min(max(int(of_group / enough), _LEAST_ONE_IN), usual)


def usual_one_in(records: int | None) -> int:
    """Return one in how many records is held back where sets then say enough. records: declared, or None."""
    if records is None or records < LEAST_RECORDS:
        return _SMALL_ONE_IN
    return min(max(records // _MOST_HELD, _USUAL_ONE_IN), _MOST_ONE_IN)


def expected_share(records: int, mu: float, coverage: int) -> float:
    """Return the share of like records whose class a set for a coverage has, as can be expected; 1 for all classes.

    It is what `coverage.least_probabilities` asks of noisy counts, with the margin of the middle cell.
    records: in all, of which one in `one_in` is held back. mu: of the counts. coverage: in thousandths.
    """
    held = records / one_in(records, mu)
    return min(1.0, coverage / PER_MILLE + _margin(mu, coverage) / held)


def _margin(mu: float, coverage: int) -> float:
    of_cells = margins(PrefixSums(mu, 1, len(SETS)), coverage, 1)
    return of_cells[len(of_cells) // 2]


def mean_size(probabilities: Floats, y: Integers, share: float) -> float:
    """Return the mean size of sets that hold so much of the classes of rows. probabilities: (m, C); y: (m,)."""
    if share >= 1:
        return float(probabilities.shape[1])
    own = probabilities[np.arange(len(y)), y]
    return float((probabilities >= np.quantile(own, 1 - share, method="lower")).sum(axis=1).mean())


def record_parts(units: Units | None, records: int) -> Integers:
    """Return the part of each record in the counts, (n,), in whole steps of 2^-14: a unit's add up to one record.

    Of m records of a unit the j-th has floor(j/m) less floor((j - 1)/m), in steps: each within one of 1/m. Records of a
    unit come in an order that says nothing about them, or the promise is for the ones that count.
    """
    if units is None:
        return np.full(records, WHOLE, dtype=np.int64)
    order = np.argsort(units.of, kind="stable")
    counts = np.bincount(units.of)
    of = units.of[order]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    place = np.arange(records) - starts[of]
    parts = np.empty(records, dtype=np.int64)
    parts[order] = (place + 1) * WHOLE // counts[of] - place * WHOLE // counts[of]
    return parts


def counts_of(own: Floats, y: Integers, parts: Integers, groups: int) -> Integers:
    """Return the counts of records, (groups, cells), in whole steps of 2^-14.

    own: (n,), the probability that the model gives each record's class. y: (n,), the classes. parts: (n,), as
    `record_parts` has them. groups: of `groups_of`.
    """
    counts = np.zeros((groups, len(SETS)), dtype=np.int64)
    np.add.at(counts, (y if groups > 1 else np.zeros_like(y), SETS.of(own)), parts)
    return counts


def release_sets(counts: Integers, mu: float, one_in: int, randomness: Randomness) -> PredictionSets:
    """Release prediction sets for mu. Do it once: every call is a release of its own. counts: of `counts_of`."""
    noisy = PrefixSums(mu, *counts.shape).release(counts, randomness)
    by: By = "all" if len(counts) == 1 else "class"
    return PredictionSets(by=by, one_in=one_in, mu=mu, released=tuple(map(tuple, noisy.tolist())))
