"""The middleware that every request passes: an id, a count, a log line, a last answer."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpserve.service.http.problems import Problem, ProblemType, open_inference_error
from dpserve.service.http.refusals import FAILED
from dpserve.service.http.requests import ClientDisconnected
from dpserve.service.telemetry.logs import (
    REQUEST_ID_HEADER,
    REQUESTS,
    RequestLog,
    kinds,
    request_id,
    request_id_of,
    with_places,
)
from dpserve.service.telemetry.metrics import DISCONNECTED, InFlight, problem_of, route_of

MODEL = "dpserve.model"
"""Where the scope has the name of the model that answers, once that is known."""

_REFUSED = int(HTTPStatus.BAD_REQUEST)
"""The first status that refuses."""

_log = logging.getLogger(REQUESTS)


class RequestMiddleware:
    """Identifies, counts and logs every request, and answers the errors that nothing else answers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        count: Callable[[str, str, int, float, str | None], None],
        in_flight: InFlight | None = None,
        log: RequestLog | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Wrap `app`. count: as `Metrics.count`. in_flight: counts the requests. headers: of every answer."""
        self._app = app
        self._count = count
        self._in_flight = InFlight() if in_flight is None else in_flight
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
        self._in_flight.requests += 1

        def watched(message: Message) -> Awaitable[None]:
            nonlocal status, refused
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= _REFUSED:
                    refused = problem_of(message)
                if added:
                    message["headers"] = [*message.get("headers", ()), *added]
            return send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnected:
            pass
        except Exception as error:  # noqa: BLE001
            problem = failure(error, route_of(scope))
            if status == DISCONNECTED:
                await response_to(scope["path"], problem)(scope, receive, watched)
        finally:
            self._in_flight.requests -= 1
            seconds, route = self._clock() - began, route_of(scope)
            self._count(route, scope.get(MODEL, ""), status, seconds, refused)
            if self._log is not None:
                self._log.write(scope["method"], route, status, seconds)


def _identified(scope: Scope) -> tuple[bytes, bytes]:
    """Give the request an id, and return the header that says it."""
    identity = request_id_of(scope["headers"])
    request_id.set(identity)
    return REQUEST_ID_HEADER, identity.encode()


def response_to(path: str, problem: Problem) -> Response:
    """Return a problem in the form that the path's protocol has for errors."""
    return open_inference_error(problem) if path == "/v2" or path.startswith("/v2/") else problem.response()


def failure(error: Exception, route: str) -> Problem:
    """Log an unexpected error's type and place, and return the problem to answer with.

    Not its text, which could hold a number that nobody paid for; nor the path, which a stranger chose.
    """
    _log.error("%s while answering %s", kinds(error), route, extra=with_places(error))
    return Problem(ProblemType.INTERNAL, FAILED)
