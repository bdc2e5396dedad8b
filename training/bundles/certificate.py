"""The certificate: what is proved about a trained head, in numbers that anyone can derive again.

The type of each field says who may see it (`dpserve.accounting.disclosure`), and `public` and `shown_to_strangers`
follow from that. The digest of the weights is private: with one of exact weights an adversary who knows all records but
one could test a guess at the last.
"""

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, cast

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from dpserve.accounting.budgets import Budget
from dpserve.accounting.disclosure import Declared, DisclosedModel, Private, Reader, shown
from dpserve.accounting.ledger.receipts import checked_blocks
from dpserve.training.bundles.sealing import DEFAULT_KIND, SealedCertificate
from dpserve.training.errors import BundleError
from dpserve.training.exact.quantised import weight_step
from dpserve.training.features.feature_map import NORM_BOUND
from dpserve.training.features.maps import Encoder, FeatureMap, HeadFeatureMap
from dpserve.training.features.whole_steps import STEP
from dpserve.training.fields import MOST_CLASSES, NAME, Several
from dpserve.training.fitting.sensitivity import (
    LARGEST_ALPHA,
    LARGEST_PARAMETER,
    MOST_LEAST_RECORDS,
    SMALLEST_ALPHA,
    SMALLEST_PARAMETER,
    Convexity,
    convexified_sensitivity,
    logit_sensitivity_per_norm,
    quantised_weight_sensitivity,
    weight_sensitivity,
)
from dpserve.training.inputs.columns import Columns, coordinates_of, encodings_among

UNIFORM_BITS = (
    "Noise is drawn from the operating system's randomness, or from ChaCha20 keyed by it; the output of either is "
    "taken for uniform bits."
)
"""Assumptions of every draw."""

PSEUDORANDOM_NOISE = (
    "The noise of an answer is a function of the question under the noise key, which lies with the weights and which "
    "nobody outside has: BLAKE2b under that key and ChaCha20 under its output are taken for pseudorandom functions.",
    "A question is what the feature map makes of a row, in steps: asked again it gets the same answer, which is one "
    "release. Logits are the same numbers whenever they are computed: sums of products of whole numbers are exact in "
    "double precision below 2^53.",
)
"""Assumptions of every answer to a question."""

FLOATING_POINT = (
    "Floating-point arithmetic follows IEEE 754, and what libraries compute with it (products of matrices, "
    "exponentials, logarithms, cosines) is accurate to the few units in the last place that the proofs count."
)
"""Assumption of every bound on rounding."""

ONE_RECORD = (
    "Neighbouring data sets differ by the addition or removal of one record; a person with several records is "
    "protected for each of them, and for all together only by the composition of their number."
)

TRAINING_SUCCEEDED = (
    "Training succeeded. That it does, rather than be refused for a bad value, for a tolerance that it misses, for too "
    "many or too few records or for some that are in another lineage or block or in an earlier fit, can depend on one "
    "record, and is not hidden from whoever sees that a model is served."
)

ONE_LINEAGE = (
    "The records of one person are not also in another lineage. Sets that overlap belong in one named lineage."
)

ONE_BLOCK = (
    "A record, or a unit, is in one block, which that record alone decides, and training took records of the blocks "
    "that are named here and of no others. What a record loses is bounded by the account of its block."
)
"""Assumption of a model of blocks."""

ONE_BY_ONE = (
    "A record's columns were made from that record and public numbers alone: no scaler, imputer, encoder or other step "
    "was fitted on the private records before."
)

NO_OTHER_FIGURE = (
    "Accuracy, the number of records and any other figure computed from the private records are not covered if "
    "they are published."
)

OTHER_ASSUMPTIONS = (
    "the assumptions are not those that this version's proof makes: another version wrote the bundle, or it was altered"
)
"""The objection to a certificate whose assumptions differ."""

ONE_MORE_OR_FEWER: Literal["add or remove one record"] = "add or remove one record"
UNITS: Literal["add or remove all records of one unit"] = "add or remove all records of one unit"

