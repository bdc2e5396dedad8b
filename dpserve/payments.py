"""Payment for a model in Python: what it will cost, whether its lineage can pay, and the charge."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpserve.accounting import ledger as accounts
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger.purchases import buy, check_purchases, picorho_charged
from dpserve.accounting.picorho import to_rho
from dpserve.client import BudgetExhausted
from dpserve.commands.options import journals_folder, open_ledger, operating_systems_user
from dpserve.lineages import Lineage
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import TrainingError
from dpserve.training.fit import Request
from dpserve.training.kinds.kind import needed_price
from dpserve.training.kinds.registry import release_certificate
from dpserve.training.purchases import model_purchase, planned_purchase
from dpserve.wording import in_python

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FitCost:
    """The cost of a fit: epsilon and delta as they were given, and what the blocks that pay have left, in words.

    left: by block, under "" for a lineage without blocks: `epsilon = 2 of 3 at delta = 1e-06`. rho, left_rho: the same
    as zCDP, for programs.
    """

    epsilon: float | None
    delta: float | None
    left: Mapping[str, str]
    rho: float = field(repr=False)
    left_rho: Mapping[str, float] = field(repr=False)

    @property
    def is_paid(self) -> bool:
        """Whether every account that has to pay can."""
        return all(self.rho <= left for left in self.left_rho.values())


def opened(lineage: Lineage) -> AbstractAsyncContextManager[accounts.Ledger]:
    """Open the ledger of a lineage."""
    given = None if lineage.ledger is None else str(lineage.ledger)
    return open_ledger(given, lineage.ledger_replicas, journals=journals_folder())


def purchase(request: Request, lineage: Lineage, unit: str | None) -> accounts.Purchase:
    """Return the purchase of what is to be trained. unit: the column of units."""
    price, blocks = needed_price(request.price), request.declared_blocks
    return planned_purchase(request.lineage, unit, price, lineage.budget, blocks)


def fit_cost(
    lineage: Lineage, planned: accounts.Purchase, price: int, epsilon: float | None, delta: float | None
) -> FitCost:
    """Return the cost of a fit, and what the blocks that will pay have left, or will open with. price: in picorho."""

    async def states() -> dict[str, tuple[Budget, int]]:
        async with opened(lineage) as ledger:
            with suppress(accounts.UnknownLineage):
                return {one.name: (one.budget, one.spent) for one in await ledger.all_blocks(planned.lineage)}
        return {}

    found = run(states())
    opening = {block: (budget, 0) for block, budget in planned.payers.items() if budget is not None}
    payers = {block: found.get(block, opening.get(block)) for block in planned.payers}
    words, rho = dict[str, str](), dict[str, float]()
    for block, state in payers.items():
        if state is None:
            words[block], rho[block] = "no budget", 0.0
            continue
        budget, spent = state
        words[block] = f"{budget.shown_in} = {budget.words_of_cost(spent, 0)[1]}"
        rho[block] = to_rho(max(0, budget.limit - spent))
    return FitCost(epsilon, delta, words, to_rho(price), rho)


def check_account(lineage: Lineage, planned: accounts.Purchase) -> None:
    """Raise before training what would be raised after it: an account that is not there, or cannot pay."""

    async def checked() -> None:
        async with opened(lineage) as ledger:
            await check_purchases(ledger, [planned])

    run(checked())


def charge_model(lineage: Lineage, certificate: ModelCertificate, budget: Budget | None) -> int:
    """Charge the lineage for a model that is paid for once; return what was charged, in picorho.

    budget: opens its account, where it has none.
    """

    async def charged() -> int:
        async with opened(lineage) as ledger:
            by = operating_systems_user()
            return picorho_charged(await buy(ledger, [model_purchase(certificate, budget=budget)], by=by))

    return 0 if release_certificate(certificate) is None else run(charged())


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, in a thread of its own: a notebook has an event loop already."""
    with ThreadPoolExecutor(1, thread_name_prefix="dpserve-ledger") as pool:
        return pool.submit(asyncio.run, coroutine).result()


@contextmanager
def errors_in_python() -> Iterator[None]:
    """Raise what the floors below refuse as ValueError, in Python's words."""
    try:
        yield
    except accounts.NotPaidFor as error:
        if isinstance(error.refused, accounts.BudgetExhausted):
            raise _budget_exhausted(str(error), error.refused) from None
        raise ValueError(in_python(error)) from error
    except (TrainingError, accounts.LedgerRefusal) as error:
        raise ValueError(in_python(error)) from error


def _budget_exhausted(detail: str, refused: accounts.BudgetExhausted) -> BudgetExhausted:
    cost, remaining = to_rho(refused.cost), to_rho(refused.remaining)
    return BudgetExhausted(
        detail,
        kind="urn:dpserve:problem:budget-exhausted",
        problem={"scope": refused.scope, "cost": cost, "remaining": remaining, "currency": "rho"},
    )
