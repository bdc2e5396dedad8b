"""What `verify` finds: whatever was altered in the store behind the ledger's back, and nothing else."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis

from accounting.ledger import Ledger, key_digest
from accounting.ledger.verification import verify
from accounting.ledger.wire import LineageKeys

from .conftest import asking, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

Damage = Callable[["redis.Redis[bytes]", LineageKeys], object]


@pytest.fixture
def store(embedded_url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(embedded_url, protocol=2) as client:
        yield client


@pytest.fixture
async def books(embedded_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(embedded_url) as opened:
        yield opened


def _digest(keys: LineageKeys, client: str) -> bytes:
    return key_digest(f"{keys.lineage}/{client}")


FOUND: dict[str, tuple[Damage, list[str]]] = {
    "a client's index that is gone": (
        lambda store, keys: store.delete(keys.client("ann").receipts),
        ["the receipts that client ann is shown are not those that name this client"],
    ),
    "a client's index that lacks one": (
        lambda store, keys: store.xdel(keys.client("ann").receipts, "3-0"),
        ["the receipts that client ann is shown are not those that name this client"],
    ),
    "a client's index with another's receipt": (
        lambda store, keys: store.xadd(keys.client("bob").receipts, {"lineage": "x"}, id="3-0"),
        ["the receipts that client bob is shown are not those that name this client"],
    ),
    "the lineage's delta": (
        lambda store, keys: store.hset(keys.account, "delta", "0.9"),
        ["the budget of the lineage is not the one that was last set"],
    ),
    "a client's delta": (
        lambda store, keys: store.hset(keys.client("ann").account, "delta", "0.9"),
        ["the budget of ann is not the one that was last set"],
    ),
    "an API key that is another client's now": (
        lambda store, keys: store.hset(keys.api_keys, _digest(keys, "ann"), "bob - predict,budget-read"),  # type: ignore[arg-type]
        [
            "an API key of client ann is not known as this client's, or at other terms",
            "an API key is known as client bob's, and is not, or at other terms",
        ],
    ),
    "a further API key": (
        lambda store, keys: store.hset(keys.api_keys, key_digest("mallory"), "bob - predict"),  # type: ignore[arg-type]
        ["an API key is known as client bob's, and is not, or at other terms"],
    ),
    "API keys that are gone": (
        lambda store, keys: store.delete(keys.api_keys),
        [f"an API key of client {name} is not known as this client's, or at other terms" for name in ("ann", "bob")],
    ),
    "an API key that was made to last": (
        lambda store, keys: store.hset(keys.api_keys, _digest(keys, "ann"), "ann - predict"),  # type: ignore[arg-type]
        [
            "an API key of client ann is not known as this client's, or at other terms",
            "an API key is known as client ann's, and is not, or at other terms",
        ],
    ),
    "the epoch": (
        lambda store, keys: store.hset(keys.account, "epoch", "7"),
        ["the epoch is 7, which is not how often the lineage was reconciled"],
    ),
    "what is held": (
        lambda store, keys: store.hset(keys.held, "x" * 32, "garbage"),
        ["what the store holds cannot be read: ValueError(\"invalid literal for int() with base 10: b'garbage'\")"],
    ),
}


@pytest.mark.parametrize("what", FOUND)
async def test_what_was_altered_is_found(books: Ledger, store: "redis.Redis[bytes]", what: str) -> None:
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
    for client, row in (("ann", "1"), ("bob", "1 of bob"), ("ann", "2")):
        await books.charge(asking(lineage, client, row))
    await books.rotate_key(lineage, "bob", key_digest(f"{lineage}/another"))
    assert (await verify(books, lineage)).findings == ()
    damage, findings = FOUND[what]
    damage(store, LineageKeys(lineage))
    assert list((await verify(books, lineage)).findings) == findings


async def test_a_client_that_was_brought_back_and_given_a_budget_is_no_finding(
    books: Ledger, store: "redis.Redis[bytes]"
) -> None:
    """As reconciling leaves a client who was added after the backup."""
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(99), ann=releases(50))
    keys = LineageKeys(lineage)
    fields = {"limit": "0", "spent": "0", "accepts": "any", "delta": "0.5", "created": "1.0", "revoked": "1"}
    store.hset(keys.client("bob").account, mapping=fields | {"api_keys": ""})
    store.sadd(keys.clients, "bob")
    assert (await verify(books, lineage)).findings == ()
    await books.set_client_budget(lineage, "bob", releases(3))
    assert (await verify(books, lineage)).findings == ()
    store.hset(keys.client("bob").account, "revoked", "0")
    (finding,) = (await verify(books, lineage)).findings
    assert finding == "client bob is revoked without an act, or not revoked in spite of one"


async def test_a_client_that_is_added_meanwhile_is_among_the_clients(
    books: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(99), ann=releases(50))
    real, late = books._client_names, ["bob", "cy"]

    async def one_is_added(asked: str) -> list[bytes]:
        names = await real(asked)
        if late:
            client = late.pop()
            await books.add_client(lineage, client, releases(9), key_digest(f"{lineage}/{client}"), time=0.0)
            await books.charge(asking(lineage, client, f"of {client}"))
        return names

    monkeypatch.setattr(books, "_client_names", one_is_added)
    account, clients = await books.snapshot(lineage)
    assert [client.client for client in clients] == ["ann", "bob", "cy"]
    assert account.newest_receipt == 2
    assert (await verify(books, lineage)).findings == ()
