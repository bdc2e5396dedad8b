"""A store that comes back older is found out, and made whole again from backup and journals."""

import asyncio
import io
import shutil
import tracemalloc
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import redis

from dpserve.accounting.ledger import (
    Acts,
    EmbeddedStore,
    Ledger,
    LedgerDamaged,
    LedgerUnavailable,
    StoreBehind,
    key_digest,
)
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.journal import Journal, open_journals, read_acknowledged
from dpserve.accounting.ledger.recovery import DeclaredLoss, LossUndeclared, put_back, reconcile
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.accounting.report import account_report

from .conftest import COST, JournalInMemory, asking, new_lineage, open_accounts, read_journals, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho


async def _answer(ledger: Ledger, client: str, *rows: str) -> None:
    await ledger.charge(asking("lineage", client, *rows))


async def _lines(ledger: Ledger) -> list[str]:
    return [line async for line in backup(ledger)]


async def _open(ledger: Ledger) -> None:
    await open_accounts(ledger, "lineage", releases(100), ann=releases(50), bob=releases(50))


def _read(path: Path) -> JournalInMemory:
    """Return what the journal of one file says."""
    (journal,) = read_journals(path)
    return journal


async def test_a_store_restored_from_an_older_copy_is_refused_until_it_is_reconciled(tmp_path: Path) -> None:
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        await _answer(ledger, "ann", "1")
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await _answer(ledger, "ann", "2", "3")
        await _answer(ledger, "bob", "3", "4")
        right = await ledger.snapshot("lineage")
    async with Ledger.open(copy, journals=journals) as ledger:
        with pytest.raises(StoreBehind):
            await ledger.join("lineage")
        for call in (ledger.lineage("lineage"), ledger.charge(asking("lineage", "ann", "5"))):
            with pytest.raises(StoreBehind):
                await call
        async with Ledger.open(copy) as owner:
            done = await reconcile(owner.acting("owner"), "lineage", read_journals(journals))
            assert (done.put_back, done.renumbered, done.services) == (2, 0, 1)
            again = await reconcile(owner.acting("owner"), "lineage", read_journals(journals))
            assert again.put_back == 0
        account, clients, *_ = await ledger.snapshot("lineage")
        assert (account.spent, account.tally) == (right[0].spent, right[0].tally)
        assert [(one.spent, one.newest_receipt) for one in clients] == [
            (one.spent, 1 + (one.client == "ann")) for one in right[1]
        ]
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
        # What was paid for stays paid for.
        replay = await ledger.charge(asking("lineage", "ann", "1", "2", "3"))
        assert replay.receipt is None
        await _answer(ledger, "bob", "6")
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_a_lost_replay_alone_is_found_out(tmp_path: Path) -> None:
    """Somebody else's charge is lost, on whose strength this service answered: the question would cost again."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    async with Ledger.open(store) as ledger:
        await _open(ledger)
    shutil.copytree(store, copy)
    async with Ledger.open(store) as other:
        await _answer(other, "ann", "1")
    async with Ledger.open(store, journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        assert (await ledger.charge(asking("lineage", "ann", "1"))).receipt is None
    async with Ledger.open(copy, journals=tmp_path / "journals") as ledger:
        with pytest.raises(StoreBehind):
            await ledger.join("lineage")


async def test_a_backup_is_restored_and_reconciled(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        await _answer(ledger, "ann", "1", "2")
        await ledger.acting("owner").revoke("lineage", "bob")
        lines = await _lines(ledger)
        backed_up = await ledger.snapshot("lineage")
        await _answer(ledger, "ann", "3")
        right, receipts = await ledger.snapshot("lineage"), await ledger.receipts("lineage")
    async with Ledger.open(tmp_path / "new") as ledger:
        assert await restore(ledger, lines) == ["lineage"]
        assert await ledger.snapshot("lineage") == backed_up
        assert (await verify(ledger, "lineage")).findings == ()
        with pytest.raises(CannotRecover, match="has a lineage lineage already"):
            await restore(ledger, lines)
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))
        account, clients, *_ = await ledger.snapshot("lineage")
        assert account.spent == right[0].spent
        assert clients == right[1]
        assert [one.hash for one in await ledger.receipts("lineage")] == [one.hash for one in receipts]
        assert (await ledger.charge(asking("lineage", "ann", "1", "2", "3"))).receipt is None
    async with Ledger.open(tmp_path / "new", journals=journals) as ledger:
        await ledger.join("lineage")
        assert (await ledger.api_keys.authenticate("lineage", key_digest("lineage/ann"))).client == "ann"
        await _answer(ledger, "ann", "4")


@pytest.mark.parametrize("damage", ["cut", "altered", "not one", "empty"])
async def test_a_damaged_backup_is_refused_whole(tmp_path: Path, damage: str) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await _answer(ledger, "ann", "1", "2")
        lines = await _lines(ledger)
    damaged = {
        "cut": lines[:-1],
        "altered": [line.replace('"lineage_questions":2', '"lineage_questions":1') for line in lines],
        "not one": ["{}\n"],
        "empty": [],
    }[damage]
    async with Ledger.open(tmp_path / "new") as ledger:
        with pytest.raises(CannotRecover):
            await restore(ledger, damaged)
        assert await ledger.lineages() == []


async def test_a_chain_that_went_on_gets_the_lost_receipts_under_new_numbers_once(tmp_path: Path) -> None:
    """The service whose writes were lost was away, and another one, with no memory of them, served on."""
    store, copy, journals = tmp_path / "store", tmp_path / "copy", tmp_path / "journals"
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        await _answer(ledger, "ann", "1")
    shutil.copytree(store, copy)
    async with Ledger.open(store, journals=journals) as ledger:
        await ledger.join("lineage")
        await _answer(ledger, "ann", "2", "3")
        await ledger.acting("owner").add_client("lineage", "carl", releases(9), bytes(32), time=0.0)
        await _answer(ledger, "carl", "4")
    async with Ledger.open(copy) as ledger:
        await _answer(ledger, "bob", "5")
        done = await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))
        assert (done.put_back, done.renumbered) == (2, 2)
        assert (await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))).put_back == 0
        account, (ann, bob, carl), *_ = await ledger.snapshot("lineage")
        assert account.spent == 5 * PRICE
        assert (ann.spent, bob.spent, carl.spent) == (3 * PRICE, PRICE, PRICE)
        assert carl.revoked  # the account was lost: its name must not be given to another
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()


async def test_receipts_in_no_journal_must_be_declared(tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    async with Ledger.open(store) as owner:
        await _open(owner)
    shutil.copytree(store, copy)
    with EmbeddedStore(store) as running:
        first = await Ledger.connect(running.url, journals=tmp_path / "first")
        second = await Ledger.connect(running.url, journals=tmp_path / "second")
        for ledger in (first, second):
            await ledger.join("lineage")
        for number in range(4):
            await _answer((first, second)[number % 2], "ann", str(number))
        await first.close()
        await second.close()
    async with Ledger.open(copy) as ledger:
        with pytest.raises(LossUndeclared) as caught:
            await reconcile(ledger.acting("owner"), "lineage", read_journals(tmp_path / "second"))
        assert caught.value.missing == 2
        assert (await ledger.lineage("lineage")).spent == 0
        dear = Cost((GaussianLoss(1.0),))
        declared = DeclaredLoss(3, dear, "ann", 5.0)
        await reconcile(ledger.acting("owner"), "lineage", read_journals(tmp_path / "second"), declared)
        account, (ann, _), *_ = await ledger.snapshot("lineage")
        assert account.spent == ann.spent == 2 * PRICE + 3 * dear.picorho
        assert (await verify(ledger, "lineage")).findings == ()
        await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(1, COST))
        assert (await ledger.lineage("lineage")).spent == 3 * PRICE + 3 * dear.picorho
        assert (await ledger.client("lineage", "ann")).spent == ann.spent
        assert (await verify(ledger, "lineage")).findings == ()


async def test_a_service_whose_journal_is_lost_is_not_passed_over(tmp_path: Path) -> None:
    """Its writes after the backup lie at the end of the chain, where no gap shows them."""
    with EmbeddedStore(tmp_path / "store") as running:
        first = await Ledger.connect(running.url, journals=tmp_path / "first")
        second = await Ledger.connect(running.url, journals=tmp_path / "second")
        for ledger in (first, second):
            await ledger.join("lineage")
        await _open(first)
        await _answer(second, "bob", "0")
        lines = await _lines(first)
        await _answer(first, "ann", "1")
        for number in range(5):
            await _answer(second, "bob", f"lost {number}")
        await first.close()
        await second.close()
    journals = read_journals(tmp_path / "first")
    async with Ledger.open(tmp_path / "new") as ledger:
        await restore(ledger, lines)
        with pytest.raises(LossUndeclared, check=lambda error: len(error.services) == 1) as caught:
            await reconcile(ledger.acting("owner"), "lineage", journals)
        assert len(caught.value.services) == 1
        assert (await ledger.lineage("lineage")).releases == 1
        await reconcile(ledger.acting("owner"), "lineage", journals, DeclaredLoss(5, COST))
        assert (await ledger.lineage("lineage")).releases == 7
        both = [*journals, *read_journals(tmp_path / "second")]
        assert (
            await reconcile(ledger.acting("owner"), "lineage", both)
        ).put_back == 5  # they were found, and are charged, too
        await reconcile(ledger.acting("owner"), "lineage", journals, DeclaredLoss(0, COST))
        assert (await ledger.lineage("lineage")).releases == 12


async def test_a_loss_is_charged_once_however_often_it_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        for cut_short in (True, False):
            if cut_short:
                with monkeypatch.context() as patched:
                    patched.setattr(Acts, "act", _without_reconcile(Acts.act))
                    with pytest.raises(LedgerUnavailable):
                        await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(12, COST, time=1.0))
            else:
                await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(12, COST, time=2.0))
        for _ in range(2):
            with pytest.raises(CannotRecover, match="declare_again"):
                await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(12, COST, time=3.0))
        assert (await ledger.lineage("lineage")).releases == 12
        await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(12, COST, another=True))
        assert (await ledger.lineage("lineage")).releases == 24
        assert (await verify(ledger, "lineage")).findings == ()


def _without_reconcile(call: Any) -> Any:
    async def some(owner: Acts, lineage: str, function: str, *given: Any, **words: str) -> Any:
        if function == "reconcile":
            raise LedgerUnavailable("cut short")
        return await call(owner, lineage, function, *given, **words)

    return some


async def test_two_services_of_one_machine_keep_journals_of_their_own(store_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    first = await Ledger.connect(store_url, journals=tmp_path)
    await first.join(lineage)
    await open_accounts(first, lineage, releases(9), ann=releases(9))
    second = await Ledger.connect(store_url, journals=tmp_path)
    await second.join(lineage)
    await asyncio.gather(*(one.charge(asking(lineage, "ann", str(id(one)))) for one in (first, second)))
    contents = read_journals(tmp_path)
    assert len({one.service for one in contents}) == 2
    assert [len(one.receipts) for one in contents] == [1, 1]
    await first.close()
    third = await Ledger.connect(store_url, journals=tmp_path)
    await third.join(lineage)  # goes on with the first one's
    assert len(read_journals(tmp_path)) == 2
    await second.close()
    await third.close()


async def test_a_journal_survives_a_torn_line_and_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpserve.accounting.ledger.journal.LARGEST_FILE", 1500)
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        for number in range(3):
            await ledger.charge(asking("lineage", "ann", str(number)))
    path = tmp_path / "journals" / "lineage" / "0.jsonl"
    contents = _read(path)
    assert contents is not None
    assert contents.writes == 3
    assert contents.receipts
    with path.open("ab") as file:
        file.write(b'{"writes":9')
    assert _read(path) == contents
    journal = Journal.open(tmp_path / "journals", "lineage")
    assert (journal.known.service, journal.known.writes) == (contents.service, 3)
    journal.note(4)
    journal.close()
    mended = _read(path)
    assert mended is not None
    assert mended.writes == 4


@pytest.mark.parametrize(
    "change",
    [
        ('"client":"ann"', '"client":"eve"'),
        ('"lineage_questions":2', '"lineage_questions":1'),
        ('"link":"', '"link":"AAAA'),
    ],
)
async def test_a_journal_that_was_altered_is_no_witness(tmp_path: Path, change: tuple[str, str]) -> None:
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        await _answer(ledger, "ann", "1", "2")
    path = tmp_path / "journals" / "lineage" / "0.jsonl"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ValueError, match="altered"):
        _read(path)


async def test_a_journal_of_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "journals" / "lineage").mkdir(parents=True)
    (tmp_path / "journals" / "lineage" / "0.jsonl").write_text('{"service":"x","lineage":"lineage","writes":3}\n')
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        with pytest.raises(ValueError, match="move it away, or use that release"):
            await ledger.join("lineage")


async def _most_memory(folder: Path, receipts: int, *, held: bool) -> int:
    """Return the most memory that putting back so many lost receipts took. held: with the journals in memory."""
    folder.mkdir()
    async with Ledger.open(folder / "empty") as ledger:
        await open_accounts(ledger, "lineage", releases(receipts), ann=releases(receipts))
    shutil.copytree(folder / "empty", folder / "store")
    async with Ledger.open(folder / "store", journals=folder / "journals") as ledger:
        await ledger.join("lineage")
        for start in range(0, receipts, 100):
            numbers = range(start, start + 100)
            await ledger.charge_batch([asking("lineage", "ann", f"{number}") for number in numbers])
    async with Ledger.open(folder / "empty") as owner:
        tracemalloc.start()
        journals = read_journals(folder / "journals") if held else open_journals(folder / "journals")
        done = await reconcile(owner.acting("owner"), "lineage", journals)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (done.put_back, done.renumbered) == (receipts, 0)
    return most


@pytest.mark.slow
async def test_the_memory_of_a_reconciliation_does_not_grow_with_the_receipts(tmp_path: Path) -> None:
    few, many = [await _most_memory(tmp_path / f"{n}", n, held=False) for n in (500, 2_000)]
    assert many < 1.3 * few
    assert await _most_memory(tmp_path / "held", 2_000, held=True) > 2 * many  # a control: what the receipts take


async def test_a_journal_is_opened_without_reading_all_of_it(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(10_000), ann=releases(10_000))
        for number in range(20):
            await _answer(ledger, "ann", *(f"{number}/{row}" for row in range(500)))
    path = tmp_path / "journals" / "lineage" / "0.jsonl"
    tracemalloc.start()
    journal = Journal.open(tmp_path / "journals", "lineage")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    journal.close()
    assert journal.known.writes == 20
    assert journal.known in read_acknowledged(tmp_path)
    assert most < path.stat().st_size / 2 + io.DEFAULT_BUFFER_SIZE  # 128 KiB from Python 3.14 on
    assert sum(receipt.releases for receipt in read_journals(tmp_path)[0].receipts) == 10_000


def test_a_line_whose_end_comes_while_it_is_read_is_left_to_the_next_reader(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "lineage")
    link = b64encode(journal.known.link)
    journal.close()
    path = tmp_path / "lineage" / "0.jsonl"
    with path.open("ab") as writer:
        writer.write(b'{"writes":3,"link":"%s","newest":0,"unit":null,"receipts":[]}\n{"wri' % link)
    assert [found.writes for found in read_acknowledged(tmp_path)] == [3]
    assert [found.writes for found in read_journals(tmp_path)] == [3]
    with path.open("ab") as writer:
        writer.write(b'tes":4,"link":"%s","newest":0,"unit":null,"receipts":[]}\n' % link)
    assert [found.writes for found in read_acknowledged(tmp_path)] == [4]


async def test_nothing_is_charged_on_the_strength_of_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "journals") as ledger:
        (tmp_path / "journals").mkdir()
        (tmp_path / "journals" / "lineage").write_text("in the way")
        with pytest.raises(LedgerUnavailable, match="journal"):
            await ledger.join("lineage")


async def test_a_client_whose_account_alone_was_lost_keeps_its_number(tmp_path: Path) -> None:
    """Under another one, nobody could tell any more whose its receipts are."""
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await _answer(ledger, "ann", "1", "2")
        with EmbeddedStore(tmp_path / "store") as store, redis.Redis.from_url(store.url, protocol=2) as raw:
            raw.delete(LineageKeys("lineage").client("ann").account)
        with pytest.raises(LedgerDamaged):
            await put_back(ledger, "lineage", [(await ledger.receipts("lineage"))[0]])
        with pytest.raises(LedgerDamaged):
            await reconcile(ledger.acting("owner"), "lineage", [], DeclaredLoss(3, COST, "ann"))
        assert [receipt.client for receipt in await ledger.receipts("lineage")] == ["ann"]


@pytest.mark.parametrize("known", [True, False], ids=["a client that the copy has", "a client that was added since"])
async def test_a_restored_account_that_spent_past_its_limit_counts_as_raised(tmp_path: Path, known: bool) -> None:
    """Reports took the spending that was put back for a limit settled beforehand."""
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), **({"ann": releases(2)} if known else {}))
        copy = [line async for line in backup(ledger)]
        if not known:
            await open_accounts(ledger, "lineage", releases(100), ann=releases(2))
        await ledger.charge(asking("lineage", "ann", "1", "2"))
        for count in (3, 4):
            await ledger.acting("owner").set_budget("lineage", releases(count), client="ann")
            await ledger.charge(asking("lineage", "ann", str(count)))
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, copy)
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))
        settled = releases(2).limit if known else 0
        account = await ledger.client("lineage", "ann")
        assert (account.spent, account.settled_limit) == (releases(4).limit, settled)
        report = account_report(account.state, price=None)
        assert report.raised is not None
        assert report.raised.posterior_belief_bound > report.posterior_belief_bound.when_spent
        await ledger.acting("owner").set_budget("lineage", releases(4), client="ann")
        account = await ledger.client("lineage", "ann")
        assert (account.raises, account.settled_limit) == (1, settled)
        whole = await ledger.lineage("lineage")
        assert account_report(whole.state, price=None).raised is None
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