ASSUMPTIONS = (
    ONE_RECORD,
    "Bounds, classes, columns and their names and encodings, feature map, Lambda, tolerance, and the mechanism and the "
    "price of its answers were chosen without looking at the private records. Choosing any of them by results on the "
    "private records, or by this model's exact answers, whatever they are about, is not covered.",
    TRAINING_SUCCEEDED,
    ONE_LINEAGE,
    ONE_BY_ONE,
    "The weights, the noise key, this file's digest of them and the lineage key stay with the owner; only priced "
    "answers leave.",
    *PSEUDORANDOM_NOISE,
    FLOATING_POINT,
    NO_OTHER_FIGURE,
)

ENCODER_ASSUMPTIONS = (
    "The encoder, which `model_sha256` of the feature map names, was made without the private records: "
    "nobody trained, tuned, distilled or chose it on these records or by results on them. What a public collection "
    "that it was trained on says about a person who is also in the private records is not covered.",
    "While the private records' features were computed, one at a time, the encoder gave the same numbers for the same "
    "row, whatever rows came before; this was checked on public rows.",
    "While it answers, the encoder may give other numbers for a row on another device or in another batch. Where they "
    "round to another phi that is another question, with noise of its own and charged as one; a model that is paid for "
    "once gives another answer to it, computed from what was released.",
)
"""Further assumptions of a model on an encoder."""

TEXT_ENCODER_ASSUMPTIONS = (
    "The encoder of texts, which `encoder` of a column names, was made without the private records: nobody trained, "
    "tuned, distilled or chose it on these records or by results on them. What a public collection that it was trained "
    "on says about a person who is also in the private records is not covered.",
    "While the private records' texts were encoded, each by itself, the encoder gave the same numbers for the same "
    "text, whatever texts came before; this was checked on public texts.",
    "While it answers, the encoder may give other numbers for a text on another kind of processor, or by another "
    "release of ONNX Runtime. Where they round to another phi that is another question, with noise of its own and "
    "charged as one; a model that is paid for once gives another answer to it, computed from what was released.",
)
"""Further assumptions of a model whose texts are encoded by an encoder."""


UNIT_ASSUMPTION = (
    "Neighbouring data sets differ by the addition or removal of all records of one unit, which the column of units "
    "names. A person whose records have several names there is protected for each of them, and for all together only "
    "by the composition of their number."
)
"""The first assumption, where records are weighted by units."""


CONVEXIFIED_ASSUMPTION = (
    "Alpha and n_min, the least number of records, were chosen without looking at the private records. Training "
    "refuses fewer than n_min records: that there are no fewer is told to whoever sees that a model is served."
)
"""Further assumptions of a model on the convexified objective."""

CONVEXIFIED_NO_UNITS = "the convexified objective is proved for one record more or fewer, and not for units of several"

SUM_OF_LOSSES: Literal["sum of cross-entropies + (Lambda/2) ||W||_F^2"] = (
    "sum of cross-entropies + (Lambda/2) ||W||_F^2"
)
LOG_MEAN_EXP: Literal["n_min / alpha ln(mean of exp(alpha cross-entropy)) + (Lambda/2) ||W||_F^2"] = (
    "n_min / alpha ln(mean of exp(alpha cross-entropy)) + (Lambda/2) ||W||_F^2"
)
HeadObjective = Literal[
    "sum of cross-entropies + (Lambda/2) ||W||_F^2",
    "n_min / alpha ln(mean of exp(alpha cross-entropy)) + (Lambda/2) ||W||_F^2",
]


