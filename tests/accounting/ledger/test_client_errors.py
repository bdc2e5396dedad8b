"""Every error of the store's client, wherever it is raised: `LedgerUnavailable` of a call, a log line of closing."""

import inspect
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from dpserve.accounting.ledger import LedgerUnavailable
from dpserve.accounting.ledger.connections import Connections
from dpserve.accounting.ledger.store import Store

pytestmark = pytest.mark.anyio

TEXT = "1 127.0.0.1:1"
"""A text that every class of errors takes: those of clusters read a place from it."""
ERRORS = [
    *{each for each in vars(redis.exceptions).values() if inspect.isclass(each) and issubclass(each, RedisError)},
    OSError,
    TimeoutError,
    ConnectionResetError,
    RuntimeError,
    AttributeError,
    TypeError,
]
EACH_ERROR = pytest.mark.parametrize("error", sorted(ERRORS, key=lambda each: each.__qualname__))

FIRST_CALL = ("CONFIG GET", "ROLE", "INFO server", "INFO persistence", "FUNCTION LIST", "FUNCTION LOAD", "FCALL", "GET")
"""The commands that a store is sent, in order, where `GET` is the first that is asked of it."""
USE = ("INFO memory", "INFO persistence", "INFO replication")


def raising(error: type[BaseException]) -> Callable[..., object]:
    async def fail(*_: object, **__: object) -> object:
        raise error(TEXT)

    return fail


async def fail_at(
    command: str, error: type[BaseException], ask: Callable[[Store], Awaitable[Any]], store: Store
) -> Any:
    """Ask a store whose client fails at one command, and at no other."""
    execute, met = Redis.execute_command, []

    async def execute_or_fail(client: Redis, *words: Any, **more: Any) -> Any:
        if " ".join(map(str, words)).startswith(command):
            met.append(command)
            raise error(TEXT)
        return await execute(client, *words, **more)

    async def no_library(_: object) -> None:
        await Store._library_there(store, store._connections.client)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Redis, "execute_command", execute_or_fail)
        broken.setattr(store, "_library_there", no_library)  # so that it is loaded
        try:
            return await ask(store)
        finally:
            assert met


@EACH_ERROR
async def test_a_call_is_unavailable_wherever_it_fails(store_url: str, error: type[Exception]) -> None:
    store = Store(store_url)
    for command in FIRST_CALL:
        with pytest.raises(LedgerUnavailable):
            await fail_at(command, error, lambda store: store.command("GET", "dpserve:x"), store)
        store._ready.clear()
        store._looked.clear()
    await store.verify()
    for command in USE:
        with pytest.raises(LedgerUnavailable):
            await fail_at(command, error, Store.use, store)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(Pipeline, "execute", raising(error))
        broken.setattr(store, "_waits", True)
        with pytest.raises(LedgerUnavailable):
            await store.command("GET", "dpserve:x", durably=True)
    await store.close()


@EACH_ERROR
async def test_a_sentinel_that_cannot_be_asked_would_promote_nobody(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Redis, "execute_command", raising(error))
    assert await Connections(Redis(), [Redis()], "ledger").can_promote() is False


@EACH_ERROR
async def test_closing_says_nothing_but_to_the_log(
    store_url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(store_url)
    await store.verify()
    with monkeypatch.context() as broken:
        broken.setattr(ConnectionPool, "disconnect", raising(error))
        broken.setattr(Redis, "aclose", raising(error))
        with pytest.raises(LedgerUnavailable):  # and the connections are renewed
            await fail_at("GET", redis.exceptions.ConnectionError, lambda store: store.command("GET", "x"), store)
        await store.close()
    assert caplog.text.count("did not close") == 3
    await store.close()


async def test_a_call_that_is_cancelled_is_not_taken_for_a_store_that_is_away(store_url: str) -> None:
    store = Store(store_url)
    for command in FIRST_CALL:
        with pytest.raises(CancelledError):
            await fail_at(command, CancelledError, lambda store: store.command("GET", "dpserve:x"), store)
    await store.close()
