"""`dpserve ledger follow`: ships the audit trail and the receipts as they come, to standard output or a collector.

Promises: a page of lines is shipped whole before the position moves past it, and the position is written once a second
where there is much to ship, and else after each page. So after a crash the lines of a second may come again, each with
the same lineage, history, chain and number, and none is left out. Memory is bounded by a page. Whatever is away is
tried again after a pause that grows to a minute, and the log says so once.
"""

import asyncio
import errno
import fcntl
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import httpx

from accounting.ledger import Ledger, LedgerError
from accounting.ledger.following import Follower, Page, Position
from service.errors import CannotServe
from training.private_files import write_whole

log = logging.getLogger("dpserve.follow")

_LONGEST_PAUSE = 60.0
_SECONDS_BETWEEN_POSITIONS = 1.0
_SECONDS_TO_END = 10.0
"""Longest time that a destination which takes nothing keeps the command from ending."""

_SECONDS_TO_SEND = 30.0
_TRY_AGAIN = (408, 429, 502, 503, 504)
_ENDPOINT, _LOGS_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"

Line = Mapping[str, Any]


class Undelivered(Exception):
    """Lines did not arrive, as far as is known; try again."""


class Destination(Protocol):
    """Where lines are shipped to."""

    async def ship(self, lines: Sequence[Line]) -> None:
        """Ship lines; they have arrived when this returns. Raises Undelivered, or CannotServe where no try helps."""

    async def close(self) -> None:
        """Let go of what is open."""


class StandardOutput:
    """JSON Lines on a file descriptor, each written whole."""

    def __init__(self, descriptor: int = 1) -> None:
        """Write to this descriptor."""
        self._descriptor = descriptor

    async def ship(self, lines: Sequence[Line]) -> None:
        """Write the lines, in a thread: a reader that is slow must not keep signals from being heard."""
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        loop, written = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def tell(error: OSError | None) -> None:
            if not written.done():
                written.set_exception(error) if error is not None else written.set_result(None)

        def write() -> None:
            left, failed = memoryview(text), None
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                failed = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, failed)

        # A daemon: at the end nobody waits for a reader that takes nothing.
        threading.Thread(target=write, daemon=True).start()
        try:
            await written
        except OSError as error:
            reason = "nobody reads it any more" if error.errno == errno.EPIPE else error.strerror
            raise CannotServe(f"cannot write to standard output: {reason}") from error

    async def close(self) -> None:
        """Do nothing: it stays open."""


class Collector:
    """An OpenTelemetry collector, by OTLP over HTTP in JSON: a log record for each line."""

    def __init__(self, url: str, headers: Mapping[str, str], authority: str | None = None) -> None:
        """url: where logs are taken, as http://collector:4318/v1/logs. authority: a file that certifies its server."""
        self._url = url
        trusting: Any = True
        if authority is not None:
            import ssl

            trusting = ssl.create_default_context(cafile=authority)
        self._client = httpx.AsyncClient(headers=dict(headers), verify=trusting, timeout=_SECONDS_TO_SEND)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> "Collector":
        """Return the collector that OpenTelemetry's own variables name. Raises CannotServe."""
        url = environment.get(_LOGS_ENDPOINT) or ""
        if not url and environment.get(_ENDPOINT):
            url = environment[_ENDPOINT].rstrip("/") + "/v1/logs"
        if not url.startswith(("http://", "https://")):
            raise CannotServe(f"set {_ENDPOINT} to where the collector takes OTLP over HTTP, as http://collector:4318")
        said = environment.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
        pairs = [pair.partition("=") for pair in said.split(",") if pair.strip()]
        headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
        try:
            return cls(url, headers, environment.get("OTEL_EXPORTER_OTLP_CERTIFICATE") or None)
        except OSError as error:
            raise CannotServe(f"cannot read OTEL_EXPORTER_OTLP_CERTIFICATE: {error.strerror}") from error

    async def ship(self, lines: Sequence[Line]) -> None:
        """Send the lines in one request. Raises Undelivered unless the collector took all that it can read."""
        resource = {"attributes": [_attribute("service.name", os.environ.get("OTEL_SERVICE_NAME", "dpserve"))]}
        records = [_record(line) for line in lines]
        body = {"resourceLogs": [{"resource": resource, "scopeLogs": [_scope(records)]}]}
        try:
            answer = await self._client.post(self._url, json=body)
        except httpx.HTTPError as error:
            raise Undelivered(f"the collector cannot be reached: {type(error).__name__}") from error
        if answer.status_code in _TRY_AGAIN:
            raise Undelivered(f"the collector answered {answer.status_code}")
        if answer.status_code != httpx.codes.OK:
            raise CannotServe(f"the collector at {self._url} refused with status {answer.status_code}")
        with suppress(ValueError):
            rejected = answer.json().get("partialSuccess", {}).get("rejectedLogRecords")
            if rejected and int(rejected):
                raise CannotServe(f"the collector rejected {rejected} of {len(lines)} log records")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _scope(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"scope": {"name": "dpserve.ledger"}, "logRecords": records}


