"""Many at once, from several processes, until the budget is gone."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from dpserve.accounting.ledger import BudgetExhausted, Ledger, key_digest

from .conftest import COST, asking, budget, open_accounts

pytestmark = pytest.mark.anyio

PROCESSES, TASKS = 2, 16


async def _spend(url: str, lineage: str, name: str) -> int:
    """Charge rows of a few at a time until both clients are refused; return how many were charged."""
    charged = 0
    async with await Ledger.connect(url) as ledger:

        async def one(task: int) -> None:
            nonlocal charged
            client = ("ann", "bob")[task % 2]
            for turn in itertools.count():
                rows = [f"{name}/{task}/{turn}/{row}" for row in range(1 + turn % 3)]
                try:
                    charge = await ledger.charge(asking(lineage, client, *rows))
                except BudgetExhausted:
                    if len(rows) == 1:
                        return
                else:
                    assert charge.receipt is not None
                    charged += charge.receipt.releases

        await asyncio.gather(*map(one, range(TASKS)))
    return charged


async def test_all_together_spend_the_budget_exactly(store_url: str, lineage: str) -> None:
    price = COST.picorho
    async with await Ledger.connect(store_url) as ledger:
        whole = budget(701 * price + price - 1)
        await open_accounts(ledger, lineage, whole, ann=budget(250 * price), bob=whole)
        code = (
            "import asyncio, sys; sys.path.insert(0, sys.argv[1]);"
            "from tests.accounting.ledger.test_concurrency import _spend;"
            "print(asyncio.run(_spend(*sys.argv[2:])))"
        )
        root = Path(__file__).parents[3]
        spenders = [
            subprocess.Popen(
                [sys.executable, "-c", code, root, store_url, lineage, str(number)], stdout=subprocess.PIPE
            )
            for number in range(PROCESSES)
        ]
        outputs = [await asyncio.to_thread(spender.communicate) for spender in spenders]
        charged = sum(int(out) for out, _ in outputs)
        account = await ledger.lineage(lineage)
        ann, bob = await ledger.clients(lineage)
        receipts = await ledger.receipts(lineage, count=10_000)
        assert charged == 701
        assert account.spent == 701 * price == ann.spent + bob.spent
        assert ann.spent == 250 * price
        assert account.tally == {COST: 701}
        assert sum(receipt.price * receipt.releases for receipt in receipts) == account.spent
        assert [receipt.sequence for receipt in receipts] == list(range(1, len(receipts) + 1))


async def test_acts_of_many_at_once_are_all_done(store_url: str, lineage: str) -> None:
    """Fifty of two services: those of one wait for each other, and both try again where the other was first."""
    async with await Ledger.connect(store_url) as one, await Ledger.connect(store_url) as other:
        await open_accounts(one, lineage, budget(COST.picorho))
        names = [f"client-{number}" for number in range(50)]
        services = (one.acting("the owner"), other.acting("a script"))
        own = budget(COST.picorho)
        await asyncio.gather(
            *(
                services[number % 2].add_client(lineage, name, own, key_digest(f"{lineage}/{name}"), time=0.0)
                for number, name in enumerate(names)
            )
        )
        clients = await one.clients(lineage)
        account = await one.lineage(lineage)
    assert sorted(each.client for each in clients) == sorted(names)
    assert account.newest_act >= len(names)
