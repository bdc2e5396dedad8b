"""Several services, lost replies, journals of siblings: nobody is charged twice, and no loss goes unseen."""

import asyncio
import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.asyncio import Redis

from dpserve.accounting.ledger import EmbeddedStore, Ledger, LedgerUnavailable, StoreBehind
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.verification import verify

from .conftest import asking, dump, new_lineage, open_accounts, read_journals, releases

pytestmark = pytest.mark.anyio


def _lose_replies(monkeypatch: pytest.MonkeyPatch, which: set[int], *, done: bool) -> None:
    """Let some of the charges be done, or not, and their replies be lost either way."""
    real, count = Redis.execute_command, 0

    async def losing(self: Redis, *words: object, **options: object) -> object:
        nonlocal count
        if words[0] != "FCALL" or not str(words[1]).endswith("_charge"):
            return await real(self, *words, **options)
        count += 1
        if count not in which:
            return await real(self, *words, **options)
        if done:
            await real(self, *words, **options)
        raise redis.ConnectionError("the reply is lost")

    monkeypatch.setattr(Redis, "execute_command", losing)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("journals", [True, False])
async def test_a_call_whose_reply_was_lost_is_found_by_the_next(
    store_url: str, lineage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool, journals: bool
) -> None:
    async with await Ledger.connect(store_url, journals=tmp_path if journals else None) as ledger:
        await ledger.join(lineage)
        await open_accounts(ledger, lineage, releases(9), ann=releases(9), bob=releases(9))
        _lose_replies(monkeypatch, {2, 5 if done else 4}, done=done)  # what is stale is asked again
        await ledger.charge(asking(lineage, "ann", "1"))
        with pytest.raises(LedgerUnavailable, match="cannot be reached"):
            await ledger.charge_batch([asking(lineage, "ann", "2"), asking(lineage, "bob", "2")])
        charge = await ledger.charge(asking(lineage, "ann", "2", "3"))
        assert charge.free.count(False) == (1 if done else 2)
        with pytest.raises(LedgerUnavailable, match="cannot be reached"):
            await ledger.charge_batch([asking(lineage, "ann", "3")])  # nothing of which is new
        await ledger.charge(asking(lineage, "ann", "4"))
        assert (await ledger.client(lineage, "ann")).releases == 4
        receipts = await ledger.receipts(lineage)
        assert (await verify(ledger, lineage)).findings == ()
    if journals:
        (journal,) = read_journals(tmp_path)
        assert list(journal.receipts) == receipts


async def test_what_is_free_is_written_unless_the_services_own_newest_write_covers_it(
    store_url: str, lineage: str
) -> None:
    """Whoever answers it relies on its being paid for: a store that lost that must be older than the service knows."""

    async def wrote(ledger: Ledger) -> bool:
        before = dump(store_url, lineage)
        assert (await ledger.charge(asking(lineage, "ann", "1"))).receipt is None
        return dump(store_url, lineage) != before

    async with await Ledger.connect(store_url) as one, await Ledger.connect(store_url) as other:
        await open_accounts(one, lineage, releases(9), ann=releases(9), bob=releases(9))
        await one.charge(asking(lineage, "ann", "1"))
        assert [await wrote(one) for _ in range(2)] == [False, False]
        assert [await wrote(other) for _ in range(3)] == [True, False, False]
        assert not await wrote(one)
        await other.charge(asking(lineage, "bob", "1"))
        assert [await wrote(one) for _ in range(2)] == [True, False]
        assert not await wrote(other)


async def test_what_is_free_is_written_after_the_store_was_started_again(tmp_path: Path) -> None:
    """It may hold as many receipts as before, and not the same."""
    with EmbeddedStore(tmp_path) as store:
        async with await Ledger.connect(store.url) as ledger:
            await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
            await ledger.charge(asking("lineage", "ann", "1"))
            with redis.Redis.from_url(store.url, protocol=2) as raw:
                os.kill(raw.info()["process_id"], signal.SIGKILL)
            while store.is_running():
                await asyncio.sleep(0.01)
            store.revive()
            with suppress(LedgerUnavailable):  # the connection that was cut
                await ledger.lineage("lineage")
            writes = []
            for _ in range(2):
                before = dump(store.url, "lineage")
                assert (await ledger.charge(asking("lineage", "ann", "1"))).receipt is None
                writes.append(dump(store.url, "lineage") != before)
            assert writes == [True, False]


