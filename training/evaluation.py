"""Private evaluation: how good a pay-once model is on held-out records, as one release that may be published.

Each held-out record is counted in one cell of each table that is reported:
- accuracy: right or wrong;
- calibration: between which of `EDGES` the likeliest class's probability lies, and right or wrong;
- confusion: its class, and the class that the model finds likeliest;
and its log loss, clipped to `largest_loss`, is added to one sum. All cells and the sum are released together, with one
Gaussian noise (`mechanisms.gaussian_vector`). What follows from them, intervals among it, is post-processing.

The price. Let neighbouring sets of held-out records differ by one record, added or removed. A record's own cells and
loss are a function of that record, of the model and of public numbers, computed in arrays of one row, so that all
other records' terms are the same, bit for bit. The vectors before noise therefore differ by exactly that record's term.
Its parts are, in whole steps of 2^-28: `weights[name]` in one cell of each table, and at most `weights["log-loss"]` for
the loss, measured from the middle of [0, largest_loss] in units of half that interval, rounded towards zero. The
squares of the weights add up to at most 2^56 (`Law.weights`): the L2 sensitivity is 1. Sums of at most MOST_RECORDS
(`training.inputs.sums`) terms stay below 2^53 steps, so that they are exact as doubles. Hence `Law.cost`: mu-GDP.

Privacy units. Where neighbours differ by all n records of one unit, each of its terms is divided by n and rounded
towards zero, in integers: no part becomes longer than an n-th of a term that is at most 1 long, and n of these are at
most 1 long together. No other unit's terms change, for n is the unit's own. A unit counts once in every figure, its
records in equal shares.

The records that the model was trained on. The model is a release that was paid for, and an evaluation depends on these
records through it alone. So where no held-out record was trained on, the evaluation costs the held-out records' own
lineage mu, and the training's nothing. Where some were, or may have been, a record may change both: first the model,
and given the model the evaluation. Adaptive composition adds the squares of the two mus (Dong, Roth and Su 2022,
Corollary 3.3), which is what one account does that pays for both: then charge the lineage of the training.

Not for models whose answers are paid for one by one. Their exact weights are no release. A training record that moves
them by Delta_W may change the likeliest class of every held-out record, if all lie near a boundary: a count can move by
all of them, and no noise that leaves anything of a count hides that. Train a pay-once model of the same records, or
count the noisy answers that were paid for.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.special import ndtri

from accounting.arrays import Floats, Integers
from accounting.losses import Cost
from mechanisms.gaussian_vector import GaussianVector, mu_for
from mechanisms.randomness import Randomness
from training.bundles.certificate import FLOATING_POINT, UNIFORM_BITS
from training.inputs.records import Units
from training.inputs.sums import check_count
from training.pay_once.model import ReleasedModel

Part = Literal["accuracy", "log-loss", "calibration", "confusion"]

SHARES: dict[Part, Fraction] = {
    "accuracy": Fraction(7, 10),
    "log-loss": Fraction(1, 10),
    "calibration": Fraction(1, 10),
    "confusion": Fraction(1, 10),
}
"""Shares of the price for what is reported, in proportion."""

EDGES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""The calibration's bins of the likeliest class's probability: from one number on, to below the next."""

CONFIDENCE = 0.95
_GRID = 2**28

ASSUMPTIONS = (
    "Neighbouring sets of held-out records differ by the addition or removal of one record; a person with several "
    "records is protected for each of them, and for all together only by the composition of their number.",
    "The model was a release of its own, paid for by the lineage of the records that it was trained on. No held-out "
    "record is among those, unless the same lineage paid for the evaluation.",
    "What is reported, the price and the classes were chosen without looking at the held-out records.",
    "That the evaluation succeeded, rather than be refused for a bad value, is not hidden and can depend on a record.",
    UNIFORM_BITS,
    FLOATING_POINT,
)
"""Assumptions of an evaluation's price."""


