"""Logs as text, or as one JSON object a line with the id of the request that they are about.

Promises: no line holds a row, an answer, a key or a path as it was asked for: a request is named by its route, one of a
fixed list. Of an exception a line has the type and the places in the code, not the text, which could hold a number.
What a text line quotes, as a folder's name, has neither a line break nor a terminal's control characters in it: nobody
who names a folder can write a line of their own.
"""

import asyncio
import copy
import errno
import json
import logging
import math
import os
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dpserve.accounting.disclosure import Asked, Declared, Disclosed

Format = Literal["text", "json"]

REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_TEXT = "%(asctime)s %(levelname)s %(name)s%(worker)s: %(message)s"

_MOST_KINDS = 1000

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being answered."""

worker: int | None = None
"""The id of this process where it is one of several workers."""

REQUESTS = "dpserve.requests"
"""The logger of what went wrong with a request."""

log = logging.getLogger("dpserve")
_loop_log = logging.getLogger("dpserve.loop")


def configure(kind: Format) -> None:
    """Have everything from INFO on written to stderr, as text or as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else TextLines(_TEXT))
    handler.addFilter(OnceASecond())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # What it says of its own start and end names neither a port nor a reason, and stands under a name that says error.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def name_worker() -> None:
    """Have every line of this process say which worker wrote it."""
    global worker
    worker = os.getpid()


def announcement(text: str, kind: Format) -> str:
    """Return a line for stdout: where both streams end in one log, it is in one format."""
    if kind == "text":
        return f"dpserve: {_printable(text)}"
    return JsonLines().format(logging.LogRecord("dpserve", logging.INFO, "", 0, text, None, None))


def places(error: BaseException) -> list[str]:
    """Return where in the code an error and its causes were raised, as file:line: of each the innermost four."""
    return [
        f"{at.filename}:{at.lineno}"
        for each in error_chain(error)
        for at in traceback.extract_tb(each.__traceback__)[-4:]
    ]


def with_places(error: BaseException) -> dict[str, Any]:
    """Return the `extra` of a log call that has a line say where in the code an error was raised.

    `exc_info` would give a formatter that is not ours the error's text as well.
    """
    return {"fields": {"places": places(error)}}


def kinds(error: BaseException) -> str:
    """Return the type of an error and those of its causes, an operating system's with the name of its number.

    None of their texts: a text can repeat what a program was given.
    """
    return " from ".join(map(_kind, error_chain(error)))


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, each once."""
    met: set[int] = set()  # nothing keeps causes from going in a circle
    while error is not None and id(error) not in met:
        met.add(id(error))
        yield error
        error = error.__cause__


def _kind(error: BaseException) -> str:
    number = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{type(error).__name__} {number}" if number else type(error).__name__


def unforeseen(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write down what an event loop found nobody to tell of, as its exception handler: not the loop's own words.

    Those repeat the exception, and the arguments of callbacks.
    """
    del loop
    error = context.get("exception")
    if isinstance(error, BaseException):
        _loop_log.error("the event loop reported %s", kinds(error), extra=with_places(error))
    else:
        _loop_log.error("the event loop reported an error without an exception")


class OnceASecond(logging.Filter):
    """Passes one of equal errors of REQUESTS a second, and says then how many it held back: an outage fails them all.

    Errors are equal by their words and arguments. The last of an outage are told with the first of the next one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in seconds."""
        super().__init__()
        self._clock = clock
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written; write into it how many were not."""
        if record.name != REQUESTS or record.levelno < logging.ERROR:
            return True
        words, now = record.getMessage(), self._clock()
        before, held = self._passed.get(words, (-math.inf, 0))
        if now - before < 1:
            self._passed[words] = (before, held + 1)
            return False
        if len(self._passed) >= _MOST_KINDS:
            self._passed.clear()
        self._passed[words] = (now, 0)
        if held:
            record.msg, record.args = f"{words} ({held:,} more like it since the line before)", ()
        return True


class TextLines(logging.Formatter):
    """Lines for people: one for the record, in which every character can be printed; an error's places below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        record = copy.copy(record)
        record.exc_text = None  # what another formatter may have made of the exception
        record.worker = "" if worker is None else f" worker {worker}"
        return "\n".join([super().format(record), *getattr(record, "fields", {}).get("places", ())])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        """Return the record's own line."""
        return _printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the lines of an exception, from a triple as `sys.exc_info` has it."""
        error = ei[1]
        return "" if error is None else "\n".join([kinds(error), *places(error)])


class LogLine(Disclosed, Struct, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One line in JSON, for the owner. method and what follows: of a line about a request that ended."""

    time: Asked[str]
    level: Declared[str]
    logger: Declared[str]
    message: Asked[str]
    worker: Asked[int | UnsetType] = UNSET
    request_id: Asked[str | UnsetType] = UNSET
    method: Asked[str | UnsetType] = UNSET
    route: Asked[str | UnsetType] = UNSET
    """A label, not the path."""
    status: Asked[int | UnsetType] = UNSET
    seconds: Asked[float | UnsetType] = UNSET
    error: Asked[str | UnsetType] = UNSET
    """The type of an exception and of its causes, without their texts."""
    places: Asked[list[str] | UnsetType] = UNSET
    """Where in the code these were raised."""


class JsonLines(logging.Formatter):
    """One JSON object a line: a `LogLine`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        error = record.exc_info[1] if record.exc_info else None
        noted = getattr(record, "fields", {}).get("places", UNSET)  # what `with_places` gave, and of others nothing
        line = LogLine(
            time=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            level=record.levelname,
            logger=record.name,
            message=record.getMessage(),
            worker=UNSET if worker is None else worker,
            request_id=request_id.get() or UNSET,
            error=UNSET if error is None else kinds(error),
            places=noted if error is None else places(error),
        )
        return json.dumps(msgspec.to_builtins(line))  # which escapes what ends a line elsewhere


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Those that are named as they are: a stranger may send any word for one."""


class RequestLog:
    """Writes one line for each request to stderr, a `LogLine` as `JsonLines` would write it, in a fifth of its time."""

    def write(self, method: str, route: str, status: int, seconds: float) -> None:
        """Write a line about the request of the current context. route: a label, not the path."""
        process = "" if worker is None else f'"worker": {worker}, '
        sys.stderr.write(
            f'{{"time": "{_now()}", "level": "INFO", "logger": "{REQUESTS}", "message": "request", {process}'
            f'"request_id": "{request_id.get()}", "method": "{method if method in METHODS else "other"}", '
            f'"route": "{route}", "status": {status}, "seconds": {seconds:.6f}}}\n'
        )


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return a request's id: the client's own if it is up to 128 letters, digits, dots, dashes and underscores."""
    for name, value in headers:
        if name == REQUEST_ID_HEADER and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(8)


def _printable(text: str) -> str:
    """Return the text on one line, with an escape for each character that is not printed."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
