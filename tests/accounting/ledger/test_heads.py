"""Heads that are shared are hints: whatever stands there, charges are right, and the chain holds."""

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from accounting.ledger import BudgetExhausted, Charge, ChargeRequest, Ledger, LedgerError, SharedHeads
from accounting.ledger.heads import Head
from accounting.ledger.store import Reply
from accounting.ledger.verification import verify
from accounting.ledger.wire import charge_call, read_stale

from .conftest import asking, dump, open_accounts, releases

pytestmark = pytest.mark.anyio


def _rows(lineage: str, name: str, count: int) -> list[ChargeRequest]:
    return [asking(lineage, "ann", f"{name}/{number}") for number in range(count)]


class _Calls:
    """Notes what a ledger calls in the store, and lets something happen before each charge."""

    def __init__(self, ledger: Ledger) -> None:
        self.charges = 0
        self.before: Callable[[], Any] | None = None
        self._call = ledger._store.call
        ledger._store.call = self._noted  # type: ignore[method-assign]

    async def _noted(self, lineage: str, function: str, *rest: Any, **options: Any) -> Reply:
        if function == "charge":
            self.charges += 1
            if self.before is not None:
                await self.before()
        return await self._call(lineage, function, *rest, **options)


def _charged(decisions: Sequence[Charge | LedgerError]) -> list[int]:
    return [one.receipt.sequence for one in decisions if isinstance(one, Charge) and one.receipt is not None]


async def _is_right(ledger: Ledger, lineage: str) -> None:
    assert (await verify(ledger, lineage)).findings == ()


