"""A backup is of right books or of none, and what is restored from it is what it says."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import Ledger, LedgerDamaged, LedgerUnavailable, UnknownLineage, key_digest
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.recovery import DeclaredLoss, reconcile
from dpserve.accounting.ledger.upkeep import note_upkeep, upkeep
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, open_accounts, read_journals, releases

pytestmark = pytest.mark.anyio

PRICE = COST.picorho
KEYS = LineageKeys("lineage")


async def _lines(ledger: Ledger, *lineages: str) -> list[str]:
    return [line async for line in backup(ledger, lineages)]


async def _open(ledger: Ledger) -> None:
    await open_accounts(ledger, "lineage", releases(100), ann=releases(50), bob=releases(50))


def _raw(folder: Path) -> "redis.Redis":
    return redis.Redis(unix_socket_path=(folder / "socket").read_text().strip())


async def test_a_backup_remembers_which_receipts_were_put_back_under_new_numbers(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "1"))
        before = await _lines(ledger)
        await ledger.charge(asking("lineage", "ann", "2"))
        await ledger.charge(asking("lineage", "ann", "3"))
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, before)
        await ledger.charge(asking("lineage", "bob", "by a service without a journal"))
        assert (await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))).renumbered == 2
        await reconcile(ledger.acting("owner"), "lineage", read_journals(journals), DeclaredLoss(3, COST, "bob"))
        after = await _lines(ledger)
    async with Ledger.open(tmp_path / "third") as ledger:
        await restore(ledger, after)
        assert (await verify(ledger, "lineage", read_journals(journals))).findings == ()
        assert (await reconcile(ledger.acting("owner"), "lineage", read_journals(journals))).put_back == 0
        assert (await ledger.lineage("lineage")).spent == 7 * PRICE
        assert await _lines(ledger) != after  # the reconciliation is an act
        assert (await ledger.client("lineage", "ann")).spent == 3 * PRICE


@pytest.mark.parametrize(
    "damage",
    [
        ("XDEL", KEYS.receipts, "3-3"),
        ("XDEL", KEYS.receipts, "6-6"),
        ("XDEL", KEYS.acts, "2-0"),
        ("HSET", KEYS.account, "spent", "0"),
        ("HSET", KEYS.client("ann").account, "spent", str(PRICE)),
        ("DEL", KEYS.clients),
        ("HDEL", KEYS.clients, "bob"),
        ("DEL", KEYS.client("bob").account),
        ("HDEL", KEYS.account, "seq"),
    ],
    ids=lambda damage: " ".join(damage[:2]),
)
async def test_books_that_are_not_right_are_not_backed_up(tmp_path: Path, damage: tuple[str, ...]) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await open_accounts(ledger, "other", releases(2))
        for number in range(6):
            await ledger.charge(asking("lineage", "ann", str(number)))
        with _raw(tmp_path / "store") as raw:
            raw.execute_command(*damage)
        with pytest.raises((CannotRecover, LedgerDamaged)):
            await _lines(ledger)
        assert len(await _lines(ledger, "other")) == 3


async def test_a_backup_that_contradicts_itself_is_refused_whole(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        for number in range(3):
            await ledger.charge(asking("lineage", "ann", str(number)))
        lines = await _lines(ledger)
    forged = lines[:3] + lines[4:-1]
    forged.append(json.dumps({"end": hashlib.sha256("".join(forged).encode()).hexdigest()}))
    async with Ledger.open(tmp_path / "new") as ledger:
        with pytest.raises(CannotRecover, match="lineage lineage is not whole: receipt 2 is missing"):
            await restore(ledger, forged)
        assert await ledger.lineages() == []


async def test_a_lineage_that_was_half_restored_may_spend_nothing_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        for number in range(3):
            await ledger.charge(asking("lineage", "ann", str(number)))
        await ledger.charge(asking("lineage", "bob", "0"))
        lines = await _lines(ledger)
    call, done = Ledger.call, 0

    async def interrupted(self: Ledger, lineage: str, function: str, *rest: object, durably: bool) -> list[object]:
        nonlocal done
        done += function == "restore"
        if done > parts:
            raise LedgerUnavailable("the store is gone")
        return await call(self, lineage, function, *rest, durably=durably)  # type: ignore[arg-type]

    parts = 0
    while parts < 100:
        parts += 1
        async with Ledger.open(tmp_path / "new") as ledger:
            done = 0
            with monkeypatch.context() as patched, suppress(LedgerUnavailable):
                patched.setattr(Ledger, "call", interrupted)
                await restore(ledger, lines)
                break
            for asked in (asking("lineage", "ann", "0"), asking("lineage", "ann", "new")):
                with pytest.raises((LedgerDamaged, UnknownLineage)):
                    await ledger.charge(asked)
    assert parts > 8
    async with Ledger.open(tmp_path / "new") as ledger:
        assert (await verify(ledger, "lineage")).findings == ()
        assert (await ledger.charge(asking("lineage", "bob", "0"))).receipt is None


async def test_nothing_of_another_backup_stays_behind_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore of an older backup was cut short, and a key that it knows was taken away since."""
    removed = key_digest("lineage/ann")
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        await ledger.charge(asking("lineage", "ann", "0"))
        older = await _lines(ledger)
        await ledger.acting("owner").remove_key("lineage", "ann", removed)
        newer = await _lines(ledger)
    call, parts = Ledger.call, list[int]()

    async def interrupted(self: Ledger, lineage: str, function: str, *rest: object, durably: bool) -> list[object]:
        if function == "restore":
            parts.append(1)
            if len(parts) > 5:
                raise LedgerUnavailable("the store is gone")
        return await call(self, lineage, function, *rest, durably=durably)  # type: ignore[arg-type]

    async with Ledger.open(tmp_path / "new") as ledger:
        with monkeypatch.context() as patched, suppress(LedgerUnavailable):
            patched.setattr(Ledger, "call", interrupted)
            await restore(ledger, older)
        with pytest.raises(LedgerDamaged, match="empty the ledger"):
            await restore(ledger, newer)
        with pytest.raises((LedgerDamaged, UnknownLineage)):
            await ledger.charge(asking("lineage", "ann", "1"))


