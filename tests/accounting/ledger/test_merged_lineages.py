"""Two lineages merged into one: every account has what both spent, and neither can be charged by itself again."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
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
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from accounting.budgets import Accepts, Budget, Refill
from accounting.ledger import (
    ActRefused,
    ApiKey,
    BudgetExhausted,
    Ledger,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    LineageClosed,
    LineageMerged,
    MergeUnfinished,
    Receipt,
    StoreBehind,
    UnknownKey,
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
from accounting.ledger.merging import MergePlan, merge_lineages, plan_merge
from accounting.ledger.recovery import DeclaredLoss, reconcile
from accounting.ledger.store import RIGHTS
from accounting.ledger.verification import verify
from accounting.ledger.wire import LineageKeys
from accounting.losses import Cost, GaussianLoss, LaplaceLoss
from tests.faults.servers import StoreServer
from tests.topologies import cluster, said

from .conftest import COST, asking, dump, faulty_version, new_lineage, open_accounts, releases

pytestmark = pytest.mark.anyio

WHOLE = releases(100)


async def two(ledger: Ledger, merge: Merge) -> None:
    """Open both: ann is in both, bob and the group team in the first, cat in the second."""
    a, b = merge.of
    await open_accounts(ledger, a, WHOLE, ann=releases(10))
    await ledger.add_group(a, "team", releases(20), time=0.0)
    await ledger.add_client(
        a, "bob", releases(7), key_digest(f"{a}/bob"), time=0.0, group="team", display="Bob of Risk"
    )
    await open_accounts(ledger, b, releases(50), ann=releases(30), cat=releases(5))


async def asked(ledger: Ledger, merge: Merge) -> None:
    """Charge both: ann pays for 2 + 3 questions, bob for 2, of which one is ann's, and cat for 1 of ann's."""
    a, b = merge.of
    await ledger.charge(asking(a, "ann", "1", "2", model="a"))
    await ledger.charge(asking(a, "bob", "2", "3", model="a"))
    await ledger.charge(asking(b, "ann", "1", "2", "3", model="b"))
    await ledger.charge(asking(b, "cat", "1", model="b"))


async def merged(ledger: Ledger, merge: Merge, limit: Budget = WHOLE) -> MergePlan:
    plan = await plan_merge(ledger, merge, lambda accepts: replace(limit, accepts=accepts))
    await merge_lineages(ledger, plan)
    return plan


async def spent(ledger: Ledger, lineage: str) -> dict[str, int]:
    account, clients, groups, _ = await ledger.snapshot(lineage)
    return {each.subject: each.spent for each in (account, *clients, *groups)}


async def test_every_account_has_what_both_spent(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    plan = await merged(ledger, names)
    one = COST.picorho
    assert await spent(ledger, names.into) == {
        "lineage": 6 * one, "client:ann": 5 * one, "client:bob": 2 * one, "client:cat": one, "group:team": 2 * one,
    }  # fmt: skip
    assert plan.whole is not None
    assert plan.whole.spent == 6 * one
    for lineage in (*names.of, names.into):
        assert (await verify(ledger, lineage)).findings == ()


async def test_what_was_paid_for_stays_paid_for_and_the_rest_is_charged(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names)
    before = await spent(ledger, names.into)
    for client, row, model in (("ann", "2", "a"), ("bob", "3", "a"), ("ann", "3", "b"), ("cat", "1", "b")):
        assert (await ledger.charge(asking(names.into, client, row, model=model))).charged == 0
    assert await spent(ledger, names.into) == before
    charge = await ledger.charge(asking(names.into, "cat", "3", model="b"))
    assert (charge.charged, charge.receipts[0].lineage_questions) == (COST.picorho, 0)
    assert (await ledger.charge(asking(names.into, "cat", "9", model="a"))).receipts[0].lineage_questions == 1
    assert (await verify(ledger, names.into)).findings == ()


OF_A_MERGE = ("put back by a merge", "budget by a merge", "reconcile", "payers")
"""Those that a lineage without clients refuses otherwise, or does."""


def attempts_on(ledger: Ledger, lineage: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that would let something be charged to a lineage, or change it."""
    request = asking(lineage, "ann", "1", model="a")
    return {
        "open": lambda: ledger.open_lineage(lineage, WHOLE, time=1.0),
        "charge": lambda: ledger.charge(request),
        "quote": lambda: ledger.quote(request),
        "put back": lambda: ledger.apply(lineage, [request.ledger_request]),
        "put back by a merge": lambda: ledger.merging().apply(lineage, [request.ledger_request]),
        "client": lambda: ledger.add_client(lineage, "eve", releases(1), key_digest("eve"), time=1.0),
        "budget by a merge": lambda: ledger.merging().set_budget(lineage, WHOLE, client="ann"),
        "budget": lambda: ledger.set_budget(lineage, WHOLE),
        "group": lambda: ledger.add_group(lineage, "other", releases(1), time=1.0),
        "unit": lambda: ledger.settle_unit(lineage, ""),
        "note": lambda: ledger.note(lineage, "export", {}),
        "promote": lambda: ledger.promote(lineage, "model", 32 * "a"),
        "forget": lambda: ledger.forget_lineage(lineage, time=1.0),
        "reconcile": lambda: reconcile(ledger, lineage, []),
        "payers": lambda: ledger.payers(lineage, "ann"),
        "look": lambda: ledger.lineage(lineage),
    }


