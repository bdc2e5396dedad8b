"""Receipts that move to files: what stays, what is refused, and what no crash or neighbour can spoil."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    Charge,
    IdempotencyConflict,
    Ledger,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    ReceiptsArchived,
    key_digest,
)
from accounting.ledger.archives import Archive, Archived, archive
from accounting.ledger.backup_chains import Place, add_to_chain, lines_of_file, links_of_chain, write_file
from accounting.ledger.backup_streams import read_lines
from accounting.ledger.backups import restore
from accounting.ledger.charged_models import charged_models
from accounting.ledger.errors import CannotRecover, SecretKeyMissing
from accounting.ledger.export import export
from accounting.ledger.following import Follower, Position
from accounting.ledger.journal import read_journals
from accounting.ledger.recovery import reconcile
from accounting.ledger.seals import seals_of
from accounting.ledger.values import Account
from accounting.ledger.verification import all_receipts, verify
from accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, dump, new_lineage, open_accounts, question, releases

pytestmark = pytest.mark.anyio

ALL = float("inf")
"""A time before which every request came."""


async def _used(ledger: Ledger, lineage: str) -> None:
    """Charge two clients, one of them in a group, in calls of one request and of several."""
    await open_accounts(ledger, lineage, releases(40), ann=releases(20), bob=releases(20))
    await ledger.add_group(lineage, "team", releases(30), time=0.0)
    await ledger.set_group(lineage, "ann", "team")
    for number in range(4):
        await ledger.charge(asking(lineage, "ann", f"a{number}", f"shared{number}"))
        await ledger.charge(asking(lineage, "bob", f"shared{number}", key=f"key {number}", body="body"))
    await ledger.charge_batch([asking(lineage, name, f"{name} in a batch") for name in ("ann", "bob")])


async def _archived(ledger: Ledger, lineage: str, folder: Path, **more: Any) -> Archived:
    return await archive(ledger, lineage, Place(str(folder)), before=ALL, **more)


def _archive(folder: Path) -> Callable[..., Any]:
    return Archive(Place(str(folder))).receipts


async def _accounts(ledger: Ledger, lineage: str) -> list[Account]:
    account, *others = await ledger.snapshot(lineage)
    return [account, *(one for each in others for one in each)]


async def test_what_was_charged_stays_charged_and_the_books_stay_right(
    ledger: Ledger, lineage: str, tmp_path: Path
) -> None:
    await _used(ledger, lineage)
    before = await _accounts(ledger, lineage)
    receipts = [one async for one in all_receipts(ledger, lineage, 100)]
    done = await _archived(ledger, lineage, tmp_path)
    # The newest call, which is of two receipts, stays.
    assert (done.receipts, done.upto, len(done.files)) == (8, 8, 1)
    assert [one.sequence for one in await ledger.receipts(lineage)] == [9, 10]
    for old, new in zip(before, await _accounts(ledger, lineage), strict=True):
        for name in ("spent", "tally", "coins_spent", "newest_receipt", "questions", "remaining", "budget"):
            assert getattr(old, name) == getattr(new, name)
    checked = await verify(ledger, lineage)
    assert (checked.findings, checked.receipts, checked.archived, checked.unread) == ((), 10, 8, 8)
    whole = await verify(ledger, lineage, archived=_archive(tmp_path))
    assert (whole.findings, whole.archived, whole.unread) == ((), 8, 0)
    acts = [act for act in await ledger.acts(lineage) if act.kind == "archive"]
    (sealed,) = [act.details for act in acts]
    assert (sealed["after"], sealed["receipts"], sealed["file"]) == (0, 8, done.files[0])
    assert sealed["place"] == str(tmp_path)
    assert [*_archive(tmp_path)(lineage, seals_of(acts), 0)] == receipts[:8]
    assert [*_archive(tmp_path)(lineage, seals_of(acts), 5)] == receipts[5:8]


async def test_decisions_and_prices_are_the_same_after_an_archive(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await _used(ledger, lineage)
    await _archived(ledger, lineage, tmp_path)
    again = await ledger.charge(asking(lineage, "ann", "a0", "shared1"))
    assert (again.free, again.receipts) == ((True, True), ())
    later = await ledger.charge(asking(lineage, "bob", "a0", "new"))
    assert later.new_to_client == 2
    assert [one.lineage_questions for one in later.receipts] == [1]
    assert (await ledger.quote(asking(lineage, "ann", "new"))).total == COST.picorho
    same = await ledger.charge(asking(lineage, "bob", "shared2", key="key 2", body="body"))
    assert (same.earlier, same.receipts) == (3, ())
    with pytest.raises(IdempotencyConflict):
        await ledger.charge(asking(lineage, "bob", "shared2", key="key 2", body="another"))
    with pytest.raises(BudgetExhausted):
        await ledger.charge(asking(lineage, "ann", *(f"more {number}" for number in range(20))))
    assert (await verify(ledger, lineage)).findings == ()
    assert (await verify(ledger, lineage, archived=_archive(tmp_path))).findings == ()


async def test_archives_follow_each_other(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await _used(ledger, lineage)
    # Of calls of one receipt, and one of two.
    first = await _archived(ledger, lineage, tmp_path, most=3)
    assert (first.receipts, len(first.files)) == (8, 3)
    for number in range(3):
        await ledger.charge(asking(lineage, "ann", f"later {number}", "shared1"))
        await ledger.charge(asking(lineage, "bob", f"later {number}"))
    second = await _archived(ledger, lineage, tmp_path)
    assert (second.receipts, second.upto, len(second.files)) == (7, 15, 1)
    nothing = await _archived(ledger, lineage, tmp_path)
    assert (nothing.receipts, nothing.upto, nothing.files) == (0, 15, ())
    assert (await verify(ledger, lineage)).findings == ()
    assert (await verify(ledger, lineage, archived=_archive(tmp_path))).findings == ()
    assert {one.name for one in tmp_path.iterdir()} == {*first.files, *second.files}
    fields = await _accounts(ledger, lineage)
    assert all(set(one.sealed) == {15} for one in fields)
    left = first.files[0].rpartition("-")[0] + "-01234567.zst"
    for name in (left, left.replace(lineage, f"{lineage}-1"), left + ".partial"):
        (tmp_path / name).touch()
    assert (nothing.unnamed, (await _archived(ledger, lineage, tmp_path)).unnamed) == ((), (left,))


async def test_only_what_is_older_goes(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await _used(ledger, lineage)  # at 1.5 s
    place = Place(str(tmp_path))
    assert (await archive(ledger, lineage, place, before=1.5)).receipts == 0
    assert not tmp_path.exists() or not list(tmp_path.iterdir())
    assert (await archive(ledger, lineage, place, before=1.6)).receipts == 8


async def test_accounts_that_paid_nothing_are_sealed_as_such(embedded_url: str, tmp_path: Path) -> None:
    lineage, readable = new_lineage(), _archive(tmp_path)
    async with await Ledger.connect(embedded_url) as ledger:
        await ledger.open_lineage(lineage, releases(1), time=0.0)
        for block in ("may", "june"):
            await ledger.open_block(lineage, block, releases(20), time=0.0)
        await ledger.add_group(lineage, "team", releases(30), time=0.0)
        await _add_clients(ledger, lineage)
        await ledger.set_group(lineage, "bob", "team")
        for number in range(3):
            await ledger.charge(asking(lineage, "ann", f"{number}", blocks=("may",)))
        await _archived(ledger, lineage, tmp_path)
        # A client who only asks what the lineage and its own group have paid for is charged alone.
        for client, rows in (("bob", ("0", "new")), ("ann", ("0", "new"))):
            await ledger.charge(asking(lineage, client, *rows, blocks=("may",)))
        await ledger.charge(asking(lineage, "bob", "june's", blocks=("june",)))
        assert (await ledger.client_page(lineage, "bob", after=0, count=9))[1] == 0
        assert (await verify(ledger, lineage)).findings == ()
        await _archived(ledger, lineage, tmp_path)
        assert (await verify(ledger, lineage)).findings == ()
        assert (await verify(ledger, lineage, archived=readable)).findings == ()
        own = LineageKeys(lineage).block("june").account
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            assert not [name for name in store.hkeys(own) if name.startswith(b"sealed:")]
            store.hset(own, "sealed:5", "{}")
        assert (await verify(ledger, lineage)).findings == (
            "what the accounts had paid for by archived receipts is not what was sealed",
        )


# What reads receipts


async def test_a_client_hears_which_of_its_receipts_are_archived(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await _used(ledger, lineage)
    await _archived(ledger, lineage, tmp_path)
    page, archived = await ledger.client_page(lineage, "bob", after=0, count=10)
    assert ([one.number for one in page], archived) == ([5], 4)
    assert await ledger.client_page(lineage, "bob", after=4, count=10) == (page, 0)
    assert await ledger.client_page(lineage, "bob", after=5, count=10) == ([], 0)
    for after in (1, 3):
        with pytest.raises(ReceiptsArchived, check=lambda error: error.archived == 4):
            await ledger.client_page(lineage, "bob", after=after, count=10)
    assert [one.number for one in await ledger.client_receipts(lineage, "bob", newest_first=True)] == [5]
    await ledger.charge(asking(lineage, "ann", "another"))
    await _archived(ledger, lineage, tmp_path)  # all of bob's
    assert await ledger.client_page(lineage, "bob", after=0, count=10) == ([], 5)
    with pytest.raises(ReceiptsArchived, check=lambda error: error.archived == 5):
        await ledger.client_page(lineage, "bob", after=4, count=10)
    page, archived = await ledger.lineage_page(lineage, after=0, count=10)
    assert ([one.sequence for one in page], archived) == ([11], 10)
    with pytest.raises(ReceiptsArchived, check=lambda error: error.archived == 10):
        await ledger.lineage_page(lineage, after=7, count=10)


@pytest.mark.parametrize("archived", [False, True])
async def test_a_receipt_that_is_lost_is_not_called_archived(embedded_url: str, tmp_path: Path, archived: bool) -> None:
    """Two are taken out of receipts 11 to 14, of which bob's are the even ones."""
    lineage = new_lineage()
    keys = LineageKeys(lineage)
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        if archived:
            await _archived(ledger, lineage, tmp_path)  # up to 8, and of bob's up to 4
        for number in range(4):
            await ledger.charge(asking(lineage, "ann" if number % 2 == 0 else "bob", f"later {number}"))
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            for key, number in ((keys.client("bob").receipts, 6), (keys.receipts, 13)):
                store.xdel(key, *(entry for entry, _ in store.xrange(key, min=number, max=f"{number}-99999")))
        for after in (11, 12):
            with pytest.raises(LedgerDamaged, match="receipt 13 is missing"):
                await ledger.lineage_page(lineage, after=after, count=10)
        with pytest.raises(LedgerDamaged, match="receipt 6 is missing"):
            await ledger.client_page(lineage, "bob", after=5, count=10)


