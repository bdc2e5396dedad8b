"""The headers, query and body of a request for predictions: each header once, each query parameter known."""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from starlette.types import Receive, Scope

from dpserve.accounting.ledger import Idempotency
from dpserve.service.errors import Overloaded
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.structure import SMALL
from dpserve.service.places import Places
from dpserve.service.predictor import LARGEST_BODY

_LONGEST_IDEMPOTENCY_KEY = 255
_IDEMPOTENCY_KEY = re.compile(rf"[!-~]{{1,{_LONGEST_IDEMPOTENCY_KEY}}}")
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9}(?:\.\d{1,6})?)(?=[\s\",;]|$)", re.IGNORECASE)

_ONCE = frozenset({b"authorization", b"content-type", b"idempotency-key", b"inference-header-content-length"})
"""Headers that decide what is charged, and to whom: a proxy before the service may have looked at another of two."""

IDEMPOTENCY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST_IDEMPOTENCY_KEY, "pattern": "^[!-~]+$"},
    "description": "Your name for this request: sent again, it is answered again and charged once.",
}
PREFER_PARAMETER: dict[str, Any] = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "wait=SECONDS: what is not charged by then is not charged at all, and refused with 503.",
}
"""The OpenAPI document's entries for these headers."""


Result = TypeVar("Result")


def invalid(detail: str) -> Problem:
    """Return the problem of a request that cannot be understood."""
    return Problem(ProblemType.INVALID_REQUEST, detail)


class RequestHeader(msgspec.Struct, frozen=True):
    """A request without its body. fields: by lower-case name, the last of several where several may be sent.

    peer: the address that it came from. wait: after how many seconds nothing is to be charged any more, as `Prefer:
    wait=SECONDS` says (RFC 7240); None where it says nothing that can be read. Fractions of a second are taken, too.
    deadline: when these seconds are over, by `time.monotonic`.
    """

    fields: Mapping[bytes, bytes]
    query: Mapping[str, str]
    peer: str
    wait: float | None = None
    deadline: float = math.inf

    def field(self, name: bytes) -> str | None:
        """Return what a field says, or None."""
        value = self.fields.get(name)
        return None if value is None else value.decode("latin-1")

    def flag(self, name: str) -> bool:
        """Return whether the query says that a parameter is true; it is false without it. Raises a 400 problem."""
        word = self.query.get(name, "false").lower()
        if word not in ("true", "false"):
            raise invalid(f"{name} is 'true' or 'false'")
        return word == "true"

    def number(self, name: str) -> float | None:
        """Return a parameter of the query that is a number; None without it. Raises a 400 problem."""
        if (word := self.query.get(name)) is None:
            return None
        try:
            return float(word)
        except ValueError:
            raise invalid(f"{name} is a number") from None

    def idempotency(self, body: bytes) -> Idempotency | None:
        """Return the client's name for a request that says `body`, if it has one. Raises a 400 problem."""
        if b"idempotency-key" not in self.fields:
            return None
        key = self.fields[b"idempotency-key"].decode("latin-1")
        if not _IDEMPOTENCY_KEY.fullmatch(key):
            raise invalid(f"an Idempotency-Key has 1 to {_LONGEST_IDEMPOTENCY_KEY} visible ASCII characters")
        return Idempotency(key, hashlib.sha256(body).digest())


def read_header(scope: Scope, parameters: Set[str]) -> RequestHeader:
    """Return the request's header. parameters: those that the query may have, once each. Raises a 400 problem."""
    headers = dict(scope["headers"])
    if len(headers) != len(scope["headers"]):
        _check_once(scope["headers"])
        if b"prefer" in headers:
            # Several are one list (RFC 7240): a deadline in one of them is kept, whatever the others say.
            headers[b"prefer"] = b", ".join(value for name, value in scope["headers"] if name == b"prefer")
    if b"upgrade" in headers:
        # The server takes what follows such a header for another protocol's, and the body never arrives.
        raise invalid("send the request without the header 'Upgrade'")
    query = _query(scope["query_string"], parameters) if scope["query_string"] else {}
    client = scope.get("client")
    peer = client[0] if client else ""
    preference = _WAIT.search(headers[b"prefer"].decode("latin-1")) if b"prefer" in headers else None
    if preference is None:
        return RequestHeader(headers, query, peer)
    wait = float(preference[1])
    return RequestHeader(headers, query, peer, wait, time.monotonic() + wait)