async def test_the_former_lineages_are_refused_by_every_function(ledger: Ledger, names: Merge, store_url: str) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    copy = [line async for line in backup(ledger, names.of)]
    await merged(ledger, names)
    for lineage in names.of:
        before = dump(store_url, lineage)
        for what, attempt in attempts_on(ledger, lineage).items():
            with pytest.raises(LineageMerged, match=names.into):
                await attempt()
            assert dump(store_url, lineage) == before, what
    with pytest.raises(CannotRecover, match="was merged into"):
        await restore(ledger, copy)
    listed = {each.lineage for each in await ledger.lineages()}
    assert names.into in listed
    assert not listed & {*names.of}
    assert [line async for line in export(ledger, names.of[0], "jsonl")]


async def test_clients_keep_their_keys_groups_and_names(ledger: Ledger, names: Merge) -> None:
    a, b = names.of
    await two(ledger, names)
    await ledger.add_key(b, "cat", ApiKey(key_digest("second"), None, ("budget-read",)))
    await ledger.add_key(b, "cat", ApiKey(key_digest("over"), 1, ("budget-read",)))
    await ledger.revoke(b, "cat")
    await ledger.charge(asking(a, "bob", "1", model="a"))
    await merged(ledger, names)
    bob, cat = await ledger.client(names.into, "bob"), await ledger.client(names.into, "cat")
    assert (bob.group, bob.display, bob.budget) == ("team", "Bob of Risk", releases(7))
    assert cat.revoked
    for client, key in (("ann", f"{a}/ann"), ("ann", f"{b}/ann"), ("bob", f"{a}/bob")):
        assert (await ledger.authenticate(names.into, key_digest(key))).client == client
    with pytest.raises(LedgerError):
        await ledger.authenticate(names.into, key_digest(f"{b}/cat"))
    with pytest.raises(UnknownKey):
        await ledger.authenticate(names.into, key_digest("over"))
    assert (await verify(ledger, names.into)).findings == ()


async def test_a_client_of_both_has_the_larger_budget_and_a_raise_to_what_both_had(
    ledger: Ledger, names: Merge
) -> None:
    """Whoever saw answers of one lineage may have chosen the other's limit."""
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names, releases(120))
    whole, ann = await ledger.lineage(names.into), await ledger.client(names.into, "ann")
    assert ann.budget == releases(30)
    assert (ann.settled_limit, ann.highest_limit, ann.raises) == (
        releases(10).limit,
        releases(40).limit,
        1,
    )
    assert (whole.budget, whole.settled_limit, whole.highest_limit, whole.raises) == (
        releases(120), WHOLE.limit, releases(150).limit, 1,
    )  # fmt: skip
    bob = await ledger.client(names.into, "bob")
    assert (bob.raises, bob.highest_limit) == (0, releases(7).limit)


