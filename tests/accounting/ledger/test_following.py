"""The trail and the receipts since a position: each line once, none left out, also after the store lost some."""

from pathlib import Path
from typing import Any

import pytest

from accounting.ledger import Ledger, LedgerDamaged, LedgerUnavailable
from accounting.ledger.backups import backup, restore
from accounting.ledger.export import COLUMNS
from accounting.ledger.following import Follower, Page, Position
from accounting.ledger.journal import read_journals
from accounting.ledger.recovery import reconcile
from accounting.ledger.wire import LineageKeys

from .conftest import COST, asking, open_accounts, releases
from .test_backups import _raw

pytestmark = pytest.mark.anyio


async def _pages(ledger: Ledger, lineage: str, position: Position) -> list[Page]:
    return [page async for page in Follower(ledger, position, [lineage]).pages()]


async def _take(ledger: Ledger, position: Position, pages: list[Page]) -> None:
    async for page in Follower(ledger, position).pages():
        pages += [page]


def _places(pages: list[Page]) -> list[tuple[Any, ...]]:
    return [(line["history"], line["chain"], line["number"]) for page in pages for line in page.lines]


@pytest.fixture
async def opened(ledger: Ledger, lineage: str) -> Ledger:
    await open_accounts(ledger, lineage, releases(5000), ann=releases(4000), bob=releases(100))
    return ledger


async def test_each_act_and_receipt_comes_once_from_any_position(opened: Ledger, lineage: str) -> None:
    await opened.charge_batch([asking(lineage, "ann", f"{row}") for row in range(450)])
    pages = await _pages(opened, lineage, Position())
    every = [(1, "acts", number + 1) for number in range(3)] + [(1, "receipts", n + 1) for n in range(450)]
    assert _places(pages) == every
    assert max(len(page.lines) for page in pages) <= 200
    assert all(
        line["lineage"] == lineage and not set(line) - {"lineage", "history", "chain", *COLUMNS}
        for page in pages
        for line in page.lines
    )
    done = 0
    for page in pages:  # from wherever it was stopped
        done += len(page.lines)
        assert _places(await _pages(opened, lineage, page.position)) == every[done:]
        assert Position.parse(page.position.encoding) == page.position
    await opened.set_budget(lineage, releases(50), client="bob")
    await opened.charge(asking(lineage, "bob", "new"))
    (acts,), (receipts,) = [page.lines for page in await _pages(opened, lineage, pages[-1].position)]
    assert (acts["kind"], acts["name"], acts["number"]) == ("lower", "bob", 4)
    assert acts["limit_before_rho"] > acts["limit_rho"]  # though the act that said so came before the position
    assert (receipts["name"], receipts["number"]) == ("bob", 451)
    assert receipts["total_epsilon"] == releases(50).epsilon_at(COST.picorho)


async def test_one_follower_goes_on_while_more_comes(opened: Ledger, lineage: str) -> None:
    follower = Follower(opened, Position(), [lineage])
    assert len(_places([page async for page in follower.pages()])) == 3
    assert [page async for page in follower.pages()] == []
    await opened.charge(asking(lineage, "ann", "1"))
    await opened.rename(lineage, "ann", "Ann")
    assert _places([page async for page in follower.pages()]) == [(1, "acts", 4), (1, "receipts", 1)]


async def test_what_was_put_back_after_a_loss_comes_in_another_history(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    async with Ledger.open(tmp_path / "first", journals=journals) as ledger:
        await ledger.join("lineage")
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50), bob=releases(50))
        await ledger.charge(asking("lineage", "ann", "1"))
        before = [line async for line in backup(ledger)]
        shipped = (await _pages(ledger, "lineage", Position()))[-1].position
        for row in "2345":
            await ledger.charge(asking("lineage", "ann", row))
        later = (await _pages(ledger, "lineage", shipped))[-1].position
    async with Ledger.open(tmp_path / "second") as ledger:
        await restore(ledger, before)
        assert await _pages(ledger, "lineage", shipped) == []  # the store has all that came
        lost = await _pages(ledger, "lineage", later)
        assert _places(lost) == [(2, "acts", 1), (2, "acts", 2), (2, "acts", 3), (2, "receipts", 1)]
        await ledger.charge(asking("lineage", "bob", "by a service without a journal"))
        await reconcile(ledger, "lineage", read_journals(journals))
        assert _places(await _pages(ledger, "lineage", lost[-1].position)) == [
            (2, "acts", 4),
            *((2, "receipts", number) for number in range(2, 7)),
        ]
        # Five receipts again, and the fifth is another one than the fifth that came.
        again = await _pages(ledger, "lineage", later)
        assert _places(again)[-6:] == [(2, "receipts", number) for number in range(1, 7)]


async def test_a_hole_in_a_chain_is_said_and_nothing_beyond_it_comes(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "ledger") as ledger:
        await open_accounts(ledger, "lineage", releases(100), ann=releases(50))
        for row in "1234":
            await ledger.charge(asking("lineage", "ann", row))
        with _raw(tmp_path / "ledger") as raw:
            raw.xdel(LineageKeys("lineage").receipts, "3-3")
            came: list[Page] = []
            with pytest.raises(LedgerDamaged, match="receipt 3 is missing"):
                await _take(ledger, Position(), came)
            assert _places(came) == [(1, "acts", 1), (1, "acts", 2)]
            raw.xtrim(LineageKeys("lineage").acts, maxlen=0)
        with pytest.raises(LedgerDamaged, match="act 1 is missing"):
            await _pages(ledger, "lineage", Position())


async def test_a_lineage_that_the_store_lost_is_said_after_the_others_came(tmp_path: Path) -> None:
    async with Ledger.open(tmp_path / "first") as ledger:
        await open_accounts(ledger, "lost", releases(100))
        position = (await _pages(ledger, "lost", Position()))[-1].position
    async with Ledger.open(tmp_path / "second") as ledger:
        await open_accounts(ledger, "there", releases(100))
        came: list[Page] = []
        with pytest.raises(LedgerUnavailable, match="no lineage lost"):
            await _take(ledger, position, came)
        assert _places(came) == [(1, "acts", 1)]
        with pytest.raises(LedgerUnavailable, match="no lineage nowhere"):
            await _pages(ledger, "nowhere", Position())
