"""Private evaluation: how good a pay-once model is on held-out records, as one release that may be published.

Each held-out record is counted in one cell of each table that is reported:
- accuracy: right or wrong;
- calibration: between which of `EDGES` the likeliest class's probability lies, and right or wrong;
- confusion: its class, and the class that the model finds likeliest;
- roc: how likely the second of two classes is to the model, by its class; of more, where that is asked for, how likely
  each is (`dpserve.training.roc`);
- coverage: the least coverage whose prediction set holds its class, by class where the sets are or classes are few
  (`dpserve.training.evaluated_sets`);
and its log loss, clipped to `largest_loss`, and the sizes of its prediction sets are added to sums. All are released
together, with one Gaussian noise (`dpserve.mechanisms.gaussian_vector`). What follows from them, intervals among it, is
post-processing.

The price. Let neighbouring sets of held-out records differ by one record, added or removed. A record's own cells and
loss are a function of that record, of the model and of public numbers, computed in arrays of one row, so that all
other records' terms are the same, bit for bit. The vectors before noise therefore differ by exactly that record's term.
Its parts are, in whole steps of 2^-28: `weights[name]` in one cell of each table, and at most `weights["log-loss"]` for
the loss, measured from the middle of [0, largest_loss] in units of half that interval, rounded towards zero, and so the
sizes of sets; of `roc` columns that are together at most `weights["roc"]` long (`dpserve.training.roc.term`). The
squares of the weights add up to at most 2^56 (`Law.weights`): the L2 sensitivity is 1. Sums of at most MOST_RECORDS
(`dpserve.training.inputs.sums`) terms stay below 2^53 steps, so that they are exact as doubles. Hence `Law.cost`:
mu-GDP.

Privacy units. Where neighbours differ by all n records of one unit, each of its terms is divided by n and rounded
towards zero, in integers: no part becomes longer than an n-th of a term that is at most 1 long, and n of these are at
most 1 long together. No other unit's terms change, for n is the unit's own. A unit counts once in every figure, its
records in equal shares.

The records that the model was trained on. The model is a release that was paid for, and an evaluation depends on these
records through it alone. So where no held-out record was trained on, the evaluation costs the held-out records' own
lineage mu, and the training's nothing. Where some were, or may have been, a record may change both: first the model,
and given the model the evaluation. Adaptive composition adds the squares of the two mus (Dong, Roth and Su 2022,
Corollary 3.3), which is what one account does that pays for both: then charge the lineage of the training.

Blocks. Let held-out records lie in blocks of a lineage, a record in one, wherever it lies among those that were trained
on, too, and let neighbours differ by one record, or all records of one unit, of block b. The evaluation takes the
records of its declared blocks alone. Where b is none of them, the evaluation is a function of the model, of records
that the neighbours share and of fresh noise: given the model, which b paid for if it was trained on b, its law is the
same in both, and b loses nothing more. Where b is one of them, it loses mu given the model, which b's account pays in
the call that charges the model to its own blocks, or after it. So the blocks of the held-out rows pay for the
evaluation, and no others: a release among those of `dpserve.training.inputs.blocks`, whose filter for each block bounds
them all. Which blocks these are is declared, and says nothing of the rows.

Not for models whose answers are paid for one by one. Their exact weights are no release. A training record that moves
them by Delta_W may change the likeliest class of every held-out record, if all lie near a boundary: a count can move by
all of them, and no noise that leaves anything of a count hides that. Train a pay-once model of the same records, or
count the noisy answers that were paid for.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import Declared, DisclosedModel, Released
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training import evaluated_sets, roc
from dpserve.training.bundles.certificate import FLOATING_POINT, UNIFORM_BITS
from dpserve.training.evaluated_sets import CoverageAt
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.sums import check_count
from dpserve.training.intervals import CONFIDENCE, Interval, count_interval, ratio_interval, share_interval
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.pay_once.prediction_sets import By
from dpserve.training.roc import Areas

EvaluationPart = Literal["accuracy", "log-loss", "calibration", "confusion", "roc", "coverage", "set-size"]

SHARES: dict[EvaluationPart, Fraction] = {
    "accuracy": Fraction(7, 10),
    "log-loss": Fraction(1, 10),
    "calibration": Fraction(1, 10),
    "confusion": Fraction(1, 10),
    "roc": Fraction(1, 10),
    "coverage": Fraction(1, 20),
    "set-size": Fraction(1, 20),
}
"""Shares of the price for what is reported, in proportion."""

USUAL: tuple[EvaluationPart, ...] = ("accuracy", "log-loss", "calibration", "confusion")
"""The parts that every classifier has."""

_LACKING: dict[EvaluationPart, str] = {
    "coverage": "the model has no prediction sets",
    "set-size": "the model has no prediction sets",
}

EDGES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
"""The calibration's bins of the likeliest class's probability: from one number on, to below the next."""

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


def usual_parts(classes: int, sets: By | None) -> tuple[EvaluationPart, ...]:
    """Return the parts that are reported where none are named: of more than two classes no curves.

    A record would count in one of each class, and each has more noise. sets: how the model's prediction sets count;
    None where it has none.
    """
    of_sets: tuple[EvaluationPart, ...] = () if sets is None else ("coverage", "set-size")
    return (*USUAL, *(("roc",) if classes == 2 else ()), *of_sets)


IN_BLOCKS = (
    "A held-out record, or a unit, is in one block, which that record alone decides, or in several that are charged as "
    "one, and the evaluation took records of the blocks that paid for it and of no others. One that was trained on is "
    "in the same block there, or in one of those."
)
"""Assumption of an evaluation that blocks paid for."""


def assumptions_of(unit: str | None, *, in_blocks: bool = False) -> tuple[str, ...]:
    """Return what the price rests on.

    unit: the column of privacy units, None for one record. in_blocks: whether blocks paid, and no whole lineage.
    """
    if in_blocks:
        return (*assumptions_of(unit), IN_BLOCKS)
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

    sets: how the model's prediction sets count; None where it has none. Raises ValueError for a price or a number of
    classes that cannot be, for parts without accuracy, and for those that such a model does not have.
    """

    mu: float
    classes: int
    parts: tuple[EvaluationPart, ...] = USUAL
    sets: By | None = None

    def __post_init__(self) -> None:
        """Refuse what no release can be."""
        if not set(self.parts) <= set(SHARES) or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"an evaluation reports some of {', '.join(SHARES)}, each once")
        if "accuracy" not in self.parts:
            raise ValueError("an evaluation always reports accuracy: the other figures take its number of records")
        if self.classes < 2:
            raise ValueError(f"there must be at least 2 classes, not {self.classes}")
        if lacking := set(self.parts) - {"roc", *usual_parts(self.classes, self.sets)}:
            raise ValueError(f"{' and '.join(sorted(lacking))} cannot be reported: " + _LACKING[min(lacking)])
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
    def sizes(self) -> dict[EvaluationPart, int]:
        """Sizes of the parts, in the order in which they are released."""
        bins = len(EDGES) - 1
        sizes: dict[EvaluationPart, int] = {
            "accuracy": 2,
            "log-loss": 1,
            "calibration": 2 * bins,
            "confusion": self.classes**2,
            "roc": roc.curves_of(self.classes) * roc.SIZE,
            "coverage": evaluated_sets.CELLS * evaluated_sets.groups_of(self.classes, self.sets),
            "set-size": len(evaluated_sets.LEVELS),
        }
        return {part: size for part, size in sizes.items() if part in self.parts}

    @cached_property
    def weights(self) -> dict[EvaluationPart, int]:
        """The summand of a record in its cell of each part, in steps of 2^-28: the squares add up to at most 2^56."""
        whole = sum(SHARES[part] for part in self.parts)
        return {part: math.isqrt(math.floor(SHARES[part] / whole * _GRID**2)) for part in self.sizes}

    @property
    def largest_loss(self) -> float:
        """A log loss counts as at most so many nats: two more than guessing has."""
        return 2 + math.log(self.classes)

    def term(self, probabilities: Floats, label: int, least: Floats | None = None) -> Integers:
        """Return what a record of this class adds, in steps of 2^-28, where the model answers (C,): (size,).

        least: the least probability of each class in a set, for each of `dpserve.training.evaluated_sets.LEVELS`.
        """
        likeliest = int(probabilities.argmax())
        right = likeliest == label
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = float(-np.log(probabilities[label]))
        clipped = min(max(loss, 0.0), self.largest_loss) if loss == loss else self.largest_loss
        bins = len(EDGES) - 1
        place = min(max(int(np.searchsorted(EDGES, probabilities[likeliest], side="right")) - 1, 0), bins - 1)
        cells: dict[EvaluationPart, int] = {
            "accuracy": 0 if right else 1,
            "calibration": 2 * place + (0 if right else 1),
            "confusion": label * self.classes + likeliest,
        }
        if "coverage" in self.parts and least is not None:
            first = evaluated_sets.first_covered(probabilities, label, least)
            apart = evaluated_sets.groups_of(self.classes, self.sets) > 1
            cells["coverage"] = first + (label * evaluated_sets.CELLS if apart else 0)
        term, start = np.zeros(sum(self.sizes.values()), dtype=np.int64), 0
        for part, size in self.sizes.items():
            weight, end = self.weights[part], start + size
            if part == "roc":
                term[start:end] = roc.term(probabilities, label, weight)
            elif part == "set-size" and least is not None:
                term[start:end] = evaluated_sets.size_term(probabilities, least, weight)
            elif part == "log-loss":
                term[start] = math.trunc(weight * min(max(2 * clipped / self.largest_loss - 1, -1.0), 1.0))
            elif part in cells:
                term[start + cells[part]] = weight
            start = end
        return term


