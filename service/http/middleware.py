"""What every request passes, whatever it asks for: an id, a count, a log line, limits on its body, a last answer."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.problems import Problem, ProblemType, open_inference_error
from service.http.requests import ClientDisconnected
from service.telemetry.logs import REQUEST_ID_HEADER, RequestLog, kinds, places, request_id, request_id_of
from service.telemetry.metrics import DISCONNECTED, problem_of, route_of

FAILED = "the service failed; the owner's log says where"

_log = logging.getLogger("dpserve")


class Requests:
    """Identifies, counts and logs every request, and answers the errors that nothing else answers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        count: Callable[[str, int, float, str | None], None],
        route: Callable[[str], str] = route_of,
        log: RequestLog | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Wrap `app`. count: as `Metrics.count`. route: the label of a path. headers: of every answer."""
        self._app = app
        self._count = count
        self._route = route
        self._log = log
        self._headers = list(headers)
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer 500 if that raises before anything was sent."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()
        added = self._headers if self._log is None else [*self._headers, _identified(scope)]
        status, refused = DISCONNECTED, None

        async def watched(message: Message) -> None:
            nonlocal status, refused
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= HTTPStatus.BAD_REQUEST:
                    refused = problem_of(message)
                if added:
                    message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        route = self._route(scope["path"])
        try:
            await self._app(scope, receive, watched)
        except ClientDisconnected:
            pass
        except Exception as error:  # noqa: BLE001
            problem = failure(error, route)
            if status == DISCONNECTED:
                await response_to(scope["path"], problem)(scope, receive, watched)
        finally:
            seconds = self._clock() - began
            self._count(route, status, seconds, refused)
            if self._log is not None:
                self._log.write(scope["method"], route, status, seconds)


def _identified(scope: Scope) -> tuple[bytes, bytes]:
    """Give the request an id, and return the header that says it."""
    identity = request_id_of(scope["headers"])
    request_id.set(identity)
    return REQUEST_ID_HEADER, identity.encode()


_LONGEST_SILENCE = 1.0
"""Seconds without a part of a body that is refused, after which its sender is answered."""


class BodyLimits:
    """Refuses a body that is longer than `largest` bytes, or does not arrive within `seconds`, as it is read."""

    def __init__(self, app: ASGIApp, *, largest: int, seconds: float) -> None:
        """Wrap `app`."""
        self._app = app
        self._largest = largest
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a `receive` that raises a 408 or 413 problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def limited() -> Message:
            nonlocal length, complete
            if complete:
                return await receive()
            if length == 0 and _announced(scope) > self._largest:
                await _discard(scope, receive, deadline)
                raise self._too_long()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise Problem(
                    HTTPStatus.REQUEST_TIMEOUT,
                    ProblemType.INVALID_REQUEST,
                    f"the body did not arrive within {self._seconds:g} seconds",
                ) from None
            length += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if length > self._largest:
                if not complete:
                    await _discard(scope, receive, deadline)
                raise self._too_long()
            return message

        await self._app(scope, limited, send)

    def _too_long(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            ProblemType.BODY_TOO_LARGE,
            f"the body is longer than {self._largest} bytes; send fewer rows at a time",
            limit_bytes=self._largest,
        )


async def _discard(scope: Scope, receive: Receive, deadline: float) -> None:
    """Read what is left of a body while it comes, until the deadline at most: who is cut off does not read the refusal.

    A sender that asked whether to continue has sent nothing, and is not told to.
    """
    if any(name == b"expect" for name, _ in scope["headers"]):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            while (await asyncio.wait_for(receive(), _LONGEST_SILENCE)).get("more_body", False):
                pass


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)  # the server has checked that it is a number that it can count to
    return 0


def response_to(path: str, problem: Problem) -> Response:
    """Return a problem in the form that the path's protocol has for errors."""
    return open_inference_error(problem) if path == "/v2" or path.startswith("/v2/") else problem.response()


def failure(error: Exception, route: str) -> Problem:
    """Log an unexpected error's type and place, and return the problem to answer with.

    Not its text, which could hold a number that nobody paid for; nor the path, which a stranger chose.
    """
    _log.error("%s while answering %s\n%s", kinds(error), route, "\n".join(places(error)))
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, ProblemType.INTERNAL, FAILED)
