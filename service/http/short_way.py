"""`POST /predict` straight from the HTTP parser to `Predictions`, past ASGI, which costs three times what HTTP does.

Only what is plain and small goes this way: HTTP/1.1, no query, a body of known and moderate length, no header twice,
and no request before it on the connection still unanswered. Everything else is uvicorn's and the application's, which
answer the same. So whatever must see every prediction has its place in `Predictions`, not in a middleware: what a
middleware of ours does for other requests is done here by the same functions (counts, the last resort, the
rehearsal's mark).
"""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from accounting.ledger import ClientRevoked, KeyExpired, UnknownKey
from service.http.bodies import SECONDS_FOR_BODY, SMALL_BODY, body_too_late
from service.http.impatience import ImpatientProtocol, protocol_with
from service.http.last_resort import failure
from service.http.predictions import PATH, Head, Predictions
from service.http.problems import Problem
from service.http.refusals import REFUSALS, as_problem
from service.plane import Prediction
from service.telemetry.metrics import HUNG_UP

_URL = PATH.encode()

_MOST_BEHIND = 8
"""Requests that may wait behind one that goes the short way while its connection is still read."""


class _Exchange:
    """One request and its answer, in the place of what uvicorn's protocol calls a cycle."""

    __slots__ = (
        "began",
        "begun",
        "body",
        "disconnected",
        "head",
        "keep_alive",
        "message_event",
        "more_body",
        "response_complete",
        "task",
        "timer",
    )

    def __init__(self, head: Head, *, keep_alive: bool) -> None:
        self.head = head
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.response_complete = False
        self.disconnected = False
        self.begun = False
        self.message_event = self
        self.task: asyncio.Future[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.began = time.perf_counter()

    def set(self) -> None:
        """Wake nobody: the task begins when the body is there."""


class ShortWayProtocol(ImpatientProtocol):
    """HTTP/1.1 that answers plain predictions itself."""

    predictions: ClassVar[Predictions]

    _exchange: _Exchange | None = None
    """The newest, which `cycle` is no longer once a request that uvicorn answers came behind it."""

    def on_headers_complete(self) -> None:
        """Take the request, or leave it to uvicorn."""
        head = self._head_of_short_way()
        if head is None:
            super().on_headers_complete()
            if 0 < len(self.pipeline) < _MOST_BEHIND:
                self.flow.resume_reading()  # that the client hangs up is heard by reading alone
            return
        self.header_is_complete()
        self._exchange = _Exchange(head, keep_alive=self.parser.should_keep_alive())
        self.cycle = self._exchange  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Begin to answer, once: whatever ends after it is another request, though it has no cycle of its own."""
        super().on_message_complete()
        exchange = self.cycle
        if isinstance(exchange, _Exchange) and not exchange.begun:
            exchange.begun = True
            self._predict(exchange)

    def data_received(self, data: bytes) -> None:
        """Take the bytes in; a body that comes in pieces has a deadline."""
        super().data_received(data)
        exchange = self.cycle
        if isinstance(exchange, _Exchange) and exchange.more_body and exchange.timer is None:
            exchange.timer = self.loop.call_later(SECONDS_FOR_BODY, self._too_late, exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up what is not charged yet; what is, is answered for the ledger alone."""
        exchange = self._exchange
        super().connection_lost(exc)
        if exchange is not None and not self._is_answered():
            exchange.disconnected = True
            if exchange.timer is not None:
                exchange.timer.cancel()
            if exchange.task is not None:
                exchange.task.cancel()
            if not exchange.begun:
                exchange.begun = True
                self._count(exchange, HUNG_UP, {})

    def _is_answered(self) -> bool:
        return self._exchange is None or self._exchange.response_complete

    def _head_of_short_way(self) -> Head | None:
        if self.url != _URL or self.parser.get_method() != b"POST" or self.parser.get_http_version() != "1.1":
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if (
            len(headers) != len(self.headers)
            or not length.isdigit()
            or int(length) > min(SMALL_BODY, self.predictions.largest_body)
            or b"host" not in headers
            or self.expect_100_continue
            or b"transfer-encoding" in headers
            or self.parser.should_upgrade()
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            return None
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        # Where a new key comes from matters, and uvicorn knows which proxies are believed.
        if b"x-forwarded-for" in headers and not self.predictions.knows(authorization):
            return None
        key = headers.get(b"idempotency-key")
        return Head(
            authorization,
            None if key is None else key.decode("latin-1"),
            headers.get(b"content-type", b"").decode("latin-1"),
            headers.get(b"accept", b"").decode("latin-1"),
            headers.get(b"prefer", b"").decode("latin-1"),
            peer="" if self.client is None else self.client[0],
        )

    def _predict(self, exchange: _Exchange) -> None:
        """Answer without a task, which is a tenth of a request's CPU, unless somebody must be asked first."""
        if exchange.timer is not None:
            exchange.timer.cancel()
        try:
            prediction = self.predictions.begin(exchange.head, bytes(exchange.body))
        except Exception as error:  # noqa: BLE001
            self._end(exchange, *_not_answered(error))
            return
        if prediction is None:
            self._begin(exchange, self._answer(exchange))
            return
        exchange.task = prediction
        self.tasks.add(prediction)  # type: ignore[arg-type]
        prediction.add_done_callback(partial(self._predicted, exchange))

    def _predicted(self, exchange: _Exchange, prediction: "asyncio.Future[Prediction]") -> None:
        self.tasks.discard(prediction)
        if prediction.cancelled():
            self._count(exchange, HUNG_UP, {})
            return
        try:
            reply = self.predictions.begun(prediction.result(), exchange.head)
            status, headers, body = 200, reply.headers, reply.body
        except (UnknownKey, ClientRevoked, KeyExpired) as error:
            if not exchange.disconnected:
                self._begin(exchange, self._answer(exchange))
                return
            status, headers, body = _not_answered(error)
        except Exception as error:  # noqa: BLE001
            status, headers, body = _not_answered(error)
        self._end(exchange, status, headers, body)

    def _end(self, exchange: _Exchange, status: int, headers: dict[str, str], body: bytes) -> None:
        if self.flow.write_paused and not exchange.disconnected:
            self._begin(exchange, self._send_and_count(exchange, status, headers, body))
            return
        self._write(exchange, status, headers, body)
        self._count(exchange, status, headers)

    async def _send_and_count(self, exchange: _Exchange, status: int, headers: dict[str, str], body: bytes) -> None:
        try:
            await self._send(exchange, status, headers, body)
        finally:
            self._count(exchange, status, headers)

    def _count(self, exchange: _Exchange, status: int, headers: dict[str, str]) -> None:
        took = time.perf_counter() - exchange.began
        refused = headers.get("dpserve-problem") if status >= 400 and status != HUNG_UP else None
        self.predictions.metrics.count(PATH, status, took, refused)

    def _begin(self, exchange: _Exchange, answering: Coroutine[Any, Any, None]) -> None:
        exchange.task = task = self.loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _too_late(self, exchange: _Exchange) -> None:
        if not exchange.begun:
            exchange.begun = True
            exchange.keep_alive = False
            self._end(exchange, *_refused(body_too_late()))

    async def _answer(self, exchange: _Exchange) -> None:
        status, headers = HUNG_UP, dict[str, str]()
        try:
            try:
                caller = await self.predictions.caller(exchange.head)
                reply = await self.predictions.reply(caller, exchange.head, bytes(exchange.body))
                status, headers, body = 200, reply.headers, reply.body
            except Exception as error:  # noqa: BLE001
                status, headers, body = _not_answered(error)
            await self._send(exchange, status, headers, body)
        finally:
            self._count(exchange, status, headers)

    async def _send(self, exchange: _Exchange, status: int, headers: dict[str, str], body: bytes) -> None:
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()
        self._write(exchange, status, headers, body)

    def _write(self, exchange: _Exchange, status: int, headers: dict[str, str], body: bytes) -> None:
        exchange.response_complete = True
        if exchange.disconnected or self.transport.is_closing():
            return
        lines = [STATUS_LINE[status]]
        for name, value in self.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        if self.predictions.rehearsal:
            lines.append(b"dpserve-rehearsal: true\r\n")
        if not exchange.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        lines.append(body)
        self.transport.write(b"".join(lines))
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _not_answered(error: Exception) -> tuple[int, dict[str, str], bytes]:
    return _refused(as_problem(error) if isinstance(error, REFUSALS) else failure(error, PATH))


def _refused(problem: Problem) -> tuple[int, dict[str, str], bytes]:
    response = problem.response()
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return response.status_code, headers, bytes(response.body)


def short_way(predictions: Predictions, most_connections: int) -> type[ShortWayProtocol]:
    """Return the protocol that answers plain predictions by `predictions`, for at most so many open connections."""
    return protocol_with(ShortWayProtocol, predictions=predictions, most_connections=most_connections)
