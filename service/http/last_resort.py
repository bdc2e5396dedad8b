"""What happens to an error that nobody foresaw: a problem for the client, its place (and no more) for the log."""

import logging
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.problems import Problem, ProblemType, open_inference_error
from service.telemetry.logs import kinds, places
from service.telemetry.metrics import route_of

_log = logging.getLogger("dpserve")

FAILED = "the service failed; the owner's log says where"


def response_to(path: str, problem: Problem) -> Response:
    """Return a problem in the form that the path's protocol has for errors."""
    return open_inference_error(problem) if path == "/v2" or path.startswith("/v2/") else problem.response()


def failure(error: Exception, path: str) -> Problem:
    """Write down the error's kind and place, and no more, and return the problem to answer with."""
    # The route, not the path: a stranger may have written anything there.
    _log.error("%s while answering %s\n%s", kinds(error), route_of(path), "\n".join(places(error)))
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, ProblemType.INTERNAL, FAILED)


class LastResort:
    """Wraps the whole application. The text of an unexpected error could hold a number that nobody paid for."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; answer 500 if that raises before anything was sent."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            _log.debug("a client of %s hung up before its request was complete", route_of(scope.get("path", "")))
        except Exception as error:  # noqa: BLE001
            problem = failure(error, scope.get("path", ""))
            if scope["type"] == "http" and not started:
                await response_to(scope["path"], problem)(scope, receive, send)