def assumptions_of(unit: str | None) -> tuple[str, ...]:
    """Return what the price rests on. unit: the column of privacy units, None for one record."""
    if unit is None:
        return ASSUMPTIONS
    first = (
        "Neighbouring sets of held-out records differ by the addition or removal of all records of one unit, which the "
        f"column {unit!r} names. A unit counts once in every figure, each of its records in equal shares."
    )
    return (first, *ASSUMPTIONS[1:])


@dataclass(frozen=True)
class Law:
    """The mechanism of an evaluation. parts: what is reported; accuracy is among it, which counts the records.

    Raises ValueError for a price or a number of classes that cannot be, and for parts without accuracy.
    """

    mu: float
    classes: int
    parts: tuple[Part, ...] = tuple(SHARES)

    def __post_init__(self) -> None:
        """Refuse what no release can be."""
        if not set(self.parts) <= set(SHARES) or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"an evaluation reports some of {', '.join(SHARES)}, each once")
        if "accuracy" not in self.parts:
            raise ValueError("an evaluation always reports accuracy: the other figures take its number of records")
        if self.classes < 2:
            raise ValueError(f"there must be at least 2 classes, not {self.classes}")
        _ = self.vector

    @cached_property
    def vector(self) -> GaussianVector:
        """The noise on all cells together, one record's term being at most 1 long."""
        return GaussianVector(self.mu, sum(self.sizes.values()), 1.0)

    @property
    def cost(self) -> Cost:
        """mu-GDP for the held-out records, once: the module has the proof."""
        return self.vector.cost

    @property
    def sizes(self) -> dict[Part, int]:
        """Sizes of the parts, in the order in which they are released."""
        bins = len(EDGES) - 1
        sizes: dict[Part, int] = {
            "accuracy": 2,
            "log-loss": 1,
            "calibration": 2 * bins,
            "confusion": self.classes**2,
        }
        return {part: size for part, size in sizes.items() if part in self.parts}

    @cached_property
    def weights(self) -> dict[Part, int]:
        """The summand of a record in its cell of each part, in steps of 2^-28: the squares add up to at most 2^56."""
        whole = sum(SHARES[part] for part in self.parts)
        return {part: math.isqrt(math.floor(SHARES[part] / whole * _GRID**2)) for part in self.sizes}

    @property
    def largest_loss(self) -> float:
        """A log loss counts as at most so many nats: two more than guessing has."""
        return 2 + math.log(self.classes)

    def term(self, probabilities: Floats, label: int) -> Integers:
        """Return what a record of this class adds, in steps of 2^-28, where the model answers (C,): (size,)."""
        likeliest = int(probabilities.argmax())
        right = likeliest == label
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = float(-np.log(probabilities[label]))
        clipped = min(max(loss, 0.0), self.largest_loss) if loss == loss else self.largest_loss
        bins = len(EDGES) - 1
        place = min(max(int(np.searchsorted(EDGES, probabilities[likeliest], side="right")) - 1, 0), bins - 1)
        cells: dict[Part, int] = {
            "accuracy": 0 if right else 1,
            "log-loss": 0,
            "calibration": 2 * place + (0 if right else 1),
            "confusion": label * self.classes + likeliest,
        }
        term, start = np.zeros(sum(self.sizes.values()), dtype=np.int64), 0
        for part, size in self.sizes.items():
            weight = self.weights[part]
            if part == "log-loss":
                weight = math.trunc(weight * min(max(2 * clipped / self.largest_loss - 1, -1.0), 1.0))
            term[start + cells[part]] = weight
            start += size
        return term


class Interval(BaseModel):
    """An estimate, its standard error and the ends of an interval that holds the true value with CONFIDENCE.

    The true value is that of the held-out records; what other records would have given is not in the interval.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    estimate: float
    standard_error: float
    lower: float
    upper: float


class CalibrationBin(BaseModel):
    """One bin of the likeliest class's probability: how many records lie in it, and the share of them that is right."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: float
    upper: float
    records: Interval
    right: Interval


