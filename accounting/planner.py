"""What a budget buys: for each proven mechanism, the noise, the price of a row, rows and accuracy.

Works before training, from the sensitivity alone, and after it, with logits on data that the owner declares
public. No private record is touched: an accuracy is a property of the public sample given, and is computed by
quadrature over the noise, not by drawing it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

import numpy as np
import scipy.special
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from accounting import domains, picorho, sampling_error
from accounting.budgets import Accepts, Budget
from accounting.crossings import crossing
from accounting.losses import MOST_RELEASES, BoundedRangeLoss, Cost, GaussianLoss, LaplaceLoss

Floats = NDArray[np.float64]
MechanismName = Literal["gaussian", "laplace", "selected-neuron", "label"]

MECHANISMS: tuple[MechanismName, ...] = ("gaussian", "laplace", "selected-neuron", "label")
MOST_QUERIES = MOST_RELEASES
_USUAL_QUERIES = 1000
_QUANTILES = (np.arange(256) + 0.5) / 256


@dataclass(frozen=True)
class PublicSample:
    """Rows that the owner declares public: logits (n, C), true classes (n,) as indices, L2 sensitivities (n,).

    origin: where they come from, in words for whoever reads the plan. commonest: how many of them are of the commonest
    class, as a share, where they are real rows.
    """

    logits: Floats
    labels: NDArray[np.int64]
    sensitivity: Floats
    origin: str = "rows declared public"
    commonest: float | None = None

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together."""
        n = len(self.labels)
        if self.logits.ndim != 2 or self.logits.shape[0] != n or self.sensitivity.shape != (n,) or n == 0:
            raise ValueError("a public sample needs logits (n, C), labels (n,) and sensitivities (n,), n at least 1")
        if self.logits.shape[1] < 2 or not (self.labels.min() >= 0 and self.labels.max() < self.logits.shape[1]):
            raise ValueError("a public sample needs at least two classes and labels between 0 and C - 1")
        if not (np.isfinite(self.logits).all() and (self.sensitivity > 0).all()):
            raise ValueError("a public sample needs finite logits and sensitivities above 0")

    @property
    def classes(self) -> int:
        """C."""
        return int(self.logits.shape[1])

    @classmethod
    def of_margins(
        cls, margins: Floats, classes: int, sensitivity: float, origin: str = "a given distribution of margins"
    ) -> "PublicSample":
        """Return the sample that a distribution of margins stands for, where there are no public logits.

        Row i has margin i between its true class and each of the others, which are level: the worst case for
        that margin. A negative margin is a wrong answer before any noise.
        """
        domains.require_above_zero("the sensitivity", sensitivity)
        logits = np.zeros((len(margins), classes))
        logits[:, 0] = margins
        return cls(logits, np.zeros(len(margins), np.int64), np.full(len(margins), sensitivity), origin)

    @classmethod
    def halfway(cls, classes: int, margin: float, sensitivity: float) -> "PublicSample":
        """Return rows of which a head without noise is right halfway between guessing and always, (1 + 1/C) / 2.

        One class leads the others by the margin; it is the true one as often as said. A calibrated head's margin on
        such rows is ln(C + 1): it gives the leading class p = (C+1)/(2C), and each of the others (1 - p)/(C - 1).
        """
        domains.require_above_zero("the sensitivity", sensitivity)
        rows = 2 * classes
        logits = np.zeros((rows, classes))
        logits[:, 0] = margin
        labels = (np.arange(rows) > classes).astype(np.int64)
        return cls(logits, labels, np.full(rows, sensitivity), "rows of which a head is halfway sure")


class Expectation(BaseModel):
    """What answers are worth on rows of which a head is halfway between guessing and certain: a guess, and no bound.

    accuracy: of an answer; noiseless: of the head; guessing: 1/C.
    """

    model_config = ConfigDict(frozen=True)

    accuracy: float
    noiseless: float
    guessing: float

    @property
    def no_better_than_the_commonest_class(self) -> bool:
        """Whether the noise takes more than half of what the head knows beyond guessing.

        How common the commonest class is, nobody has said. Its share lies between guessing and what the head reaches,
        or the head is of no use: it is taken to lie in the middle.
        """
        return self.accuracy < (self.noiseless + self.guessing) / 2

    def words(self, answers: str) -> str:
        """Say it. answers: whose, as "answers of 'gaussian'"."""
        said = (
            f"To expect, without rows: where a head without noise is right with probability {self.noiseless:.2f}, "
            f"{answers} are right with {self.accuracy:.2f}, and guesses with {self.guessing:.2f}."
        )
        return f"{said} {NO_BETTER}." if self.no_better_than_the_commonest_class else said