class CalibrationBin(DisclosedModel):
    """One bin of the likeliest class's probability: how many records lie in it, and the share of them that is right."""

    model_config = ConfigDict(extra="forbid")

    lower: Annotated[float, Released("evaluation")]
    upper: Annotated[float, Released("evaluation")]
    records: Annotated[Interval, Released("evaluation")]
    right: Annotated[Interval, Released("evaluation")]


class Evaluation(DisclosedModel):
    """A released evaluation: may be published. `released` holds all that was drawn; the figures follow from it."""

    model_config = ConfigDict(extra="forbid")

    format_version: Declared[Literal[1]] = 1
    evaluation_id: Declared[str] = Field(pattern=r"^[0-9a-f]{32}$")
    """Random; the ledger's receipt names it."""
    model_id: Declared[str] = Field(pattern=r"^[0-9a-f]{32}$")
    classes: Declared[tuple[str, ...]] = Field(min_length=2)
    parts: Declared[tuple[EvaluationPart, ...]]
    mu: Declared[float] = Field(gt=0, allow_inf_nan=False)
    cost: Declared[str]
    """The cost to the held-out records, which follows from mu."""
    released: Annotated[tuple[float, ...], Released("evaluation")]
    """The noisy numbers, part after part, as `Law.sizes` has them, in units of a record's term."""
    sets: Declared[By | None] = Field(default=None, exclude_if=lambda sets: sets is None)
    """Counting of the model's prediction sets, where it has any."""
    unit: Declared[str | None] = Field(default=None, min_length=1, exclude_if=lambda unit: unit is None)
    """The column of privacy units: a unit counts as one record. None where every record does."""
    in_blocks: Declared[bool] = Field(default=False, exclude_if=lambda in_blocks: not in_blocks)
    """Whether the blocks paid that the held-out records lie in."""
    assumptions: Declared[tuple[str, ...]] = ASSUMPTIONS

    @model_validator(mode="after")
    def _numbers_follow(self) -> Self:
        if self.cost != str(self.law.cost):
            raise ValueError(f"the cost is {self.cost!r} and should be {str(self.law.cost)!r}")
        if len(self.released) != sum(self.law.sizes.values()):
            raise ValueError("there are not as many numbers as the parts have")
        step, values = self.law.vector.step, np.array(self.released)
        if not np.array_equal(np.rint(values / step) * step, values):
            raise ValueError("the numbers do not lie on the grid of noise that mu gives")
        if self.assumptions != assumptions_of(self.unit, in_blocks=self.in_blocks):
            raise ValueError("the assumptions are not those that this version's proof makes")
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield figures in place of the noisy numbers that they follow from."""
        yield from ((name, getattr(self, name)) for name in ("parts", "records", "accuracy", "log_loss"))

    @cached_property
    def law(self) -> Law:
        """The mechanism that released the counts."""
        return Law(self.mu, len(self.classes), self.parts, self.sets)

    def counts(self, part: EvaluationPart) -> Floats:
        """Return the noisy counts of a part, (size,). Their noise has the deviation `noise(part)`."""
        start = 0
        for name, size in self.law.sizes.items():
            if name == part:
                return np.array(self.released[start : start + size]) * (_GRID / self.law.weights[part])
            start += size
        raise KeyError(part)

    def noise(self, part: EvaluationPart) -> float:
        """Return the standard deviation of the noise on each count of a part."""
        return self.law.vector.standard_deviation * _GRID / self.law.weights[part]

    @property
    def records(self) -> Interval:
        """Number of held-out records, or units."""
        return count_interval(self.counts("accuracy").sum(), math.sqrt(2) * self.noise("accuracy"))

    @property
    def accuracy(self) -> Interval:
        """The share of the held-out records whose likeliest class is their own."""
        right, wrong = self.counts("accuracy")
        return share_interval(right, wrong, self.noise("accuracy"))

    @property
    def log_loss(self) -> Interval | None:
        """The mean of the clipped log losses, in nats."""
        if "log-loss" not in self.parts:
            return None
        half, total = self.law.largest_loss / 2, self.counts("accuracy").sum()
        (summed,) = self.counts("log-loss")
        noise, of_total = self.noise("log-loss"), math.sqrt(2) * self.noise("accuracy")
        ratio = ratio_interval(summed, total, noise**2, of_total**2, 0.0, (-1.0, 1.0))
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
                records=count_interval(right + wrong, math.sqrt(2) * noise),
                right=share_interval(right, wrong, noise),
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
        return tuple(tuple(count_interval(count, noise) for count in row) for row in counts)

    @cached_property
    def roc(self) -> roc.Roc | None:
        """The ROC curve and the area below it, of two classes."""
        if "roc" not in self.parts or len(self.classes) > 2:
            return None
        return roc.curve(self.counts("roc"), self.noise("roc"))

    @cached_property
    def areas(self) -> Areas | None:
        """The areas below the ROC curves of each class against the rest, of more than two classes."""
        if "roc" not in self.parts or len(self.classes) == 2:
            return None
        weight = self.law.weights["roc"]
        longer = weight / roc.weight_of_curve(weight, len(self.classes))
        return roc.areas(self.counts("roc") * longer, self.noise("roc") * longer)

    @property
    def coverage(self) -> tuple[CoverageAt, ...]:
        """The coverage that prediction sets reached, and their mean size, for usual coverages."""
        if "coverage" not in self.parts:
            return ()
        sized = "set-size" in self.parts
        return evaluated_sets.coverages(
            self.counts("coverage").reshape(-1, evaluated_sets.CELLS),
            self.noise("coverage"),
            self.counts("set-size") if sized else None,
            self.noise("set-size") if sized else 0.0,
            float(self.counts("accuracy").sum()),
            math.sqrt(2) * self.noise("accuracy"),
            len(self.classes),
        )

    def figures(self) -> dict[str, object]:
        """Return all figures, ready for JSON."""
        loss, curve = self.log_loss, self.roc
        beside: dict[str, object] = {} if curve is None else {"roc": curve.model_dump(mode="json")}
        if self.areas is not None:
            beside["areas"] = self.areas.model_dump(mode="json")
        if at := self.coverage:
            beside["coverage"] = [coverage.model_dump(mode="json") for coverage in at]
        return {
            "confidence": CONFIDENCE,
            "records": self.records.model_dump(),
            "accuracy": self.accuracy.model_dump(),
            "log_loss": None if loss is None else loss.model_dump(),
            "calibration": [bin_.model_dump() for bin_ in self.calibration],
            "confusion": [[cell.model_dump() for cell in row] for row in self.confusion],
            **beside,
        }


def evaluate(
    model: ReleasedModel,
    X: Floats,
    y: Integers,
    whole: int,
    randomness: Randomness,
    parts: Sequence[EvaluationPart] | None = None,
    *,
    units: Units | None = None,
    in_blocks: bool = False,
    pay: Callable[[Law, str], None],
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Release how good a model is on held-out records X (n, d), of classes y (n,), for at most `whole` picorho.

    parts: what is reported, by default all that such a model has. units: whose each record is, where neighbours differ
    by all records of one unit. in_blocks: whether blocks pay. pay: charges an account for the law
    under the evaluation's id, durably, or raises; it is called before noise is drawn. progress is told how many records
    are done. Raises TrainingError for too many records, and ValueError for a price or parts that cannot be.
    """
    certificate = model.certificate
    sets, classes = certificate.prediction_sets, len(certificate.classes)
    by = None if sets is None else sets.by
    asked = usual_parts(classes, by) if parts is None else parts
    law = Law(mu_for(whole), classes, tuple(part for part in SHARES if part in asked), by)
    least = None if sets is None else np.array([sets.least(level, classes) for level in evaluated_sets.LEVELS])
    check_count(len(y))
    total = np.zeros(sum(law.sizes.values()), dtype=np.int64)
    shares = np.ones(len(y), dtype=np.int64) if units is None else np.bincount(units.of)[units.of]
    for index in range(len(y)):
        answers = model.values(X[index : index + 1].copy())
        term = law.term(answers[0], int(y[index]), least)
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
        sets=law.sets,
        unit=None if units is None else units.column,
        in_blocks=in_blocks,
        assumptions=assumptions_of(None if units is None else units.column, in_blocks=in_blocks),
        released=tuple(law.vector.release(total / _GRID, randomness).tolist()),
    )