async def test_a_limit_above_what_both_had_is_a_raise_of_its_own(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await ledger.charge(asking(names.of[1], "ann", "1", model="b"))
    await merged(ledger, names, releases(60))
    whole = await ledger.lineage(names.into)
    assert (whole.settled_limit, whole.highest_limit, whole.raises) == (releases(50).limit, releases(60).limit, 1)


async def test_of_two_that_charged_nothing_no_raise_is_told(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await merged(ledger, names, releases(3))
    whole = await ledger.lineage(names.into)
    assert (whole.budget, whole.raises, whole.newest_receipt) == (releases(3), 0, 0)


async def test_a_lineage_that_was_trained_and_never_served_is_merged(ledger: Ledger, names: Merge) -> None:
    a, b = names.of
    await open_accounts(ledger, a, WHOLE, ann=releases(10))
    await ledger.charge(asking(a, "ann", "1", model="a"))
    with pytest.raises(UnknownLineage):
        await plan_merge(ledger, names, lambda accepts: WHOLE)
    plan = await plan_merge(ledger, names, lambda accepts: WHOLE, may_be_unknown=lambda name: name == b)
    await merge_lineages(ledger, plan)
    with pytest.raises(LineageMerged):
        await ledger.open_lineage(b, WHOLE, time=1.0)
    assert (await ledger.lineage(names.into)).spent == COST.picorho
    assert (await verify(ledger, b)).findings == ()


async def test_merges_of_merges_lead_to_the_last(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names)
    await ledger.charge(asking(names.into, "ann", "9", model="a"))
    again = Merge((new_lineage(), names.into), new_lineage())
    await open_accounts(ledger, again.of[0], WHOLE, dan=releases(3))
    await ledger.charge(asking(again.of[0], "dan", "1", model="d"))
    await merged(ledger, again)
    for lineage in (*names.of, *again.of, again.into):
        assert await ledger.heir(lineage) == again.into
    assert (await spent(ledger, again.into))["lineage"] == 8 * COST.picorho
    assert {*await ledger.merged_lineages(again.into)} == {*names.of, *again.of}
    for lineage in (*names.of, *again.of, again.into):
        assert (await verify(ledger, lineage)).findings == ()


# What is refused, before anything is changed


Preparation = Callable[[Ledger, str, str], Awaitable[object]]


async def _cat_asks_in_a_group(ledger: Ledger, a: str, b: str) -> None:
    await ledger.add_client(a, "cat", releases(3), key_digest("cat in a"), time=0.0, group="team")


async def _other_terms(ledger: Ledger, a: str, b: str) -> None:
    key = key_digest("one key")
    await ledger.add_key(a, "ann", ApiKey(key))
    await ledger.add_key(b, "ann", ApiKey(key, None, ("budget-read",)))


async def _one_key_of_two(ledger: Ledger, a: str, b: str) -> None:
    await ledger.add_key(a, "bob", ApiKey(key_digest("one key")))
    await ledger.add_key(b, "cat", ApiKey(key_digest("one key")))


async def _many_keys(ledger: Ledger, a: str, b: str) -> None:
    for number in range(9):
        for lineage in (a, b):
            await ledger.add_key(lineage, "ann", ApiKey(key_digest(f"{lineage} {number}")))


async def _units(ledger: Ledger, a: str, b: str) -> None:
    await ledger.settle_unit(a, "person")


async def _pure_client(ledger: Ledger, a: str, b: str) -> None:
    await ledger.add_client(a, "cat", Budget.pure(3.0), key_digest("cat in a"), time=0.0)


async def _refill(ledger: Ledger, a: str, b: str) -> None:
    paced = replace(releases(10), refill=Refill(3 * COST.picorho, "day"))
    await ledger.set_budget(a, paced, client="ann")


async def _one_question(ledger: Ledger, a: str, b: str) -> None:
    for lineage in (a, b):
        await ledger.charge(asking(lineage, "ann", "7", model="both"))


async def _laplace(ledger: Ledger, a: str, b: str) -> None:
    await ledger.charge(asking(a, "ann", "1", cost=Cost((LaplaceLoss(0.1),)), model="a"))


async def _promoted(ledger: Ledger, a: str, b: str) -> None:
    await ledger.promote(a, "loans", 32 * "a")
    await ledger.promote(b, "loans", 32 * "b")


async def _block(ledger: Ledger, a: str, b: str) -> None:
    other = new_lineage()
    await ledger.open_lineage(other, WHOLE, time=0.0)
    await ledger.open_block(other, "2026-09", releases(3), time=0.0)


@pytest.mark.parametrize(
    ("prepare", "charged", "said"),
    [
        (_cat_asks_in_a_group, True, "cat belongs to team in one lineage and to none in the other"),
        (_other_terms, True, "other terms in each lineage"),
        (_one_key_of_two, True, "is client bob's in one lineage and cat's in the other"),
        (_many_keys, True, "has 20 API keys in both"),
        (_units, True, "different privacy units"),
        (_pure_client, True, "accepts 'pure' charges in one lineage and 'any' in the other"),
        (_refill, True, "one refill in each lineage"),
        (_one_question, True, "have both paid for one question"),
        (_promoted, True, "answers from one model in each lineage"),
        (_laplace, False, "has paid for"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_cannot_be_added_up_is_refused_and_nothing_is_changed(
    ledger: Ledger, names: Merge, store_url: str, prepare: Preparation, charged: bool, said: str
) -> None:
    await two(ledger, names)
    await prepare(ledger, *names.of)
    if charged:
        await asked(ledger, names)
    before = [dump(store_url, lineage) for lineage in (*names.of, names.into)]
    accepts: Accepts = "gaussian" if prepare is _laplace else "any"
    with pytest.raises(ActRefused, match=said):
        await plan_merge(ledger, names, lambda _: replace(WHOLE, accepts=accepts))
    assert [dump(store_url, lineage) for lineage in (*names.of, names.into)] == before


async def test_blocks_and_names_that_are_taken_are_refused(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    blocked, taken = new_lineage(), new_lineage()
    await ledger.open_lineage(blocked, WHOLE, time=0.0)
    await ledger.open_block(blocked, "2026-09", releases(3), time=0.0)
    await open_accounts(ledger, taken, WHOLE, ann=releases(9))
    a, b = names.of
    for merge, refusal in (
        (Merge((a, blocked), names.into), "has blocks"),
        (Merge((a, a), names.into), "three names"),
        (Merge((a, b), a), "three names"),
        (Merge((a, b), taken), "already"),
    ):
        with pytest.raises(ActRefused, match=refusal):
            await plan_merge(ledger, merge, lambda accepts: WHOLE)


async def test_a_budget_for_pure_epsilon_does_not_take_over_rho(ledger: Ledger, names: Merge) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    with pytest.raises(ActRefused, match="would count epsilon"):
        await plan_merge(ledger, names, lambda _: Budget.pure(5.0))


async def test_pure_lineages_add_up_in_epsilon(ledger: Ledger, names: Merge) -> None:
    cost = Cost((LaplaceLoss(0.5),))
    for lineage, model in zip(names.of, "ab", strict=True):
        await open_accounts(ledger, lineage, Budget.pure(5.0), ann=Budget.pure(2.0))
        await ledger.charge(asking(lineage, "ann", "1", cost=cost, model=model))
    await merged(ledger, names, Budget.pure(9.0))
    assert (await ledger.lineage(names.into)).spent == 2 * (cost.picoepsilon or 0)


async def test_what_comes_between_the_plan_and_the_act_is_refused(ledger: Ledger, names: Merge, store_url: str) -> None:
    a, b = names.of
    await two(ledger, names)
    await asked(ledger, names)
    plan = await plan_merge(ledger, names, lambda accepts: WHOLE)
    await ledger.charge(asking(a, "ann", "new", model="a"))
    with pytest.raises(ActRefused, match="end the services") as between:
        await merge_lineages(ledger, plan)
    assert between.value.reason == "charged-between"
    plan = await plan_merge(ledger, names, lambda accepts: WHOLE)
    await ledger.set_budget(b, releases(70))
    with pytest.raises(ActRefused) as between:
        await merge_lineages(ledger, plan)  # the first is closed, and the second as it was
    assert between.value.reason == "act-between"
    await ledger.charge(asking(b, "ann", "new", model="b"))
    others = {what: each for what, each in attempts_on(ledger, names.into).items() if what not in OF_A_MERGE}
    for attempt in others.values():
        with pytest.raises(MergeUnfinished, match=f"lineage merge {a} {b}"):
            await attempt()
    await merged(ledger, names)
    assert (await ledger.lineage(names.into)).spent == 8 * COST.picorho


# Whatever ends it, nothing is spent twice


class Died(LedgerUnavailable):
    """The process ended: it gets no reply any more, and sends nothing."""


def dying(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """Have the process of a ledger end at its call of this number: before it is sent, or before its reply is read."""
    call, calls = ledger.store.call, itertools.count(1)

    async def counted(*args: Any, **more: Any) -> Any:
        count = next(calls)
        if count < number:
            return await call(*args, **more)
        if count == number and after:
            await call(*args, **more)
        raise Died("the process has ended")

    monkeypatch.setattr(ledger.store, "call", counted)


async def chargeable(ledger: Ledger, lineage: str) -> bool:
    try:
        return bool(await ledger.lineage(lineage))
    except (LineageClosed, UnknownLineage):
        return False


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_call_it_goes_on_and_nothing_is_spendable_twice(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    died = 0
    for number in range(1, 400, 1 if after else 5):
        merge = Merge((new_lineage(), new_lineage()), new_lineage())
        async with await Ledger.connect(embedded_url) as ledger:
            await two(ledger, merge)
            await asked(ledger, merge)
            plan = await plan_merge(ledger, merge, lambda accepts: releases(20))
            dying(ledger, monkeypatch, number, after=after)
            try:
                await merge_lineages(ledger, plan)
                done = True
            except Died:
                done, died = False, died + 1
        async with await Ledger.connect(embedded_url) as other:
            a, b, made = [await chargeable(other, each) for each in (*merge.of, merge.into)]
            assert not (made and (a or b))
            if made:
                assert (await other.lineage(merge.into)).spent == 6 * COST.picorho
            assert await merged(other, merge, releases(20))
            assert (await spent(other, merge.into))["client:ann"] == 5 * COST.picorho
            assert (await verify(other, merge.into)).findings == ()
        if done:
            break
    assert done
    assert died > 10


async def test_a_store_that_is_killed_loses_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreServer(tmp_path) as server:
        for number in range(1, 60, 3):
            merge = Merge((new_lineage(), new_lineage()), new_lineage())
            async with await Ledger.connect(server.url) as ledger:
                await two(ledger, merge)
                await asked(ledger, merge)
                plan = await plan_merge(ledger, merge, lambda accepts: WHOLE)
                dying(ledger, monkeypatch, number, after=True)
                with suppress(Died):
                    await merge_lineages(ledger, plan)
            server.kill()
            server.start()
            async with await Ledger.connect(server.url) as other:
                a, b, made = [await chargeable(other, each) for each in (*merge.of, merge.into)]
                assert not (made and (a or b))
                await merged(other, merge)
                assert (await other.lineage(merge.into)).spent == 6 * COST.picorho


async def test_two_who_merge_at_once_make_one_lineage(store_url: str) -> None:
    async with await Ledger.connect(store_url) as one, await Ledger.connect(store_url) as other:
        for _ in range(5):
            merge = Merge((new_lineage(), new_lineage()), new_lineage())
            await two(one, merge)
            await asked(one, merge)
            plans = [await plan_merge(each, merge, lambda accepts: releases(20)) for each in (one, other)]
            done = await asyncio.gather(
                *(merge_lineages(each, plan) for each, plan in zip((one, other), plans, strict=True)),
                return_exceptions=True,
            )
            assert all(each is None or isinstance(each, LedgerError) for each in done), done
            await merged(one, merge, releases(20))
            assert (await one.lineage(merge.into)).spent == 6 * COST.picorho
            assert (await verify(one, merge.into)).findings == ()


async def test_on_a_cluster_three_servers_have_the_three_lineages(tmp_path: Path) -> None:
    with cluster(tmp_path, ("ledger", "secret", *RIGHTS.split())) as store:
        async with await Ledger.connect(store.url, replicas=1) as ledger:
            merge = Merge(("a", "b"), "c")
            slots = {
                said(store.primaries[0], "CLUSTER", "KEYSLOT", LineageKeys(each).account) // 5461 for each in "abc"
            }
            assert len(slots) > 1
            await two(ledger, merge)
            await asked(ledger, merge)
            await merged(ledger, merge)
            assert (await ledger.lineage("c")).spent == 6 * COST.picorho
            for lineage in "abc":
                assert (await verify(ledger, lineage)).findings == ()


# Backups, journals, other machines


async def test_backups_from_after_it_hold_it(ledger: Ledger, names: Merge, tmp_path: Path) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    everything = (*names.of, names.into)
    await merged(ledger, names)
    await ledger.charge(asking(names.into, "ann", "new", model="b"))
    lines = [line async for line in backup(ledger, everything)]
    async with Ledger.open(tmp_path / "new") as restored:
        await restore(restored, lines)
        for lineage in everything:
            assert (await verify(restored, lineage)).findings == ()
        for lineage in names.of:
            with pytest.raises(LineageMerged):
                await restored.charge(asking(lineage, "ann", "1", model="a"))
            assert await restored.heir(lineage) == names.into
        assert (await restored.charge(asking(names.into, "ann", "1", model="a"))).charged == 0
        assert (await restored.lineage(names.into)).spent == 7 * COST.picorho


async def test_a_chain_of_backups_goes_on_over_it(tmp_path: Path) -> None:
    names, place = Merge(("a", "b"), "c"), Place(str(tmp_path / "chain"))
    async with Ledger.open(tmp_path / "store") as ledger:
        await two(ledger, names)
        await asked(ledger, names)
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
        await merged(ledger, names)
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
        await ledger.charge(asking("c", "ann", "new", model="b"))
        await add_to_chain(ledger, place, (), now=datetime.now(UTC))
    async with Ledger.open(tmp_path / "new") as restored:
        await restore(restored, *links_of_chain(place))
        for lineage in "abc":
            assert (await verify(restored, lineage)).findings == ()
        assert (await restored.lineage("c")).spent == 7 * COST.picorho
        with pytest.raises(LineageMerged):
            await restored.charge(asking("a", "ann", "1", model="a"))


async def test_a_backup_in_which_one_is_open_and_merged_is_refused(ledger: Ledger) -> None:
    first, second = new_lineage(), new_lineage()
    names = Merge((first, second), f"z-{new_lineage()}")
    await two(ledger, names)
    await asked(ledger, names)
    making = backup(ledger, [*names.of, names.into])
    lines = [await anext(making), await anext(making), await anext(making)]  # the first is read, as it is open
    await merged(ledger, names)
    with pytest.raises(CannotRecover, match="while they were backed up"):
        lines += [line async for line in making]


async def test_of_the_new_lineage_alone_the_former_names_are_known_all_the_same(
    ledger: Ledger, names: Merge, tmp_path: Path
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names)
    lines = [line async for line in backup(ledger, [names.into])]
    async with Ledger.open(tmp_path / "new", journals=tmp_path / "journals") as restored:
        await restore(restored, lines)
        assert (await verify(restored, names.into)).findings == ()
        assert await restored.heir(names.of[0]) == names.into
        with pytest.raises(LineageMerged):
            await restored.join(names.of[0])


async def test_a_store_from_before_is_refused_on_a_machine_that_merged(tmp_path: Path) -> None:
    names, journals = Merge(("a", "b"), "c"), tmp_path / "journals"
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await two(ledger, names)
        for lineage in "ab":
            await ledger.settle_unit(lineage, "")
        await ledger.join("a")
        await ledger.charge(asking("a", "ann", "1", model="a"))
        lines = [line async for line in backup(ledger)]
        await asked(ledger, names)
    async with Ledger.open(tmp_path / "store", journals=journals) as ledger:
        await merged(ledger, names)
    async with Ledger.open(tmp_path / "store", journals=journals) as service:
        await service.join("c")
        await service.charge(asking("c", "ann", "after", model="b"))
    async with Ledger.open(tmp_path / "new", journals=journals) as restored:
        await restore(restored, lines)
        for lineage in "ab":
            with pytest.raises(LineageMerged):
                await restored.join(lineage)
            with pytest.raises(MergeUnfinished, match="lineage merge a b"):
                await restored.heir(lineage)
        with pytest.raises(MergeUnfinished):
            await restored.join("c")
        with pytest.raises(StoreBehind):
            await plan_merge(restored, names, lambda accepts: WHOLE)
        everything = read_journals(journals)
        await reconcile(restored, "a", everything, NONE_LOST)
        await reconcile(restored, "b", everything, NONE_LOST)
        await ledger_of_b(restored)
        await merged(restored, names)
        async with Ledger.open(tmp_path / "new", journals=journals) as service:
            with pytest.raises(StoreBehind):
                await service.join("c")
        await reconcile(restored, "c", everything, NONE_LOST)
        await restored.join("c")
        assert (await restored.charge(asking("c", "ann", "after", model="b"))).charged == 0
        for lineage in "abc":
            assert (await verify(restored, lineage)).findings == ()


NONE_LOST = DeclaredLoss(0, COST)


async def ledger_of_b(ledger: Ledger) -> None:
    """Charge again what no journal had, so that sums can be compared."""
    await ledger.charge(asking("b", "ann", "1", "2", "3", model="b"))


async def test_journals_of_the_former_lineages_are_put_back_into_the_new_one(tmp_path: Path) -> None:
    """Another machine's journal may hold what the store had lost before it was merged."""
    names = Merge(("a", "b"), "c")
    async with Ledger.open(tmp_path / "store", journals=tmp_path / "other machine") as service:
        await two(service, names)
        lines = [line async for line in backup(service)]
        await service.join("a")
        await service.charge(asking("a", "ann", "1", "2", model="a"))
        await service.charge(asking("a", "bob", "2", model="a"))
    async with Ledger.open(tmp_path / "new", journals=tmp_path / "journals") as ledger:
        await restore(ledger, lines)
        await ledger.charge(asking("b", "ann", "1", model="b"))
        await merged(ledger, names)
        assert (await spent(ledger, "c"))["lineage"] == COST.picorho
        for _ in range(2):
            await reconcile(ledger, "c", read_journals(tmp_path / "other machine"))
            assert await spent(ledger, "c") == {
                "lineage": 3 * COST.picorho,
                "client:ann": 3 * COST.picorho,
                "client:bob": COST.picorho,
                "client:cat": 0,
                "group:team": COST.picorho,
            }
        assert (await verify(ledger, "c")).findings == ()


# Planted faults


async def test_a_receipt_that_is_left_out_is_found_before_the_lineage_is_opened(
    ledger: Ledger, names: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    put_back = merging.put_back

    async def one_less(made: Ledger, lineage: str, receipts: Sequence[Receipt]) -> object:
        return await put_back(made, lineage, [each for each in receipts if each.client != "cat"])

    with monkeypatch.context() as patched:
        patched.setattr(merging, "put_back", one_less)
        with pytest.raises(LedgerDamaged, match="is not receipt"):
            await merged(ledger, names)
    with pytest.raises(MergeUnfinished):
        await ledger.charge(asking(names.into, "ann", "1", model="a"))
    await merged(ledger, names)
    assert (await verify(ledger, names.into)).findings == ()


@pytest.mark.parametrize("client", ["ann", "bob"])
async def test_an_account_whose_sum_is_not_all_is_found(
    ledger: Ledger, names: Merge, store_url: str, client: str
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names)
    with redis.Redis.from_url(store_url, protocol=2) as store:
        store.hincrby(LineageKeys(names.into).client(client).account, "spent", -COST.picorho)
    findings = (await verify(ledger, names.into)).findings
    assert any(client in each for each in findings)


async def test_a_charge_to_a_former_lineage_after_the_act_is_found(
    ledger: Ledger, names: Merge, store_url: str
) -> None:
    await two(ledger, names)
    await asked(ledger, names)
    await merged(ledger, names)
    account = LineageKeys(names.of[0]).account
    with redis.Redis.from_url(store_url, protocol=2) as store:
        store.hset(account, "format", "4")
        await ledger.charge(asking(names.of[0], "ann", "more", model="a"))
    assert any("merged by other acts" in each for each in (await verify(ledger, names.of[0])).findings)
    assert any("charged by itself" in each for each in (await verify(ledger, names.into)).findings)
    with redis.Redis.from_url(store_url, protocol=2) as store:
        store.hset(account, "format", "merged")
    assert any("other receipts than" in each for each in (await verify(ledger, names.of[0])).findings)
    assert any("receipts when it was merged" in each for each in (await verify(ledger, names.into)).findings)


FAULTS = {
    "a merged lineage is charged": (
        "    or (format == MERGING and merges) then\n",
        "    or format == MERGED or (format == MERGING and merges) then\n",
    ),
    "one that is being made is charged": (
        "    or (format == MERGING and merges) then\n",
        "    or format == MERGING then\n",
    ),
    "what came between is not seen": (
        "  elseif account.seq ~= amount(args.receipts) then\n    return {'charged-between'}",
        "  elseif false then\n    return {'charged-between'}",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_tests_notice_a_fault_in_the_library(
    store_url: str, names: Merge, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    library = faulty_version(FAULTS[fault], 9100 + list(FAULTS).index(fault))
    monkeypatch.setattr(store_module, "our_library", lambda: library)
    async with await Ledger.connect(store_url) as ledger:
        await two(ledger, names)
        await asked(ledger, names)
        plan = await plan_merge(ledger, names, lambda accepts: WHOLE)
        if fault == "what came between is not seen":
            await ledger.charge(asking(names.of[0], "ann", "new", model="a"))
            with pytest.raises(LedgerDamaged):
                await merge_lineages(ledger, plan)
            return
        if fault == "one that is being made is charged":
            dying(ledger, monkeypatch, 8, after=True)
            with pytest.raises(Died):
                await merge_lineages(ledger, plan)
        else:
            await merge_lineages(ledger, plan)
    async with await Ledger.connect(store_url) as other:
        lineage = names.into if fault.startswith("one") else names.of[0]
        with pytest.raises(LineageClosed):
            await other.lineage(lineage)
        try:
            await other.quote(asking(lineage, "ann", "never asked", model="a"))
        except LineageClosed:
            pytest.fail("the fault is not one")
        except LedgerError:
            pass  # what a lineage without this client says


# Against a model, in exact fractions


class MergesAgainstFractions(RuleBasedStateMachine):
    """Charges to several lineages and merges between them, in any order: every account has spent the exact sum."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ledger = self.runner.run(Ledger.connect(self.url))
        self.lineages: list[str] = []
        self.models: dict[str, list[str]] = {}
        """The models of each lineage, by name."""
        self.spent: dict[tuple[str, str], Fraction] = {}
        self.paid: dict[tuple[str, str], set[bytes]] = {}

    def teardown(self) -> None:
        try:
            for lineage in (*self.lineages, *self.merged):
                assert self.runner.run(verify(self.ledger, lineage)).findings == ()
        finally:
            self.runner.run(self.ledger.close())
            self.runner.close()

    merged: list[str]

    @initialize()
    def begin(self) -> None:
        self.merged = []
        for _ in range(2):
            self.open()

    def open(self) -> None:
        lineage = new_lineage()
        self.runner.run(open_accounts(self.ledger, lineage, releases(30), ann=releases(12), bob=releases(9)))
        self.runner.run(self.ledger.add_group(lineage, "team", releases(10), time=0.0))
        self.runner.run(self.ledger.set_group(lineage, "bob", "team"))
        self.lineages.append(lineage)
        self.models[lineage] = [lineage]

    @rule()
    @precondition(lambda self: len(self.lineages) < 3)
    def another(self) -> None:
        self.open()

    @precondition(lambda self: self.lineages)
    @rule(
        data=st.data(),
        client=st.sampled_from(["ann", "bob"]),
        asked=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4),
        cost=st.sampled_from([COST, Cost((GaussianLoss(0.3),)), Cost((LaplaceLoss(0.2),))]),
    )
    def charge(self, data: st.DataObject, client: str, asked: list[str], cost: Cost) -> None:
        lineage = data.draw(st.sampled_from(self.lineages))
        model = data.draw(st.sampled_from(self.models[lineage]))
        request = asking(lineage, client, *asked, cost=cost, model=model)
        payers = [f"client:{client}", *(["group:team"] if client == "bob" else []), "lineage"]
        (got,) = self.runner.run(self.ledger.charge_batch([request]))
        if isinstance(got, LedgerError):
            assert isinstance(got, BudgetExhausted)
            return
        for payer in payers:
            known = self.paid.setdefault((lineage, payer), set())
            new = set(request.questions) - known
            known |= new
            price = Fraction(cost.picorho, 10**12)
            self.spent[lineage, payer] = self.spent.get((lineage, payer), Fraction(0)) + len(new) * price

    @rule(data=st.data(), limit=st.integers(1, 90))
    @precondition(lambda self: len(self.lineages) > 1)
    def merge(self, data: st.DataObject, limit: int) -> None:
        pair = data.draw(st.permutations(self.lineages))[:2]
        self.become_one(Merge((pair[0], pair[1]), new_lineage()), limit)

    def become_one(self, merge: Merge, limit: int) -> None:
        pair = merge.of
        before = {name: self.runner.run(self.ledger.snapshot(name))[:3] for name in pair}
        self.runner.run(merged(self.ledger, merge, releases(limit)))
        for payer in ("client:ann", "client:bob", "group:team", "lineage"):
            parts = [(name, payer) for name in pair]
            self.spent[merge.into, payer] = sum((self.spent.get(part, Fraction(0)) for part in parts), Fraction(0))
            self.paid[merge.into, payer] = set().union(*(self.paid.get(part, set()) for part in parts))
        account, clients, groups = self.runner.run(self.ledger.snapshot(merge.into))[:3]
        for each in (account, *clients, *groups):
            former = [
                one
                for whole, its_clients, its_groups in before.values()
                for one in (whole, *its_clients, *its_groups)
                if one.subject == each.subject and one.newest_receipt
            ]
            # No limit is said to be settled that any of them did not have, and none above all is no raise.
            highest = sum(one.highest_limit for one in former)
            assert each.highest_limit == max(highest, each.budget.limit)
            if len(former) == 2:
                settled = {one.settled_limit if one.raises else one.highest_limit for one in former}
                assert each.raises
                assert each.settled_limit in settled
        self.lineages = [name for name in self.lineages if name not in pair] + [merge.into]
        self.models[merge.into] = [model for name in pair for model in self.models[name]]
        self.merged += pair

    @invariant()
    def every_account_has_the_exact_sum(self) -> None:
        for lineage in self.lineages:
            for payer, amount in self.runner.run(spent(self.ledger, lineage)).items():
                assert Fraction(amount, 10**12) == self.spent.get((lineage, payer), 0)


def test_random_merges_between_charges_add_up_exactly(embedded_url: str) -> None:
    MergesAgainstFractions.url = embedded_url
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        MergesAgainstFractions,
        settings=settings(
            max_examples=25, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
