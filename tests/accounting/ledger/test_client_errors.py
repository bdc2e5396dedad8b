"""Every error of the store's client, wherever it is raised: `LedgerUnavailable` of a call, a log line of closing."""

import inspect
from collections.abc import Callable

import pytest
import redis.exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from dpserve.accounting.ledger import LedgerUnavailable
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
]


def raising(error: type[Exception]) -> Callable[..., object]:
    async def fail(*_: object, **__: object) -> object:
        raise error(TEXT)

    return fail


@pytest.mark.parametrize("error", sorted(ERRORS, key=lambda each: each.__qualname__))
async def test_a_call_is_unavailable_and_closing_says_nothing(
    store_url: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(store_url, replicas=0)
    await store.verify()
    with monkeypatch.context() as broken:
        broken.setattr(Redis, "execute_command", raising(error))
        with pytest.raises(LedgerUnavailable):
            await store.command("GET", "dpserve:x")
        with pytest.raises(LedgerUnavailable):
            await store.use()
    await store.verify()
    with monkeypatch.context() as broken:
        broken.setattr(Pipeline, "execute", raising(error))
        broken.setattr(store, "_waits", True)
        with pytest.raises(LedgerUnavailable):
            await store.command("GET", "dpserve:x", durably=True)
    with monkeypatch.context() as broken:
        broken.setattr(ConnectionPool, "disconnect", raising(error))
        broken.setattr(Redis, "aclose", raising(error))
        with monkeypatch.context() as gone:
            gone.setattr(Redis, "execute_command", raising(redis.exceptions.ConnectionError))
            with pytest.raises(LedgerUnavailable):
                await store.command("GET", "dpserve:x")
        await store.close()
    assert caplog.text.count("did not close") == 3
    await store.close()
