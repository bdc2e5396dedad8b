"""The owner's upkeep of a ledger: when it was last backed up, and a backup last rehearsed, for whoever watches it."""

from typing import Literal, get_args

from dpserve.accounting.ledger.accounts import Accounts
from dpserve.accounting.ledger.reading import reading

Task = Literal["backup", "rehearsal"]

_KEY = "dpserve:upkeep"


async def note_upkeep(ledger: Accounts, task: Task, time: float) -> None:
    """Note that a task was done. time: seconds since the epoch, when it began. Raises LedgerUnavailable."""
    await ledger.store.command("HSET", _KEY, task, int(time), durably=True)


async def upkeep(ledger: Accounts) -> dict[Task, int]:
    """Return when each task was last done, in seconds since the epoch; 0 for never. Raises LedgerUnavailable."""
    tasks: tuple[Task, ...] = get_args(Task)
    times = await ledger.store.command("HMGET", _KEY, *tasks)
    with reading(_KEY):
        return {task: int(time or 0) for task, time in zip(tasks, times, strict=True)}
