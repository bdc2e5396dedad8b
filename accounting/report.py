"""The state of one account in plain numbers: what `GET /budget` answers.

Every number is finite. A bound is rounded to the safe side, a number left to spend likewise, and every figure
is derived from the same picorho that the ledger adds up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from accounting import identifiability, picorho
from accounting.budgets import Accepts, Budget, Period, Scope
from accounting.losses import Cost


class Amount(BaseModel, frozen=True):
    """An amount of privacy loss, as rho and as epsilon at the report's delta."""

    rho: Annotated[float, Field(ge=0, description="zCDP rho; adds up exactly")]
    epsilon: Annotated[float, Field(ge=0, description="epsilon at the report's delta, rounded up; does not add up")]


class Remaining(BaseModel, frozen=True):
    """What may still be spent."""

    rho: Annotated[float, Field(ge=0, description="limit less spent")]
    epsilon: Annotated[
        float,
        Field(
            ge=0,
            description="how much epsilon can still rise: the limit's epsilon less the spent epsilon. It buys nothing "
            "by itself, because epsilon does not add up: queries_left says what can be bought",
        ),
    ]


class RowPrice(BaseModel, frozen=True):
    """What the answer to one row costs."""

    rho: Annotated[float, Field(ge=0, description="zCDP rho, rounded up to the ledger's unit of 1e-12")]
    losses: Annotated[str, Field(description="the privacy losses of one answer, as kind:parameter, comma-separated")]


class Bound(BaseModel, frozen=True):
    """An upper bound as things stand, and once the whole budget is spent."""

    now: Annotated[
        float,
        Field(ge=0, le=1, description="of what was spent; only for a client that had settled this total beforehand"),
    ]
    when_spent: Annotated[
        float, Field(ge=0, le=1, description="of the limit; whatever a client asks, and wherever it stops")
    ]


class RefillReport(BaseModel, frozen=True):
    """How much of the limit may be spent in each calendar period (UTC), and how that stands now."""

    period: Period
    each: Annotated[
        Amount,
        Field(description="for each period; its epsilon is that of one alone. All periods together have the account's"),
    ]
    remaining_rho: Annotated[float, Field(ge=0, description="what may be spent before the next refill")]
    next: Annotated[date | None, Field(description="the day of the next refill; null where the limit leaves none")]


class AccountReport(BaseModel, frozen=True):
    """One account: limit, spent, remaining, price, queries left, and what it means for one record.

    `posterior_belief_bound`: someone who holds it for even odds that a given record is in the data, and knows
    everything else, comes to believe it with more than this probability only with probability delta.
    `posterior_belief_at_epsilon` is the published 1/(1 + e^-epsilon): the belief that the answers support when they
    are seen as produced by a process that tells everything with probability delta and is epsilon-private otherwise.
    What is said of `spent` and `now` holds if the total spent so far was settled beforehand; a client who stops at
    the moment that suits it best is held by what is said of `limit` and `when_spent`, which is what the ledger
    enforces. Where the owner lowered the limit below what was spent, `when_spent` is said of what was spent.
    `membership_advantage_bound`: no attack's true positive rate exceeds its false positive rate by more than this;
    delta plays no part in it.
    """

    accepts: Annotated[Accepts, Field(description="which charges the account accepts")]
    status: Annotated[
        Literal["proven", "unproven"],
        Field(description="unproven: the account may have paid for a mechanism whose cost is only claimed"),
    ]
    analysis: Annotated[str, Field(description="the analysis behind every epsilon and bound of this report")]
    delta: Annotated[float, Field(gt=0, lt=1, description="the delta of every epsilon in this report")]
    limit: Annotated[Amount, Field(description="what may be spent; its epsilon holds whatever is asked, and whenever")]
    spent: Annotated[
        Amount, Field(description="what was spent; its epsilon holds only if this total was settled beforehand")
    ]
    remaining: Remaining
    price: RowPrice | None
    queries_left: Annotated[
        int | None,
        Field(
            ge=0,
            description="rows that can still be answered at the price, which every account that pays for them must "
            "have left; null without a price",
        ),
    ]
    unlimited: Annotated[
        bool, Field(description="whether it holds a model that is paid for once, whose further answers cost nothing")
    ] = False
    refill: Annotated[RefillReport | None, Field(description="null where the limit may be spent at once")] = None
    posterior_belief_bound: Bound
    posterior_belief_at_epsilon: Bound
    membership_advantage_bound: Bound


