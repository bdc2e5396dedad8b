"""Noise on each answer for a budget: for each proven mechanism, the price of a row, rows and accuracy.

Works from the sensitivity alone, and with logits: of margins, or of a trained head, which are private whatever rows
they are about (`PublicSample.exact`). An accuracy is a property of the sample given, and is computed by quadrature over
the noise, not by drawing it. What a mechanism costs, and its noise, are asked of the mechanism itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from accounting import domains, picorho, sampling_error
from accounting.arrays import Floats
from accounting.budgets import Accepts, Budget
from accounting.crossings import crossing
from accounting.currency import EPSILON, RHO, Currency
from accounting.losses import LARGEST_PURE_EPSILON, MOST_RELEASES, Cost, GaussianLoss
from accounting.messages import OptionName
from mechanisms import selection
from mechanisms.gaussian import Gaussian
from mechanisms.label import Label
from mechanisms.laplace import Laplace
from mechanisms.mechanism import Mechanism, Price, at_price
from mechanisms.selected_neuron import SelectedNeuron

MECHANISMS = (Gaussian.name, Laplace.name, SelectedNeuron.name, Label.name)
"""The proven ones."""

_USUAL_QUERIES = 1000
_QUANTILES = (np.arange(256) + 0.5) / 256
_RANGES = {
    RHO.name: (picorho.charge(sampling_error.LEAST_ROW_RHO), picorho.budget(sampling_error.LARGEST_ROW_RHO)),
    EPSILON.name: (picorho.charge(1e-4), picorho.budget(LARGEST_PURE_EPSILON)),
}
"""The prices of a row that are tried, in 1e-12 of each currency; for pure epsilon, those worth trying."""


@dataclass(frozen=True)
class PublicSample:
    """Rows that the owner declares public: logits (n, C), true classes (n,) as indices, L2 sensitivities (n,).

    origin: where they come from, in words for whoever reads the plan. commonest: how many of them are of the commonest
    class, as a share, where they are real rows. exact: whether the logits are those of private weights, without noise:
    then everything planned by them is outside the guarantee.
    """

    logits: Floats
    labels: NDArray[np.int64]
    sensitivity: Floats
    origin: str = "rows declared public"
    commonest: float | None = None
    exact: bool = False

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


class Expectation(BaseModel, frozen=True):
    """The accuracy of answers on rows of which a head is halfway between guessing and certain: a guess, and no bound.

    accuracy: of an answer; noiseless: of the head; guessing: 1/C.
    """

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
        words = (
            f"To expect, without rows: where a head without noise is right with probability {self.noiseless:.2f}, "
            f"{answers} are right with {self.accuracy:.2f}, and guesses with {self.guessing:.2f}."
        )
        return f"{words} Such answers are {NO_BETTER}." if self.no_better_than_the_commonest_class else words


NO_BETTER = "no better than always naming the commonest class"


class PlannedBudget(BaseModel, frozen=True):
    """The budget as one kind of account holds it."""

    accepts: Accepts
    delta: Annotated[float, Field(description="of an account that counts pure epsilon the sampler's alone")]
    rho: Annotated[float | None, Field(description="null where the account counts pure epsilon")]
    epsilon: Annotated[float, Field(description="at this delta, rounded up")]

    @classmethod
    def from_budget(cls, budget: Budget) -> "PlannedBudget":
        """Return it for a budget."""
        rho = picorho.to_rho(budget.limit) if budget.currency is RHO else None
        return cls(accepts=budget.accepts, delta=budget.delta, rho=rho, epsilon=budget.epsilon_at(budget.limit))


class PricedMechanism(BaseModel, frozen=True):
    """One mechanism at one price."""

    mechanism: str
    accepts: Annotated[Accepts, Field(description="what the account must accept that pays so")]
    queries: Annotated[int, Field(ge=0, description="rows that the budget buys at this price")]
    losses: Annotated[str, Field(description="the price of one row, as kind:parameter")]
    rho: Annotated[float, Field(description="the price of one row as rho")]
    epsilon: Annotated[float | None, Field(description="the price of one row as pure epsilon; null where it has none")]
    price: Annotated[str, Field(description="what to serve it at, as a price is written")]
    noise_multiplier: Annotated[
        float | None, Field(description="standard deviation of the noise on a logit over the row's L2 sensitivity")
    ]
    noise: Annotated[
        float | None,
        Field(description="that standard deviation, as it is drawn on the grid, where the sensitivity is known"),
    ]
    accuracy: Annotated[float | None, Field(description="expected on the public sample; null without one")]


class Plan(BaseModel, frozen=True):
    """A planner's request, and every option that the budget allows, the best first."""

    delta: float
    budgets: tuple[PlannedBudget, ...]
    classes: int
    sensitivity: Annotated[float | None, Field(description="median L2 sensitivity of a row's logits")]
    asked_queries: int | None
    asked_accuracy: float | None
    accuracy_from: Annotated[str | None, Field(description="what every accuracy here was computed on")]
    noiseless_accuracy: float | None
    outside_the_guarantee: Annotated[
        bool,
        Field(
            description="whether accuracies and the prices chosen by them are exact figures of private weights, which "
            "no budget covers"
        ),
    ] = False
    commonest_class: Annotated[
        float | None, Field(description="the accuracy of always naming the sample's commonest class, of real rows")
    ] = None
    expectation: Annotated[
        Expectation | None, Field(description="of the first option, where no rows were given: a guess, and no bound")
    ] = None
    options: tuple[PricedMechanism, ...]
    unavailable: Annotated[dict[str, str], Field(description="why, of mechanisms that cannot be had at their price")]
    price_of_alpha: Annotated[
        float | None,
        Field(description="of the convexified objective: how many times the noise of the plain sum of losses"),
    ] = None