async def check_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have or that come twice, and headers of which only one may come.

    A dependency of routes that act, charge or tell an account. Raises a 400 problem.
    """
    _check_once(request.scope["headers"])
    if request.scope["query_string"]:
        known = request.scope["route"].dependant.query_params
        _query(request.scope["query_string"], {each.alias for each in known})


def _check_once(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise invalid(f"send one header '{name.decode().title()}', not several")


def _query(query: bytes, parameters: Set[str]) -> dict[str, str]:
    """Refuse what is not known: whoever misspells a dry run must not be charged for it."""
    fields: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in parameters:
            known = ", ".join(sorted(parameters)) or "none; POST /predict?dry_run=true says what an answer costs"
            raise invalid(f"the query has a parameter that is not known here; known: {known}")
        if name in fields:
            raise invalid(f"the query has {name} more than once")
        fields[name] = value
    return fields


class _Room:
    """So many bytes, a fifth of them for one caller at most. A fifth is kept for what is small."""

    def __init__(self, together: int) -> None:
        self._left, self._each = together, together // 5
        self._held: dict[Hashable, int] = {}

    def take(self, more: int, length: int, caller: Hashable) -> None:
        """Count so many bytes more of what has `length` by now. Raises Overloaded, and has counted them."""
        self._left -= more
        held = self._held[caller] = self._held.get(caller, 0) + more
        # A share is kept for what is small, whatever clients with large requests hold together.
        if held > self._each or self._left < (0 if length < SMALL else self._each):
            raise Overloaded(1)

    def release(self, length: int, caller: Hashable = None) -> None:
        """Count so many bytes no more."""
        self._left += length
        self._held[caller] = self._held.get(caller, 0) - length
        if not self._held[caller]:
            del self._held[caller]


class Bodies:
    """Reads bodies, each within `seconds`, and holds at most `together` bytes of them, a fifth of them of one caller.

    As many more are for the numbers that their rows become. Both count until their requests are answered. parsing: the
    turns in which large ones are parsed, one at a time.
    """

    def __init__(self, seconds: float = 30.0, together: int = 5 * LARGEST_BODY) -> None:
        """together: of all bodies of this process."""
        self._seconds, self.together = seconds, together
        # All have as long, so that one timer is enough: one for each takes more time than all else that reads a body.
        self._ends: dict[asyncio.Task[Any], float | None] = {}
        """When each body that arrives must be there, by the task that reads it, the first first; None: it is late."""
        self._timer: asyncio.TimerHandle | None = None
        self._bodies, self._rows = _Room(together), _Room(together)
        self.release = self._bodies.release
        """Count so many bytes of a caller's body no more."""
        self.parsing = Places(1)

    @asynccontextmanager
    async def whole(self, read: Callable[[], Awaitable[bytes]], caller: Hashable) -> AsyncIterator[bytes]:
        """Give a body that comes at once, from `read`, and count it for as long as the block lasts.

        Raises a 408 problem as soon as it is too late, and Overloaded.
        """
        try:
            async with asyncio.timeout(self._seconds):
                body = await read()
        except TimeoutError:
            raise self._too_late() from None
        try:
            self._bodies.take(len(body), len(body), caller)
            yield body
        finally:
            self.release(len(body), caller)

    @contextmanager
    def counting(self, size: int, caller: Hashable) -> Iterator[None]:
        """Count a request's rows for as long as the block lasts. Raises Overloaded."""
        try:
            self._rows.take(size, size, caller)
            yield
        finally:
            self._rows.release(size, caller)

    async def read(
        self, fields: Mapping[bytes, bytes], receive: Receive, largest: int, caller: Hashable = None
    ) -> bytes:
        """Return the body of at most `largest` bytes, which counts until its length is given to `release`.

        fields: the header's. Raises a 408 or 413 problem, as soon as it is too late or too long, Overloaded, and
        ClientDisconnected.
        """
        # The server has checked that it is a number that it can count to.
        if int(fields.get(b"content-length", 0)) > largest:
            await _discard(fields, receive, asyncio.get_running_loop().time() + self._seconds)
            raise too_long(largest)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._ends[task] = deadline = loop.time() + self._seconds
        self._timer = self._timer or loop.call_at(deadline, self._end_late, loop)
        body = BytesIO()  # small parts that are kept, each by itself, would leave the memory in pieces
        more, length = True, 0
        try:
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientDisconnected
                part: bytes = message.get("body", b"")
                more = message.get("more_body", False)
                if length + len(part) > largest:
                    raise too_long(largest)
                length += len(part)
                self._bodies.take(len(part), length, caller)
                if more or length > len(part):
                    body.write(part)
        except BaseException as error:
            self.release(length, caller)
            # Somebody else may have cancelled it as well, who is not to wait.
            late = self._ends.pop(task) is None and not task.uncancel()
            if late and isinstance(error, asyncio.CancelledError):
                raise self._too_late() from None
            if more and isinstance(error, Problem | Overloaded):
                await _discard(fields, receive, deadline)
            raise
        if self._ends.pop(task) is None:
            task.uncancel()
        return body.getvalue() or part

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the reading of each body that should be there by now."""
        self._timer = None
        for task, end in self._ends.items():
            if end is None:
                continue
            if end > loop.time():
                self._timer = loop.call_at(end, self._end_late, loop)
                return
            self._ends[task] = None
            task.cancel()

    def _too_late(self) -> Problem:
        detail = f"the body did not arrive within {self._seconds:g} seconds"
        return Problem(ProblemType.INVALID_REQUEST, detail, status=HTTPStatus.REQUEST_TIMEOUT)


def too_long(largest: int) -> Problem:
    """Return the problem of a body of more than `largest` bytes."""
    return Problem(
        ProblemType.BODY_TOO_LARGE,
        f"the body is longer than {largest} bytes; send fewer rows at a time",
        limit_bytes=largest,
    )


_LONGEST_SILENCE = 1.0
"""Seconds without a part of a body that is refused, after which its sender is answered."""


async def _discard(fields: Mapping[bytes, bytes], receive: Receive, deadline: float) -> None:
    """Read what is left of a body while it comes, until the deadline at most: who is cut off does not read the refusal.

    A sender that asked whether to continue has sent nothing, and is not told to.
    """
    if b"expect" in fields:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while (await asyncio.wait_for(receive(), _LONGEST_SILENCE)).get("more_body", False):
                pass


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what the work on a whole request returns; end it, and raise ClientDisconnected, once its client is gone.

    What was charged by then stays charged, and is answered when it is asked again.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            outcome: Result = working.result()
            return outcome
        raise ClientDisconnected
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.wait({working})
        del working, leaving  # which an error's traceback would keep, and what they have
