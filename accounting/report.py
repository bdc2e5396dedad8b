"""The state of one account in plain numbers: what `GET /budget` answers.

Every number is finite. A bound is rounded to the safe side, a number left to spend likewise, and every figure
is derived from the same whole numbers that the ledger adds up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from dpserve.accounting import identifiability, picorho
from dpserve.accounting.budgets import UNPROVEN, Accepts, Budget, Scope
from dpserve.accounting.currency import EPSILON, RHO
from dpserve.accounting.disclosure import ASKED, DECLARED, Asked, Declared, DisclosedModel
from dpserve.accounting.losses import Cost


class Amount(DisclosedModel):
    """An amount of privacy loss, as rho and as epsilon at the report's delta."""

    rho: Asked[
        Annotated[
            float | None,
            Field(ge=0, description="zCDP rho; adds up exactly; null in an account that counts pure epsilon"),
        ]
    ]
    epsilon: Asked[
        Annotated[
            float,
            Field(
                ge=0,
                description="epsilon at the report's delta, rounded up; it adds up only in an account that counts it",
            ),
        ]
    ]


class Remaining(DisclosedModel):
    """The amounts that may still be spent."""

    rho: Asked[
        Annotated[
            float | None, Field(ge=0, description="limit less spent; null in an account that counts pure epsilon")
        ]
    ]
    epsilon: Asked[
        Annotated[
            float,
            Field(
                ge=0,
                description="how much epsilon can still rise: the limit's epsilon less the spent epsilon. In an "
                "account that counts rho it buys nothing by itself: queries_left says what can be bought",
            ),
        ]
    ]


class RowPrice(DisclosedModel):
    """The cost of the answer to one row."""

    rho: Annotated[float, DECLARED, Field(ge=0, description="zCDP rho, rounded up to the ledger's unit of 1e-12")]
    epsilon: Declared[
        Annotated[float | None, Field(ge=0, description="pure epsilon, rounded up to 1e-12; null where it has none")]
    ]
    losses: Declared[
        Annotated[str, Field(description="the privacy losses of one answer, as kind:parameter, comma-separated")]
    ]


class Bound(DisclosedModel):
    """An upper bound as things stand, and once the whole budget is spent."""

    now: Asked[
        Annotated[
            float,
            Field(
                ge=0, le=1, description="of what was spent; only for a client that had settled this total beforehand"
            ),
        ]
    ]
    when_spent: Asked[
        Annotated[
            float,
            Field(
                ge=0,
                le=1,
                description="of the limit, if that was settled before the first answer (see raised); whatever a client "
                "asks, and wherever it stops",
            ),
        ]
    ]


class RaisedReport(DisclosedModel):
    """That the limit was raised after answers were given, and what is proved all the same."""

    times: Annotated[int, ASKED, Field(ge=1, description="how often the limit came to be higher than ever before")]
    settled: Annotated[Amount, ASKED, Field(description="the limit before the first of them")]
    posterior_belief_bound: Asked[
        Annotated[
            float,
            Field(
                ge=0,
                le=1,
                description="of the limit, whoever had it raised, and by whatever answers; but not by the records. No "
                "such bound is known of attacks' rates",
            ),
        ]
    ]