def accepted_by(mechanism: str, budgets: Mapping[Accepts, Budget]) -> tuple[Budget, ...]:
    """Return the budget as the accounts hold it that pay best for a mechanism: one in rho, and one in pure epsilon."""
    gaussian = at_price(mechanism, "rho:1", 2).cost.is_gaussian
    kinds: tuple[Accepts, ...] = ("gaussian",) if gaussian else ("any", "pure")
    return tuple(budgets[kind] for kind in kinds if kind in budgets)


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

    budgets: the same budget as each kind of account holds it; mechanisms whose account is missing are left out. A
    mechanism with a pure price is an option by each account that pays for it. Pure epsilon at the epsilon of a budget
    with a delta promises more than that budget.
    `sensitivity` is the L2 sensitivity of a typical row where there is no public sample. `halfway`: rows as
    `PublicSample.halfway` makes them, to say what answers are worth. An option that cannot reach the accuracy is left
    out, and one whose price its mechanism refuses is `unavailable`. Raises ValueError for nonsense, and for an
    accuracy asked for without a sample to estimate it on.
    """
    _check(classes, queries, accuracy, sample)
    delta = max(budget.delta for budget in budgets.values())
    if sample is not None:
        sensitivity = float(np.median(sample.sensitivity))
    options: list[PricedMechanism] = []
    unavailable: dict[str, str] = {}
    for name in MECHANISMS:
        for budget in accepted_by(name, budgets):
            count, price = queries or _USUAL_QUERIES, None
            if accuracy is None:
                price = budget.limit // count
            elif sample is not None:
                price = _price_for_accuracy(name, accuracy, sample, budget.currency)
                count = budget.limit // price if price else 0
            if price is not None:
                try:
                    options.append(_option(name, budget, price, count, classes, sensitivity, sample))
                except ValueError as error:
                    unavailable[f"{name}, by pure epsilon" if budget.currency is EPSILON else name] = str(error)
    options.sort(key=lambda option: -option.queries if accuracy is not None else -(option.accuracy or 0.0))
    return Plan(
        delta=delta,
        budgets=tuple(PlannedBudget.from_budget(held) for held in budgets.values()),
        classes=classes,
        sensitivity=sensitivity,
        asked_queries=queries if accuracy is not None else queries or _USUAL_QUERIES,
        asked_accuracy=accuracy,
        accuracy_from=sample.origin if sample is not None else None,
        noiseless_accuracy=_noiseless(sample) if sample is not None else None,
        outside_the_guarantee=sample is not None and sample.exact,
        commonest_class=sample.commonest if sample is not None else None,
        expectation=_expectation(options[0], halfway) if options and halfway else None,
        options=tuple(options),
        unavailable=unavailable,
    )


def accuracy_by_queries(mechanism: str, budget: Budget, sample: PublicSample, queries: NDArray[np.int64]) -> Floats:
    """Return the expected accuracy (k,) where the ledger's filter spreads the budget over `queries` (k,) rows.

    Not a number where the mechanism refuses the price of a row.
    """
    accuracies = np.full(len(queries), np.nan)
    for i, count in enumerate(queries):
        try:
            mechanism_then = _mechanism_at(mechanism, budget.currency, budget.limit // int(count), sample.classes)
            accuracies[i] = expected_accuracy(mechanism_then, sample)
        except ValueError:
            continue
    return accuracies


def expected_accuracy(mechanism: Mechanism, sample: PublicSample) -> float:
    """Return how often the answer's likeliest class is the true one, over the noise, on the sample.

    Noise on every logit: the true class wins if its logit stays above the others, P = E_t prod_j F(gap_j/s + t), t
    from the noise law, by 256 midpoints of its quantiles. A selection: `selection.probabilities`. Selected neuron: the
    class drawn wins while its noisy log-odds exceed -ln(C-1); below it the others, level, share the answer.

    Raises ValueError for a mechanism that refuses the sample's number of classes, or that this cannot tell of.
    """
    logits, labels, classes = sample.logits, sample.labels[:, None], sample.classes
    match mechanism:
        case Gaussian():
            scale = mechanism.noise_scale(sample.sensitivity, classes)
            return _noise_on_all(sample, scale, scipy.special.log_ndtr, scipy.special.ndtri(_QUANTILES))
        case Laplace():
            quantiles = np.sign(_QUANTILES - 0.5) * -np.log(1 - np.abs(2 * _QUANTILES - 1))
            return _noise_on_all(sample, mechanism.noise_scale(sample.sensitivity, classes), _log_laplace, quantiles)
        case Label():
            chosen = selection.probabilities(mechanism.law, logits, sample.sensitivity, mechanism.epsilon)
            return float(np.mean(np.take_along_axis(chosen, labels, 1)))
        case SelectedNeuron(epsilon, noise, law):
            chosen = selection.probabilities(law, logits, sample.sensitivity, epsilon)
        case _:
            raise ValueError(f"no accuracy is known of {mechanism.name}")
    others = np.stack([scipy.special.logsumexp(np.delete(logits, v, axis=1), axis=1) for v in range(classes)], 1)
    above = logits - others + math.log(classes - 1)
    above = above / mechanism.noise_scale(sample.sensitivity)[:, None]
    stays = scipy.special.ndtr(above) if isinstance(noise, GaussianLoss) else np.exp(_log_laplace(above))
    right = np.take_along_axis(chosen * stays, labels, 1)[:, 0]
    lost = chosen * (1 - stays)
    shared = (lost.sum(axis=1) - np.take_along_axis(lost, labels, 1)[:, 0]) / (classes - 1)
    return float(np.mean(right + shared))


def _noise_on_all(
    sample: PublicSample, scale: Floats, log_cumulative: Callable[[Floats], Floats], quantiles: Floats
) -> float:
    """Return the accuracy with noise of these scales (n,) on every logit: of unit noise's log F and quantiles."""
    labels = sample.labels[:, None]
    gaps = (np.take_along_axis(sample.logits, labels, 1) - sample.logits) / scale[:, None]
    np.put_along_axis(gaps, labels, np.inf, 1)
    return float(np.mean([np.mean(np.exp(log_cumulative(row[:, None] + quantiles).sum(axis=0))) for row in gaps]))


