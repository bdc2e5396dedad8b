"""`verify` finds whatever was altered in the store behind the ledger's back, and nothing else."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from dpserve.accounting.ledger import Ledger, key_digest
from dpserve.accounting.ledger.journal import open_journals
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, new_lineage, open_accounts, question, read_journals, releases

pytestmark = pytest.mark.anyio

Damage = Callable[["redis.Redis[bytes]", LineageKeys], object]


@pytest.fixture
def store(store_url: str) -> Iterator["redis.Redis[bytes]"]:
    with redis.Redis.from_url(store_url, protocol=2) as client:
        yield client


@pytest.fixture
async def books(store_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.connect(store_url) as opened:
        yield opened


def _rewrite(
    store: "redis.Redis[bytes]", keys: LineageKeys, altered: bytes, fields: dict[bytes, bytes], stream: str = ""
) -> None:
    """Alter an entry of a stream, by default of the receipts."""
    stream = stream or keys.receipts
    entries = store.xrange(stream)
    store.delete(stream)
    for number, before in entries:
        store.xadd(stream, before | (fields if number == altered else {}), id=number)


def _give_key(store: "redis.Redis[bytes]", keys: LineageKeys, digest: bytes) -> None:
    """Give bob an API key in both of the places where the store has it."""
    store.hset(keys.api_keys, digest, "- predict bob")  # type: ignore[arg-type]
    store.hset(keys.client("bob").account, b"k:" + digest, "- predict")  # type: ignore[arg-type]


def _digest(keys: LineageKeys, client: str) -> bytes:
    lineage = keys.account.partition("{")[2].partition("}")[0]
    return key_digest(f"{lineage}/{client}")


FOUND: dict[str, tuple[Damage, list[str]]] = {
    "a client's index that lacks one": (
        lambda store, keys: store.xdel(keys.client("ann").receipts, "2-3"),
        ["the receipts that client ann is shown are not those that name this client"],
    ),
    "a client's index with another's receipt": (
        lambda store, keys: store.xadd(keys.client("bob").receipts, {"": ""}, id="2-3"),
        ["the receipts that client bob is shown are not those that name this client"],
    ),
    "the lineage's delta": (
        lambda store, keys: store.hset(keys.account, "delta", "0.9"),
        ["the budget of the lineage is not the one that was last set"],
    ),
    "an API key that is another client's now": (
        lambda store, keys: store.hset(keys.api_keys, _digest(keys, "ann"), "- predict,budget-read bob"),  # type: ignore[arg-type]
        [
            "an API key of client ann is not this client's, or at other terms",
            "an API key of client bob is not this client's, or at other terms",
        ],
    ),
    "a further API key": (
        lambda store, keys: store.hset(keys.api_keys, key_digest("mallory"), "- predict bob"),  # type: ignore[arg-type]
        ["an API key of client bob is not this client's, or at other terms"],
    ),
    "an API key that was made to last": (
        lambda store, keys: store.hset(keys.api_keys, _digest(keys, "ann"), "- predict ann"),  # type: ignore[arg-type]
        [
            "an API key of client ann is not this client's, or at other terms",
        ],
    ),
    "a question that nobody paid for": (
        lambda store, keys: store.hset(keys.questions, b"x" * 16, "1"),
        ["the questions that the lineage has paid for are not those of its receipts"],
    ),
    "a question of another client": (
        lambda store, keys: store.hset(keys.questions, question("1"), "2"),
        ["the questions that the lineage has paid for are not those of its receipts"],
    ),
    "a question that a client did not pay for": (
        lambda store, keys: store.sadd(keys.client("bob").questions, b"x" * 16),
        ["the questions that client bob has paid for are not those of its receipts"],
    ),
    "a receipt for nothing": (
        lambda store, keys: _rewrite(store, keys, b"2-1", {b"questions": b""}),
        ["receipt 2 was altered", "receipt 3 does not follow"],
    ),
    "a receipt of another model": (
        lambda store, keys: store.hset(
            keys.terms, store.hkeys(keys.terms)[0].replace(b"model", b"other"), store.hgetall(keys.terms).popitem()[1]
        ),
        ["receipt 2 does not follow", "receipt 3 does not follow"],
    ),
    "a receipt at another time": (
        lambda store, keys: _rewrite(store, keys, b"2-1", {b"microseconds": b"7"}),
        ["receipt 3 does not follow from those of its service before it"],
    ),
    "a receipt that another client shares": (
        lambda store, keys: _rewrite(store, keys, b"2-1", {b"lineage_questions": b"0"}),
        ["receipt 2 charges a question to the wrong accounts", "the lineage has spent", "the tally of the lineage"],
    ),
    "a receipt that is gone": (
        lambda store, keys: store.xdel(keys.receipts, "2-1"),
        ["receipt 2 is missing", "receipt 3 does not follow"],
    ),
    "the newest receipt gone": (
        lambda store, keys: store.xdel(keys.receipts, "3-2"),
        ["the account counts 3 receipts, of 2"],
    ),
    "an act that is gone": (lambda store, keys: store.xdel(keys.acts, "1-0"), ["act 1 was altered or is missing"]),
    "an act whose reason was altered": (
        lambda store, keys: _rewrite(store, keys, b"1-0", {b"why": b"another"}, keys.acts),
        ["act 1 was altered or is missing"],
    ),
    "the newest act's author": (
        lambda store, keys: _rewrite(store, keys, b"4-0", {b"by": b"mallory"}, keys.acts),
        ["act 4 was altered or is missing"],
    ),
    "an API key that no act gave": (
        lambda store, keys: _give_key(store, keys, key_digest("mallory")),
        ["client bob has an API key that no act gave it, or that one ended"],
    ),
    "an API key that was ended": (
        lambda store, keys: _give_key(store, keys, _digest(keys, "bob")),
        ["client bob has an API key that no act gave it, or that one ended"],
    ),
    "what the lineage spent": (lambda store, keys: store.hincrby(keys.account, "spent", -1), ["the lineage has spent"]),
    "what a client spent": (
        lambda store, keys: store.hincrby(keys.client("ann").account, "spent", -1),
        ["client ann has spent"],
    ),
    "a client's limit": (
        lambda store, keys: store.hset(keys.client("ann").account, "limit", "99999999999999"),
        ["the budget of client ann is not the one that was last set"],
    ),
    "a revocation": (
        lambda store, keys: store.hset(keys.client("ann").account, "revoked", "1"),
        ["client ann is revoked without an act"],
    ),
    "the lineage's tally": (
        lambda store, keys: store.hincrby(keys.account, f"n:{COST}", 1),
        ["the tally of the lineage is not that of its receipts"],
    ),
    "coins that nobody spent": (
        lambda store, keys: store.hset(keys.account, "coined", "1"),
        ["the lineage has spent"],
    ),
}


@pytest.mark.parametrize("what", FOUND)
async def test_what_was_altered_is_found(books: Ledger, store: "redis.Redis[bytes]", what: str) -> None:
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(99), ann=releases(50), bob=releases(49))
    for client, row in (("ann", "1"), ("bob", "1 of bob"), ("ann", "2")):
        await books.charge(asking(lineage, client, row))
    await books.acting("owner").rotate_key(lineage, "bob", key_digest(f"{lineage}/another"))
    assert (await verify(books, lineage)).findings == ()
    damage, findings = FOUND[what]
    damage(store, LineageKeys(lineage))
    found = (await verify(books, lineage)).findings
    for line in findings:
        assert any(one.startswith(line) for one in found), found
    assert len(found) >= len(findings)


async def test_a_client_that_was_brought_back_and_given_a_budget_is_no_finding(
    books: Ledger, store: "redis.Redis[bytes]"
) -> None:
    """As reconciling leaves a client who was added after the backup."""
    lineage = new_lineage()
    await open_accounts(books, lineage, releases(99), ann=releases(50))
    keys = LineageKeys(lineage)
    lost = asking(lineage, "bob", "lost")
    await books.apply([lost.ledger_request])
    assert (await books.client(lineage, "bob")).revoked
    assert (await verify(books, lineage)).findings == ()
    await books.acting("owner").set_budget(lineage, releases(3), client="bob")
    assert (await verify(books, lineage)).findings == ()
    store.hset(keys.client("bob").account, "revoked", "0")
    (finding,) = (await verify(books, lineage)).findings
    assert finding == "client bob is revoked without an act, or not revoked in spite of one"


async def test_the_newest_receipt_is_covered_by_the_journal_of_its_service(
    store_url: str, store: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(store_url, journals=tmp_path) as books:
        await books.join(lineage)
        await open_accounts(books, lineage, releases(99), ann=releases(50))
        await books.charge(asking(lineage, "ann", "1"))
        _rewrite(store, LineageKeys(lineage), b"1-1", {b"microseconds": b"7"})
        assert (await verify(books, lineage)).findings == ()
        (finding,) = (await verify(books, lineage, read_journals(tmp_path))).findings
        assert finding == ("1 receipt that a service was given is not in the ledger, of client ann for model model: 1")


async def test_a_client_that_only_a_journal_names_is_a_finding(
    store_url: str, store: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(store_url, journals=tmp_path) as books:
        await books.join(lineage)
        await open_accounts(books, lineage, releases(99), ann=releases(50))
        await books.charge(asking(lineage, "ann", "1"))
        (journal,) = read_journals(tmp_path)
        (receipt,) = journal.receipts
        others = msgspec.structs.replace(receipt, client="cy")
        found = await verify(books, lineage, [msgspec.structs.replace(journal, receipts=(others,))])
        assert found.findings == (
            "1 receipt that a service was given is not in the ledger, of client cy for model model: 1",
        )
        assert found.missing == (others,)


async def test_a_watcher_hears_how_far_it_is(books: Ledger) -> None:
    lineage, heard = new_lineage(), list[tuple[str, float]]()
    await open_accounts(books, lineage, releases(99), ann=releases(50))
    await books.charge(asking(lineage, "ann", "1", "2"))
    await verify(books, lineage, watch=lambda doing, share: heard.append((doing, share)))
    assert (f"the receipts of {lineage}", 1.0) in heard
    assert (f"the questions of {lineage}", 1.0) in heard
    assert all(0 <= share <= 1 for _, share in heard)


async def test_a_journal_witnesses_what_it_said_when_it_was_opened(store_url: str, tmp_path: Path) -> None:
    """Its receipts are read from the file each time; its service goes on meanwhile."""
    lineage = new_lineage()
    async with await Ledger.connect(store_url, journals=tmp_path) as books:
        await books.join(lineage)
        await open_accounts(books, lineage, releases(99), ann=releases(50))
        await books.charge(asking(lineage, "ann", "1"))
        await books.charge(asking(lineage, "ann", "2"))
        (journal,) = open_journals(tmp_path)
        (contents,) = read_journals(tmp_path)
        await books.charge(asking(lineage, "ann", "3"))
        assert tuple(journal.receipts) == tuple(journal.receipts) == contents.receipts
        assert (await verify(books, lineage, [journal])).findings == ()
        other = new_lineage()
        await open_accounts(books, other, releases(99), ann=releases(50))
        found = await verify(books, other, [journal])
        assert found.missing == contents.receipts