NO_BETTER = "Such answers are no better than always naming the commonest class"


def expectation(mechanism: MechanismName, rho: float, rows: PublicSample) -> Expectation:
    """Return what answers at rho each are worth on rows as `PublicSample.halfway` makes them."""
    accuracy = expected_accuracy(mechanism, rho, rows)
    return Expectation(accuracy=accuracy, noiseless=_noiseless(rows), guessing=1 / rows.classes)


class PlannedBudget(BaseModel):
    """The budget as one kind of account holds it."""

    model_config = ConfigDict(frozen=True)

    accepts: Accepts
    rho: float
    epsilon: Annotated[float, Field(description="at the plan's delta, rounded up")]


class Option(BaseModel):
    """One mechanism at one price."""

    model_config = ConfigDict(frozen=True)

    mechanism: MechanismName
    queries: Annotated[int, Field(ge=0, description="rows that the budget buys at this price")]
    losses: Annotated[str, Field(description="the price of one row, as kind:parameter")]
    rho: Annotated[float, Field(description="the price of one row as rho")]
    price: Annotated[str, Field(description="what to serve it at, as --price")]
    noise_multiplier: Annotated[
        float | None, Field(description="standard deviation of the noise on a logit over the row's L2 sensitivity")
    ]
    noise: Annotated[float | None, Field(description="that standard deviation, where the sensitivity is known")]
    accuracy: Annotated[float | None, Field(description="expected on the public sample; null without one")]


class Plan(BaseModel):
    """What was asked for, and every option that the budget allows, the best first."""

    model_config = ConfigDict(frozen=True)

    delta: float
    budgets: tuple[PlannedBudget, ...]
    classes: int
    sensitivity: Annotated[float | None, Field(description="median L2 sensitivity of a row's logits")]
    asked_queries: int | None
    asked_accuracy: float | None
    accuracy_from: Annotated[str | None, Field(description="what every accuracy here was computed on")]
    noiseless_accuracy: float | None
    commonest_class: Annotated[
        float | None, Field(description="the accuracy of always naming the sample's commonest class, of real rows")
    ] = None
    expectation: Annotated[
        Expectation | None, Field(description="of the first option, where no rows were given: a guess, and no bound")
    ] = None
    options: tuple[Option, ...]


def cost_of(mechanism: MechanismName, rho: float) -> Cost:
    """Return the losses of one row of `mechanism` at a price of rho: the whole of it, or half on each of two."""
    domains.require_above_zero("rho", rho)
    shrink = 1 - 2.0**-50
    match mechanism:
        case "gaussian":
            return Cost((GaussianLoss(math.sqrt(2 * rho) * shrink),))
        case "laplace":
            return Cost((LaplaceLoss(math.sqrt(2 * rho) * shrink),))
        case "label":
            return Cost((BoundedRangeLoss(math.sqrt(8 * rho) * shrink),))
        case "selected-neuron":
            return Cost((BoundedRangeLoss(math.sqrt(4 * rho) * shrink), GaussianLoss(math.sqrt(rho) * shrink)))


def account_of(mechanism: MechanismName) -> Accepts:
    """Return the kind of account that pays best for a mechanism."""
    return "gaussian" if mechanism == "gaussian" else "any"