def _log_laplace(x: Floats) -> Floats:
    return np.where(x < 0, np.minimum(x, 0) - math.log(2), np.log1p(-np.exp(-np.abs(x)) / 2))


def _mechanism_at(mechanism: str, currency: Currency, price: int, classes: int) -> Mechanism:
    """Return the mechanism at a price of a row in 1e-12 of a currency. Raises ValueError where it refuses."""
    if currency is RHO:
        sampling_error.check_row_rho(picorho.to_rho(price))
    return at_price(mechanism, Price(currency.name, Decimal(price).scaleb(-12)), classes)


def _option(
    name: str,
    budget: Budget,
    price: int,
    queries: int,
    classes: int,
    sensitivity: float | None,
    sample: PublicSample | None,
) -> PricedMechanism:
    currency = budget.currency
    mechanism = _mechanism_at(name, currency, min(price, _RANGES[currency.name][1]), classes)
    epsilon = mechanism.cost.picoepsilon
    drawn = _deviation(mechanism, 1.0, classes)
    return PricedMechanism(
        mechanism=name,
        accepts=budget.accepts,
        queries=queries,
        losses=str(mechanism.cost),
        rho=picorho.to_rho(mechanism.cost.picorho),
        epsilon=None if epsilon is None else EPSILON.value(epsilon),
        price=f"{currency.name}:{Decimal(_price(mechanism.cost, currency)).scaleb(-12):f}",
        noise_multiplier=mechanism.noise_multiplier if isinstance(mechanism, Gaussian) else drawn,
        noise=None if sensitivity is None else _deviation(mechanism, sensitivity, classes),
        accuracy=expected_accuracy(mechanism, sample) if sample is not None else None,
    )


