"""Listening: uvicorn through its public interface, in this process or with workers of its own."""

import asyncio
import ctypes
import errno
import gc
import http.client
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from dpserve.accounting.ledger import LedgerUnavailable
from dpserve.accounting.messages import Message, named
from dpserve.service.errors import CannotServe
from dpserve.service.http.protocol import BoundedHttp
from dpserve.service.telemetry import logs
from dpserve.service.tls import Tls

_BACKLOG = 2048
_LARGEST_BLOCK = 4 * 2**20
"""Bytes of a block that is kept."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The names of these options, in glibc's malloc.h."""
_SECONDS_BEFORE_ANOTHER_WORKER = 1.0
_ANOTHER_WORKER = 75
"""The status (EX_TEMPFAIL) of a worker that another one is to be started for."""
_SECONDS_FOR_HEALTH_CHECK = 30
"""Seconds for which a worker may hold the interpreter's lock, as while it imports, before it is taken for hung."""


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of the service's port."""

    workers: int = 1
    largest_batch: int = 1000
    """Rows of one request."""
    max_connections: int = 4096
    """Connections of each worker, idle ones included; further ones are answered 503."""
    drain_seconds: int = 20
    """Seconds in which requests under way may finish after the service was told to stop."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For is believed."""
    tls: Tls | None = None
    """The certificate and key for HTTPS at both ports; plain HTTP without it."""


def _keep_freed_memory() -> None:
    """Have glibc give back what starting took, keep what usual requests free, and give back what the largest take.

    By itself it takes and gives back the memory of a request of hundreds of rows page by page, of 256 rows of 600
    numbers 4 to 8 % of a request's CPU; and once it has seen a body of many megabytes freed it keeps all such ones.
    Another library has rules of its own, and loses nothing.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
        set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_BLOCK)


def bind(host: str = "127.0.0.1", port: int = 0, option: str = "port") -> socket.socket:
    """Return a listening socket, or raise CannotServe: done first, so that a taken port is found before all else.

    Connections that come before the service is ready wait. port: 0 picks a free one. option: what it is called.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without it an answer waits 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = error.strerror if isinstance(error, OSError) else str(error)
        at = named(option)
        advice = Message("choose another with {}", at) if taken else Message("look at {host} and {}", at)
        raise CannotServe(Message("cannot listen on {}:{}: {}; {}", host, port, reason, advice)) from error
    return listening


def url_of(listening: socket.socket, tls: Tls | None = None) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Application:
    """The ASGI application of one process, opened and closed by the server's lifespan events."""

    def __init__(self, opening: AbstractAsyncContextManager[ASGIApp]) -> None:
        """opening: gives what answers requests, once it can."""
        self.failure: Exception | None = None
        self._opening = opening
        self._app: ASGIApp | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return what answers a request, or opens and closes on lifespan events."""
        if scope["type"] == "lifespan":
            return self._lifespan(receive, send)
        assert self._app is not None
        return self._app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        asyncio.get_running_loop().set_exception_handler(logs.unforeseen)
        try:
            self._app = await self._opening.__aenter__()
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self.failure = error
            if logs.worker is not None:
                said = error if isinstance(error, CannotServe) else logs.kinds(error)
                logs.log.error("this worker cannot start: %s", said)
                if isinstance(error, LedgerUnavailable):
                    # The ledger was there when the service started. The supervisor ends the service for a worker that
                    # fails to start, and replaces one that dies.
                    await asyncio.sleep(_SECONDS_BEFORE_ANOTHER_WORKER)
                    os._exit(_ANOTHER_WORKER)
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        # A full collection over what start-up made takes over 100 ms, in which nobody is answered.
        gc.collect()
        gc.freeze()
        _keep_freed_memory()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._opening.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})


def run(
    application: Callable[[], Application],
    settings: ServiceSettings,
    listening: socket.socket,
    before_replacing: Callable[[], bool] = lambda: True,
) -> int:
    """Answer requests until told to stop, and finish what is under way; return the status to exit with.

    application: called in each process that answers. It must be picklable where there are several workers: each gets a
    copy of what it is when that worker is started.
    before_replacing: called in a thread when SIGHUP asks for new workers; returns whether there shall be any. Then each
    answers before the one whose place it takes is told to stop, one after the other. Raises what
    opening the application raised, where there is one. Call it in the main thread.
    """
    if settings.workers > 1:
        supervisor = Multiprocess(server_config(application, settings), [listening])
        _call_before_replacing(before_replacing)
        supervisor.run()
        # It was told to stop, or a worker failed in a way that another one would repeat. A worker that was starting
        # then, and did not reach the ledger, is no failure of a service that ends.
        ended = (0, -signal.SIGTERM, _ANOTHER_WORKER)
        return int(any(process.exitcode not in ended for process in supervisor.processes))
    app = application()
    server = uvicorn.Server(server_config(lambda: app, settings))

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own while it serves: what comes before them must not be lost, and it repeats what it
    # heard once it has drained.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    mind_hang_ups(lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        server.run(sockets=[listening])
    except SystemExit:
        if app.failure is not None:
            raise app.failure from None
        raise
    return 0


def _call_before_replacing(call: Callable[[], bool]) -> None:
    """Have SIGHUP reach the supervisor of workers, which replaces them, after `call` has returned True."""
    replace, calling = signal.getsignal(signal.SIGHUP), threading.Lock()
    assert callable(replace)

    def pass_on() -> None:
        with calling:
            if call():
                replace(signal.SIGHUP, None)

    def handle(*_: object) -> None:
        threading.Thread(target=pass_on, name="before-replacing", daemon=True).start()

    signal.signal(signal.SIGHUP, handle)


def mind_hang_ups(end: Callable[..., object]) -> None:
    """Have SIGHUP call `end` where a terminal is behind this process, which has gone then. Otherwise it is ignored.

    Of a service that something else started it is no order to end, and `nohup` has asked for it to be ignored. One
    process has nothing to read again: TLS certificates are read at each connection, and a new model needs a new
    process.
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, end if any(map(_is_terminal, range(3))) else signal.SIG_IGN)


def _is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False


def when_told_to_stop(call: Callable[[], object]) -> None:
    """Call `call` on this event loop once the process is told to stop, before the server drains.

    Use it in a server's lifespan: the server puts back the handlers of signals that it found.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()

    def handle(before: object, number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(call)
        if callable(before):
            before(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(handle, signal.getsignal(number)))


def server_config(application: Callable[[], Application], settings: ServiceSettings) -> uvicorn.Config:
    """Return uvicorn's settings for a service. application: called once in each process that answers."""
    return uvicorn.Config(
        application,
        factory=True,
        workers=settings.workers,
        http=BoundedHttp,
        loop="uvloop",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        backlog=_BACKLOG,
        limit_concurrency=settings.max_connections,
        timeout_graceful_shutdown=settings.drain_seconds,
        timeout_worker_healthcheck=_SECONDS_FOR_HEALTH_CHECK,
        **(settings.tls.for_uvicorn() if settings.tls is not None else {}),
    )


def when_answering(address: str, tls: Tls | None, call: Callable[[], None]) -> None:
    """Call `call` in a thread once the service at `address` answers."""

    def wait() -> None:
        while not _answers(address, tls):
            time.sleep(0.05)
        call()

    threading.Thread(target=wait, name="when-answering", daemon=True).start()


def _answers(address: str, tls: Tls | None) -> bool:
    host = address.partition("://")[2]
    connection = (
        http.client.HTTPConnection(host) if tls is None else http.client.HTTPSConnection(host, context=tls.pinned())
    )
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
