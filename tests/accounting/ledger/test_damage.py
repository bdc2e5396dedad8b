"""Damaged keys, lost accounts, malformed calls, a store without memory: refused, and nothing half done."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from accounting.ledger import (
    BudgetExhausted,
    Charge,
    ClientRevoked,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    TermsChanged,
    UnknownLineage,
    key_digest,
)
from accounting.ledger.holdings import HoldRequest
from accounting.ledger.journal import read_journals
from accounting.ledger.store import Store, our_library
from accounting.ledger.verification import verify
from accounting.ledger.wire import LineageKeys, charge_call
from accounting.losses import Cost, GaussianLoss

from .conftest import BINARY, DURABLE, asking, new_lineage, open_accounts, releases, running_server

pytestmark = pytest.mark.anyio

Damage = Callable[["redis.Redis[bytes]", LineageKeys], object]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("damage"), BINARY, **DURABLE) as address:
        yield address


@pytest.fixture
def store(url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(url, protocol=2) as client:
        yield client


@pytest.fixture
async def books(url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(url) as opened:
        yield opened


def _wrong_type(key: str) -> Callable[["redis.Redis[bytes]"], object]:
    def damage(store: "redis.Redis[bytes]") -> None:
        store.delete(key)
        store.rpush(key, "a list")

    return damage


def _with(field: str, value: str, key: str) -> Callable[["redis.Redis[bytes]"], object]:
    return lambda store: store.hset(key, field, value)


COST_TEXT = str(asking("a", "b", "c").cost)

OF_BOTH: dict[str, Damage] = {
    "tally of the lineage": lambda store, keys: _wrong_type(keys.tally)(store),
    "receipts": lambda store, keys: _wrong_type(keys.receipts)(store),
    "receipts that are gone": lambda store, keys: store.delete(keys.receipts),
    "receipts ahead of the count": lambda store, keys: store.execute_command("XSETID", keys.receipts, "999-0"),
    "rows": lambda store, keys: _wrong_type(keys.rows)(store),
    "old rows": lambda store, keys: _wrong_type(keys.old_rows)(store),
    "account of the lineage": lambda store, keys: _wrong_type(keys.account)(store),
    "spent of the lineage": lambda store, keys: _with("spent", "-1", keys.account)(store),
    "count of receipts": lambda store, keys: _with("seq", "many", keys.account)(store),
    "hash of the newest receipt": lambda store, keys: _with("head", "short", keys.account)(store),
    "number in the tally": lambda store, keys: _with(COST_TEXT, "1.5", keys.tally)(store),
    "a lost account of the lineage": lambda store, keys: store.delete(keys.account),
}
OF_ANN: dict[str, Damage] = {
    "tally": lambda store, keys: _wrong_type(keys.client("ann").tally)(store),
    "receipts": lambda store, keys: _wrong_type(keys.client("ann").receipts)(store),
    "idempotency keys": lambda store, keys: _wrong_type(keys.client("ann").requests)(store),
    "old idempotency keys": lambda store, keys: _wrong_type(keys.client("ann").old_requests)(store),
    "an idempotency key": lambda store, keys: _with(
        "key",
        bytes(key_digest("")) + b"what?",
        keys.client("ann").requests,  # type: ignore[arg-type]
    )(store),
    "account": lambda store, keys: _wrong_type(keys.client("ann").account)(store),
    "limit": lambda store, keys: store.hdel(keys.client("ann").account, "limit"),
    "spent": lambda store, keys: _with("spent", "9" * 17, keys.client("ann").account)(store),
    "accepts": lambda store, keys: _with("accepts", "everything", keys.client("ann").account)(store),
    "revocation": lambda store, keys: store.hdel(keys.client("ann").account, "revoked"),
    "number in the tally": lambda store, keys: _with(COST_TEXT, "x", keys.client("ann").tally)(store),
    "a lost account": lambda store, keys: store.delete(keys.client("ann").account),
    "a lost account and tally": lambda store, keys: store.delete(
        keys.client("ann").account, keys.client("ann").tally, keys.client("ann").receipts
    ),
}


async def _opened(books: Ledger, lineage: str) -> None:
    await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
    for client in ("ann", "bob"):
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
    decisions = await books.charge_batch(batch)
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
    assert (account.releases, account.newest_receipt) == (4, 4)
    assert (await books.client(lineage, "bob")).releases == 3


async def test_a_clients_index_that_takes_no_entry_leaves_the_charge_whole(
    books: Ledger, store: "redis.Redis[bytes]"
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    store.xadd(LineageKeys(lineage).client("ann").receipts, {"a": "b"}, id="999-0")
    assert isinstance((await books.charge_batch([asking(lineage, "ann", "1")]))[0], Charge)
    account = await books.lineage(lineage)
    assert (account.releases, account.newest_receipt, (await books.client(lineage, "ann")).releases) == (3, 3, 2)
    (finding,) = (await verify(books, lineage)).findings
    assert "has an entry 999, which nothing accounts for" in finding


async def test_an_unreadable_row_fails_its_request_alone(books: Ledger, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    ill = asking(lineage, "ann", "ill")
    for entry in (b"?", b"=12", b"", b"!0:1"):
        store.hset(LineageKeys(lineage).rows, ill.row_ids[0], entry)
        decisions = await books.charge_batch([ill, asking(lineage, "ann", f"well {entry!r}")])
        assert [type(decision) for decision in decisions] == [LedgerDamaged, Charge]
        with pytest.raises(LedgerDamaged):
            await books.settle(lineage, [(ill.row_ids[0], b"answer")])


@pytest.mark.parametrize("kept", ["acts", "tally", "receipts", "rows", "old_rows", "clients", "api_keys", "services"])
async def test_a_lineage_that_lost_its_account_is_not_opened_anew(
    books: Ledger, store: "redis.Redis[bytes]", kept: str
) -> None:
    lineage = new_lineage()
    keys = LineageKeys(lineage)
    await _opened(books, lineage)
    store.hset(keys.services, "a service", "3")
    store.hset(keys.old_rows, "row", "?0:1")
    others = {getattr(keys, name) for name in ("account", "acts", "tally", "receipts", "rows", "old_rows")}
    others |= {keys.clients, keys.api_keys, keys.services} - {getattr(keys, kept)}
    store.delete(*(others - {getattr(keys, kept)}))
    with pytest.raises(LedgerDamaged):
        await books.open_lineage(lineage, releases(99), time=0.0)
    # Its services alone are no sign of a lineage to whoever adds a client.
    with pytest.raises(UnknownLineage if kept == "services" else LedgerDamaged):
        await books.add_client(lineage, "eve", releases(1), key_digest("eve"), time=0.0)
    assert not store.exists(keys.account)


async def test_a_client_that_lost_its_account_is_not_added_anew(books: Ledger, store: "redis.Redis[bytes]") -> None:
    for lose in (["account"], ["account", "tally"], ["account", "receipts"], ["account", "tally", "receipts"]):
        lineage = new_lineage()
        await _opened(books, lineage)
        keys = LineageKeys(lineage)
        store.delete(*(getattr(keys.client("ann"), name) for name in lose))
        with pytest.raises(LedgerDamaged, match="account of ann is lost"):
            await books.add_client(lineage, "ann", releases(50), key_digest("new"), time=0.0)
        with pytest.raises(LedgerDamaged, match="account of ann"):
            await books.authenticate(lineage, key_digest(f"{lineage}/ann"))
        assert not store.exists(keys.client("ann").account)
    with pytest.raises(UnknownLineage):
        await books.lineage(new_lineage())


def _raw(store: "redis.Redis[bytes]", function: str, keys: list[Any], words: list[Any]) -> Any:
    library = our_library()
    return store.execute_command(
        "FCALL", f"{library.name}_{function}", len(keys), *keys, library.version, "nonce", "", 0, *words
    )


async def test_a_request_is_charged_to_nobody_but_who_it_names(books: Ledger, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    of_call = 6
    for at, value in [(of_call, "0"), (of_call + 1, "ann"), (of_call + 1, "b"), (of_call + 1, "ob"), (of_call + 1, "")]:
        call = charge_call([asking(lineage, "bob", "1")], remembered_rows=1000, head=None)
        call.arguments[at] = value
        _, _, (kind, *_) = _raw(store, "charge", call.keys, call.arguments)
        assert kind == b"malformed"
    assert [(await books.client(lineage, name)).releases for name in ("ann", "bob")] == [1, 1]
    assert (await verify(books, lineage)).findings == ()


async def test_malformed_requests_fail_alone(books: Ledger, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    first, second, third = (asking(lineage, "bob", str(number), key="key" * (number == 1)) for number in range(1, 4))
    requests = [first, replace(second, model="another"), third]
    of_call, of_offer, of_request = 6, 8, 6
    second_offer, second_request = of_call + of_offer, of_call + 2 * of_offer + of_request
    for at, value in [
        (second_offer, "x"),
        (second_offer, "7"),
        (second_offer + 1, "eve"),
        (second_offer + 6, "-1"),
        (second_offer + 6, "1e400"),
        (second_request, "x"),
        (second_request, "2"),
        (second_request + 2, "no ids"),
        (second_request + 2, ""),
        (second_request + 5, "0short"),
        (second_request + 5, "0" + 32 * "x"),
    ]:
        call = charge_call(requests, remembered_rows=1000, head=None)
        call.arguments[at] = value
        _, _, *replies = _raw(store, "charge", call.keys, call.arguments)
        assert [reply[0] for reply in replies] == [b"charged", b"malformed", b"charged"]
    assert (await books.client(lineage, "bob")).releases == 3
    assert (await verify(books, lineage)).findings == ()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("charge", ["lineage", "10"]),
        ("charge", ["lineage", "10", "ten"]),
        ("charge", ["lineage", "10", "10", "", "0"]),
        ("charge", ["lineage", "10", "10", "", "0", "1", "1", "ann"]),
        ("charge", ["lineage", "10", "10", "", "0", "0", "0"]),
        ("settle", ["x" * 32]),
        ("open_lineage", ["-5", "any", "1e-6", "0.0"]),
        ("set_budget", ["1.5", "any", "1e-6", ""]),
        ("apply", ["lineage", "1"]),
        ("restore", ["3", "limit", "1"]),
    ],
)
async def test_a_malformed_call_changes_nothing(
    books: Ledger, store: "redis.Redis[bytes]", function: str, words: list[str]
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys = LineageKeys(lineage)
    own = [keys.services, keys.account, *keys.contents]
    if function in ("open_lineage", "restore"):
        own = [key.replace(lineage, f"{lineage}-new") for key in own]
    before = _contents(store, lineage)
    with pytest.raises(redis.ResponseError, match=r"^DPSERVE(MALFORMED|DAMAGED)"):
        _raw(store, function, own, words)
    assert _contents(store, lineage) == before
    assert _contents(store, f"{lineage}-new") == {}


async def test_a_store_without_memory_still_takes_rights_away(books: Ledger, store: "redis.Redis[bytes]") -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    digest = key_digest(f"{lineage}/ann")
    store.config_set("maxmemory", "1")
    try:
        with pytest.raises(LedgerUnavailable, match="maxmemory"):
            await books.charge(asking(lineage, "ann", "1"))
        assert (await books.authenticate(lineage, digest)).client == "ann"
        await books.set_lineage_budget(lineage, releases(2))
        await books.set_client_budget(lineage, "bob", releases(1))
        await books.revoke(lineage, "ann")
    finally:
        store.config_set("maxmemory", "0")
    with pytest.raises(BudgetExhausted):
        await books.charge(asking(lineage, "bob", "1"))
    assert (await books.client(lineage, "ann")).revoked
    assert (await verify(books, lineage)).findings == ()


async def test_a_retry_after_the_price_changed_is_a_replay(books: Ledger) -> None:
    """The first sending was charged and answered at one price; the service came back with another."""
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(9), ann=releases(9))
    dearer = Cost((GaussianLoss(0.75),))
    first = await books.charge(asking(lineage, "ann", "1", "2", key="key", body="body"))
    retry = asking(lineage, "ann", "1", "2", key="key", body="body", cost=dearer)
    with pytest.raises(TermsChanged):  # charged, and not answered: no answer can be drawn at the first price now
        await books.charge(retry)
    answers = [(row.row_id, b"answer %d" % place) for place, row in enumerate(first.rows)]
    await books.settle(lineage, answers)
    spent = (await books.client(lineage, "ann")).spent
    again = await books.charge(retry)
    assert (again.receipt, again.earlier) == (None, 1)
    assert [getattr(row, "answer", None) for row in again.rows] == [b"answer 0", b"answer 1"]
    quote = await books.quote(retry)
    assert (quote.total, quote.free, quote.refusal) == (0, (True, True), None)
    account = await books.client(lineage, "ann")
    assert (account.spent, account.releases) == (spent, 2)
    anew = await books.charge(asking(lineage, "ann", "1", key="another", body="body", cost=dearer))
    assert anew.receipt is not None
    assert anew.receipt.price == dearer.picorho


async def test_an_idempotency_key_that_reads_as_nothing_leaves_the_others_charged_and_journaled(
    url: str, store: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    """What an unreadable entry stands for is found out after others of the batch were charged."""
    lineage = new_lineage()
    async with Ledger.open(url, journals=tmp_path) as books:
        await books.join(lineage)
        await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
        words = b"".join(len(word).to_bytes(4, "big") + word for word in (b"model", b"gaussian"))
        # No cost at all, and one that is not written as the ledger writes it.
        for cost in (b"what?", b" " + COST_TEXT.encode()):
            entry = bytes(key_digest("body")) + b"1:" + words + cost
            store.hset(LineageKeys(lineage).client("ann").requests, "key", entry)
            ill = asking(lineage, "ann", "ill", key="key", body="body")
            decisions = await books.charge_batch([asking(lineage, "bob", f"well {cost!r}"), ill])
            assert [type(decision) for decision in decisions] == [Charge, LedgerDamaged]
            with pytest.raises(LedgerDamaged):
                await books.quote(ill)
    (journal,) = read_journals(tmp_path)
    assert [receipt.client for receipt in journal.receipts] == ["bob"] * 2


@pytest.mark.parametrize(
    ("raised", "said"), [(LedgerUnavailable("the connection is gone"), LedgerUnavailable), (KeyError(1), LedgerDamaged)]
)
async def test_a_second_call_that_fails_fails_its_request_alone(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: Exception, said: type[Exception]
) -> None:
    """A request that was decided at other terms is asked again at these; then the connection may be gone."""
    lineage = new_lineage()
    async with Ledger.open(url, journals=tmp_path) as books:
        await books.join(lineage)
        await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
        await books.charge(asking(lineage, "ann", "1", key="key"))
        real, calls = Store.call, 0

        async def only_once(self: Store, *words: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise raised
            return await real(self, *words, **options)

        monkeypatch.setattr(Store, "call", only_once)
        dearer = Cost((GaussianLoss(0.75),))
        decisions = await books.charge_batch(
            [asking(lineage, "ann", "1", key="key", cost=dearer), asking(lineage, "bob", "1", "2")]
        )
        assert [type(decision) for decision in decisions] == [said, Charge]
    (journal,) = read_journals(tmp_path)
    assert [(receipt.client, receipt.rows) for receipt in journal.receipts] == [("ann", 1), ("bob", 2)]


@pytest.mark.parametrize("damaged", ["acts", "account"])
async def test_a_client_is_revoked_though_the_act_cannot_be_written(
    books: Ledger, store: "redis.Redis[bytes]", damaged: str
) -> None:
    lineage = new_lineage()
    await _opened(books, lineage)
    keys = LineageKeys(lineage)
    _wrong_type(getattr(keys, damaged))(store)
    with pytest.raises(LedgerDamaged, match="ann is revoked now, and the act of it could not be written"):
        await books.revoke(lineage, "ann")
    assert (await books.client(lineage, "ann")).revoked
    if damaged == "acts":
        with pytest.raises(ClientRevoked):
            await books.charge(asking(lineage, "ann", "1"))


def _held(lineage: str, client: str) -> HoldRequest:
    return HoldRequest(lineage, client, "release", bytes(32), "weights/fine", (Cost((GaussianLoss(0.5),)),), 1.5)


LOST_TO_A_HOLD: dict[str, Damage] = {
    "revocation": lambda store, keys: store.hdel(keys.client("ann").account, "revoked"),
    "a revocation that is none": lambda store, keys: store.hset(keys.client("ann").account, "revoked", "perhaps"),
    "account": lambda store, keys: store.delete(keys.client("ann").account),
    "account of a client who paid for nothing": lambda store, keys: store.delete(
        *(getattr(keys.client("ann"), name) for name in ("account", "tally", "receipts", "held"))
    ),
    "account of the lineage": lambda store, keys: store.delete(keys.account),
    "what the client holds": lambda store, keys: store.delete(keys.client("ann").held),
    "what the lineage holds": lambda store, keys: store.delete(keys.held),
    "a step that was slipped in": lambda store, keys: store.hset(keys.client("ann").held, "x" * 32, "1"),
}


@pytest.mark.parametrize("what", LOST_TO_A_HOLD)
async def test_a_damaged_key_lets_nothing_be_held(books: Ledger, store: "redis.Redis[bytes]", what: str) -> None:
    """A hold is as strict as a charge: what is held already is not charged again because the key of it was lost."""
    lineage = new_lineage()
    await _opened(books, lineage)
    assert (await books.hold(_held(lineage, "ann"))).receipt is not None
    assert (await books.hold(_held(lineage, "ann"))).receipt is None
    assert (await verify(books, lineage)).findings == ()
    LOST_TO_A_HOLD[what](store, LineageKeys(lineage))
    before = _contents(store, lineage)
    for call in (books.hold(_held(lineage, "ann")), books.quote_hold(_held(lineage, "ann"))):
        with pytest.raises(LedgerDamaged):
            await call
    assert _contents(store, lineage) == before
    assert (await verify(books, lineage)).findings