async def test_models_and_exports_of_archived_receipts_are_known(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await _used(ledger, lineage)
    before = await charged_models(ledger, await ledger.lineage(lineage))
    whole = [line async for line in export(ledger, lineage, "jsonl") if '"receipt"' in line]
    await _archived(ledger, lineage, tmp_path)
    assert await charged_models(ledger, await ledger.lineage(lineage)) == before
    newer = [line async for line in export(ledger, lineage, "jsonl") if '"receipt"' in line]
    assert newer == whole[8:]
    found = [
        line
        async for line in export(ledger, lineage, "jsonl", archived=_archive(tmp_path))
        if '"kind": "receipt"' in line
    ]
    assert found == [line for line in whole if '"kind": "receipt"' in line]


async def test_a_follower_that_is_behind_hears_of_the_gap(embedded_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        behind, ahead = Follower(ledger, Position(), [lineage]), Follower(ledger, Position(), [lineage])
        shipped = [line async for page in ahead.pages() for line in page.lines]
        await _archived(ledger, lineage, tmp_path)
        (act,) = [line async for page in ahead.pages() for line in page.lines]
        assert (act["chain"], act["kind"], act["detail"]["receipts"]) == ("acts", "archive", 8)
        lines = [line async for page in behind.pages() for line in page.lines if line["chain"] == "receipts"]
        gap, *rest = lines
        assert (gap["kind"], gap["number"], gap["detail"]) == ("archived", 8, {"after": 0, "receipts": 8})
        assert rest == shipped[-2:]
        assert [page async for page in behind.pages()] == []
        await ledger.charge(asking(lineage, "ann", "another"))
        await _archived(ledger, lineage, tmp_path)  # all that came, and no more
        for follower in (ahead, behind):
            assert [line["number"] async for page in follower.pages() for line in page.lines][-1] == 11


# Backups


async def test_a_backup_holds_archived_receipts_and_restores_the_seal(
    ledger: Ledger, store_url: str, lineage: str, tmp_path: Path
) -> None:
    await _used(ledger, lineage)
    archive_folder, chain = tmp_path / "archive", Place(str(tmp_path / "chain"))
    await add_to_chain(ledger, chain, [lineage])
    await _archived(ledger, lineage, archive_folder)
    await ledger.charge(asking(lineage, "ann", "after the archive", "shared3"))
    with pytest.raises(CannotRecover, match=r"receipts 1 to 8 of lineage .* are archived"):
        await write_file(ledger, tmp_path / "whole", [lineage])
    assert not (tmp_path / "whole").exists()
    await write_file(ledger, tmp_path / "whole", [lineage], archived=_archive(archive_folder))
    # A chain that has them goes on without the archive.
    await add_to_chain(ledger, chain, [lineage])
    expected = dump(store_url, lineage)
    for links in ([lines_of_file(tmp_path / "whole")], links_of_chain(chain)):
        async with Ledger.open(tmp_path / f"restored {len(links)}") as restored:
            await restore(restored, *links)
            assert _contents(dump(_url(restored), lineage)) == _contents(expected)
            assert (await verify(restored, lineage)).findings == ()
            assert (await verify(restored, lineage, archived=_archive(archive_folder))).findings == ()
            again = await restored.charge(asking(lineage, "bob", "shared0", "new"))
            assert again.free == (True, False)
            assert (await verify(restored, lineage, archived=_archive(archive_folder))).findings == ()
            await _archived(restored, lineage, archive_folder)
            assert (await verify(restored, lineage, archived=_archive(archive_folder))).findings == ()


def _contents(dumped: dict[str, Any]) -> dict[str, Any]:
    """Leave out streams without an entry, numbers of terms, which a restore gives anew, and idempotency keys."""
    kept = {}
    for key, value in dumped.items():
        if isinstance(value, list):
            value = [(id_, {name: word for name, word in fields.items() if name != b"terms"}) for id_, fields in value]
        if value and not key.endswith(("terms", ":requests")):
            kept[key] = value
    return kept


def _url(ledger: Ledger) -> str:
    """The address of an embedded store."""
    return f"unix://{ledger.store.address}"


async def test_a_chain_that_ends_before_the_archive_needs_it(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    archive_folder, chain = tmp_path / "archive", Place(str(tmp_path / "chain"))
    await _used(ledger, lineage)
    await add_to_chain(ledger, chain, [lineage])  # up to 10
    for number in range(3):
        await ledger.charge(asking(lineage, "ann", f"later {number}"))
    await _archived(ledger, lineage, archive_folder)  # up to 12
    with pytest.raises(CannotRecover, match=r"receipts 10 to 12 of lineage .* are archived"):
        await add_to_chain(ledger, chain, [lineage])
    written = await add_to_chain(ledger, chain, [lineage], archived=_archive(archive_folder))
    assert (written.number, written.receipts) == (2, 13)
    async with Ledger.open(tmp_path / "restored") as restored:
        await restore(restored, *links_of_chain(chain))
        assert (await verify(restored, lineage, archived=_archive(archive_folder))).findings == ()


async def test_a_chain_that_is_old_enough_goes_on_without_the_archive(
    embedded_url: str, lineage: str, tmp_path: Path
) -> None:
    chain, now, week = Place(str(tmp_path / "chain")), datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=7)
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        await add_to_chain(ledger, chain, [lineage], full_after=week.total_seconds(), now=now)
        await _archived(ledger, lineage, tmp_path / "archive")
        for number in (2, 3):
            await ledger.charge(asking(lineage, "ann", f"week {number}"))
            now += week
            written = await add_to_chain(ledger, chain, [lineage], full_after=week.total_seconds(), now=now)
            assert (written.number, written.postponed) == (number, (lineage,))
        with pytest.raises(CannotRecover, match=r"receipts 1 to 8 of lineage .* are archived"):
            await add_to_chain(ledger, chain, [lineage], full=True)
        async with Ledger.open(tmp_path / "restored") as restored:
            await restore(restored, *links_of_chain(chain))
            assert (await verify(restored, lineage)).findings == ()
        readable = _archive(tmp_path / "archive")
        new = await add_to_chain(ledger, chain, [lineage], full_after=week.total_seconds(), now=now, archived=readable)
        assert (new.number, new.receipts, new.postponed) == (1, 12, ())


async def test_a_service_is_reconciled_with_a_store_whose_receipts_are_archived(
    embedded_url: str, tmp_path: Path
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url, journals=tmp_path / "journals") as ledger:
        await ledger.open_lineage(lineage, releases(30), time=0.0)
        await ledger.join(lineage)
        await _add_clients(ledger, lineage)
        for number in range(5):
            await ledger.charge(asking(lineage, "ann", f"{number}"))
        await _archived(ledger, lineage, tmp_path / "archive")
        copy = tmp_path / "copy"
        await write_file(ledger, copy, [lineage], archived=_archive(tmp_path / "archive"))
        await ledger.charge(asking(lineage, "ann", "lost"))
        journals = read_journals(tmp_path / "journals")
        spent = (await ledger.lineage(lineage)).spent
    async with Ledger.open(tmp_path / "restored") as restored:
        await restore(restored, lines_of_file(copy))
        done = await reconcile(restored, lineage, journals)
        assert (done.put_back, done.declared) == (1, 0)
        assert (await restored.lineage(lineage)).spent == spent
        assert (await verify(restored, lineage, journals)).findings == ()
        assert (await verify(restored, lineage, journals, archived=_archive(tmp_path / "archive"))).findings == ()
        assert (await reconcile(restored, lineage, journals)).put_back == 0


async def _add_clients(ledger: Ledger, lineage: str) -> None:
    for name in ("ann", "bob"):
        await ledger.add_client(lineage, name, releases(20), key_digest(f"{lineage}/{name}"), time=0.0)


# Faults


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-9] + bytes(9)),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_file_is_found_and_harms_no_charge(embedded_url: str, tmp_path: Path, damage: str) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        (name,) = (await _archived(ledger, lineage, tmp_path / "archive")).files
        DAMAGE[damage](tmp_path / "archive" / name)
        (finding,) = (await verify(ledger, lineage, archived=_archive(tmp_path / "archive"))).findings
        assert name in finding or "cut short" in finding
        with pytest.raises(CannotRecover):
            await write_file(ledger, tmp_path / "copy", [lineage], archived=_archive(tmp_path / "archive"))
        assert not (tmp_path / "copy").exists()
        assert (await verify(ledger, lineage)).findings == ()
        assert (await ledger.charge(asking(lineage, "ann", "a0", "new"))).free == (True, False)


