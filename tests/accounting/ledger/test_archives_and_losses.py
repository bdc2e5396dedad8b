"""Archives, stores that lose something, and the services' journals of both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from accounting.ledger import Ledger, StoreBehind, key_digest
from accounting.ledger.archives import Archive, archive
from accounting.ledger.backup_chains import Place, lines_of_file, write_file
from accounting.ledger.backups import restore
from accounting.ledger.errors import CannotRecover
from accounting.ledger.journal import open_journals, read_journals
from accounting.ledger.recovery import DeclaredLoss, LossUndeclared, reconcile
from accounting.ledger.verification import verify

from .conftest import COST, asking, releases

pytestmark = pytest.mark.anyio

LINEAGE = "people"
ALL = float("inf")


@asynccontextmanager
async def _serving(store: Path, folder: Path) -> AsyncIterator[Ledger]:
    """The service, with its journal; the same one each time."""
    async with Ledger.open(store, journals=folder / "journals") as ledger:
        await ledger.join(LINEAGE)
        yield ledger


async def _open(ledger: Ledger) -> None:
    await ledger.open_lineage(LINEAGE, releases(50), time=0.0)
    await ledger.add_client(LINEAGE, "ann", releases(40), key_digest("ann"), time=0.0)


async def _charge(ledger: Ledger, *rows: str) -> None:
    await ledger.charge(asking(LINEAGE, "ann", *rows))


async def _archive(owner: Ledger, folder: Path) -> None:
    """Archive everything but the newest call, which is another service's."""
    await _charge(owner, f"another's after {(await owner.lineage(LINEAGE)).newest_receipt}")
    await archive(owner, LINEAGE, Place(str(folder / "archive")), before=ALL)


async def _backed_up(owner: Ledger, folder: Path) -> Path:
    path = folder / "copy"
    await write_file(owner, path, [LINEAGE], archived=Archive(Place(str(folder / "archive"))).receipts)
    return path


async def _check_right(ledger: Ledger, folder: Path) -> None:
    journals = read_journals(folder / "journals")
    readable = Archive(Place(str(folder / "archive"))).receipts
    assert (await verify(ledger, LINEAGE, journals)).findings == ()
    assert (await verify(ledger, LINEAGE, journals, archived=readable)).findings == ()