class AccountReport(DisclosedModel):
    """One account: limit, spent, remaining, price, queries left, and what it means for one record.

    `posterior_belief_bound`: someone who holds it for even odds that a given record is in the data, and knows
    everything else, comes to believe it with more than this probability only with probability delta.
    `posterior_belief_at_epsilon` is the published 1/(1 + e^-epsilon): the belief that the answers support when they
    are seen as produced by a process that tells everything with probability delta and is epsilon-private otherwise.
    What is said of `spent` and `now` holds if the total spent so far was settled beforehand; a client who stops at
    the moment that suits it best is held by what is said of `limit` and `when_spent`, which is what the ledger
    enforces, if the limit was settled beforehand: `raised` says what holds where it was not. Where the owner lowered
    the limit below what was spent, `when_spent` is said of what was spent.
    `membership_advantage_bound`: no attack's true positive rate exceeds its false positive rate by more than this;
    delta plays no part in it.
    """

    accepts: Annotated[Accepts, ASKED, Field(description="which charges the account accepts")]
    currency: Asked[
        Annotated[
            Literal["rho", "epsilon"],
            Field(description="what the account counts and its filter adds up: zCDP rho, or pure epsilon"),
        ]
    ]
    shown_in: Asked[
        Annotated[
            Literal["rho", "epsilon"],
            Field(
                description="the currency in which a person reads the account, as its owner gave the limit: of limit, "
                "spent and remaining the figures in it add up"
            ),
        ]
    ]
    status: Asked[
        Annotated[
            Literal["proven", "unproven"],
            Field(description="unproven: the account may have paid for a mechanism whose cost is only claimed"),
        ]
    ]
    analysis: Annotated[str, ASKED, Field(description="the analysis behind every epsilon and bound of this report")]
    delta: Annotated[float, ASKED, Field(gt=0, lt=1, description="the delta of every epsilon in this report")]
    limit: Asked[
        Annotated[
            Amount,
            Field(
                description="what may be spent; its epsilon holds whatever is asked, and whenever, if the limit was "
                "settled before the first answer"
            ),
        ]
    ]
    spent: Asked[
        Annotated[
            Amount, Field(description="what was spent; its epsilon holds only if this total was settled beforehand")
        ]
    ]
    remaining: Asked[Remaining]
    price: Asked[RowPrice | None]
    queries_left: Asked[
        Annotated[
            int | None,
            Field(
                ge=0,
                description="rows that can still be answered at the price, which every account that pays for them must "
                "have left; null without a price",
            ),
        ]
    ]
    limiting_block: Asked[
        Annotated[
            str | None,
            Field(
                description="the block of the model's records that has the least left, where it pays for less than the "
                "account does; null elsewhere, and where the model has no blocks"
            ),
        ]
    ] = None
    unlimited: Asked[
        Annotated[
            bool,
            Field(description="whether it holds a model that is paid for once, whose further answers cost nothing"),
        ]
    ] = False
    raised: Asked[
        Annotated[RaisedReport | None, Field(description="null where the limit never rose after the first answer")]
    ] = None
    posterior_belief_bound: Asked[Bound]
    posterior_belief_at_epsilon: Asked[Bound]
    membership_advantage_bound: Asked[Bound]


ANALYSES: Mapping[Accepts, str] = {
    "gaussian": "exact Gaussian curve (mu-GDP filter)",
    "any": "zero-concentrated differential privacy (zCDP filter)",
    "pure": "pure epsilons added up (basic composition as a filter, valid for adaptive prices)",
    "unproven": "claims added up as if they were zCDP: unproven, no bound",
    "unproven-pure": "claims of pure epsilon added up: unproven, no bound",
}


@dataclass(frozen=True)
class AccountState:
    """The releases that an account paid for and what it may still spend. Make it with `after_releases`.

    Amounts are in 1e-12 of what the account counts.

    tally: how many releases of each cost it paid for. highest_limit: the highest under which it was charged, where the
    owner has lowered it since: what it bounds is what was and will be released. raises: how often the limit came to be
    higher than ever before, after the first answer, and settled_limit what it was before that. scope: whose account it
    is, which says whom it bounds together. group: the client's, or this one.
    """

    tally: tuple[tuple[Cost, int], ...]
    budget: Budget
    highest_limit: int = 0
    raises: int = 0
    settled_limit: int = 0
    scope: Scope = "client"
    group: str = ""

    @classmethod
    def after_releases(cls, tally: Mapping[Cost, int], budget: Budget, **rest: Any) -> Self:
        """Return the state after these releases: the same one whatever order they come in. rest: further fields."""
        return cls(tuple(sorted(tally.items(), key=lambda entry: str(entry[0]))), budget, **rest)

    @cached_property
    def spent(self) -> int:
        """The amount spent on these releases. Raises ValueError for a loss that the account does not accept."""
        for cost, count in self.tally:
            if count < 0:
                raise ValueError("a number of releases must not be negative")
            if count and not self.budget.pays_for(cost):
                raise ValueError(f"the account accepts {self.budget.accepts!r} charges, not {str(cost)!r}")
        price = self.budget.currency.price
        return sum((price(cost) or 0) * count for cost, count in self.tally)

    @property
    def remaining(self) -> int:
        """The amount that may be spent now."""
        return max(0, self.budget.limit - self.spent)

    @property
    def end(self) -> Budget:
        """The budget with all that the account was ever charged within, which bounds what was and will be released."""
        return replace(self.budget, limit=max(self.budget.limit, self.spent, self.highest_limit))