ANALYSES: Mapping[Accepts, str] = {
    "gaussian": "exact Gaussian curve (mu-GDP filter)",
    "any": "zero-concentrated differential privacy (zCDP filter)",
    "unproven": "claims added up as if they were zCDP: unproven, no bound",
}


@dataclass(frozen=True)
class AccountState:
    """What an account has paid for and may pay for yet, at one instant. Make one with `of`. Amounts are picorho.

    tally: how many releases of each cost it paid for. highest_limit: the highest under which it was charged, where the
    owner has lowered it since: what it bounds is what was and will be released. Where the budget has a refill, `left`
    is what may be spent before the next one on the day `refilled`. scope: whose account it is, which says whom it
    bounds together. group: the client's, or this one.
    """

    tally: tuple[tuple[Cost, int], ...]
    budget: Budget
    highest_limit: int = 0
    left: int | None = None
    refilled: date | None = None
    scope: Scope = "client"
    group: str = ""

    @classmethod
    def of(cls, tally: Mapping[Cost, int], budget: Budget, **rest: Any) -> Self:
        """Return the state after these releases: the same one whatever order they come in. rest: further fields."""
        return cls(tuple(sorted(tally.items(), key=lambda entry: str(entry[0]))), budget, **rest)

    @cached_property
    def spent(self) -> int:
        """What the ledger holds after these releases. Raises ValueError for a loss that the account does not accept."""
        for cost, count in self.tally:
            if count < 0:
                raise ValueError("a number of releases must not be negative")
            if count and not self.budget.pays_for(cost):
                raise ValueError(f"the account accepts {self.budget.accepts!r} charges, not {str(cost)!r}")
        return sum(cost.picorho * count for cost, count in self.tally)

    @property
    def remaining(self) -> int:
        """What may be spent now."""
        within = max(0, self.budget.picorho - self.spent)
        return within if self.left is None else min(within, self.left)

    @property
    def end(self) -> Budget:
        """The budget with all that the account was ever charged within, which bounds what was and will be released."""
        return replace(self.budget, picorho=max(self.budget.picorho, self.spent, self.highest_limit))


def account_report(
    state: AccountState, *, price: Cost | None, shared_left: int | None = None, unlimited: bool = False
) -> AccountReport:
    """Return the report of an account.

    price: what the next row costs, None where the account is not asked about a model. shared_left: the picorho left at
    least in the accounts that pay for every release as well, the lineage's and a group's, which limit `queries_left`.
    unlimited: whether the account holds a model that is paid for once. Raises ValueError for a loss that the account
    does not accept.
    """
    budget, spent, end = state.budget, state.spent, state.end
    payable = state.remaining if shared_left is None else min(state.remaining, shared_left)
    limit, so_far = _amount(budget, budget.picorho), _amount(budget, spent)
    row = price.picorho if price is not None else 0
    return AccountReport(
        accepts=budget.accepts,
        status="unproven" if budget.accepts == "unproven" else "proven",
        analysis=ANALYSES[budget.accepts],
        delta=budget.delta,
        limit=limit,
        spent=so_far,
        remaining=Remaining(
            rho=picorho.to_rho(max(0, budget.picorho - spent)), epsilon=max(0.0, limit.epsilon - so_far.epsilon)
        ),
        price=RowPrice(rho=picorho.to_rho(row), losses=str(price)) if price is not None else None,
        queries_left=payable // row if row else None,
        unlimited=unlimited,
        refill=_refill_report(state),
        posterior_belief_bound=Bound(
            now=budget.posterior_belief_at(spent), when_spent=budget.posterior_belief_at(end.picorho)
        ),
        posterior_belief_at_epsilon=Bound(
            now=identifiability.posterior_belief(so_far.epsilon),
            when_spent=identifiability.posterior_belief(budget.epsilon_at(end.picorho)),
        ),
        membership_advantage_bound=Bound(now=budget.advantage_at(spent), when_spent=budget.advantage_at(end.picorho)),
    )


def _amount(budget: Budget, amount: int) -> Amount:
    return Amount(rho=picorho.to_rho(amount), epsilon=budget.epsilon_at(amount))


def _refill_report(state: AccountState) -> RefillReport | None:
    refill = state.budget.refill
    if refill is None:
        return None
    # No period can spend more than the limit.
    each = _amount(state.budget, min(refill.picorho, state.budget.picorho))
    left = picorho.to_rho(state.remaining)
    return RefillReport(period=refill.period, each=each, remaining_rho=left, next=state.refilled)
