"""Prices of single answers for a budget: for each proven mechanism, what a row may cost, and its noise.

Works from public numbers alone. What a mechanism costs, and its noise, are asked of the mechanism itself.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.currency import EPSILON, RHO, Currency
from dpserve.accounting.disclosure import DECLARED, Declared, DisclosedModel
from dpserve.accounting.losses import LARGEST_PURE_EPSILON, MOST_RELEASES, Cost
from dpserve.mechanisms.mechanism import Price
from dpserve.mechanisms.registry import all_mechanisms, at_price, default_price

USUAL_QUERIES = 1000
_LARGEST = {
    RHO.name: picorho.budget(sampling_error.LARGEST_ROW_RHO),
    EPSILON.name: picorho.budget(LARGEST_PURE_EPSILON),
}
"""The largest price of a row, in 1e-12 of each currency."""


class PlannedBudget(DisclosedModel):
    """The budget as one kind of account holds it."""

    accepts: Declared[Accepts]
    delta: Annotated[float, DECLARED, Field(description="of an account that counts pure epsilon the sampler's alone")]
    rho: Annotated[float | None, DECLARED, Field(description="null where the account counts pure epsilon")]
    epsilon: Annotated[float, DECLARED, Field(description="at this delta, rounded up")]

    @classmethod
    def from_budget(cls, budget: Budget) -> "PlannedBudget":
        """Return it for a budget."""
        rho = picorho.to_rho(budget.limit) if budget.currency is RHO else None
        return cls(accepts=budget.accepts, delta=budget.delta, rho=rho, epsilon=budget.epsilon_at(budget.limit))


class PricedMechanism(DisclosedModel):
    """One mechanism at one price."""

    mechanism: Declared[str]
    accepts: Annotated[Accepts, DECLARED, Field(description="what the account must accept that pays so")]
    losses: Annotated[str, DECLARED, Field(description="the price of one row, as kind:parameter")]
    rho: Annotated[float, DECLARED, Field(description="the price of one row as rho")]
    epsilon: Declared[
        Annotated[float | None, Field(description="the price of one row as pure epsilon; null where it has none")]
    ]
    price: Annotated[str, DECLARED, Field(description="what to serve it at, as a price is written")]
    noise_multiplier: Declared[
        Annotated[
            float | None, Field(description="standard deviation of the noise on a logit over the row's L2 sensitivity")
        ]
    ]
    noise: Declared[
        Annotated[
            float | None,
            Field(description="that standard deviation, as it is drawn on the grid, where the sensitivity is known"),
        ]
    ]


class AnswerPlan(DisclosedModel):
    """A number of answers, and every mechanism that the budget pays for."""

    delta: Declared[float]
    budgets: Declared[tuple[PlannedBudget, ...]]
    classes: Declared[int]
    sensitivity: Declared[
        Annotated[float | None, Field(description="L2 sensitivity of the logits of a row of length 1")]
    ]
    queries: Annotated[int, DECLARED, Field(description="rows that the budget pays for at each price")]
    options: Declared[tuple[PricedMechanism, ...]]
    unavailable: Declared[
        Annotated[dict[str, str], Field(description="why, of mechanisms that cannot be had at their price")]
    ]


def accepted_by(mechanism: str, budgets: Mapping[Accepts, Budget]) -> tuple[Budget, ...]:
    """Return the budget as the accounts hold it that pay best for a mechanism: one in rho, and one in pure epsilon."""
    gaussian = at_price(mechanism, default_price(mechanism), 2).cost.is_gaussian
    kinds: tuple[Accepts, ...] = ("gaussian",) if gaussian else ("any", "pure")
    return tuple(budgets[kind] for kind in kinds if kind in budgets)


def plan(
    budgets: Mapping[Accepts, Budget],
    *,
    classes: int,
    queries: int = USUAL_QUERIES,
    sensitivity: float | None = None,
) -> AnswerPlan:
    """Return what each of so many answers may cost, and its noise.

    budgets: the same budget as each kind of account holds it; mechanisms whose account is missing are left out. A
    mechanism with a pure price is an option by each account that pays for it. Pure epsilon at the epsilon of a budget
    with a delta promises more than that budget.
    sensitivity: L2, of the logits of a row of length 1, where it is known. An option whose price its mechanism refuses
    is `unavailable`. Raises ValueError for nonsense.
    """
    if not 2 <= classes <= sampling_error.DRAWS_PER_ROW:
        raise ValueError(
            f"the number of classes must lie between 2 and {sampling_error.DRAWS_PER_ROW}, not be {classes}"
        )
    if not 1 <= queries <= MOST_RELEASES:
        raise ValueError(f"the number of queries must lie between 1 and {MOST_RELEASES:g}, not be {queries}")
    options: list[PricedMechanism] = []
    unavailable: dict[str, str] = {}
    for name, mechanism in all_mechanisms().items():
        for budget in accepted_by(name, budgets) if mechanism.status == "proven" else ():
            try:
                options.append(_option(name, budget, budget.limit // queries, classes, sensitivity))
            except ValueError as error:
                unavailable[f"{name}, by pure epsilon" if budget.currency is EPSILON else name] = str(error)
    return AnswerPlan(
        delta=max(budget.delta for budget in budgets.values()),
        budgets=tuple(PlannedBudget.from_budget(held) for held in budgets.values()),
        classes=classes,
        sensitivity=sensitivity,
        queries=queries,
        options=tuple(options),
        unavailable=unavailable,
    )


def _option(name: str, budget: Budget, price: int, classes: int, sensitivity: float | None) -> PricedMechanism:
    currency = budget.currency
    if currency is RHO:
        sampling_error.check_row_rho(picorho.to_rho(min(price, _LARGEST[currency.name])))
    at_most = Decimal(min(price, _LARGEST[currency.name])).scaleb(-12)
    mechanism = at_price(name, Price(currency.name, at_most), classes)
    epsilon = mechanism.cost.picoepsilon
    return PricedMechanism(
        mechanism=name,
        accepts=budget.accepts,
        losses=str(mechanism.cost),
        rho=picorho.to_rho(mechanism.cost.picorho),
        epsilon=None if epsilon is None else EPSILON.value(epsilon),
        price=f"{currency.name}:{Decimal(_price(mechanism.cost, currency)).scaleb(-12):f}",
        noise_multiplier=mechanism.multiplier(classes),
        noise=None if sensitivity is None else mechanism.deviation(sensitivity, classes),
    )


def _price(cost: Cost, currency: Currency) -> int:
    price = currency.price(cost)
    if price is None:
        raise ValueError(f"it has no price in {currency.name}")
    return price