class Evaluation(BaseModel):
    """A released evaluation: may be published. `released` holds all that was drawn; the figures follow from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    evaluation_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random; the ledger's receipt names it."""
    model_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    classes: tuple[str, ...] = Field(min_length=2)
    parts: tuple[Part, ...]
    mu: float = Field(gt=0, allow_inf_nan=False)
    cost: str
    """The cost to the held-out records, which follows from mu."""
    released: tuple[float, ...]
    """The noisy numbers, part after part, as `Law.sizes` has them, in units of a record's term."""
    unit: str | None = Field(default=None, min_length=1, exclude_if=lambda unit: unit is None)
    """The column of privacy units: a unit counts as one record. None where every record does."""
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @model_validator(mode="after")
    def _numbers_follow(self) -> Self:
        if self.cost != str(self.law.cost):
            raise ValueError(f"the cost is {self.cost!r} and should be {str(self.law.cost)!r}")
        if len(self.released) != sum(self.law.sizes.values()):
            raise ValueError("there are not as many numbers as the parts have")
        step, values = self.law.vector.step, np.array(self.released)
        if not np.array_equal(np.rint(values / step) * step, values):
            raise ValueError("the numbers do not lie on the grid of noise that mu gives")
        if self.assumptions != assumptions_of(self.unit):
            raise ValueError("the assumptions are not those that this version's proof makes")
        return self

    @cached_property
    def law(self) -> Law:
        """The mechanism that released the counts."""
        return Law(self.mu, len(self.classes), self.parts)

    def counts(self, part: Part) -> Floats:
        """Return the noisy counts of a part, (size,). Their noise has the deviation `noise(part)`."""
        start = 0
        for name, size in self.law.sizes.items():
            if name == part:
                return np.array(self.released[start : start + size]) * (_GRID / self.law.weights[part])
            start += size
        raise KeyError(part)

    def noise(self, part: Part) -> float:
        """Return the standard deviation of the noise on each count of a part."""
        return self.law.vector.standard_deviation * _GRID / self.law.weights[part]

    @property
    def records(self) -> Interval:
        """Number of held-out records, or units."""
        return _count(self.counts("accuracy").sum(), math.sqrt(2) * self.noise("accuracy"))

    @property
    def accuracy(self) -> Interval:
        """The share of the held-out records whose likeliest class is their own."""
        right, wrong = self.counts("accuracy")
        return _share(right, wrong, self.noise("accuracy"))

    @property
    def log_loss(self) -> Interval | None:
        """The mean of the clipped log losses, in nats."""
        if "log-loss" not in self.parts:
            return None
        half, total = self.law.largest_loss / 2, self.counts("accuracy").sum()
        (summed,) = self.counts("log-loss")
        noise, of_total = self.noise("log-loss"), math.sqrt(2) * self.noise("accuracy")
        ratio = _ratio(summed, total, noise**2, of_total**2, 0.0, (-1.0, 1.0))
        return Interval(
            estimate=half * (1 + ratio.estimate),
            standard_error=half * ratio.standard_error,
            lower=half * (1 + ratio.lower),
            upper=half * (1 + ratio.upper),
        )

    @property
    def calibration(self) -> tuple[CalibrationBin, ...]:
        """The calibration curve, bin by bin."""
        if "calibration" not in self.parts:
            return ()
        noise, pairs = self.noise("calibration"), self.counts("calibration").reshape(-1, 2)
        return tuple(
            CalibrationBin(
                lower=EDGES[place],
                upper=EDGES[place + 1],
                records=_count(right + wrong, math.sqrt(2) * noise),
                right=_share(right, wrong, noise),
            )
            for place, (right, wrong) in enumerate(pairs)
        )

    @property
    def confusion(self) -> tuple[tuple[Interval, ...], ...]:
        """Counts of records of each class (rows) that the model finds likeliest to be of each class (columns)."""
        if "confusion" not in self.parts:
            return ()
        noise, size = self.noise("confusion"), len(self.classes)
        counts = self.counts("confusion").reshape(size, size)
        return tuple(tuple(_count(count, noise) for count in row) for row in counts)

    def figures(self) -> dict[str, object]:
        """Return all figures, ready for JSON."""
        loss = self.log_loss
        return {
            "confidence": CONFIDENCE,
            "records": self.records.model_dump(),
            "accuracy": self.accuracy.model_dump(),
            "log_loss": None if loss is None else loss.model_dump(),
            "calibration": [each.model_dump() for each in self.calibration],
            "confusion": [[cell.model_dump() for cell in row] for row in self.confusion],
        }