async def test_a_call_that_foresaw_from_another_head_is_told_so_and_changes_nothing(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    await open_accounts(ledger, lineage, releases(9), ann=releases(9))
    decisions = await ledger.charge_batch(_rows(lineage, "first", 2))
    assert isinstance(decisions[1], Charge)
    assert decisions[1].receipt is not None
    before = dump(store_url, lineage)
    call = charge_call(_rows(lineage, "second", 3), remembered_rows=100, head=Head(), told=True)
    reply = await ledger._store.call(lineage, "charge", call.keys, call.arguments)
    assert read_stale(reply.values) == Head(2, decisions[1].receipt.hash)
    assert dump(store_url, lineage) == before


async def test_a_ledger_that_is_told_foresees_anew_and_what_it_charges_is_charged_once(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    await open_accounts(ledger, lineage, releases(99), ann=releases(99))
    async with await Ledger.connect(store_url) as other:
        calls = _Calls(ledger)
        assert _charged(await ledger.charge_batch(_rows(lineage, "a", 3))) == [1, 2, 3]
        assert calls.charges == 1
        assert _charged(await other.charge_batch(_rows(lineage, "b", 3))) == [4, 5, 6]
        assert _charged(await ledger.charge_batch(_rows(lineage, "c", 4))) == [7, 8, 9, 10]
        assert calls.charges == 3
        # A few requests are not sent twice for their hashes.
        await other.charge_batch(_rows(lineage, "d", 3))
        assert _charged(await ledger.charge_batch(_rows(lineage, "e", 3))) == [14, 15, 16]
        assert calls.charges == 4
        # Nor are those that the store took long to tell.
        await other.charge_batch(_rows(lineage, "f", 3))
        ledger._store.deadline = 0.0
        assert len(_charged(await ledger.charge_batch(_rows(lineage, "g", 9)))) == 9
        assert calls.charges == 5
        await _is_right(ledger, lineage)


async def test_who_is_always_overtaken_is_decided_all_the_same(ledger: Ledger, lineage: str, store_url: str) -> None:
    await open_accounts(ledger, lineage, releases(99), ann=releases(99))
    async with await Ledger.connect(store_url) as other:
        calls = _Calls(ledger)
        turns = iter(range(99))

        async def overtake() -> None:
            await other.charge_batch(_rows(lineage, f"other {next(turns)}", 2))

        calls.before = overtake
        assert _charged(await ledger.charge_batch(_rows(lineage, "own", 8))) == list(range(7, 15))
        assert calls.charges == 3
        assert _charged(await ledger.charge_batch(_rows(lineage, "fewer", 4))) == list(range(19, 23))
        assert calls.charges == 5
        await _is_right(ledger, lineage)


async def test_those_who_share_the_head_foresee_from_each_others_charges(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    await open_accounts(ledger, lineage, releases(99), ann=releases(24))
    heads = SharedHeads()
    async with (
        await Ledger.connect(store_url, heads=heads) as one,
        await Ledger.connect(store_url, heads=heads) as other,
    ):
        calls = [_Calls(one), _Calls(other)]
        for turn in range(3):
            assert len(_charged(await one.charge_batch(_rows(lineage, f"one {turn}", 4)))) == 4
            assert len(_charged(await other.charge_batch(_rows(lineage, f"other {turn}", 4)))) == 4
        # What is refused, though it was foreseen, misleads nobody once its reply is there.
        refused = await one.charge_batch(_rows(lineage, "refused", 5))
        assert all(isinstance(decision, BudgetExhausted) for decision in refused)
        await other.set_client_budget(lineage, "ann", releases(99))
        assert len(_charged(await other.charge_batch(_rows(lineage, "paid", 4)))) == 4
        assert [noted.charges for noted in calls] == [4, 4]
        await _is_right(ledger, lineage)


async def test_whatever_is_read_charges_are_right_and_the_chain_holds(
    ledger: Ledger, lineage: str, store_url: str
) -> None:
    """Two who write at once, and between them a head that is old, torn, of a charge that never came, or no head."""
    await open_accounts(ledger, lineage, releases(300), ann=releases(200), bob=releases(60))
    turns = random.Random(11)
    heads, another = SharedHeads(), f"{lineage}-2"
    seen = [Head()]

    def scribble() -> None:
        account, old = seen[-1], turns.choice(seen)
        match turns.randrange(8):
            case 0:
                heads.write(lineage, Head(turns.choice([old.sequence, account.sequence + 1, 0]), account.hash))
            case 1:
                heads.write(lineage, Head(account.sequence, turns.choice([old.hash, turns.randbytes(32)])))
            case 2:
                heads.write(lineage, old)
            case 3:
                heads.write(lineage, Head(account.sequence + turns.randrange(9), turns.randbytes(32)))
            case 4:
                heads.write(another, account)
            case 5:
                first = turns.randrange(len(heads._memory) - 60)
                heads._memory[first : first + 50] = turns.randbytes(50)
            case 6:
                heads.write(lineage, Head(2**64 - 1 - turns.randrange(3), account.hash))
            case _:
                pass

    charged = 0
    async with (
        await Ledger.connect(store_url, heads=heads) as one,
        await Ledger.connect(store_url, heads=heads) as other,
    ):
        for _ in range(60):
            scribble()
            calls = [
                writer.charge_batch(
                    [
                        asking(lineage, turns.choice(["ann", "bob"]), *(str(turns.randrange(400)) for _ in range(2)))
                        for _ in range(turns.randrange(1, 5))
                    ]
                )
                for writer in turns.sample([one, other], turns.randrange(1, 3))
            ]
            decisions = [decision for each in await asyncio.gather(*calls) for decision in each]
            assert all(isinstance(decision, Charge | BudgetExhausted) for decision in decisions)
            charged += sum(one.receipt.rows for one in decisions if isinstance(one, Charge) and one.receipt)
            account = await ledger.lineage(lineage)
            seen.append(Head(account.newest_receipt, account.head))
            assert account.releases == charged
    assert charged > 150
    await _is_right(ledger, lineage)


def _work(url: str, lineage: str, heads: SharedHeads, name: str, batches: int, dies: str) -> None:
    async def charge() -> None:
        async with await Ledger.connect(url, heads=heads) as ledger:
            for batch in range(batches):
                if dies and batch == batches - 1:
                    _die(ledger, lineage, heads, dies)
                decisions = await ledger.charge_batch(_rows(lineage, f"{name}/{batch}", 3))
                assert len(_charged(decisions)) == 3

    asyncio.run(charge())


def _die(ledger: Ledger, lineage: str, heads: SharedHeads, when: str) -> None:
    """Be killed with a head foreseen that never comes, with half of one written, or with a charge sent."""
    if when == "half written":
        newest = heads.read(lineage)
        assert newest is not None
        heads.write(lineage, Head(newest.sequence + 3, newest.hash))
        os.kill(os.getpid(), signal.SIGKILL)
    send = ledger._store.call

    async def killed(*arguments: Any, **options: Any) -> Reply:
        if when == "sent":
            reply = await send(*arguments, **options)
            if read_stale(reply.values) is not None:
                return reply
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    ledger._store.call = killed  # type: ignore[method-assign]


@pytest.mark.parametrize("dies", ["foreseen", "half written", "sent"])
async def test_a_worker_that_is_killed_misleads_no_other(
    ledger: Ledger, lineage: str, store_url: str, dies: str
) -> None:
    await open_accounts(ledger, lineage, releases(999), ann=releases(999))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from tests.accounting.ledger.test_heads import _work_with_one_killed;"
        "_work_with_one_killed(*sys.argv[2:])"
    )
    words = [sys.executable, "-c", code, str(Path(__file__).parents[3]), store_url, lineage, dies]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    account = await ledger.lineage(lineage)
    assert account.releases == 3 * (30 + 10 + 1 + (5 if dies == "sent" else 4))
    assert done.stdout.split() == [str(account.newest_receipt), account.head.hex()]
    await _is_right(ledger, lineage)


def _work_with_one_killed(url: str, lineage: str, dies: str) -> None:
    """Let one worker die beside another and be replaced; print the head that they share at the end."""
    heads, fork = SharedHeads(), multiprocessing.get_context("fork")

    def start(name: str, batches: int, dies: str = "") -> ForkProcess:
        process = fork.Process(target=_work, args=(url, lineage, heads, name, batches, dies))
        process.start()
        return process

    living, dying = start("living", 30), start("dying", 5, dies)
    dying.join()
    assert dying.exitcode == -signal.SIGKILL
    for process in (living, start("again", 10)):
        process.join()
        assert process.exitcode == 0
    last = start("last", 1)
    last.join()
    assert last.exitcode == 0
    newest = heads.read(lineage)
    assert newest is not None
    print(newest.sequence, newest.hash.hex())


def test_two_lineages_in_one_place_are_told_apart() -> None:
    heads = SharedHeads()
    names = [f"lineage-{number}" for number in range(40)]
    for number, name in enumerate(names):
        heads.write(name, Head(number, bytes([number]) * 32))
    found = {name: heads.read(name) for name in names}
    assert {name: head for name, head in found.items() if head is not None}.items() <= {
        name: Head(number, bytes([number]) * 32) for number, name in enumerate(names)
    }.items()
    assert found[names[-1]] is not None
