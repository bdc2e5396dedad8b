"""Lineages that were forgotten: refused for good by every function, in every copy, whatever came before."""

import asyncio
from pathlib import Path

import pytest
import redis

from dpserve.accounting.ledger import (
    ActRefused,
    Ledger,
    LedgerRefusal,
    LineageForgotten,
    UnknownLineage,
    WouldBeDone,
    key_digest,
)
from dpserve.accounting.ledger.backups import backup, restore
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.export import export
from dpserve.accounting.ledger.journal import is_forgotten, mark_forgotten
from dpserve.accounting.ledger.owner import NOTHING
from dpserve.accounting.ledger.recovery import reconcile
from dpserve.accounting.ledger.verification import verify
from dpserve.accounting.ledger.wire import LineageKeys

from .conftest import asking, dump, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

WHOLE = releases(10)


async def _open(ledger: Ledger, lineage: str) -> None:
    await open_accounts(ledger, lineage, WHOLE, ann=releases(5))


async def _refused_everywhere(ledger: Ledger, lineage: str, copy: list[str]) -> None:
    """Try everything that would let something be charged to a lineage again; copy: a backup from before, or nothing."""
    attempts = {
        "open": lambda: ledger.acting("owner").open_lineage(lineage, WHOLE, time=1.0),
        "charge": lambda: ledger.charge(asking(lineage, "ann", "1")),
        "quote": lambda: ledger.quote(asking(lineage, "ann", "1")),
        "put back": lambda: ledger.apply([asking(lineage, "ann", "1").ledger_request]),
        "client": lambda: ledger.acting("owner").add_client(lineage, "eve", releases(1), key_digest("eve"), time=1.0),
        "group": lambda: ledger.acting("owner").add_group(lineage, "team", releases(1), time=1.0),
        "budget": lambda: ledger.acting("owner").set_budget(lineage, WHOLE),
        "unit": lambda: ledger.acting("owner").settle_unit(lineage, ""),
        "note": lambda: ledger.acting("owner").note(lineage, "export", {}),
        "reconcile": lambda: reconcile(ledger.acting("owner"), lineage, []),
        "look": lambda: ledger.lineage(lineage),
        "payers": lambda: ledger.payers(lineage, "ann"),
    }
    before = dump_of(ledger, lineage)
    for what, attempt in attempts.items():
        with pytest.raises(LedgerRefusal) as refused:
            await attempt()  # type: ignore[no-untyped-call]
        # Of a lineage that never had an account there is no client either.
        assert isinstance(refused.value, LineageForgotten), what
    if copy:
        with pytest.raises(CannotRecover):
            await restore(ledger, copy)
    assert dump_of(ledger, lineage) == before
    assert lineage not in [each.lineage for each in await ledger.lineages()]


def dump_of(ledger: Ledger, lineage: str) -> dict[str, object]:
    return dump(ledger.url_of_tests, lineage)  # type: ignore[attr-defined]


@pytest.fixture
async def ledger(store_url: str):  # type: ignore[no-untyped-def]
    async with await Ledger.connect(store_url) as opened:
        opened.url_of_tests = store_url  # type: ignore[attr-defined]
        yield opened