def _record(line: Line) -> dict[str, Any]:
    record = {
        "severityNumber": 9,
        "severityText": "INFO",
        "body": {"stringValue": json.dumps(line, ensure_ascii=False)},
        "attributes": [
            _attribute(f"dpserve.{name}", str(line[name])) for name in ("lineage", "history", "chain", "number", "kind")
        ],
    }
    with suppress(ValueError, KeyError):  # a clock that was never set right; what was archived has no time
        record["timeUnixNano"] = str(int(datetime.fromisoformat(line["time_utc"]).timestamp() * 1e9))
    return record


@dataclass(frozen=True)
class PositionFile:
    """Keeps the position in a file, or nowhere: then every start ships from the first line on."""

    path: Path | None

    def read(self) -> Position:
        """Return the position; before anything was shipped the first. Raises CannotServe."""
        if self.path is None or not self.path.exists():
            return Position()
        try:
            return Position.parse(self.path.read_bytes())
        except (ValueError, OSError) as error:
            raise CannotServe(f"{self.path} holds no position of a follower") from error

    def write(self, position: Position) -> None:
        """Write the position. Raises CannotServe."""
        if self.path is None:
            return
        try:
            write_whole(self.path, position.encoding)
        except OSError as error:
            raise CannotServe(f"cannot write {self.path}: {error.strerror}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second follower from the file for as long as the block lasts. Raises CannotServe."""
        if self.path is None:
            yield
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(
                self.path.with_name(f"{self.path.name}.lock"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise CannotServe(f"cannot write beside {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise CannotServe(f"another follower keeps its position in {self.path}") from None
        finally:
            os.close(lock)


async def follow(
    opened: Callable[[], AbstractAsyncContextManager[Ledger]],
    lineages: Sequence[str],
    destination: Destination,
    file: PositionFile,
    *,
    every: float,
    once: bool = False,
) -> None:
    """Ship what the ledger has beyond the file's position, and what comes, until SIGTERM or SIGINT.

    opened: opens the ledger. lineages: their names; all for none. every: seconds between two looks. once: end when all
    that there is has been shipped, and raise what would be tried again. Raises CannotServe.
    """
    with _told_to_end() as ending:
        shipping = _Shipping(destination, file, ending, _Pauses(ending))
        try:
            while not ending.is_set():
                try:
                    async with opened() as ledger:
                        follower = Follower(ledger, file.read(), lineages)
                        await shipping.ship_new(follower)
                        while not (once or ending.is_set()):
                            await _wait(ending, every)
                            await shipping.ship_new(follower)
                except LedgerError as error:
                    if once:
                        raise
                    await shipping.pauses.begin(f"the ledger cannot be followed: {error}")
                else:
                    return
        finally:
            await destination.close()


@contextmanager
def _told_to_end() -> Iterator[asyncio.Event]:
    """Give an event that SIGTERM and SIGINT set, for as long as the block lasts."""
    ending, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    try:
        yield ending
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@dataclass(frozen=True)
class _Shipping:
    """Ships pages, each whole before the position moves."""

    destination: Destination
    file: PositionFile
    ending: asyncio.Event
    pauses: "_Pauses"

    async def ship_new(self, follower: Follower) -> None:
        """Ship all that is new now, or as much until the command is to end."""
        arrived, written = None, time.monotonic()
        try:
            async for page in follower.pages():
                self.pauses.end()
                if await self._deliver(page):
                    arrived = page.position
                if arrived is not None and time.monotonic() - written > _SECONDS_BETWEEN_POSITIONS:
                    self.file.write(arrived)
                    arrived, written = None, time.monotonic()
                if self.ending.is_set():
                    return
            self.pauses.end()
        finally:
            if arrived is not None:
                self.file.write(arrived)

    async def _deliver(self, page: Page) -> bool:
        """Ship a page, however often it takes; return whether it arrived before the command was to end."""
        while True:
            shipping = asyncio.ensure_future(self.destination.ship(page.lines))
            told = asyncio.ensure_future(self.ending.wait())
            await asyncio.wait({shipping, told}, return_when=asyncio.FIRST_COMPLETED)
            told.cancel()
            if not shipping.done():
                await asyncio.wait({shipping}, timeout=_SECONDS_TO_END)
            if not shipping.done():
                shipping.cancel()
                raise CannotServe(f"the destination took nothing in {_SECONDS_TO_END:g} s: its newest lines come again")
            try:
                await shipping
            except Undelivered as error:
                if self.ending.is_set():
                    return False
                await self.pauses.begin(str(error))
            else:
                self.pauses.end()
                return True


async def _wait(ending: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ending.wait()


class _Pauses:
    """Pauses that grow while something is away; the log says when it goes and when it comes back."""

    def __init__(self, ending: asyncio.Event) -> None:
        self._ending = ending
        self._count = 0

    async def begin(self, why: str) -> None:
        """Wait until the next try, or until the command is to end."""
        if not self._count:
            log.warning("%s; trying again until it is back", why)
        pause = min(_LONGEST_PAUSE, 2.0**self._count)
        self._count += 1
        await _wait(self._ending, pause * random.uniform(0.5, 1))  # noqa: S311 - no secret: followers spread out

    def end(self) -> None:
        """Begin anew with short pauses: what was away is back."""
        if self._count:
            log.warning("it is back, after %d tries", self._count)
        self._count = 0
