"""Logs as text, or as one JSON object a line with the id of the request that they are about.

Promises: no line holds a row, an answer, a key or a path as it was asked for: a request is named by its route, one of a
fixed list. Of an exception a JSON line has the type and the places, not the text, which could hold a number.
"""

import json
import logging
import re
import secrets
import time
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.telemetry.metrics import route_of

Format = Literal["text", "json"]

REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being answered."""

_log = logging.getLogger("dpserve.requests")


def configure(kind: Format) -> None:
    """Have everything from INFO on written to stderr, as text or as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the request's id, and what `extra={"fields": ...}` adds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        asked = request_id.get()
        if asked is not None:
            line["request_id"] = asked
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["places"] = [f"{at.filename}:{at.lineno}" for at in traceback.extract_tb(record.exc_info[2])[-8:]]
        return json.dumps(line, default=str)


class RequestLog:
    """Middleware: gives every request an id, says it in the answer's header, and writes a line when it ended.

    A client's own X-Request-ID is kept if it is up to 128 letters, digits, dots, dashes and underscores.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = _id_of(scope)
        token = request_id.set(named)
        status = 499
        began = time.perf_counter()

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (REQUEST_ID_HEADER, named.encode())]
            await send(message)

        try:
            await self._app(scope, receive, marked)
        finally:
            _log.info(
                "request",
                extra={
                    "fields": {
                        "method": scope["method"] if scope["method"] in METHODS else "other",
                        "route": route_of(scope["path"]),
                        "status": status,
                        "seconds": round(time.perf_counter() - began, 6),
                    }
                },
            )
            request_id.reset(token)


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Those that are named as they are: a stranger may send any word for one."""


def _id_of(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)
