"""Charging under fault, and what has to hold afterwards."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from accounting.budgets import Budget
from accounting.ledger import Answered, ChargeRequest, Ledger, LedgerUnavailable, key_digest
from accounting.ledger.verification import verify
from accounting.losses import Cost, GaussianLoss

COST = Cost((GaussianLoss(0.01),))


def asking(lineage: str, client: str, *rows: str, time: float = 1.5) -> ChargeRequest:
    return ChargeRequest(
        lineage=lineage,
        client=client,
        model="model",
        mechanism="gaussian",
        cost=COST,
        rows=tuple(row.encode() for row in rows),
        time=time,
    )


async def open_accounts(ledger: Ledger, lineage: str, releases: int = 1_000_000) -> None:
    budget = Budget(releases * COST.picorho, "gaussian", 1e-6)
    await ledger.open_lineage(lineage, budget, time=0.0)
    await ledger.add_client(lineage, "ann", budget, key_digest(f"{lineage}/ann"), time=0.0)


@dataclass
class Acknowledged:
    """The rows that were charged and settled, with their answers; `attempts` were begun."""

    answers: dict[str, bytes] = field(default_factory=dict)
    attempts: int = 0


async def charge_until(
    ledger: Ledger, lineage: str, name: str, strike: Callable[[], object], *, after: int, tasks: int = 8
) -> Acknowledged:
    """Charge and settle rows from several tasks, strike after so many answers, end when the store is unavailable."""
    done = Acknowledged()

    async def one(task: int) -> None:
        for turn in itertools.count():
            row = f"{name}/{task}/{turn}"
            done.attempts += 1
            try:
                charge = await ledger.charge(asking(lineage, "ann", row))
                (answer,) = await ledger.settle(lineage, [(charge.rows[0].row_id, row.encode())])
            except LedgerUnavailable:
                return
            done.answers[row] = answer
            if len(done.answers) == after:
                strike()

    await asyncio.gather(*map(one, range(tasks)))
    return done


async def nothing_acknowledged_is_missing(ledger: Ledger, lineage: str, done: Acknowledged) -> bool:
    """Whether every answered row replays its answer at no cost, and the books are right."""
    rows = list(done.answers)
    for start in range(0, len(rows), 5000):
        some = rows[start : start + 5000]
        replay = await ledger.charge(asking(lineage, "ann", *some))
        got = [row.answer if isinstance(row, Answered) else None for row in replay.rows]
        if replay.receipt is not None or got != [done.answers[row] for row in some]:
            return False
    account = await ledger.lineage(lineage)
    charged_once = len(done.answers) <= account.releases <= done.attempts
    return charged_once and (await verify(ledger, lineage)).findings == ()
