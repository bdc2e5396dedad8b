"""A merge that is not done is given up: both lineages are open again as they were, and nothing has two budgets."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    Ledger,
    LedgerError,
    LineageClosed,
    LineageMerged,
    MergeAbandoned,
    MergeUnfinished,
    StoreBehind,
    UnknownLineage,
    key_digest,
    merging,
)
from accounting.ledger import store as store_module
from accounting.ledger.backup_chains import Place, add_to_chain, links_of_chain
from accounting.ledger.backups import backup, restore
from accounting.ledger.errors import CannotRecover
from accounting.ledger.export import export
from accounting.ledger.journal import Merge, read_journals
from accounting.ledger.merging import abandon_merge, check_abandonable, merge_lineages, plan_merge
from accounting.ledger.recovery import reconcile
from accounting.ledger.store import RIGHTS
from accounting.ledger.verification import verify
from accounting.ledger.wire import LineageKeys
from tests.faults.servers import StoreServer
from tests.topologies import cluster

from .conftest import COST, asking, dump, faulty_version, new_lineage, open_accounts, releases
from .test_merged_lineages import (
    NONE_LOST,
    WHOLE,
    Died,
    MergesAgainstFractions,
    asked,
    attempts_on,
    chargeable,
    dying,
    merged,
    spent,
    two,
)

pytestmark = pytest.mark.anyio


async def two_settled(ledger: Ledger, merge: Merge) -> None:
    """Open both, and settle what their models protect, so that services of this machine may join them."""
    await two(ledger, merge)
    for lineage in merge.of:
        await ledger.settle_unit(lineage, "")


async def stuck(ledger: Ledger, merge: Merge) -> None:
    """End a merge between its two closings, after which the second lineage gets a client whom a merge refuses."""
    plan = await plan_merge(ledger, merge, lambda accepts: replace(WHOLE, accepts=accepts))
    await merging._open(ledger.merging(), plan, plan.whole)  # type: ignore[arg-type]
    await merging._close(ledger, plan.parts[0], merge)
    await ledger.add_client(merge.of[1], "bob", releases(3), key_digest(f"{merge.of[1]}/bob"), time=0.0)


async def almost_done(ledger: Ledger, merge: Merge) -> None:
    """End a merge once both are closed and the new lineage has their receipts, clients and keys."""
    plan = await plan_merge(ledger, merge, lambda accepts: WHOLE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "_settle", _died)
        with pytest.raises(Died):
            await merge_lineages(ledger, plan)


async def test_a_merge_that_cannot_go_on_is_abandoned_and_both_go_on_as_they_were(
    ledger: Ledger, names: Merge, store_url: str
) -> None:
    a, b = names.of
    await two(ledger, names)
    await asked(ledger, names)
    before = await ledger.snapshot(a)
    await stuck(ledger, names)
    with pytest.raises(ActRefused, match="bob belongs"):
        await merged(ledger, names)
    with pytest.raises(MergeUnfinished, match=f"lineage abandon-merge {names.into}"):
        await ledger.heir(a)
    await abandon_merge(ledger, names.into)
    account, *others = await ledger.snapshot(a)
    assert others == list(before[1:])
    assert replace(account, newest_act=before[0].newest_act, acts_head=before[0].acts_head) == before[0]
    assert await ledger.heir(a) == a
    assert (await ledger.charge(asking(a, "ann", "1", model="a"))).charged == 0
    assert (await ledger.charge(asking(a, "ann", "new", model="a"))).charged == COST.picorho
    await ledger.charge(asking(b, "bob", "new", model="b"))
    for lineage in (*names.of, names.into):
        assert (await verify(ledger, lineage)).findings == ()
    assert {each.lineage for each in await ledger.lineages()} >= {a, b}
    kept = [dump(store_url, lineage) for lineage in (*names.of, names.into)]
    await abandon_merge(ledger, names.into)
    assert [dump(store_url, lineage) for lineage in (*names.of, names.into)] == kept


async def test_an_account_that_is_full_is_as_full_as_before(ledger: Ledger, names: Merge) -> None:
    a, _ = names.of
    await two(ledger, names)
    await ledger.charge(asking(a, "ann", *map(str, range(10)), model="a"))
    await stuck(ledger, names)
    await abandon_merge(ledger, names.into)
    with pytest.raises(BudgetExhausted):
        await ledger.charge(asking(a, "ann", "one more", model="a"))


async def test_the_name_of_an_abandoned_merge_is_refused_by_every_function(
    ledger: Ledger, names: Merge, store_url: str
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await almost_done(ledger, names)
    await abandon_merge(ledger, names.into)
    before = dump(store_url, names.into)
    for what, attempt in attempts_on(ledger, names.into).items():
        with pytest.raises(MergeAbandoned, match="its name is not given again"):
            await attempt()
        assert dump(store_url, names.into) == before, what
    for merge in (names, Merge((names.of[1], names.of[0]), names.into)):
        with pytest.raises(MergeAbandoned):
            await plan_merge(ledger, merge, lambda accepts: WHOLE)
    copy = [line async for line in backup(ledger, [names.into])]
    with pytest.raises(CannotRecover, match="was abandoned"):
        await restore(ledger, copy)
    assert [line async for line in export(ledger, names.into, "jsonl")]


async def test_both_are_merged_into_another_one_afterwards(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await almost_done(ledger, names)
    await abandon_merge(ledger, names.into)
    await ledger.charge(asking(names.of[0], "ann", "new", model="a"))
    again = replace_into(names)
    await merged(ledger, again)
    assert (await spent(ledger, again.into))["lineage"] == 7 * COST.picorho
    assert {await ledger.heir(each) for each in names.of} == {again.into}
    assert {*await ledger.merged_lineages(again.into)} == {*names.of}
    for lineage in (*names.of, names.into, again.into):
        assert (await verify(ledger, lineage)).findings == ()
    await abandon_merge(ledger, names.into)  # which is none of theirs any more
    assert {await ledger.heir(each) for each in names.of} == {again.into}


async def _died(*_: Any, **__: Any) -> None:
    raise Died("the process has ended")


def replace_into(merge: Merge) -> Merge:
    """Return the merge of the same two into a lineage of another name."""
    return Merge(merge.of, new_lineage())


async def test_a_merge_that_is_done_is_not_abandoned(ledger: Ledger, names: Merge, store_url: str) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    with pytest.raises(UnknownLineage):
        await abandon_merge(ledger, names.into)
    with pytest.raises(ActRefused, match="nothing is being merged"):
        await abandon_merge(ledger, names.of[0])
    await merged(ledger, names)
    before = [dump(store_url, lineage) for lineage in (*names.of, names.into)]
    with pytest.raises(ActRefused, match="keeps what it spent"):
        await abandon_merge(ledger, names.into)
    assert [dump(store_url, lineage) for lineage in (*names.of, names.into)] == before


async def test_a_lineage_that_was_never_served_comes_back_without_a_budget(ledger: Ledger, names: Merge) -> None:
    a, b = names.of
    await open_accounts(ledger, a, WHOLE, ann=releases(10))
    plan = await plan_merge(ledger, names, lambda accepts: WHOLE, may_be_unknown=lambda name: name == b)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(merging, "_add_accounts", _died)
        with pytest.raises(Died):
            await merge_lineages(ledger, plan)
    await abandon_merge(ledger, names.into)
    assert (await ledger.lineage(b)).budget.limit == 0
    await ledger.set_budget(b, releases(3))
    assert (await ledger.lineage(b)).raises == 0
    assert (await verify(ledger, b)).findings == ()


# Whatever ends it, and whoever goes on with the merge meanwhile


async def one_budget(ledger: Ledger, merge: Merge) -> tuple[bool, bool, bool]:
    """Return whether each of the three can be charged; fail where the new one can be beside another."""
    a, b, made = [await chargeable(ledger, each) for each in (*merge.of, merge.into)]
    assert not (made and (a or b))
    return a, b, made


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("closed", [0, 1, 2])
async def test_killed_at_any_call_it_is_said_again(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, after: bool, closed: int
) -> None:
    died = 0
    for number in range(1, 40):
        merge = Merge((new_lineage(), new_lineage()), new_lineage())
        async with await Ledger.connect(embedded_url) as ledger:
            await two(ledger, merge)
            await asked(ledger, merge)
            plan = await plan_merge(ledger, merge, lambda accepts: releases(20))
            await merging._open(ledger.merging(), plan, plan.whole)  # type: ignore[arg-type]
            for part in plan.parts[:closed]:
                await merging._close(ledger, part, merge)
            dying(ledger, monkeypatch, number, after=after)
            try:
                await abandon_merge(ledger, merge.into)
                done = True
            except Died:
                done, died = False, died + 1
        async with await Ledger.connect(embedded_url) as other:
            await one_budget(other, merge)
            await abandon_merge(other, merge.into)
            assert await one_budget(other, merge) == (True, True, False)
            assert [(await spent(other, each))["lineage"] for each in merge.of] == [3 * COST.picorho] * 2
            for lineage in (*merge.of, merge.into):
                assert (await verify(other, lineage)).findings == ()
            again = replace_into(merge)
            await merged(other, again, releases(20))
            assert (await spent(other, again.into))["lineage"] == 6 * COST.picorho
        if done:
            break
    assert done
    assert died > 5


async def test_a_store_that_is_killed_loses_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreServer(tmp_path) as server:
        for number in range(1, 18, 2):
            merge = Merge((new_lineage(), new_lineage()), new_lineage())
            async with await Ledger.connect(server.url) as ledger:
                await two(ledger, merge)
                await asked(ledger, merge)
                await stuck(ledger, merge)
                dying(ledger, monkeypatch, number, after=True)
                with suppress(Died):
                    await abandon_merge(ledger, merge.into)
            server.kill()
            server.start()
            async with await Ledger.connect(server.url) as other:
                await one_budget(other, merge)
                await abandon_merge(other, merge.into)
                assert await one_budget(other, merge) == (True, True, False)
                assert (await verify(other, merge.of[0])).findings == ()


def before_call(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], Awaitable[None]]
) -> list[int]:
    """Have something done before a ledger's call of this number is sent; return a list that counts the calls."""
    call, calls = ledger.store.call, [0]

    async def counted(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            await act()
        return await call(*args, **more)

    monkeypatch.setattr(ledger.store, "call", counted)
    return calls


async def test_abandoned_before_any_call_of_a_merge_that_goes_on_exactly_one_of_both_happens(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge on one machine, and on another one somebody gives it up between any two of its calls."""
    opened = abandoned = 0
    for number in range(1, 400):
        merge = Merge((new_lineage(), new_lineage()), new_lineage())
        async with await Ledger.connect(embedded_url) as one, await Ledger.connect(embedded_url) as other:
            await two(one, merge)
            await asked(one, merge)
            plan = await plan_merge(one, merge, lambda accepts: releases(20))
            gave_up = False

            async def give_up(other: Ledger = other, into: str = merge.into) -> None:
                nonlocal gave_up
                with suppress(UnknownLineage, ActRefused):
                    await abandon_merge(other, into)
                    gave_up = True

            calls = before_call(one, monkeypatch, number, give_up)
            try:
                await merge_lineages(one, plan)
                done = True
            except (LineageClosed, ActRefused):
                done = False
            assert done is not gave_up
            # Whatever was on its way has arrived: nothing of it undid the other.
            expected = (False, False, True) if done else (True, True, False)
            assert await one_budget(other, merge) == expected
            opened, abandoned = opened + done, abandoned + gave_up
            for lineage in (*merge.of, merge.into):
                assert (await verify(other, lineage)).findings == ()
            if calls[0] < number:
                break
    else:
        pytest.fail("it did not end")
    assert abandoned > 20
    assert opened > 1


async def test_a_merge_between_any_two_calls_of_abandoning_does_not_undo_it(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 40):
        merge = Merge((new_lineage(), new_lineage()), new_lineage())
        async with await Ledger.connect(embedded_url) as one, await Ledger.connect(embedded_url) as other:
            await two(one, merge)
            await asked(one, merge)
            plan = await plan_merge(one, merge, lambda accepts: releases(20))
            await merging._open(one.merging(), plan, plan.whole)  # type: ignore[arg-type]
            await merging._close(one, plan.parts[0], merge)

            async def go_on(other: Ledger = other, merge: Merge = merge) -> None:
                with suppress(LineageClosed, ActRefused):
                    await merged(other, merge, releases(20))

            calls = before_call(one, monkeypatch, number, go_on)
            try:
                await abandon_merge(one, merge.into)
                expected = (True, True, False)
            except ActRefused:
                expected = (False, False, True)
            assert await one_budget(other, merge) == expected
            assert (await verify(other, merge.into)).findings == ()
            if calls[0] < number:
                break
    else:
        pytest.fail("it did not end")
    assert number > 5


async def test_of_a_merge_and_its_abandoning_at_once_one_happens(store_url: str) -> None:
    async with await Ledger.connect(store_url) as one, await Ledger.connect(store_url) as other:
        for _ in range(8):
            merge = Merge((new_lineage(), new_lineage()), new_lineage())
            await two(one, merge)
            await asked(one, merge)
            plan = await plan_merge(one, merge, lambda accepts: releases(20))
            await merging._open(one.merging(), plan, plan.whole)  # type: ignore[arg-type]
            done = await asyncio.gather(
                merge_lineages(one, plan), abandon_merge(other, merge.into), return_exceptions=True
            )
            assert sum(isinstance(each, LedgerError) for each in done) == 1, done
            was_merged = done[0] is None
            assert await one_budget(one, merge) == ((False, False, True) if was_merged else (True, True, False))


async def test_on_a_cluster_three_servers_have_the_three_lineages(tmp_path: Path) -> None:
    with cluster(tmp_path, ("ledger", "secret", *RIGHTS.split())) as store:
        async with await Ledger.connect(store.url, replicas=1) as ledger:
            merge = Merge(("a", "b"), "c")
            await two(ledger, merge)
            await asked(ledger, merge)
            await stuck(ledger, merge)
            await abandon_merge(ledger, "c")
            assert await one_budget(ledger, merge) == (True, True, False)
            for lineage in "abc":
                assert (await verify(ledger, lineage)).findings == ()


# Backups, journals, other machines


async def test_backups_from_after_it_hold_it(ledger: Ledger, names: Merge, tmp_path: Path) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await almost_done(ledger, names)
    await abandon_merge(ledger, names.into)
    everything = (*names.of, names.into)
    lines = [line async for line in backup(ledger, everything)]
    async with Ledger.open(tmp_path / "new") as restored:
        await restore(restored, lines)
        assert await one_budget(restored, names) == (True, True, False)
        with pytest.raises(MergeAbandoned):
            await plan_merge(restored, names, lambda accepts: WHOLE)
        assert (await restored.charge(asking(names.of[0], "ann", "1", model="a"))).charged == 0
        for lineage in everything:
            assert (await verify(restored, lineage)).findings == ()


async def test_a_chain_of_backups_goes_on_over_it(tmp_path: Path) -> None:
    names, place = Merge(("a", "b"), "c"), Place(str(tmp_path / "chain"))
    async with Ledger.open(tmp_path / "store") as ledger:
        await two(ledger, names)
        await asked(ledger, names)
        await stuck(ledger, names)
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
        await abandon_merge(ledger, "c")
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
        await ledger.charge(asking("a", "ann", "new", model="a"))
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
    async with Ledger.open(tmp_path / "new") as restored:
        await restore(restored, *links_of_chain(place))
        assert await one_budget(restored, names) == (True, True, False)
        assert (await restored.lineage("a")).spent == 4 * COST.picorho
        for lineage in "abc":
            assert (await verify(restored, lineage)).findings == ()


async def test_a_backup_in_which_the_merge_goes_on_and_a_former_lineage_is_open_again_is_refused(
    ledger: Ledger,
) -> None:
    first, second = new_lineage(), new_lineage()
    names = Merge((first, second), new_lineage())
    await two(ledger, names)
    await asked(ledger, names)
    await stuck(ledger, names)
    making = backup(ledger, [names.into, *names.of])
    lines = [await anext(making), await anext(making)]  # what was to be made of both is read
    await abandon_merge(ledger, names.into)
    with pytest.raises(CannotRecover, match="abandoned while it was backed up"):
        lines += [line async for line in making]


async def test_a_store_from_the_midst_of_it_is_abandoned_again_on_a_machine_that_did(tmp_path: Path) -> None:
    """Charges from after the first time come back from the journal; nobody goes on with the merge here."""
    names, journals = Merge(("a", "b"), "c"), tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await two_settled(ledger, names)
        await stuck(ledger, names)
        lines = [line async for line in backup(ledger)]
        await ledger.note_merge(names)  # as after both were closed
        with pytest.raises(LineageMerged):
            await ledger.join("a")
        await abandon_merge(ledger, "c")
    async with Ledger.open(tmp_path / "store", journals=journals) as service:
        await service.join("a")
        await service.charge(asking("a", "ann", "after", model="a"))
    async with Ledger.open(tmp_path / "new", journals=journals) as restored:
        await restore(restored, lines)
        with pytest.raises(LineageMerged):
            await restored.join("a")
        for attempt in (restored.join("c"), restored.heir("a"), plan_merge(restored, names, lambda accepts: WHOLE)):
            with pytest.raises(MergeAbandoned, match="abandon-merge c"):
                await attempt
        await abandon_merge(restored, "c")
        assert await one_budget(restored, names) == (True, True, False)
        await reconcile(restored, "a", read_journals(journals), NONE_LOST)
    async with Ledger.open(tmp_path / "new", journals=journals) as service:
        await service.join("a")
        assert (await service.charge(asking("a", "ann", "after", model="a"))).charged == 0
        for lineage in "abc":
            assert (await verify(service, lineage)).findings == ()


async def test_a_store_from_before_it_is_told_to_be_behind_and_the_name_stays_used_up(tmp_path: Path) -> None:
    names, journals = Merge(("a", "b"), "c"), tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await two_settled(ledger, names)
        lines = [line async for line in backup(ledger)]
        await stuck(ledger, names)
        await abandon_merge(ledger, "c")
    async with Ledger.open(tmp_path / "store", journals=journals) as service:
        await service.join("a")
        await service.charge(asking("a", "ann", "after", model="a"))
    async with Ledger.open(tmp_path / "new", journals=journals) as restored:
        await restore(restored, lines)
    async with Ledger.open(tmp_path / "new", journals=journals) as service:
        with pytest.raises(StoreBehind):
            await service.join("a")
    async with Ledger.open(tmp_path / "new", journals=journals) as restored:
        with pytest.raises(MergeAbandoned):
            await restored.join("c")
        with pytest.raises(MergeAbandoned):
            await plan_merge(restored, names, lambda accepts: WHOLE)
        await reconcile(restored, "a", read_journals(journals), NONE_LOST)
        assert (await restored.lineage("a")).spent == COST.picorho


async def test_another_machine_that_knows_of_the_merge_refuses_both_until_it_is_told(tmp_path: Path) -> None:
    names, journals = Merge(("a", "b"), "c"), tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await two_settled(ledger, names)
        await stuck(ledger, names)
        await ledger.note_merge(names)
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "other") as other:
        await abandon_merge(other, "c")
        await other.join("a")
        await other.charge(asking("a", "ann", "1", model="a"))
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        with pytest.raises(LineageMerged):
            await ledger.join("a")
        with pytest.raises(MergeAbandoned, match="on each machine"):
            await ledger.heir("a")
        before = [(await ledger.lineage(each)).newest_act for each in "ab"]
        await abandon_merge(ledger, "c")
        assert [(await ledger.lineage(each)).newest_act for each in "ab"] == before
        await ledger.join("a")
        assert await ledger.heir("b") == "b"


async def test_a_store_from_before_a_merge_was_done_is_not_abandoned_where_its_charges_are_known(
    tmp_path: Path,
) -> None:
    names, journals = Merge(("a", "b"), "c"), tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await two_settled(ledger, names)
        await almost_done(ledger, names)
        lines = [line async for line in backup(ledger)]
        await merged(ledger, names)
    async with Ledger.open(tmp_path / "store", journals=journals) as service:
        await service.join("c")
        await service.charge(asking("c", "ann", "after", model="b"))
    async with Ledger.open(tmp_path / "new", journals=journals) as restored:
        await restore(restored, lines)
        for refused in (check_abandonable, abandon_merge):
            with pytest.raises(StoreBehind):
                await refused(restored, "c")
        assert await one_budget(restored, names) == (False, False, False)


# Planted faults


async def test_verify_finds_one_that_was_opened_again_beside_a_merge_that_can_go_on(
    ledger: Ledger, names: Merge, store_url: str
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await stuck(ledger, names)
    await abandon_merge(ledger, names.into)
    account = LineageKeys(names.into).account
    with redis.Redis.from_url(store_url, protocol=2) as store:
        for format_ in ("merging", "4"):
            store.hset(account, "format", format_)
            for lineage in names.of:
                assert any("does not say so" in each for each in (await verify(ledger, lineage)).findings)
            assert any("done by its account" in each for each in (await verify(ledger, names.into)).findings)


FAULTS = {
    "a merge that is done is abandoned": (
        "  elseif format ~= MERGING then\n    return {'is-merged'}",
        "  elseif false then\n    return {'is-merged'}",
    ),
    "a merge that was abandoned is charged": (
        "    or (format == MERGING and merges) then\n",
        "    or format == ABANDONED or (format == MERGING and merges) then\n",
    ),
    "what was prepared before closes one later": (
        "  elseif (redis.call('HGET', keys.account, 'acts') or '0') ~= text(amount(args.newest_act)) then\n",
        "  elseif false then\n",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_tests_notice_a_fault_in_the_library(
    store_url: str, names: Merge, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    library = faulty_version(FAULTS[fault], 9150 + list(FAULTS).index(fault))
    monkeypatch.setattr(store_module, "our_library", lambda: library)
    async with await Ledger.connect(store_url) as ledger, await Ledger.connect(store_url) as other:
        await two(ledger, names)
        await asked(ledger, names)
        plan = await plan_merge(ledger, names, lambda accepts: WHOLE)
        if fault.startswith("a merge that is done"):
            # It was read before the merge was done, and is sent after it.
            read = check_abandonable
            await merging._open(other.merging(), plan, plan.whole)  # type: ignore[arg-type]
            known = await read(other, names.into)
            await merged(ledger, names)
            monkeypatch.setattr(merging, "check_abandonable", lambda *_: _known(known))
            with suppress(ActRefused):
                await abandon_merge(other, names.into)
                assert await one_budget(ledger, names) == (True, True, False)
                assert (await verify(ledger, names.into)).findings
                return
            pytest.fail("the fault is not one")
        await merging._open(ledger.merging(), plan, plan.whole)  # type: ignore[arg-type]
        await abandon_merge(other, names.into)
        if fault.startswith("a merge that was abandoned"):
            try:
                await ledger.quote(asking(names.into, "ann", "never asked", model="a"))
            except LineageClosed:
                pytest.fail("the fault is not one")
            except LedgerError:
                return  # what a lineage without this client says
        await merging._close(ledger, plan.parts[1], names)
        with pytest.raises(AssertionError):
            assert await one_budget(ledger, names) == (True, True, False)


async def _known(merge: Merge) -> Merge:
    return merge


# Against a model, in exact fractions


class AbandonedAgainstFractions(MergesAgainstFractions):
    """Merges that die at any call and are gone on with, or given up by calls that die, too, between charges.

    No call but a charge to a lineage changes what any account of it has spent, and nothing has two budgets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pending: Merge | None = None
        self.closed: list[str] = []
        """The lineages of the pending merge that are closed."""
        self.given_up: list[str] = []
        self.refused = False
        self.limit = 0
        """That of the pending merge, in answers: another one would count as a limit that was in force."""

    def open(self) -> None:
        super().open()
        lineage = self.lineages[-1]
        key = key_digest(f"{lineage}/cat")
        self.runner.run(self.ledger.add_client(lineage, "cat", releases(1), key, time=0.0))

    def teardown(self) -> None:
        self.merged += [*self.closed, *self.given_up]
        super().teardown()

    @rule(data=st.data(), number=st.integers(1, 90), after=st.booleans(), limit=st.integers(1, 90))
    @precondition(lambda self: len(self.lineages) > 1 and self.pending is None)
    def begin_merge(self, data: st.DataObject, number: int, after: bool, limit: int) -> None:
        pair = data.draw(st.permutations(self.lineages))[:2]
        merge = Merge((pair[0], pair[1]), new_lineage())
        budget = releases(limit)
        plan = self.runner.run(plan_merge(self.ledger, merge, lambda accepts: replace(budget, accepts=accepts)))
        with pytest.MonkeyPatch.context() as patched:
            dying(self.ledger, patched, number, after=after)
            with suppress(Died):
                self.runner.run(merge_lineages(self.ledger, plan))
        if self.runner.run(chargeable(self.ledger, merge.into)):
            self.become_one(merge, limit)
        else:
            self.pending, self.limit = merge, limit
            self.look()

    def look(self) -> None:
        """Read of the pending merge's lineages which are open."""
        assert self.pending is not None
        for lineage in self.pending.of:
            is_open = self.runner.run(chargeable(self.ledger, lineage))
            if not is_open and lineage in self.lineages:
                self.lineages.remove(lineage)
                self.closed.append(lineage)
            elif is_open and lineage in self.closed:
                self.closed.remove(lineage)
                self.lineages.append(lineage)

    @rule()
    @precondition(lambda self: len(self.closed) == 1 and not self.refused)
    def do_what_a_merge_refuses(self) -> None:
        assert self.pending is not None
        (other,) = {*self.pending.of} - {*self.closed}
        self.runner.run(self.ledger.set_group(other, "cat", "team"))
        self.refused = True

    @rule()
    @precondition(lambda self: self.pending is not None)
    def go_on(self) -> None:
        assert self.pending is not None
        if self.refused or self.pending.into in self.given_up:
            expected = MergeAbandoned if self.pending.into in self.given_up else ActRefused
            with pytest.raises(expected):
                self.runner.run(merged(self.ledger, self.pending, releases(self.limit)))
            return
        self.become_one(self.pending, self.limit)
        self.pending, self.closed = None, []

    @rule(number=st.integers(1, 16), after=st.booleans())
    @precondition(lambda self: self.pending is not None)
    def give_up(self, number: int, after: bool) -> None:
        assert self.pending is not None
        done = False
        with pytest.MonkeyPatch.context() as patched:
            dying(self.ledger, patched, number, after=after)
            with suppress(Died, UnknownLineage):  # the merge may have died before it began
                self.runner.run(abandon_merge(self.ledger, self.pending.into))
                done = True
        into = None
        with suppress(UnknownLineage):
            into = self.runner.run(self.ledger.lineage_or_closed(self.pending.into))
        if into is not None and into.is_abandoned and self.pending.into not in self.given_up:
            self.given_up.append(self.pending.into)
        self.look()
        if done:
            assert self.pending.into in self.given_up
            assert not self.closed
            if self.refused:
                for lineage in self.pending.of:
                    self.runner.run(self.ledger.set_group(lineage, "cat", ""))
            self.pending, self.refused = None, False

    @rule(data=st.data(), limit=st.integers(1, 90))
    @precondition(lambda self: len(self.lineages) > 1 and self.pending is None)
    def merge(self, data: st.DataObject, limit: int) -> None:
        pair = data.draw(st.permutations(self.lineages))[:2]
        self.become_one(Merge((pair[0], pair[1]), new_lineage()), limit)

    @invariant()
    def every_closed_account_has_it_too(self) -> None:
        for lineage in self.closed:
            for payer, amount in self.runner.run(spent(self.ledger, lineage)).items():
                assert Fraction(amount, 10**12) == self.spent.get((lineage, payer), 0)

    @invariant()
    def nothing_has_two_budgets(self) -> None:
        if self.pending is not None:
            self.runner.run(one_budget(self.ledger, self.pending))
        for lineage in self.given_up:
            assert not self.runner.run(chargeable(self.ledger, lineage))


def test_random_merges_that_die_and_are_abandoned_keep_the_exact_sums(embedded_url: str) -> None:
    AbandonedAgainstFractions.url = embedded_url
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        AbandonedAgainstFractions,
        settings=settings(
            max_examples=25, stateful_step_count=24, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