async def test_a_file_that_says_the_same_is_taken_however_it_is_compressed(embedded_url: str, tmp_path: Path) -> None:
    lineage, readable = new_lineage(), _archive(tmp_path)
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        (name,) = (await _archived(ledger, lineage, tmp_path)).files
        path = tmp_path / name
        with path.open("rb") as file:
            lines = list(read_lines(file))
        path.write_text("".join(lines))
        assert (await verify(ledger, lineage, archived=readable)).findings == ()
        await write_file(ledger, tmp_path / "copy", [lineage], archived=readable)
        # One that says something else, with a right digest at its end.
        lines[1] = lines[1].replace('"time":1.5', '"time":1.6').replace("1500000", "1600000")
        summed = hashlib.sha256("".join(lines[:-1]).encode()).hexdigest()
        path.write_text("".join(lines[:-1]) + json.dumps({"end": summed}) + "\n")
        assert (await verify(ledger, lineage, archived=readable)).findings != ()
        path.write_text("".join(lines[:-1]))
        (finding,) = (await verify(ledger, lineage, archived=readable)).findings
        assert "cut short" in finding


async def test_another_file_in_its_place_is_found(embedded_url: str, tmp_path: Path) -> None:
    async with await Ledger.connect(embedded_url) as ledger:
        names = []
        for lineage in (first := new_lineage(), new_lineage()):
            await _used(ledger, lineage)
            names += (await _archived(ledger, lineage, tmp_path)).files
        (tmp_path / names[0]).write_bytes((tmp_path / names[1]).read_bytes())
        (finding,) = (await verify(ledger, first, archived=_archive(tmp_path))).findings
        assert f"is not a file of archived receipts of lineage {first}" in finding