def evaluate(
    model: ReleasedModel,
    X: Floats,
    y: Integers,
    whole: int,
    randomness: Randomness,
    parts: Sequence[Part] = tuple(SHARES),
    *,
    units: Units | None = None,
    pay: Callable[[Law, str], None],
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Release how good a model is on held-out records X (n, d), of classes y (n,), for at most `whole` picorho.

    units: whose each record is, where neighbours differ by all records of one unit. pay: charges an account for the law
    under the evaluation's id, durably, or raises; it is called before noise is drawn. progress is told how many records
    are done. Raises TrainingError for too many records, and ValueError for a price or parts that cannot be.
    """
    certificate = model.certificate
    law = Law(mu_for(whole), len(certificate.classes), tuple(part for part in SHARES if part in parts))
    check_count(len(y))
    total = np.zeros(sum(law.sizes.values()), dtype=np.int64)
    shares = np.ones(len(y), dtype=np.int64) if units is None else np.bincount(units.of)[units.of]
    for index in range(len(y)):
        answers, _ = model.answers(X[index : index + 1].copy())
        term = law.term(answers[0], int(y[index]))
        total += np.sign(term) * (np.abs(term) // shares[index])
        progress(index + 1)
    evaluation_id = secrets.token_hex(16)
    pay(law, evaluation_id)
    return Evaluation(
        evaluation_id=evaluation_id,
        model_id=certificate.model_id,
        classes=certificate.classes,
        parts=law.parts,
        mu=law.mu,
        cost=str(law.cost),
        unit=None if units is None else units.column,
        assumptions=assumptions_of(None if units is None else units.column),
        released=tuple(law.vector.release(total / _GRID, randomness).tolist()),
    )


def _z() -> float:
    return float(ndtri((1 + CONFIDENCE) / 2))


def _count(count: float, noise: float) -> Interval:
    return Interval(estimate=count, standard_error=noise, lower=count - _z() * noise, upper=count + _z() * noise)


def _share(right: float, wrong: float, noise: float) -> Interval:
    """Return right / (right + wrong), each with independent noise."""
    return _ratio(right, right + wrong, noise**2, 2 * noise**2, noise**2, (0.0, 1.0))


def _ratio(
    above: float, below: float, variance: float, variance_below: float, covariance: float, ends: tuple[float, float]
) -> Interval:
    """Return what above / below is without Gaussian noise of these variances, as Fieller (1954) has it.

    above - t below has mean 0 at the true ratio t, and the variance v(t) = variance - 2 t covariance + t^2
    variance_below: the t with (above - t below)^2 <= z^2 v(t) hold the true one with CONFIDENCE, exactly. Where these
    are not an interval, the number below being lost in noise, both ends are those of what is possible: `ends`, within
    which the true ratio lies. The standard error is that to first order.
    """
    low, high = ends
    squared = _z() ** 2
    a = below**2 - squared * variance_below
    b = above * below - squared * covariance
    c = above**2 - squared * variance
    if below <= 0 or a <= 0:
        return Interval(estimate=(low + high) / 2, standard_error=(high - low) / 2, lower=low, upper=high)
    estimate = min(max(above / below, low), high)
    error = math.sqrt(max(variance - 2 * estimate * covariance + estimate**2 * variance_below, 0.0)) / below
    root = math.sqrt(max(b * b - a * c, 0.0))
    first, last = (b - root) / a, (b + root) / a
    return Interval(
        estimate=estimate,
        standard_error=min(error, (high - low) / 2),
        lower=min(max(first, low), estimate),
        upper=max(min(last, high), estimate),
    )