async def test_a_call_that_was_given_up_is_not_done_after_a_later_one(store_url: str, lineage: str) -> None:
    """As one that hung in the network: it names what the service knew then."""
    async with await Ledger.connect(store_url) as ledger:
        await open_accounts(ledger, lineage, releases(9), ann=releases(9))
        sent: list[tuple[object, ...]] = []
        real = Redis.execute_command

        async def keeping(self: Redis, *words: object, **options: object) -> object:
            sent.append(words)
            return await real(self, *words, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Redis, "execute_command", keeping)
            await ledger.charge(asking(lineage, "ann", "1"))
        late = next(words for words in sent if str(words[1]).endswith("_charge"))
        await ledger.charge(asking(lineage, "ann", "2"))
        with redis.Redis.from_url(store_url, protocol=2) as store:
            assert store.execute_command(*late)[2:] == [b"stale"]
        assert (await ledger.lineage(lineage)).releases == 2
        await ledger.charge(asking(lineage, "ann", "3"))
        assert (await verify(ledger, lineage)).findings == ()


async def test_a_journal_that_lags_is_brought_up_to_date(tmp_path: Path) -> None:
    """The journal's last second was lost with the power: the store has more than it says."""
    journals = tmp_path / "journals"
    path = journals / "lineage" / "0.jsonl"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
        await ledger.charge(asking("lineage", "ann", "1"))
        kept = path.read_bytes()
        for row in ("2", "3", "1"):
            await ledger.charge(asking("lineage", "ann", row))
    path.write_bytes(kept)
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await ledger.join("lineage")
        assert (await ledger.charge(asking("lineage", "ann", "2"))).receipt is None
        (journal,) = read_journals(journals)
        assert list(journal.receipts) == await ledger.receipts("lineage")
        assert (await verify(ledger, "lineage", [journal])).findings == ()


async def test_a_store_that_lost_a_siblings_writes_is_refused_by_all(tmp_path: Path) -> None:
    """The server of two workers is killed, and comes back without what only one of them was acknowledged last."""
    folder, journals = tmp_path / "store", tmp_path / "journals"
    with EmbeddedStore(folder) as store:
        first = await Ledger.connect(store.url, journals=journals)
        second = await Ledger.connect(store.url, journals=journals)
        for ledger in (first, second):
            await ledger.join("lineage")
        await open_accounts(first, "lineage", releases(22), ann=releases(22))
        await second.charge(asking("lineage", "ann", "of the second"))
        (log,) = (folder / "appendonlydir").glob("*.incr.aof")
        size = log.stat().st_size
        await first.charge(asking("lineage", "ann", "of the first"))
        with redis.Redis.from_url(store.url, protocol=2) as raw:
            os.kill(raw.info()["process_id"], signal.SIGKILL)
        while store.is_running():
            await asyncio.sleep(0.01)
        with log.open("r+b") as file:
            file.truncate(size)
        store.revive()
        for ledger in (second, first, second):
            with suppress(LedgerUnavailable):  # the connection that was cut
                await ledger.lineage("lineage")
            with pytest.raises(StoreBehind):
                await ledger.charge(asking("lineage", "ann", "more"))
            with pytest.raises(StoreBehind):
                await ledger.check("lineage")
        async with await Ledger.connect(store.url) as owner:
            assert (await owner.lineage("lineage")).releases == 1
        await first.close()
        await second.close()


@pytest.mark.parametrize("restored", [True, False])
async def test_a_store_that_was_restored_or_emptied_without_ending_is_refused_by_all(
    tmp_path: Path, restored: bool
) -> None:
    """The server goes on running: only the journal of a sibling shows what it lost."""
    journals = tmp_path / "journals"
    with EmbeddedStore(tmp_path / "store") as store:
        first = await Ledger.connect(store.url, journals=journals)
        second = await Ledger.connect(store.url, journals=journals)
        for ledger in (first, second):
            await ledger.join("lineage")
        await open_accounts(first, "lineage", releases(2), ann=releases(2))
        async with await Ledger.connect(store.url) as owner:
            await second.check("lineage")
            lines = [line async for line in backup(owner)]
            await first.charge(asking("lineage", "ann", "of the first"))
            with redis.Redis.from_url(store.url, protocol=2) as raw:
                raw.flushall()
            if restored:
                await restore(owner, lines)
            else:
                await open_accounts(owner, "lineage", releases(2), ann=releases(2))
        for ledger in (second, first, second):
            with pytest.raises(StoreBehind):
                await ledger.charge(asking("lineage", "ann", "more"))
        await first.close()
        await second.close()