ALTERED: dict[str, Callable[["redis.Redis[bytes]", LineageKeys], object]] = {
    "the sum of an account": lambda store, keys: store.hset(keys.client("ann").account, "sealed:8", '{"spent":1}'),
    "a sum that is gone": lambda store, keys: store.hdel(keys.client("ann").account, "sealed:8"),
    "what was spent": lambda store, keys: store.hincrby(keys.account, "spent", -1),
}


@pytest.mark.parametrize("altered", ALTERED)
async def test_what_was_altered_in_the_store_is_found_without_the_archive(
    embedded_url: str, tmp_path: Path, altered: str
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        await _archived(ledger, lineage, tmp_path)
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            ALTERED[altered](store, LineageKeys(lineage))
        assert (await verify(ledger, lineage)).findings


@pytest.mark.parametrize("row", ["ann in a batch", "a0"])
async def test_a_lost_question_is_found_without_the_archive(embedded_url: str, tmp_path: Path, row: str) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        await _archived(ledger, lineage, tmp_path)
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            assert store.hdel(LineageKeys(lineage).questions, question(row))
        findings = (await verify(ledger, lineage)).findings
        assert any("questions" in one for one in findings)
        with pytest.raises(LedgerDamaged):
            await ledger.charge(asking(lineage, "ann", "another"))


async def test_of_two_archives_at_once_one_is_done(embedded_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as one, await Ledger.connect(embedded_url) as other:
        await _used(one, lineage)
        done = await asyncio.gather(
            *(_archived(each, lineage, tmp_path) for each in (one, other)), return_exceptions=True
        )
        refused = [each for each in done if isinstance(each, BaseException)]
        assert all(isinstance(each, ActRefused) and each.reason == "archived-between" for each in refused)
        assert sum(each.receipts for each in done if isinstance(each, Archived)) == 8
        # Whoever was refused has removed its file again.
        assert len(list(tmp_path.iterdir())) == 1
        assert (await verify(one, lineage, archived=_archive(tmp_path))).findings == ()


async def test_what_an_archive_has_sealed_stays_while_another_tidies_up(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has sealed, and whose act is to come, and one that takes out what an earlier archive left over."""
    lineage, place = new_lineage(), Place(str(tmp_path))
    async with await Ledger.connect(embedded_url) as one, await Ledger.connect(embedded_url) as other:
        await _used(one, lineage)
        await _archived(one, lineage, tmp_path)
        for number in range(3):
            await one.charge(asking(lineage, "ann", f"later {number}"))
        act = other.act

        async def act_after_the_other(*words: Any, **more: Any) -> list[Any]:
            assert (await archive(one, lineage, place, before=0.0)).receipts == 0
            return await act(*words, **more)

        monkeypatch.setattr(other, "act", act_after_the_other)
        done = await _archived(other, lineage, tmp_path)
        assert (done.receipts, done.upto) == (4, 12)
        assert (await verify(one, lineage)).findings == ()
        assert (await verify(one, lineage, archived=_archive(tmp_path))).findings == ()


async def test_a_file_that_does_not_read_back_gives_nothing_up(
    embedded_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)

        class Lossy(Place):
            """A disk that loses what was written last."""

            def open(self, name: str) -> Any:
                path = tmp_path / name
                path.write_bytes(path.read_bytes()[:-5])
                return super().open(name)

        with pytest.raises(CannotRecover, match="does not read back"):
            await archive(ledger, lineage, Lossy(str(tmp_path)), before=ALL)
        assert (len(await ledger.receipts(lineage)), list(tmp_path.iterdir())) == (10, [])


async def test_wrong_books_are_not_archived(embedded_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        with redis.Redis.from_url(embedded_url, protocol=2) as store:
            store.hincrby(LineageKeys(lineage).account, "spent", -1)
        with pytest.raises(CannotRecover, match="is not right"):
            await _archived(ledger, lineage, tmp_path)
        assert not list(tmp_path.iterdir())


async def test_charges_go_on_during_an_archive(embedded_url: str, tmp_path: Path) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as owner, await Ledger.connect(embedded_url) as service:
        await open_accounts(owner, lineage, releases(500), ann=releases(300), bob=releases(300))
        for number in range(60):
            await service.charge(asking(lineage, "ann", f"{number}"))
        stop = asyncio.Event()

        async def charge() -> int:
            number = 60
            while not (stop.is_set() and number > 70):
                await service.charge(asking(lineage, "bob", f"{number - 50}", f"{number}"))
                number += 1
                if number >= 200:
                    break
            return number - 60

        charging = asyncio.ensure_future(charge())
        done = await _archived(owner, lineage, tmp_path, most=7)
        stop.set()
        count = await charging
        assert done.receipts >= 59
        assert (await owner.lineage(lineage)).newest_receipt == 60 + count
        assert (await verify(owner, lineage)).findings == ()
        assert (await verify(owner, lineage, archived=_archive(tmp_path))).findings == ()


@pytest.mark.parametrize("rows", [1, 2])
async def test_a_service_whose_reply_was_lost_goes_on_after_the_archive(
    embedded_url: str, tmp_path: Path, rows: int
) -> None:
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as owner, await Ledger.connect(embedded_url) as service:
        await open_accounts(owner, lineage, releases(50), ann=releases(40))
        await service.charge(asking(lineage, "ann", "first"))
        known = service.witness(lineage).known
        for number in range(rows):
            await service.charge(asking(lineage, "ann", f"unheard {number}"))
        service.witness(lineage).known = known  # as if no reply had come
        await owner.charge(asking(lineage, "ann", "another service's"))
        await _archived(owner, lineage, tmp_path)
        charge = await service.charge(asking(lineage, "ann", "first", "next"))
        assert charge.free == (True, False)
        assert (await verify(owner, lineage)).findings == ()
        assert (await verify(owner, lineage, archived=_archive(tmp_path))).findings == ()


async def test_a_store_that_is_full_can_be_archived(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger") as ledger:
        lineage = new_lineage()
        await _used(ledger, lineage)
        with redis.Redis.from_url(_url(ledger), protocol=2) as store:
            store.config_set("maxmemory", "1mb")
            with pytest.raises(LedgerUnavailable):
                await ledger.charge(asking(lineage, "ann", "too much"))
            assert (await _archived(ledger, lineage, tmp_path / "archive")).receipts == 8
            assert (await verify(ledger, lineage)).findings == ()


async def test_a_lineage_with_blocks_is_archived(ledger: Ledger, lineage: str, tmp_path: Path) -> None:
    await ledger.open_lineage(lineage, releases(1), time=0.0)
    for block in ("may", "june"):
        await ledger.open_block(lineage, block, releases(20), time=0.0)
    await _add_clients(ledger, lineage)
    for number in range(4):
        blocks = ("june", "may") if number % 2 else ("may",)
        for name in ("ann", "bob"):
            await ledger.charge(asking(lineage, name, f"{number}", blocks=blocks))
    await _archived(ledger, lineage, tmp_path / "archive")
    await ledger.open_block(lineage, "july", releases(20), time=0.0)
    await ledger.charge(asking(lineage, "ann", "july's", blocks=("july",)))
    await _archived(ledger, lineage, tmp_path / "archive")
    assert {one.block: one.spent // COST.picorho for one in await ledger.blocks(lineage)} == {
        "may": 4,
        "june": 2,
        "july": 1,
    }
    assert (await verify(ledger, lineage)).findings == ()
    assert (await verify(ledger, lineage, archived=_archive(tmp_path / "archive"))).findings == ()
    await write_file(ledger, tmp_path / "copy", [lineage], archived=_archive(tmp_path / "archive"))
    async with Ledger.open(tmp_path / "restored") as restored:
        await restore(restored, lines_of_file(tmp_path / "copy"))
        assert (await verify(restored, lineage)).findings == ()


async def test_an_encrypted_archive_is_read_with_its_key(embedded_url: str, tmp_path: Path) -> None:
    pyrage = pytest.importorskip("pyrage")
    identity = pyrage.x25519.Identity.generate()
    lineage = new_lineage()
    async with await Ledger.connect(embedded_url) as ledger:
        await _used(ledger, lineage)
        (name,) = (await _archived(ledger, lineage, tmp_path, keys=[identity.to_public()])).files
        assert name.endswith(".zst.age")
        with pytest.raises(SecretKeyMissing):
            await verify(ledger, lineage, archived=_archive(tmp_path))
        another = Archive(Place(str(tmp_path)), keys=[pyrage.x25519.Identity.generate()]).receipts
        (finding,) = (await verify(ledger, lineage, archived=another)).findings
        assert "cannot be decrypted" in finding
        readable = Archive(Place(str(tmp_path)), keys=[identity]).receipts
        assert (await verify(ledger, lineage, archived=readable)).findings == ()
        assert (await verify(ledger, lineage)).findings == ()


@pytest.mark.parametrize("seed", range(6))
async def test_every_decision_is_the_one_without_an_archive_that_runs_meanwhile(
    embedded_url: str, tmp_path: Path, seed: int
) -> None:
    """The same charges to two lineages, of which one is archived all the time, get the same decisions."""
    random = Random(seed)
    plain, moved = new_lineage(), new_lineage()
    asked = [
        (random.choice(["ann", "bob"]), random.choices(range(60), k=random.randint(1, 4)), random.choice(["", "key"]))
        for _ in range(90)
    ]
    async with await Ledger.connect(embedded_url) as service, await Ledger.connect(embedded_url) as owner:
        for lineage in (plain, moved):
            await open_accounts(owner, lineage, releases(45), ann=releases(30), bob=releases(25))
        charged = asyncio.Event()

        async def archive_all_the_time() -> int:
            times = 0
            while not (charged.is_set() and times):
                times += (await _archived(owner, moved, tmp_path, most=random.randint(1, 5))).receipts > 0
            return times

        archiving = asyncio.ensure_future(archive_all_the_time())
        kinds = set()
        for client, rows, key in asked:
            decisions = []
            for lineage in (plain, moved):
                request = asking(lineage, client, *map(str, rows), key=key, body=str(rows))
                (decision,) = await service.charge_batch([request])
                quote = await _outcome(service.quote(request))
                decisions.append((_said(decision), _said(quote)))
            assert decisions[0] == decisions[1]
            kinds.add(decisions[0][0][0])
        charged.set()
        assert await archiving >= 1
        assert kinds == {"Charge", "BudgetExhausted", "IdempotencyConflict"}
        assert (await verify(owner, moved, archived=_archive(tmp_path))).findings == ()
        for old, new in zip(await _accounts(owner, plain), await _accounts(owner, moved), strict=True):
            assert (old.spent, old.tally, old.questions) == (new.spent, new.tally, new.questions)


async def _outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except LedgerError as error:
        return error


def _said(decision: Any) -> tuple[Any, ...]:
    """Return everything that a decision says to its client."""
    kind = type(decision).__name__
    if isinstance(decision, Charge):
        numbers = [(one.number, one.questions, one.lineage_questions) for one in decision.receipts]
        return kind, decision.free, decision.earlier, decision.balance, numbers
    if isinstance(decision, LedgerError):
        return kind, str(decision)
    return kind, decision.total, decision.free, str(decision.refusal)