def _price(cost: Cost, currency: Currency) -> int:
    price = currency.price(cost)
    if price is None:
        raise ValueError(f"it has no price in {currency.name}")
    return price


def _deviation(mechanism: Mechanism, sensitivity: float, classes: int) -> float | None:
    """Return the standard deviation of the noise on a logit, as it is drawn on the grid; None where it has none."""
    moved = np.array([sensitivity])
    match mechanism:
        case Gaussian():
            return float(mechanism.noise_scale(moved, classes)[0])
        case Laplace():
            return math.sqrt(2) * float(mechanism.noise_scale(moved, classes)[0])
        case SelectedNeuron():
            gaussian = isinstance(mechanism.noise, GaussianLoss)
            return (1 if gaussian else math.sqrt(2)) * float(mechanism.noise_scale(moved)[0])
    return None


def _price_for_accuracy(mechanism: str, accuracy: float, sample: PublicSample, currency: Currency) -> int | None:
    """Return the smallest price of a row, in 1e-12, with that expected accuracy; None if no price of a row has it.

    Noise can help where the model errs, so accuracy need not grow with the price: the first of 50 prices that
    reaches it is refined towards the one before.
    """

    def missing(log_price: float) -> float:
        try:
            at = _mechanism_at(mechanism, currency, round(math.exp(log_price)), sample.classes)
            return accuracy - expected_accuracy(at, sample)
        except ValueError:
            return accuracy

    before = None
    least, largest = _RANGES[currency.name]
    for log_price in np.linspace(math.log(least), math.log(largest), 50):
        if missing(float(log_price)) <= 0:
            last = float(log_price)
            return round(math.exp(last if before is None else crossing(missing, last, before, tolerance=1e-4).met))
        before = float(log_price)
    return None


def _expectation(option: PricedMechanism, rows: PublicSample) -> Expectation:
    mechanism = at_price(option.mechanism, option.price, rows.classes)
    accuracy = expected_accuracy(mechanism, rows)
    return Expectation(accuracy=accuracy, noiseless=_noiseless(rows), guessing=1 / rows.classes)


def _noiseless(sample: PublicSample) -> float:
    return float(np.mean(np.argmax(sample.logits, axis=1) == sample.labels))


def _check(classes: int, queries: int | None, accuracy: float | None, sample: PublicSample | None) -> None:
    if not 2 <= classes <= sampling_error.DRAWS_PER_ROW:
        raise ValueError(
            f"the number of classes must lie between 2 and {sampling_error.DRAWS_PER_ROW}, not be {classes}"
        )
    if queries is not None and not 1 <= queries <= MOST_RELEASES:
        raise ValueError(f"the number of queries must lie between 1 and {MOST_RELEASES:g}, not be {queries}")
    if sample is not None and sample.classes != classes:
        raise ValueError(f"the public sample has {sample.classes} classes, and the plan {classes}")
    if accuracy is not None:
        domains.require_between("the accuracy", accuracy, 0, 1)
        if queries is not None:
            raise ValueError("ask for a number of queries or for an accuracy, not for both")
        if sample is None:
            raise ValueError(
                "an accuracy can be planned for only with public data or a margin distribution: add "
                + OptionName("public")
                + " FILE, or "
                + OptionName("margins")
                + ", or ask for "
                + OptionName("queries")
                + " N"
            )
