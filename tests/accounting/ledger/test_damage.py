"""Damaged keys, lost accounts, malformed calls, a store without memory: refused, and nothing half done."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis

from dpserve.accounting.ledger import (
    BudgetExhausted,
    Charge,
    ClientRevoked,
    EmbeddedStore,
    Idempotency,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    UnknownLineage,
    key_digest,
)
from dpserve.accounting.ledger.store import binary
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys, charge_call

from .conftest import asking, decided, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

Damage = Callable[["redis.Redis[bytes]", LineageKeys], object]


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store of the module's own: damaged lineages end a list of all."""
    with EmbeddedStore(tmp_path_factory.mktemp("damage")) as embedded:
        yield embedded.url


@pytest.fixture
def store(store_url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(store_url, protocol=2) as client:
        yield client


@pytest.fixture
async def books(store_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(store_url) as opened:
        yield opened


def _wrong_type(key: str) -> Callable[["redis.Redis[bytes]"], object]:
    def damage(store: "redis.Redis[bytes]") -> None:
        store.delete(key)
        store.rpush(key, "a list")

    return damage


def _with(field: str | bytes, value: str, key: str) -> Callable[["redis.Redis[bytes]"], object]:
    return lambda store: store.hset(key, field, value)


KEY = Idempotency("key", bytes(32)).key_digest
COST_TEXT = str(asking("a", "b", "c").terms.cost)

OF_BOTH: dict[str, Damage] = {
    "receipts": lambda store, keys: _wrong_type(keys.receipts)(store),
    "receipts that are gone": lambda store, keys: store.delete(keys.receipts),
    "receipts ahead of the count": lambda store, keys: store.execute_command("XSETID", keys.receipts, "999-0"),
    "questions": lambda store, keys: _wrong_type(keys.questions)(store),
    "questions that are gone": lambda store, keys: store.delete(keys.questions),
    "a question too many": lambda store, keys: store.hset(keys.questions, "x" * 16, "0"),
    "terms": lambda store, keys: _wrong_type(keys.terms)(store),
    "account of the lineage": lambda store, keys: _wrong_type(keys.account)(store),
    "spent of the lineage": lambda store, keys: _with("spent", "-1", keys.account)(store),
    "coins of the lineage": lambda store, keys: _with("coined", "x", keys.account)(store),
    "count of receipts": lambda store, keys: _with("seq", "many", keys.account)(store),
    "number in the tally": lambda store, keys: _with(f"n:{COST_TEXT}", "1.5", keys.account)(store),
    "a lost account of the lineage": lambda store, keys: store.delete(keys.account),
}
OF_ANN: dict[str, Damage] = {
    "receipts": lambda store, keys: _wrong_type(keys.client("ann").receipts)(store),
    "receipts that are gone": lambda store, keys: store.delete(keys.client("ann").receipts),
    "receipts ahead of the count": lambda store, keys: store.xadd(keys.client("ann").receipts, {"a": "b"}, id="999-0"),
    "questions": lambda store, keys: _wrong_type(keys.client("ann").questions)(store),
    "questions that are gone": lambda store, keys: store.delete(keys.client("ann").questions),
    "a question too many": lambda store, keys: store.sadd(keys.client("ann").questions, "x" * 16),
    "idempotency keys": lambda store, keys: _wrong_type(keys.client("ann").requests)(store),
    "old idempotency keys": lambda store, keys: _wrong_type(keys.client("ann").old_requests)(store),
    "an idempotency key": lambda store, keys: _with(KEY, "x" * 16 + "what?", keys.client("ann").requests)(store),
    "account": lambda store, keys: _wrong_type(keys.client("ann").account)(store),
    "limit": lambda store, keys: store.hdel(keys.client("ann").account, "limit"),
    "spent": lambda store, keys: _with("spent", "9" * 17, keys.client("ann").account)(store),
    "accepts": lambda store, keys: _with("accepts", "everything", keys.client("ann").account)(store),
    "revocation": lambda store, keys: store.hdel(keys.client("ann").account, "revoked"),
    "an invalid revocation": lambda store, keys: _with("revoked", "perhaps", keys.client("ann").account)(store),
    "number": lambda store, keys: _with("number", "2", keys.client("ann").account)(store),
    "number in the tally": lambda store, keys: _with(f"n:{COST_TEXT}", "x", keys.client("ann").account)(store),
    "a lost account": lambda store, keys: store.delete(keys.client("ann").account),
    "a lost account and all else": lambda store, keys: store.delete(
        keys.client("ann").account, *keys.client("ann").contents
    ),
}


async def _opened(books: Ledger, lineage: str) -> None:
    await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
    await books.acting("owner").add_group(lineage, "team", releases(9), time=0.0)
    for client in ("bob", "ann"):
        await books.charge(asking(lineage, client, "0", key="first", body=client))


def _contents(store: "redis.Redis[bytes]", lineage: str) -> dict[bytes, bytes | None]:
    """Every key as the store itself would copy it, whatever its type."""
    return {key: store.dump(key) for key in store.scan_iter(match=f"dpserve:{{{lineage}}}:*", count=1000)}


@pytest.mark.parametrize("what", OF_BOTH)
async def test_a_damaged_key_of_the_lineage_charges_nobody(
    books: Ledger, store: "redis.Redis[bytes]", what: str
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    OF_BOTH[what](store, LineageKeys(lineage))
    before = _contents(store, lineage)
    batch = [asking(lineage, "ann", "1", key="key"), asking(lineage, "bob", "1")]
    decisions = await decided(books, batch)
    assert [type(decision) for decision in decisions] == [LedgerDamaged] * 2
    assert "run `dpserve ledger verify`" in str(decisions[0])
    assert _contents(store, lineage) == before
    assert (await verify(books, lineage)).findings


@pytest.mark.parametrize("what", OF_ANN)
async def test_a_damaged_key_of_a_client_fails_its_requests_alone(
    books: Ledger, store: "redis.Redis[bytes]", what: str
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys = LineageKeys(lineage)
    OF_ANN[what](store, keys)
    hers = {key: value for key, value in _contents(store, lineage).items() if b":client:ann" in key}
    decisions = await books.charge_batch(
        [asking(lineage, "bob", "1"), asking(lineage, "ann", "1", key="key"), asking(lineage, "bob", "2")]
    )
    assert [type(decision) for decision in decisions] == [Charge, LedgerDamaged, Charge]
    assert {key: value for key, value in _contents(store, lineage).items() if b":client:ann" in key} == hers
    account = await books.lineage(lineage)
    assert (account.releases, account.newest_receipt) == (3, 4)
    assert (await books.client(lineage, "bob")).releases == 3


@pytest.mark.parametrize(
    "kept", ["acts", "receipts", "questions", "terms", "clients", "groups", "api_keys", "services"]
)
async def test_a_lineage_that_lost_its_account_is_not_opened_anew(
    books: Ledger, store_url: str, store: "redis.Redis[bytes]", kept: str
) -> None:
    lineage = new_lineage()
    keys = LineageKeys(lineage)
    await _opened(books, lineage)
    store.delete(*({keys.account, *keys.contents} - {getattr(keys, kept)}))
    async with await Ledger.connect(store_url) as owner:  # who has no memory of it
        with pytest.raises(LedgerDamaged):
            await owner.acting("owner").open_lineage(lineage, releases(99), time=0.0)
        with pytest.raises((UnknownLineage, LedgerDamaged)):
            await owner.charge(asking(lineage, "ann", "1"))
    assert not store.exists(keys.account)


async def test_a_client_that_lost_its_account_is_not_added_anew(books: Ledger, store: "redis.Redis[bytes]") -> None:
    for lose in (["account"], ["account", "receipts"], ["account", "questions", "receipts", "requests"]):
        lineage = new_lineage()
        await _opened(books, lineage)
        keys = LineageKeys(lineage)
        store.delete(*(getattr(keys.client("ann"), name) for name in lose))
        with pytest.raises(LedgerDamaged, check=lambda error, lineage=lineage: error.lineage == lineage):
            await books.acting("owner").add_client(lineage, "ann", releases(50), key_digest("new"), time=0.0)
        with pytest.raises(LedgerDamaged, check=lambda error, lineage=lineage: error.lineage == lineage):
            await books.api_keys.authenticate(lineage, key_digest(f"{lineage}/ann"))
        assert not store.exists(keys.client("ann").account)
    with pytest.raises(UnknownLineage):
        await books.lineage(new_lineage())


async def _raw(books: Ledger, lineage: str, function: str, keys: list[Any], arguments: dict[str, Any]) -> Any:
    known = books.witness(lineage).known
    asker = known.service, known.writes
    return (await books.store.call(lineage, function, keys, arguments, asker=asker))[0]


async def test_a_request_is_charged_to_nobody_but_who_it_names(books: Ledger) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    await books.acting("owner").add_client(lineage, "b", releases(9), key_digest("b"), time=0.0)
    known = books.witness(lineage).known
    request = asking(lineage, "bob", "1").ledger_request
    keys, arguments, _ = charge_call([request], {}, writes=known.writes, link=known.link)
    assert [msgspec.msgpack.decode(payer) for payer in arguments["payers"]] == [{"client": "bob"}]
    for client in ("ann", "b", "ob", "", "client:bob", "bob:receipts", 7):
        sent = arguments | {"payers": [{"client": client}]}
        with pytest.raises(LedgerUnavailable, match="cannot read the call"):
            await _raw(books, lineage, "charge", [LineageKeys(lineage).services, *keys], sent)
    with pytest.raises(LedgerUnavailable, match="cannot read the call"):
        await _raw(
            books, lineage, "charge", [LineageKeys(lineage).services, *keys[1:], "dpserve:{x}:account"], arguments
        )
    assert [(await books.client(lineage, name)).releases for name in ("ann", "bob", "b")] == [1, 1, 0]
    assert (await verify(books, lineage)).findings == ()


def _act(**changes: Any) -> dict[str, Any]:
    words = {"known": "0", "kind": "open", "subject": "lineage", "detail": "{}", "by": "", "why": "", "time": "0"}
    return {**words, "hash": binary(bytes(32)), **changes}


BUDGET = {"limit": 5, "accepts": "any", "delta": "1e-6", "coins": 0}
TERMS = {"packed": "x", "cost": "x", "price": 1, "times": 1, "coins": 0, "is_model": False, "blocks": [""]}
LINE = [1, 1]
REQUEST = [1, "1", "", "", 1, *LINE]
CHARGE: dict[str, Any] = {
    "remembered": 10,
    "payers": [{}],
    "terms": [TERMS],
    "questions": binary(bytes(16)),
    "requests": REQUEST,
    "link": binary(bytes(32)),
}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("charge", {}),
        ("charge", CHARGE | {"remembered": "ten"}),
        ("charge", CHARGE | {"link": "short"}),
        ("charge", CHARGE | {"payers": [{"client": 7}]}),
        ("charge", CHARGE | {"payers": [{"client": "ann"}]}),
        ("charge", CHARGE | {"payers": []}),
        ("charge", CHARGE | {"terms": []}),
        ("charge", CHARGE | {"terms": [TERMS | {"price": -1}]}),
        ("charge", CHARGE | {"terms": [TERMS | {"blocks": []}]}),
        ("charge", CHARGE | {"questions": "short"}),
        ("charge", CHARGE | {"questions": binary(bytes(32))}),
        ("charge", CHARGE | {"requests": [1, "1", "", "key", 1, *LINE]}),
        ("charge", CHARGE | {"requests": [1, "1", "", "", 0]}),
        ("charge", CHARGE | {"requests": [1, "1", "", "", "many", *LINE]}),
        ("charge", CHARGE | {"requests": [1, "1", "", "", 2, *LINE]}),
        ("charge", CHARGE | {"requests": [*REQUEST, 1]}),
        ("charge", CHARGE | {"requests": [1, "1", "", "", 2, *LINE, 1, 0]}),
        ("open_lineage", {"act": _act(), "budget": BUDGET | {"limit": -5}, "created": "0.0"}),
        ("open_lineage", {"act": _act(hash="hash"), "budget": BUDGET, "created": "0.0"}),
        ("open_lineage", {"act": _act(by=None), "budget": BUDGET, "created": "0.0"}),
        ("open_lineage", {"budget": BUDGET, "created": "0.0"}),
        ("set_budget", {"act": _act(known="4"), "id": "account", "budget": BUDGET | {"limit": 1.5}}),
        ("set_budget", {"act": _act(known="4"), "id": "client:nobody", "budget": BUDGET}),
        ("restore", {"kind": "hash", "width": 3, "words": ["limit", "1"]}),
        ("restore", {"kind": "hash", "width": 2, "words": "limit"}),
        ("apply", CHARGE | {"requests": [2, *REQUEST[1:]]}),
    ],
)
async def test_a_malformed_call_changes_nothing(
    books: Ledger, store: "redis.Redis[bytes]", function: str, arguments: dict[str, Any]
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys, known = LineageKeys(lineage), books.witness(lineage).known
    own = [keys.services, keys.account, *keys.contents]
    if function in ("open_lineage", "restore"):
        own = [key.replace(lineage, f"{lineage}-new") for key in own]
    before = _contents(store, lineage)
    with pytest.raises(LedgerUnavailable, match=r"cannot read the call|is damaged|is older"):
        await _raw(books, lineage, function, own, {"writes": known.writes, **arguments})
    assert _contents(store, lineage) == before
    assert _contents(store, f"{lineage}-new") == {}


async def test_the_call_that_they_are_changes_of_is_charged(books: Ledger, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys, known = LineageKeys(lineage), books.witness(lineage).known
    before = _contents(store, lineage)
    await _raw(
        books, lineage, "charge", [keys.services, keys.account, *keys.contents], {"writes": known.writes, **CHARGE}
    )
    assert _contents(store, lineage) != before


async def test_a_store_without_memory_still_takes_rights_away(
    books: Ledger, store_url: str, store: "redis.Redis[bytes]"
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    digest = key_digest(f"{lineage}/ann")
    store.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable, match="maxmemory"):
            await books.charge(asking(lineage, "ann", "1"))
        assert (await books.api_keys.authenticate(lineage, digest)).client == "ann"
        await books.acting("owner").set_budget(lineage, releases(2))
        await books.acting("owner").set_budget(lineage, releases(1), client="bob")
        async with await Ledger.connect(store_url) as another:
            await another.acting("owner").revoke(lineage, "ann")
    finally:
        store.config_set("maxmemory", "0")
    with pytest.raises(BudgetExhausted):
        await books.charge(asking(lineage, "bob", "1"))
    assert (await books.client(lineage, "ann")).revoked
    assert (await verify(books, lineage)).findings == ()


@pytest.mark.parametrize("damaged", ["acts", "account"])
async def test_a_client_is_revoked_though_the_act_cannot_be_written(
    books: Ledger, store: "redis.Redis[bytes]", damaged: str
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys = LineageKeys(lineage)
    _wrong_type(getattr(keys, damaged))(store)
    with pytest.raises(LedgerDamaged, match="ann is revoked now, but the record of this could not be written"):
        await books.acting("owner").revoke(lineage, "ann")
    assert (await books.client(lineage, "ann")).revoked
    if damaged == "acts":
        with pytest.raises(ClientRevoked):
            await books.charge(asking(lineage, "ann", "1"))