class DeclaredRecords(Protocol):
    """The public facts about a model's training records (`dpserve.training.inputs.records.Declaration`)."""

    @property
    def feature_names(self) -> Sequence[str]:
        """Each feature's."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""

    @property
    def clips(self) -> bool:
        """Whether values beyond the bounds are clipped to them."""

    @property
    def blocks(self) -> Sequence[str]:
        """The blocks that the records are in."""

    @property
    def block_budget(self) -> str:
        """The budget with which each of them opens."""


class ModelCertificate(SealedCertificate):
    """The common fields of all certificates. A subclass adds numbers, and derives those that follow from others."""

    format_version: Declared[int] = 2
    """Loading refuses every other (`dpserve.training.bundles.sealing`)."""
    status: Declared[Literal["proven", "unproven"]]
    name: Declared[str] = Field(pattern=f"^{NAME.pattern}$")
    model_id: Declared[str] = Field(pattern=r"^[0-9a-f]{32}$")
    """Random, not derived from the weights."""
    created: Private[AwareDatetime]
    neighbouring: Declared[Literal["add or remove one record", "add or remove all records of one unit"]] = (
        ONE_MORE_OR_FEWER
    )
    classes: Declared[Several[str]] = Field(min_length=2, max_length=MOST_CLASSES)
    feature_names: Declared[Several[str]] = Field(min_length=1)
    feature_map: Declared[Any]
    """A map with public bounds of every feature, `lower` and `upper`."""
    clips: Declared[bool] = Field(default=False, exclude_if=lambda clips: not clips)
    """Whether values beyond the bounds were clipped to them in training, and are when the model is asked, unless a
    request says otherwise. A row that is clipped is the same question as the row that it becomes."""
    lineage: Private[str] = Field(pattern=f"^{NAME.pattern}$")
    blocks: Declared[Several[str]] = Field(default=(), exclude_if=lambda blocks: not blocks)
    """The blocks of the lineage that the records are in, in order: each pays for what the model says. None where the
    lineage has no blocks."""
    block_budget: Private[str] = Field(default="", exclude_if=lambda budget: not budget)
    """The budget with which each block opens, as its owner wrote it, where the ledger does not have it yet."""

    @classmethod
    def fresh(cls, name: str, declared: DeclaredRecords, feature_map: object, lineage: str, **numbers: object) -> Self:
        """Return the certificate of a new model: with its id, its time, and what was declared.

        numbers: the certificate's other fields. Raises ValidationError.
        """
        return cls.model_validate(
            {
                "name": name,
                "model_id": secrets.token_hex(16),
                "created": now(),
                "classes": tuple(declared.classes),
                "feature_names": tuple(declared.feature_names),
                "feature_map": feature_map,
                "clips": declared.clips,
                "lineage": lineage,
                "blocks": tuple(declared.blocks),
                "block_budget": declared.block_budget,
            }
            | numbers
        )

    SENSITIVITY_IS_PRIVATE: ClassVar[bool] = False
    """Whether how far a record moves answers follows from private numbers: then no scale of their noise is shown."""

    @property
    def kind_name(self) -> str:
        """The name of the model's kind (`dpserve.training.kinds.registry`): the field `release` of a kind that has
        it."""
        return str(getattr(self, "release", DEFAULT_KIND))

    @property
    def columns(self) -> Columns:
        """The columns of a schema that the features encode; none where the features are the columns themselves."""
        return getattr(self.feature_map, "columns", ())

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        features = len(self.feature_names)
        if not len(self.feature_map.lower) == len(self.feature_map.upper) == features:
            raise ValueError(f"the feature map lacks one pair of bounds for each of the {features} feature names")
        if (self.neighbouring == UNITS) != (getattr(self, "unit", None) is not None):
            raise ValueError("neighbouring data sets differ by a unit where a column of units is named, and only there")
        if self.columns and coordinates_of(self.columns)[0] != self.feature_names:
            raise ValueError("the feature names are not those of the columns' coordinates")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named twice")
        if checked_blocks(self.blocks):
            Budget.parse(self.block_budget, "any")
        elif self.block_budget:
            raise ValueError("a budget of blocks goes with blocks")
        return self

    @abstractmethod
    def derived(self) -> Mapping[str, object]:
        """Return every field that follows from others, by name. Raises ValueError for numbers that have none."""

    def differences(self) -> list[str]:
        """Return what differs from what is derived again. Raises ValueError for numbers that have no derivation."""
        return [
            f"{name} is {getattr(self, name)!r} and should be {value!r}"
            for name, value in self.derived().items()
            if getattr(self, name) != value
        ]

    def verify(self) -> None:
        """Derive every number again. Returns nothing, or raises BundleError saying all that differs."""
        try:
            differs = self.differences()
        except ValueError as error:
            raise BundleError(f"the certificate does not hold: {error}") from error
        if differs:
            raise BundleError("the certificate does not hold: " + "; ".join(differs))

    def public(self) -> dict[str, Any]:
        """Return what may be shown to whoever has paid for the model, ready for JSON."""
        return shown(self, Reader.CLIENT)

    def shown_to_strangers(self) -> dict[str, Any]:
        """Return what may be shown to everybody, ready for JSON."""
        return shown(self, Reader.STRANGER)


class Convexified(DisclosedModel):
    """The convexified objective's part of a certificate
    (`dpserve.training.fitting.sensitivity.convexified_sensitivity`)."""

    model_config = ConfigDict(extra="forbid")

    alpha: Declared[float] = Field(ge=SMALLEST_ALPHA, le=LARGEST_ALPHA)
    least_records: Declared[int] = Field(ge=2, le=MOST_LEAST_RECORDS)
    """n_min: training refused fewer records. Declared, not counted."""
    lam: Declared[float]
    """lambda = Lambda / n_min, the strong convexity of the objective over n_min."""
    tolerance: Declared[float]
    """tau / n_min, the gradient norm of the objective over n_min that training reached."""
    gradient_norm: Declared[float]
    """rho, the largest norm of a record's gradient."""
    largest_norm: Declared[float]
    """r: no minimiser is longer, in Frobenius norm."""
    largest_loss: Declared[float]
    """B: no record's loss is larger at a minimiser that was made without it."""
    largest_share: Declared[float]
    """s: no record has a larger share in the gradient there."""
    sum_weight_sensitivity: Declared[float]
    """Delta_W of the plain sum of losses with the same Lambda and tolerance, rounding included."""
    price_of_alpha: Declared[float]
    """Delta_W over that: how many times more noise an answer has at the same price."""

    @classmethod
    def made(
        cls, convexity: Convexity, strong_convexity: float, tolerance: float, classes: int, dimension: int
    ) -> Self:
        """Return every number, of the public choices. Raises ValueError for numbers that have none."""
        sensitivity = convexified_sensitivity(convexity, strong_convexity, tolerance, NORM_BOUND, classes)
        weights, plain = (
            quantised_weight_sensitivity(exact, classes, dimension)
            for exact in (sensitivity.weights, weight_sensitivity(strong_convexity, tolerance, NORM_BOUND))
        )
        return cls(
            alpha=convexity.alpha,
            least_records=convexity.least_records,
            lam=strong_convexity / convexity.least_records,
            tolerance=tolerance / convexity.least_records,
            gradient_norm=sensitivity.gradient_norm,
            largest_norm=sensitivity.largest_norm,
            largest_loss=sensitivity.largest_loss,
            largest_share=sensitivity.largest_share,
            sum_weight_sensitivity=plain,
            price_of_alpha=weights / plain,
        )

    @property
    def convexity(self) -> Convexity:
        """The public choices."""
        return Convexity(self.alpha, self.least_records)