def plan(
    budgets: Mapping[Accepts, Budget],
    *,
    classes: int,
    queries: int | None = None,
    accuracy: float | None = None,
    sensitivity: float | None = None,
    sample: PublicSample | None = None,
    halfway: PublicSample | None = None,
) -> Plan:
    """Return what a budget buys: at a number of queries, at an accuracy, or for a thousand queries.

    budgets: the same budget as each kind of account holds it; mechanisms whose account is missing are left out.
    `sensitivity` is the L2 sensitivity of a typical row where there is no public sample. `halfway`: rows as
    `PublicSample.halfway` makes them, to say what answers are worth. An option that cannot reach the accuracy, or whose
    price no row may have, is left out. Raises ValueError for nonsense, and for an
    accuracy asked for without a sample to estimate it on.
    """
    _check(classes, queries, accuracy, sample)
    (delta,) = {budget.delta for budget in budgets.values()}
    if sample is not None:
        sensitivity = float(np.median(sample.sensitivity))
    options: list[Option] = []
    for mechanism in MECHANISMS:
        budget = budgets.get(account_of(mechanism))
        if budget is None:
            continue
        if accuracy is not None and sample is not None:
            needed = _price_for_accuracy(mechanism, accuracy, sample)
            count = budget.picorho // cost_of(mechanism, needed).picorho if needed is not None else 0
        else:
            count = queries or _USUAL_QUERIES
            needed = _price_for_queries(count, budget)
        if needed is not None:
            options.append(_option(mechanism, needed, count, classes, sensitivity, sample))
    options.sort(key=lambda option: -option.queries if accuracy is not None else -(option.accuracy or 0.0))
    return Plan(
        delta=delta,
        budgets=tuple(
            PlannedBudget(accepts=kind, rho=picorho.to_rho(held.picorho), epsilon=held.epsilon_at(held.picorho))
            for kind, held in budgets.items()
        ),
        classes=classes,
        sensitivity=sensitivity,
        asked_queries=queries if accuracy is not None else queries or _USUAL_QUERIES,
        asked_accuracy=accuracy,
        accuracy_from=sample.origin if sample is not None else None,
        noiseless_accuracy=_noiseless(sample) if sample is not None else None,
        commonest_class=sample.commonest if sample is not None else None,
        expectation=expectation(options[0].mechanism, options[0].rho, halfway) if options and halfway else None,
        options=tuple(options),
    )


def accuracy_by_queries(
    mechanism: MechanismName, budget: Budget, sample: PublicSample, queries: NDArray[np.int64]
) -> Floats:
    """Return the expected accuracy (k,) where the ledger's filter spreads the budget over `queries` (k,) rows.

    Not a number where the price of a row would lie outside what `accounting.sampling_error` allows.
    """
    accuracies = np.full(len(queries), np.nan)
    for i, count in enumerate(queries):
        rho = budget.picorho // int(count) / picorho.PICORHO_PER_RHO
        if sampling_error.LEAST_ROW_RHO <= rho <= sampling_error.LARGEST_ROW_RHO:
            accuracies[i] = expected_accuracy(mechanism, rho, sample)
    return accuracies


def expected_accuracy(mechanism: MechanismName, rho: float, sample: PublicSample) -> float:
    """Return how often the answer's likeliest class is the true one, over the noise, on the sample, at rho per row.

    Noise on every logit: the true class wins if its logit stays above the others, P = E_t prod_j F(gap_j/s + t), t
    from the noise law, by 256 midpoints of its quantiles. Exponential mechanism: its softmax. Selected neuron: the
    class drawn wins while its noisy log-odds exceed -ln(C-1); below it the others, level, share the answer.
    """
    domains.require_above_zero("rho", rho)
    logits, labels, sensitivity = sample.logits, sample.labels, sample.sensitivity[:, None]
    if mechanism in ("gaussian", "laplace"):
        cumulative, quantiles, scale = _noise_law(mechanism, rho, sample)
        gaps = (np.take_along_axis(logits, labels[:, None], 1) - logits) / scale
        np.put_along_axis(gaps, labels[:, None], np.inf, 1)
        winning = [np.mean(np.exp(cumulative(row[:, None] + quantiles).sum(axis=0))) for row in gaps]
        return float(np.mean(winning))
    selection_epsilon = math.sqrt((8 if mechanism == "label" else 4) * rho)
    chosen = scipy.special.softmax(selection_epsilon * logits / (2 * sensitivity), axis=1)
    if mechanism == "label":
        return float(np.mean(np.take_along_axis(chosen, labels[:, None], 1)))
    others = np.stack([scipy.special.logsumexp(np.delete(logits, v, axis=1), axis=1) for v in range(sample.classes)], 1)
    threshold = -math.log(sample.classes - 1)
    stays = scipy.special.ndtr((logits - others - threshold) / (math.sqrt(2 / rho) * sensitivity))
    right = np.take_along_axis(chosen * stays, labels[:, None], 1)[:, 0]
    lost = chosen * (1 - stays)
    shared = (lost.sum(axis=1) - np.take_along_axis(lost, labels[:, None], 1)[:, 0]) / (sample.classes - 1)
    return float(np.mean(right + shared))