async def test_a_client_that_is_added_during_a_backup_is_in_it_with_its_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, added = Ledger._names, []

    async def then_another(self: Ledger, lineage: str) -> tuple[list[str], list[str]]:
        found = await names(self, lineage)
        if not added:
            added.append(1)
            await self.acting("owner").add_client(lineage, "carl", releases(9), bytes(32), time=0.0)
            await self.charge(asking(lineage, "carl", "1"))
        return found

    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        monkeypatch.setattr(Ledger, "_names", then_another)
        lines = await _lines(ledger)
    assert "carl" in json.loads(lines[1])["section"]["clients"]
    async with Ledger.open(tmp_path / "new") as ledger:
        await restore(ledger, lines)
        assert not (await ledger.client("lineage", "carl")).revoked
        assert (await verify(ledger, "lineage")).findings == ()


async def test_a_backup_of_another_format_is_refused(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "store") as ledger:
        await _open(ledger)
        title, *others, end = await _lines(ledger)
    title = title.replace("backup 8", "backup 7")
    summed = hashlib.sha256("".join([title, *others]).encode()).hexdigest()
    async with Ledger.open(tmp_path / "new") as ledger:
        with pytest.raises(CannotRecover, match="not a backup of a ledger in the format"):
            await restore(ledger, [title, *others, json.dumps({"end": summed}) + "\n"])
        assert await ledger.lineage_names() == []
    assert json.loads(end)["end"] != summed


async def test_when_each_task_of_upkeep_was_last_done_is_kept(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path) as ledger:
        assert await upkeep(ledger) == {"backup": 0, "rehearsal": 0}
        for time in (12.75, 13.0):
            await note_upkeep(ledger, "backup", time)
    async with Ledger.open(tmp_path) as ledger:
        assert await upkeep(ledger) == {"backup": 13, "rehearsal": 0}
