"""A user of the store who may only read: what `ledger follow` needs is there, no more, and nothing is charged."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from accounting.ledger import Ledger, LedgerUnavailable, UnsafeStore
from accounting.ledger.archives import archive
from accounting.ledger.backup_chains import Place
from accounting.ledger.following import Follower, Position
from accounting.ledger.store import READING_RIGHTS
from accounting.ledger.wire import LineageKeys
from tests.faults.servers import DURABLE, StoreServer
from tests.topologies import said

from .conftest import asking, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

READER = ("reader", "secret")
NOT_ASKED_FOR = {"+client|setinfo", "+client|setname", "+cluster|slots"}
"""Rights without which one server can be read: names of connections, and where a Cluster has what."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("read") / "store", DURABLE) as started:
        yield started


def _url(server: StoreServer, *rights: str) -> str:
    """The store's address of a user with these rights and no others."""
    name, password = READER
    said(server, "ACL", "SETUSER", name, "reset", "on", f">{password}", *rights)
    return f"redis://{name}:{password}@127.0.0.1:{server.port}/0"


async def _lines(url: str, lineage: str) -> int:
    async with await Ledger.connect(url, reads_only=True, deadline=1.0) as ledger:
        return sum([len(page.lines) async for page in Follower(ledger, Position(), [lineage]).pages()])


async def _charged(server: StoreServer) -> str:
    lineage = new_lineage()
    async with await Ledger.connect(server.url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        await ledger.charge_batch([asking(lineage, "ann", "one"), asking(lineage, "ann", "two")])
    return lineage


async def test_a_reader_follows_and_changes_nothing(server: StoreServer) -> None:
    lineage = await _charged(server)
    url = _url(server, *READING_RIGHTS.split())
    assert await _lines(url, lineage) == 2 + 2  # acts and receipts
    async with await Ledger.connect(url, reads_only=True) as ledger:
        before = await ledger.lineage(lineage)
    async with await Ledger.connect(url, reads_only=True) as ledger:
        with pytest.raises(LedgerUnavailable, match=r"\*_ro"):
            await ledger.charge(asking(lineage, "ann", "three"))
    async with await Ledger.connect(url, reads_only=True) as ledger:
        assert await ledger.lineage(lineage) == before
    with pytest.raises(LedgerUnavailable, match="permit"):
        await Ledger.connect(url, deadline=1.0)  # as one who writes
    name, password = READER
    with redis.Redis(port=server.port, username=name, password=password) as client:
        own = LineageKeys(lineage)
        for words in (
            ("HSET", own.account, "spent", "0"),
            ("DEL", own.receipts),
            ("XADD", own.receipts, "*", "a", "b"),
            ("FCALL", "dpserve_1_charge", 1, own.services),
            ("FUNCTION", "FLUSH"),
            ("EVAL", "return 1", 0),
            ("CONFIG", "GET", "dir"),
            ("ACL", "LIST"),
            ("KEYS", "*"),
            ("HGETALL", "another:key"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)


async def test_a_reader_follows_past_what_was_archived(server: StoreServer, tmp_path: Path) -> None:
    lineage = await _charged(server)
    async with await Ledger.connect(server.url) as ledger:
        await ledger.charge(asking(lineage, "ann", "three"))
        await archive(ledger, lineage, Place(str(tmp_path)), before=float("inf"))
        account = await ledger.lineage(lineage)
    assert account.archived
    assert account.newest_receipt == 3
    # Acts, that of the archive among them, a line for what was archived, and the receipts that the store has.
    assert await _lines(_url(server, *READING_RIGHTS.split()), lineage) == account.newest_act + 1 + 3 - account.archived


@pytest.mark.parametrize("right", sorted({*READING_RIGHTS.split()} - NOT_ASKED_FOR))
async def test_each_right_of_a_reader_is_needed(server: StoreServer, right: str) -> None:
    lineage = await _charged(server)
    url = _url(server, *(each for each in READING_RIGHTS.split() if each != right))
    with pytest.raises(LedgerUnavailable):
        await _lines(url, lineage)


async def test_a_reader_waits_for_the_library_that_others_install(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store", DURABLE) as server:
        with pytest.raises(UnsafeStore, match=r"lacks version .* a service or a command of this release installs"):
            await Ledger.connect(_url(server, *READING_RIGHTS.split()), reads_only=True)
        lineage = await _charged(server)
        assert await _lines(_url(server, *READING_RIGHTS.split()), lineage) == 4
