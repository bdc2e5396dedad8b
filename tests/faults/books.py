"""Charging under fault, and what has to hold afterwards."""

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import ChargeRequest, Ledger, LedgerUnavailable, key_digest
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.losses import Cost, GaussianLoss

COST = Cost((GaussianLoss(0.01),))


Blocks = tuple[str, ...]

BLOCKS: Blocks = ("2026-09", "2026-10", "2026-11")
"""Those of lineages that have blocks."""


def asking(lineage: str, client: str, *rows: str, time: float = 1.5, blocks: Blocks = ()) -> ChargeRequest:
    return ChargeRequest(
        lineage=lineage,
        client=client,
        terms=charge_terms("model", "gaussian", COST, blocks=blocks),
        questions=tuple(hashlib.sha256(row.encode()).digest()[:16] for row in rows),
        time=time,
    )


async def open_accounts(ledger: Ledger, lineage: str, releases: int = 1_000_000, blocks: Blocks = ()) -> None:
    budget = Budget(releases * COST.picorho, "gaussian", 1e-6)
    await ledger.acting("owner").open_lineage(lineage, budget, time=0.0)
    for block in blocks:
        await ledger.acting("owner").open_block(lineage, block, budget, time=0.0)
    await ledger.acting("owner").add_client(lineage, "ann", budget, key_digest(f"{lineage}/ann"), time=0.0)


@dataclass
class Acknowledged:
    """The rows that were charged; `attempts` were begun."""

    rows: list[str] = field(default_factory=list)
    attempts: int = 0


async def charge_until(
    ledger: Ledger,
    lineage: str,
    name: str,
    strike: Callable[[], object],
    *,
    after: int,
    tasks: int = 8,
    blocks: Blocks = (),
) -> Acknowledged:
    """Charge rows from several tasks, strike after so many charges, end when the store is unavailable."""
    done = Acknowledged()

    async def one(task: int) -> None:
        for turn in itertools.count():
            row = f"{name}/{task}/{turn}"
            done.attempts += 1
            try:
                await ledger.charge(asking(lineage, "ann", row, blocks=blocks))
            except LedgerUnavailable:
                return
            done.rows.append(row)
            if len(done.rows) == after:
                strike()

    await asyncio.gather(*map(one, range(tasks)))
    return done


async def nothing_acknowledged_is_missing(
    ledger: Ledger, lineage: str, done: Acknowledged, blocks: Blocks = ()
) -> bool:
    """Whether every charged row is free now, each block that is named paid for all of it, and the books are right."""
    for start in range(0, len(done.rows), 5000):
        again = asking(lineage, "ann", *done.rows[start : start + 5000], blocks=blocks)
        if (await ledger.charge(again)).receipt is not None:
            return False
    unnamed, client = await ledger.lineage(lineage), await ledger.client(lineage, "ann")
    paid = {block.name: (block.releases, block.spent) for block in (unnamed, *await ledger.blocks(lineage))}
    payers = blocks or ("",)
    if paid != {"": (0, 0)} | dict.fromkeys(payers, (client.releases, client.spent)):
        return False
    charged_once = len(done.rows) <= client.releases <= done.attempts
    return charged_once and (await verify(ledger, lineage)).findings == ()