async def test_a_closed_ledger_charges_nothing_and_writes_into_no_file(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "store") as store:
        ledger = await Ledger.connect(store.url, journals=tmp_path / "journals")
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
        await ledger.charge(asking("lineage", "ann", "1"))
        await ledger.close()
        others = [(tmp_path / f"other {number}").open("xb") for number in range(9)]  # one has the journal's descriptor
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.charge(asking("lineage", "ann", "2"))
        await ledger.close()
        for other in others:
            other.close()
        assert [(tmp_path / f"other {number}").stat().st_size for number in range(9)] == [0] * 9
        async with await Ledger.connect(store.url) as owner:
            assert (await owner.lineage("lineage")).releases == 1


async def test_a_charge_that_is_cancelled_at_any_point_is_charged_once(store_url: str, tmp_path: Path) -> None:
    async with await Ledger.connect(store_url, journals=tmp_path) as ledger:
        lineage = new_lineage()
        await ledger.join(lineage)
        await open_accounts(ledger, lineage, releases(300), ann=releases(300), bob=releases(300))
        for turns in range(30):
            calls = [asyncio.create_task(ledger.charge(asking(lineage, who, str(turns)))) for who in ("ann", "bob")]
            for _ in range(turns):
                await asyncio.sleep(0)
            calls[turns % 2].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            charges = await ledger.charge_batch([asking(lineage, who, str(turns)) for who in ("ann", "bob")])
            assert not any(isinstance(charge, Exception) for charge in charges)
            assert (await ledger.lineage(lineage)).releases == turns + 1
            assert [(await ledger.client(lineage, who)).releases for who in ("ann", "bob")] == [turns + 1] * 2
        (journal,) = read_journals(tmp_path)
        assert (await verify(ledger, lineage, [journal])).findings == ()
        assert list(journal.receipts) == await ledger.receipts(lineage, count=1000)


async def test_a_journal_that_cannot_be_written_stops_charging_before_the_next_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = False, os.write

    def write(file: int, data: bytes) -> int:
        if full and b'{"writes"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(99), ann=releases(99))
        await ledger.charge(asking("lineage", "ann", "0"))
        await ledger.check("lineage")
        full = True
        for row in range(1, 9):
            with pytest.raises(LedgerUnavailable, match=r"journal in .* cannot be written: No space left"):
                await ledger.charge(asking("lineage", "ann", str(row)))
            with pytest.raises(LedgerUnavailable, match="journal in"):
                await ledger.check("lineage")
        assert (await ledger.lineage("lineage")).releases == 2
        full = False
        await ledger.check("lineage")
        await ledger.charge(asking("lineage", "ann", "1", "2"))
        receipts = await ledger.receipts("lineage")
        assert [receipt.releases for receipt in receipts] == [1, 1, 1]
    (journal,) = read_journals(tmp_path / "journals")
    assert list(journal.receipts) == receipts


async def test_files_are_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        async with Ledger.open(tmp_path / "state" / "ledger", journals=tmp_path / "state" / "journals") as ledger:
            await ledger.join("lineage")
            await open_accounts(ledger, "lineage", releases(9), ann=releases(9))
            await ledger.charge(asking("lineage", "ann", "1"))
            found = [path for folder in ("ledger", "journals") for path in (tmp_path / "state" / folder).rglob("*")]
            open_ones = [path.name for path in found if not path.is_socket() and path.stat().st_mode & 0o077]
            assert any(path.suffix == ".aof" for path in found)
            assert open_ones == []
            assert [(tmp_path / "state" / name).stat().st_mode & 0o777 for name in ("ledger", "journals")] == [
                0o700
            ] * 2
    finally:
        os.umask(before)


async def test_a_lineage_that_begins_while_it_is_compared_is_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two processes train in a new lineage at once: the mark of the first look is not the store's any more."""
    lineage = new_lineage()
    async with (
        Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger,
        Ledger.open(tmp_path / "store") as other,
    ):
        compare, forget = ledger.store.compare, ledger.store.forget

        def forget_and_prepare(name: str) -> None:  # once the journal is there, which is what is compared
            forget(name)
            monkeypatch.setattr(ledger.store, "compare", begin_and_compare)

        async def begin_and_compare(name: str, mark: str) -> None:
            monkeypatch.undo()
            await open_accounts(other, lineage, releases(1))
            await compare(name, mark)

        monkeypatch.setattr(ledger.store, "forget", forget_and_prepare)
        await ledger.join(lineage)
        assert (await ledger.lineage(lineage)).budget == releases(1)