class ProvenCertificate(ModelCertificate):
    """A certificate with a proof, and what the proof assumes."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]]

    status: Declared[Literal["proven"]] = "proven"
    PAYS_FOR_FEATURES: ClassVar[bool] = False
    """Whether its cost covers what the feature map was told of the records."""

    assumptions: Declared[Several[str]]
    unit: Declared[str | None] = Field(default=None, min_length=1, exclude_if=lambda unit: unit is None)
    """The column of privacy units, if records are weighted by them."""

    @classmethod
    def fresh(cls, name: str, declared: DeclaredRecords, feature_map: object, lineage: str, **numbers: object) -> Self:
        """Return it with what the proof assumes. `unit` among the numbers: the column of privacy units, or None."""
        protected = {"assumptions": (), "neighbouring": UNITS if numbers.get("unit") else ONE_MORE_OR_FEWER}
        made = super().fresh(name, declared, feature_map, lineage, **protected, **numbers)
        return made.model_copy(update={"assumptions": made.assumed()})

    def assumed(self) -> tuple[str, ...]:
        """Return what this version's proof assumes."""
        assumed = assumptions_on(self.feature_map, self.unit, self.ASSUMPTIONS)
        of_blocks = (ONE_BLOCK,) if self.blocks else ()
        return (*assumed, *of_blocks, *((CONVEXIFIED_ASSUMPTION,) if getattr(self, "convexified", None) else ()))

    def public_files(self) -> dict[str, bytes]:
        """Return those of the feature map."""
        return cast(FeatureMap, self.feature_map).files()

    def open_files(self, folder: Path, device: str | None) -> None:
        """Open those of the feature map."""
        cast(FeatureMap, self.feature_map).open_files(folder, device)

    def differences(self) -> list[str]:
        """Return what differs, the assumptions among it."""
        others = [] if self.assumptions == self.assumed() else [OTHER_ASSUMPTIONS]
        if getattr(self.feature_map, "losses", ()) and not self.PAYS_FOR_FEATURES:
            others.append("its features were computed from the records, which its price does not cover")
        return super().differences() + others