def account_report(
    state: AccountState,
    *,
    price: Cost | None,
    shared_answers: int | None = None,
    unlimited: bool = False,
    limiting_block: str | None = None,
) -> AccountReport:
    """Return the report of an account.

    price: what the next row costs, None where the account is not asked about a model. shared_answers: how many rows at
    that price the accounts that pay for every release as well, the lineage's and a group's, would pay for at least.
    unlimited: whether the account holds a model that is paid for once. limiting_block: the block that pays for the
    fewest rows, where that is fewer than the account's own. Raises ValueError for a loss that the account
    does not accept.
    """
    budget, spent, end = state.budget, state.spent, state.end
    currency = budget.currency
    limit, so_far = amount_of(budget, budget.limit), amount_of(budget, spent)
    return AccountReport(
        accepts=budget.accepts,
        currency=currency.name,
        shown_in=budget.shown_in,
        status="unproven" if budget.accepts in UNPROVEN else "proven",
        analysis=ANALYSES[budget.accepts],
        delta=budget.delta,
        limit=limit,
        spent=so_far,
        remaining=Remaining(
            rho=picorho.to_rho(max(0, budget.limit - spent)) if currency is RHO else None,
            epsilon=max(0.0, limit.epsilon - so_far.epsilon),
        ),
        price=row_price(price) if price is not None else None,
        queries_left=_queries_left(state, price, shared_answers),
        unlimited=unlimited,
        limiting_block=limiting_block,
        raised=_raised_report(state),
        posterior_belief_bound=Bound(
            now=budget.posterior_belief_at(spent), when_spent=budget.posterior_belief_at(end.limit)
        ),
        posterior_belief_at_epsilon=Bound(
            now=identifiability.posterior_belief(so_far.epsilon),
            when_spent=identifiability.posterior_belief(budget.epsilon_at(end.limit)),
        ),
        membership_advantage_bound=Bound(now=budget.advantage_at(spent), when_spent=budget.advantage_at(end.limit)),
    )


def row_price(price: Cost) -> RowPrice:
    """Return what the answer to one row costs, in both currencies."""
    epsilon = price.picoepsilon
    return RowPrice(
        rho=picorho.to_rho(price.picorho),
        epsilon=None if epsilon is None else EPSILON.value(epsilon),
        losses=str(price),
    )


def _queries_left(state: AccountState, price: Cost | None, shared_answers: int | None) -> int | None:
    if price is None or not price.losses:
        return None
    own = state.budget.currency.answers(state.remaining, price)
    return own if shared_answers is None else min(own, shared_answers)


def shown(account: AccountReport, amount: Amount | Remaining) -> str:
    """Return one of an account's amounts as a person reads it, without the currency."""
    rho = amount.rho if account.shown_in == "rho" else None
    if rho is not None:
        return f"{rho:.6g}"
    return f"{amount.epsilon:.6g}" if account.currency == "epsilon" else f"{amount.epsilon:.4g}"


def shown_currency(account: AccountReport) -> str:
    """Return the currency in which a person reads an account, with its delta where it has one."""
    if account.shown_in == "rho":
        return "rho"
    return "pure epsilon" if account.currency == "epsilon" else f"epsilon at delta = {account.delta:g}"


def amount_of(budget: Budget, amount: int) -> Amount:
    """Return an amount in 1e-12 of what the account counts, as rho and as epsilon at the budget's delta."""
    rho = picorho.to_rho(amount) if budget.currency is RHO else None
    return Amount(rho=rho, epsilon=budget.epsilon_at(amount))


def _raised_report(state: AccountState) -> RaisedReport | None:
    if not state.raises or state.budget.currency is EPSILON:  # pure epsilon holds at a limit however it came to be
        return None
    return RaisedReport(
        times=state.raises,
        settled=amount_of(state.budget, state.settled_limit),
        posterior_belief_bound=state.end.posterior_belief_raised(state.settled_limit),
    )