async def test_one_that_charged_nothing_is_refused_for_good(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    copy = [line async for line in backup(ledger, [lineage])]
    await ledger.acting("owner", "misspelt").forget_lineage(lineage, time=1.0)
    await _refused_everywhere(ledger, lineage, copy)
    await ledger.acting("owner").forget_lineage(lineage, time=2.0)
    (decision,) = await ledger.charge_batch([asking(lineage, "ann", "1")])
    assert isinstance(decision, LineageForgotten)


async def test_one_that_was_never_opened_is_refused_for_good(ledger: Ledger, lineage: str) -> None:
    await ledger.acting("owner").forget_lineage(lineage, time=1.0)
    account = await ledger.lineage_or_forgotten(lineage)
    assert (account.is_forgotten, account.budget.limit) == (True, 0)
    with pytest.raises(LineageForgotten):
        await ledger.acting("owner").open_lineage(lineage, WHOLE, time=1.0)
    assert (await verify(ledger, lineage)).findings == ()


async def test_one_that_charged_is_not_forgotten(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.charge(asking(lineage, "ann", "1"))
    before = dump_of(ledger, lineage)
    with pytest.raises(ActRefused) as refused:
        await ledger.acting("owner").forget_lineage(lineage, time=1.0)
    assert refused.value.reason == "has-charged"
    assert dump_of(ledger, lineage) == before
    await ledger.charge(asking(lineage, "ann", "2"))


@pytest.mark.parametrize("part", ["receipts", "questions"])
async def test_what_a_charge_left_half_written_is_a_charge(ledger: Ledger, lineage: str, part: str) -> None:
    """The store can be killed by a full memory within a charge, whose receipts are written first."""
    await _open(ledger, lineage)
    key = getattr(LineageKeys(lineage), part)
    with redis.Redis.from_url(ledger.url_of_tests, protocol=2) as store:  # type: ignore[attr-defined]
        store.xadd(key, {"a": "b"}) if part == "receipts" else store.hset(key, "a", "b")
    with pytest.raises(ActRefused):
        await ledger.acting("owner").forget_lineage(lineage, time=1.0)


async def test_a_dry_run_forgets_nothing(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    with pytest.raises(WouldBeDone):
        await ledger.acting("owner", dry=True).forget_lineage(lineage, time=1.0)
    await ledger.charge(asking(lineage, "ann", "1"))


async def test_of_a_charge_and_a_forgetting_at_once_one_is_done(store_url: str) -> None:
    one, other = await Ledger.connect(store_url), await Ledger.connect(store_url)
    outcomes = set()
    try:
        for _ in range(20):
            lineage = new_lineage()
            await _open(one, lineage)
            charged, forgotten = await asyncio.gather(
                one.charge(asking(lineage, "ann", "1")),
                other.acting("owner").forget_lineage(lineage, time=1.0),
                return_exceptions=True,
            )
            assert isinstance(charged, LineageForgotten) is (forgotten is None)
            assert isinstance(forgotten, ActRefused) is not isinstance(charged, LineageForgotten)
            account = await one.lineage_or_forgotten(lineage)
            assert account.is_forgotten is (account.newest_receipt == 0)
            outcomes.add(account.is_forgotten)
    finally:
        await one.close()
        await other.close()
    assert outcomes


async def test_the_trail_says_who_forgot_it_and_the_books_are_right(ledger: Ledger, lineage: str) -> None:
    await _open(ledger, lineage)
    await ledger.acting("owner", "misspelt").forget_lineage(lineage, time=1.0)
    newest = (await ledger.acts(lineage))[-1]
    assert (newest.kind, newest.by, newest.why) == ("forget", "owner", "misspelt")
    lines = [line async for line in export(ledger.acting("owner"), lineage)]
    assert '"kind": "forget"' in lines[-1]
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_backup_from_before_brings_it_back_nowhere_on_this_machine(tmp_path: Path, store_url: str) -> None:
    """The store may be emptied, and lose that the lineage was forgotten: the folder of journals says it still."""
    lineage = new_lineage()
    async with await Ledger.connect(store_url, journals=tmp_path) as ledger:
        await _open(ledger, lineage)
        copy = [line async for line in backup(ledger, [lineage])]
        await ledger.acting("owner").forget_lineage(lineage, time=1.0)
        after = [line async for line in backup(ledger, [lineage])]
        _empty(store_url, lineage)
        with pytest.raises(LineageForgotten):
            await ledger.join(lineage)
        assert await restore(ledger, copy) == [lineage]
        with pytest.raises(LineageForgotten):
            await ledger.join(lineage)
        await ledger.acting("owner").forget_lineage(lineage, time=2.0)
        _empty(store_url, lineage)
        assert await restore(ledger, after) == [lineage]
        with pytest.raises(LineageForgotten):
            await ledger.lineage(lineage)
        assert (await verify(ledger, lineage)).findings == ()


async def test_a_journal_of_another_store_says_that_it_was_charged(
    tmp_path: Path, store_url: str, lineage: str
) -> None:
    async with await Ledger.connect(store_url, journals=tmp_path) as ledger:
        await _open(ledger, lineage)
        await ledger.join(lineage)
        await ledger.charge(asking(lineage, "ann", "1"))
    _empty(store_url, lineage)
    async with await Ledger.connect(store_url, journals=tmp_path) as ledger:
        with pytest.raises(ActRefused):
            await ledger.acting("owner").forget_lineage(lineage, time=1.0)
        with pytest.raises(UnknownLineage):
            await ledger.lineage(lineage)
        assert not is_forgotten(tmp_path, lineage)


@pytest.mark.parametrize("step", ["opened", "refused by the store", "noted here"])
async def test_after_a_crash_it_is_refused_and_can_be_forgotten_again(
    tmp_path: Path, store_url: str, lineage: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is the last that is done."""

    class Crash(Exception):
        pass

    async with await Ledger.connect(store_url, journals=tmp_path) as ledger:
        if step == "opened":
            await ledger.acting("owner").open_lineage(lineage, NOTHING, time=1.0)
        elif step == "refused by the store":

            def crash(*_: object) -> None:
                raise Crash

            monkeypatch.setattr("dpserve.accounting.ledger.owner.mark_forgotten", crash)
            with pytest.raises(Crash):
                await ledger.acting("owner").forget_lineage(lineage, time=1.0)
            monkeypatch.undo()
        else:
            mark_forgotten(tmp_path, lineage)
        with pytest.raises(LedgerRefusal):
            await _join_and_charge(ledger, lineage, opens=step == "opened")
        await ledger.acting("owner").forget_lineage(lineage, time=2.0)
        assert is_forgotten(tmp_path, lineage)
        assert (await ledger.lineage_or_forgotten(lineage)).is_forgotten


async def _join_and_charge(ledger: Ledger, lineage: str, *, opens: bool) -> None:
    await ledger.join(lineage)
    if opens:
        await ledger.acting("owner").add_client(lineage, "ann", NOTHING, key_digest(lineage), time=1.0)
    await ledger.charge(asking(lineage, "ann", "1"))


def _empty(store_url: str, lineage: str) -> None:
    with redis.Redis.from_url(store_url, protocol=2) as store:
        for key in store.scan_iter(match=f"dpserve:{{{lineage}}}:*"):
            store.delete(key)
