"""The rows that were answered to each client, hour by hour, for the owner's page alone.

The ledger says what was charged, and of a pay-once model that is one charge. How much a client asks is counted here, in
a file that the processes of a service share, and that the next service goes on with. It decides nothing: what cannot
be written is logged and lost, and so are the last seconds of a process that is killed. Nothing is counted that was
computed from logits or from private records.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from dpserve.service.telemetry.logs import kinds, log

HOUR = 3600
DAY = 24 * HOUR
MONTH = 30 * DAY
_SECONDS_KEPT_BACK = 5.0
"""Seconds after which what was counted is written."""
_MOST_KEPT_BACK = 100_000
_SECONDS_LOCKED = 5.0

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answered (hour INTEGER, lineage TEXT, client TEXT, rows INTEGER, "
    "PRIMARY KEY (lineage, client, hour)) WITHOUT ROWID"
)
_ADD = (
    "INSERT INTO answered (hour, lineage, client, rows) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (lineage, client, hour) DO UPDATE SET rows = rows + excluded.rows"
)
_SUM = (
    "SELECT client, SUM(CASE WHEN hour > ? THEN rows ELSE 0 END), SUM(rows) FROM answered "
    "WHERE lineage = ? AND hour > ? GROUP BY client"
)


@dataclass(frozen=True)
class Answered:
    """Rows that were answered to a client in the last 24 hours and in the last 30 days, by whole hours."""

    day: int = 0
    month: int = 0


class Usage:
    """Counts in one process, which go into the file that all share."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """Count into `file`, which is made where it is not. clock: seconds since the epoch."""
        self._file = file
        self._clock = clock
        self._counted: Counter[tuple[int, str, str]] = Counter()

    def count(self, lineage: str, client: str, rows: int) -> None:
        """Count rows that were answered now."""
        self._counted[int(self._clock() // HOUR), lineage, client] += rows

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write what is counted every few seconds, for as long as the block lasts, and once more at its end."""
        writing = asyncio.create_task(self._write_on())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await self.write()

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_KEPT_BACK)
            await self.write()

    async def write(self) -> None:
        """Write what was counted since the last time; what cannot be written waits for the next, and is logged."""
        counted, self._counted = self._counted, Counter()
        if not counted:
            return
        try:
            await asyncio.to_thread(self._add, counted)
        except (sqlite3.Error, OSError) as error:
            log.warning("what clients asked could not be counted in %s: %s", self._file, kinds(error))
            if len(counted) < _MOST_KEPT_BACK:
                self._counted.update(counted)

    def _add(self, counted: Mapping[tuple[int, str, str], int]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._opened()) as opened, opened:
            opened.executemany(_ADD, [(*place, rows) for place, rows in counted.items()])
            opened.execute("DELETE FROM answered WHERE hour <= ?", (self._hours_ago(MONTH),))

    def _opened(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._file, timeout=_SECONDS_LOCKED)
        opened.execute(_TABLE)
        return opened

    def _hours_ago(self, seconds: int) -> int:
        return int((self._clock() - seconds) // HOUR)

    async def of_lineage(self, lineage: str) -> Mapping[str, Answered]:
        """Return what each client of a lineage was answered, what this process has yet to write included."""
        await self.write()
        if not self._file.exists():
            return {}
        try:
            return await asyncio.to_thread(self._read, lineage)
        except (sqlite3.Error, OSError) as error:
            log.warning("what clients asked could not be read from %s: %s", self._file, kinds(error))
            return {}

    def _read(self, lineage: str) -> Mapping[str, Answered]:
        with closing(self._opened()) as opened:
            found = opened.execute(_SUM, (self._hours_ago(DAY), lineage, self._hours_ago(MONTH)))
            return {client: Answered(day, month) for client, day, month in found}