@pytest.mark.parametrize("lost", [("lost",), ("lost", "lost, too")])
async def test_a_service_does_not_go_on_from_a_seal_past_receipts_that_were_lost(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Its own newest link in the restored store is the seal's: from there it would charge as if nothing were lost."""
    async with Ledger.open(tmp_path / "store") as owner, _serving(tmp_path / "store", tmp_path) as service:
        await _open(owner)
        await _charge(service, "first", "second")
        await _archive(owner, tmp_path)
        copy = await _backed_up(owner, tmp_path)
        for row in lost:
            await _charge(service, row)
    async with Ledger.open(tmp_path / "restored") as owner:
        await restore(owner, lines_of_file(copy))
        with pytest.raises(StoreBehind):
            async with _serving(tmp_path / "restored", tmp_path):
                pass
        async with Ledger.open(tmp_path / "restored", journals=tmp_path / "journals") as service:
            with pytest.raises(StoreBehind):
                await service.join(LINEAGE)
            for row in ("first", "another"):
                with pytest.raises(StoreBehind):
                    await _charge(service, row)
        done = await reconcile(owner, LINEAGE, read_journals(tmp_path / "journals"))
        assert done.put_back == len(lost)
        async with _serving(tmp_path / "restored", tmp_path) as service:
            before = (await owner.lineage(LINEAGE)).spent
            await _charge(service, "first", *lost)
            assert (await owner.lineage(LINEAGE)).spent == before == (3 + len(lost)) * COST.picorho
            await _charge(service, "new")
        await _check_right(owner, tmp_path)


async def test_a_journal_says_what_went_on_from_a_seal(tmp_path: Path) -> None:
    """The reply of a call did not arrive, and the call was archived before the service's next one."""
    async with Ledger.open(tmp_path / "store") as owner:
        async with _serving(tmp_path / "store", tmp_path) as service:
            await _open(owner)
            await _charge(service, "first")
            await _lose_reply(service, "unheard")
            await _archive(owner, tmp_path)
            await _charge(service, "unheard", "next")
            await _check_right(owner, tmp_path)
        async with _serving(tmp_path / "store", tmp_path) as service:
            await _charge(service, "after a restart")
            await _check_right(owner, tmp_path)
            done = await reconcile(owner, LINEAGE, read_journals(tmp_path / "journals"))
            assert (done.put_back, done.services) == (0, 1)


async def test_receipts_that_no_journal_holds_and_an_archive_took_along_are_missed(tmp_path: Path) -> None:
    """A store from before the call whose reply did not arrive: its journal knows that there was one."""
    async with Ledger.open(tmp_path / "store") as owner, _serving(tmp_path / "store", tmp_path) as service:
        await _open(owner)
        await _charge(service, "first")
        copy = await _backed_up(owner, tmp_path)
        await _lose_reply(service, "unheard")
        await _archive(owner, tmp_path)
        await _charge(service, "unheard")  # free, and answered
    async with Ledger.open(tmp_path / "restored") as owner:
        await restore(owner, lines_of_file(copy))
        journals = read_journals(tmp_path / "journals")
        with pytest.raises(LossUndeclared):
            await reconcile(owner, LINEAGE, journals)
        with pytest.raises(LossUndeclared):  # one file, and not the one with that call
            await reconcile(owner, LINEAGE, journals, archived=Archive(Place(str(tmp_path / "empty"))).unnamed)
        await reconcile(owner, LINEAGE, journals, DeclaredLoss(2, COST))
        await reconcile(owner, LINEAGE, journals)
        async with _serving(tmp_path / "restored", tmp_path) as service:
            await _charge(service, "next")
        assert (await verify(owner, LINEAGE)).findings == ()


async def test_receipts_are_put_back_from_files_that_the_store_does_not_know(tmp_path: Path) -> None:
    async with (
        Ledger.open(tmp_path / "store") as owner,
        _serving(tmp_path / "store", tmp_path) as service,
    ):
        await _open(owner)
        await _charge(service, "first")
        copy = await _backed_up(owner, tmp_path)
        await _lose_reply(service, "unheard", "unheard, too")
        await _archive(owner, tmp_path)
        await _charge(service, "unheard")
        await _charge(service, "later")
    async with Ledger.open(tmp_path / "restored") as owner:
        await restore(owner, lines_of_file(copy))
        journals, files = open_journals(tmp_path / "journals"), Archive(Place(str(tmp_path / "archive")))
        # That of the owner's own call between is known to nobody, but seen to be missing.
        with pytest.raises(LossUndeclared, match="1 or more"):
            await reconcile(owner, LINEAGE, journals, archived=files.unnamed)
        done = await reconcile(owner, LINEAGE, journals, DeclaredLoss(1, COST), archived=files.unnamed)
        assert done.put_back == 2
        async with _serving(tmp_path / "restored", tmp_path) as service:
            spent = (await owner.lineage(LINEAGE)).spent
            assert spent == 5 * COST.picorho
            await _charge(service, "first", "unheard", "unheard, too", "later")
            assert (await owner.lineage(LINEAGE)).spent == spent
        assert (await verify(owner, LINEAGE)).findings == ()
        path = next((tmp_path / "archive").iterdir())
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(CannotRecover, match="cut short"):
            await reconcile(owner, LINEAGE, journals, archived=files.unnamed)


async def test_a_lost_reply_after_a_reconciliation_goes_on_where_that_said(tmp_path: Path) -> None:
    """The seal's link is older than what was reconciled, and the call that was lost had no receipt."""
    async with Ledger.open(tmp_path / "store") as owner, _serving(tmp_path / "store", tmp_path) as service:
        await _open(owner)
        await _charge(service, "first")
        await _archive(owner, tmp_path)
        copy = await _backed_up(owner, tmp_path)
        await _charge(service, "lost")
    async with Ledger.open(tmp_path / "restored") as owner:
        await restore(owner, lines_of_file(copy))
        await reconcile(owner, LINEAGE, read_journals(tmp_path / "journals"))
        async with _serving(tmp_path / "restored", tmp_path) as service:
            link = service.witness(LINEAGE).known.link
            await _lose_reply(service, "first", "lost")
            await _charge(service, "first")
            assert service.witness(LINEAGE).known.link == link
            await _charge(service, "next")
            await _check_right(owner, tmp_path)


async def _lose_reply(service: Ledger, *rows: str) -> None:
    """Charge as if the reply had not arrived."""
    witness = service.witness(LINEAGE)
    note = witness.note

    def lose(*_: object) -> None:
        raise LostReply

    witness.note = lose  # type: ignore[assignment]
    with pytest.raises(LostReply):
        await _charge(service, *rows)
    witness.note = note  # type: ignore[method-assign]


class LostReply(Exception):
    """The end of a call before it is noted."""