def check_convexified(certificate: "ProvenCertificate") -> None:
    """Raise ValueError unless the objective is the one that a head's `convexified` tells of, or that it lacks."""
    convexified = getattr(certificate, "convexified", None)
    if (getattr(certificate, "objective", None) == LOG_MEAN_EXP) != (convexified is not None):
        raise ValueError("alpha and n_min go with the convexified objective, and with it alone")
    if convexified is not None and certificate.unit is not None:
        raise ValueError(CONVEXIFIED_NO_UNITS)


class Certificate(ProvenCertificate):
    """The certificate of a head trained on the sum of cross-entropies plus (Lambda/2) ||W||_F^2, or convexified."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = ASSUMPTIONS

    assumptions: Declared[Several[str]] = ASSUMPTIONS
    objective: Declared[HeadObjective] = SUM_OF_LOSSES
    convexified: Declared[Convexified | None] = Field(default=None, exclude_if=lambda convexified: convexified is None)
    """The price of the convexified objective, where it is that."""
    feature_map: Declared[HeadFeatureMap]
    feature_norm_bound: Declared[float]
    """R, with ||phi(x)||_2 <= R for every x."""
    strong_convexity: Declared[float] = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """Lambda."""
    tolerance: Declared[float] = Field(ge=SMALLEST_PARAMETER, le=LARGEST_PARAMETER)
    """tau: training returns weights with a gradient norm of at most this, for every data set, or fails."""
    feature_step: Declared[float]
    """Every coordinate of phi is a whole multiple of this."""
    weight_step: Declared[float]
    """And every weight of this."""
    weight_sensitivity: Declared[float]
    """Delta_W: neighbouring data sets' weights differ by at most this in Frobenius norm, rounding included."""
    logit_sensitivity_per_norm: Declared[float]
    """The logits at x move by at most this times ||phi(x)||_2 in L2, rounding included."""

    @model_validator(mode="after")
    def _objective_is_told_of(self) -> Self:
        check_convexified(self)
        return self

    def derived(self) -> dict[str, Any]:
        """Return the bounds, steps and sensitivities: see `derive`."""
        convexity = None if self.convexified is None else self.convexified.convexity
        return derive(
            self.strong_convexity, self.tolerance, len(self.classes), self.feature_map.declared.dimension, convexity
        )


def assumptions_on(
    feature_map: FeatureMap, unit: str | None = None, assumptions: tuple[str, ...] = ASSUMPTIONS
) -> tuple[str, ...]:
    """Return what a proof assumes on this feature map.

    unit: the column of privacy units, None where it is one record. assumptions: those of the proof, the first of which
    says what neighbouring is.
    """
    first = assumptions if unit is None else (UNIT_ASSUMPTION, *assumptions[1:])
    encoder = ENCODER_ASSUMPTIONS if isinstance(feature_map, Encoder) else ()
    texts = TEXT_ENCODER_ASSUMPTIONS if encodings_among(feature_map.columns) else ()
    return (*first, *encoder, *texts)


def derive(
    strong_convexity: float, tolerance: float, classes: int, dimension: int, convexity: Convexity | None = None
) -> dict[str, Any]:
    """Return the certificate's derived numbers by name. dimension: of phi(x), the bias included.

    convexity: the choices of the convexified objective; None for the sum of losses.
    """
    exact = weight_sensitivity(strong_convexity, tolerance, NORM_BOUND)
    numbers: dict[str, Any] = {}
    if convexity is not None:
        exact = convexified_sensitivity(convexity, strong_convexity, tolerance, NORM_BOUND, classes).weights
        convexified = Convexified.made(convexity, strong_convexity, tolerance, classes, dimension)
        numbers = {"objective": LOG_MEAN_EXP, "convexified": convexified}
    weights = quantised_weight_sensitivity(exact, classes, dimension)
    return numbers | {
        "feature_norm_bound": NORM_BOUND,
        "feature_step": STEP,
        "weight_step": weight_step(dimension),
        "weight_sensitivity": weights,
        "logit_sensitivity_per_norm": logit_sensitivity_per_norm(weights),
    }


def now() -> datetime:
    """The time that a certificate is made at, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