def _noise_law(
    mechanism: MechanismName, rho: float, sample: PublicSample
) -> tuple[Callable[[Floats], Floats], Floats, Floats]:
    """Return the log of the distribution function of the unit noise, its quantiles, and each row's scale (n, 1)."""
    scale = sample.sensitivity[:, None] / math.sqrt(2 * rho)
    if mechanism == "gaussian":
        return scipy.special.log_ndtr, scipy.special.ndtri(_QUANTILES), scale

    def log_laplace(x: Floats) -> Floats:
        below = np.minimum(x, 0) - math.log(2)
        return np.where(x < 0, below, np.log1p(-np.exp(-np.abs(x)) / 2))

    quantiles = np.sign(_QUANTILES - 0.5) * -np.log(1 - np.abs(2 * _QUANTILES - 1))
    return log_laplace, quantiles, scale * math.sqrt(sample.classes)


def _option(
    mechanism: MechanismName,
    rho: float,
    queries: int,
    classes: int,
    sensitivity: float | None,
    sample: PublicSample | None,
) -> Option:
    multiplier = _noise_multiplier(mechanism, rho, classes)
    cost = cost_of(mechanism, rho)
    return Option(
        mechanism=mechanism,
        queries=queries,
        losses=str(cost),
        rho=rho,
        price=f"rho:{Decimal(cost.picorho).scaleb(-12):f}",
        noise_multiplier=multiplier,
        noise=multiplier * sensitivity if multiplier is not None and sensitivity is not None else None,
        accuracy=expected_accuracy(mechanism, rho, sample) if sample is not None else None,
    )


def _noise_multiplier(mechanism: MechanismName, rho: float, classes: int) -> float | None:
    match mechanism:
        case "gaussian":
            return 1 / math.sqrt(2 * rho)
        case "laplace":
            return math.sqrt(2 * classes) / math.sqrt(2 * rho)
        case "selected-neuron":
            return math.sqrt(2 / rho)
        case "label":
            return None


def _price_for_queries(queries: int, budget: Budget) -> float | None:
    """Return the largest rho per row at which `queries` rows stay within the budget, None if not allowed."""
    rho = budget.picorho // queries / picorho.PICORHO_PER_RHO
    return min(rho, sampling_error.LARGEST_ROW_RHO) if rho >= sampling_error.LEAST_ROW_RHO else None


def _price_for_accuracy(mechanism: MechanismName, accuracy: float, sample: PublicSample) -> float | None:
    """Return the smallest rho per row with that expected accuracy, None if none that a row may cost has it.

    Noise can help where the model errs, so accuracy need not grow with the price: the first of 50 prices that
    reaches it is refined towards the one before.
    """

    def missing(log_rho: float) -> float:
        return accuracy - expected_accuracy(mechanism, math.exp(log_rho), sample)

    before = None
    for log_rho in np.linspace(math.log(sampling_error.LEAST_ROW_RHO), math.log(sampling_error.LARGEST_ROW_RHO), 50):
        if missing(float(log_rho)) <= 0:
            last = float(log_rho)
            return math.exp(last if before is None else crossing(missing, last, before, tolerance=1e-4).met)
        before = float(log_rho)
    return None


def _noiseless(sample: PublicSample) -> float:
    return float(np.mean(np.argmax(sample.logits, axis=1) == sample.labels))


def _check(classes: int, queries: int | None, accuracy: float | None, sample: PublicSample | None) -> None:
    if not 2 <= classes <= sampling_error.DRAWS_PER_ROW:
        raise ValueError(
            f"the number of classes must lie between 2 and {sampling_error.DRAWS_PER_ROW}, not be {classes}"
        )
    if queries is not None and not 1 <= queries <= MOST_QUERIES:
        raise ValueError(f"the number of queries must lie between 1 and {MOST_QUERIES:g}, not be {queries}")
    if sample is not None and sample.classes != classes:
        raise ValueError(f"the public sample has {sample.classes} classes, and the plan {classes}")
    if accuracy is not None:
        domains.require_between("the accuracy", accuracy, 0, 1)
        if queries is not None:
            raise ValueError("ask for a number of queries or for an accuracy, not for both")
        if sample is None:
            raise ValueError(
                "an accuracy can be planned for only with public data or a margin distribution: add --public FILE, or "
                "--margins, or ask for --queries N"
            )
