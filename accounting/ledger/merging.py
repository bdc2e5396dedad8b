"""Two lineages made one: what was spent of both adds up in a new one, and their clients, keys and questions follow.

The receipts of both are charged to the new lineage again, in order, as a restored store gets back what it lost. So no
sum is carried over by hand: every account of it has spent what its receipts say, as any other account, and its books,
backups and exports are those of any lineage.

What is promised. Let the lineages A and B be merged into C.

1. Every account of C has spent exactly the sum of what the accounts of its name had in A and in B, in whole units of
   1e-12. A question is of one model and so of one lineage (it is looked that none is of both). So whether a question of
   A is new to an account depends on A's receipts alone, and by induction over A's receipts each one charges in C what
   it charged in A, to the same client and group; and likewise B's. Before C is opened, each of its receipts is compared
   with the one that it was made of; `verify` compares them whenever it is asked.
2. A record lost at most what C says: what models of A say of it and what models of B say compose adaptively, in zCDP as
   in pure epsilon, by adding up (`accounting.budgets`). No noise changes and no answer is given a second time with
   other noise, as noise is a function of the model's key and the question, which do not know of lineages.
3. Nothing is spent twice meanwhile. C is opened first, in a format in which only a merge's calls take it. Then A and B
   are closed, each in one call of the store in which nothing can come between: it refuses where the lineage has any
   receipt or act more than when the merge was prepared. Only then C gets their receipts, and its last call lets others
   charge it. Wherever this ends, A or B is closed or has all of its budget and C none; the same words go on with it.
   What the owner did to B while A was closed and B not yet may be what a merge refuses; then (5) opens A again.
4. What is said of a limit holds for one that was settled before the first answer (`accounting.budgets`). Somebody who
   saw answers of one lineage may have chosen the other's limit, and the new one. So an account with charges in both
   starts at the limit that was settled in the one that was charged first, by its receipts' times, which are assumed to
   be in order where services' clocks differ, and what both had in all counts as a raise after it; as does more than
   that.
5. A merge that is not done may be abandoned (`abandon_merge`): then it is as if it had never begun, but for C's name.
   One call, on C alone, turns the format `merging` into `abandoned`; one, the last of the merge, turns it into the one
   that others take. The store does one call at a time, and no call turns either back: so at most one of the two
   happens, whoever sends them, from where and how often. Where C was opened, abandoning is refused and opens nothing.
   (a) C never answered anyone: before it is opened only calls of the merge take it, and no call takes it once it is
       abandoned. So no record lost anything by C, and what A's and B's accounts say is all that it lost. A closed
       account takes no call: A and B have the budgets, keys, periods and receipts that they were closed with, and what
       the owner did to B meanwhile stays done. Whoever goes on to ask A is the adaptive client of (2), whom A's own
       limit bounds, as it did before.
   (b) After C is abandoned, A and B each get an act, `reopen`, by the call that opens what was merged into C. A call
       that closes one of them was prepared by `plan_merge` before `_open` found C not abandoned, and so before that
       act. If it comes after the act, it is refused, as it finds an act more than it was prepared of; if it comes
       before, the act's own call undoes it. So once both have the act, both are open, until they are merged into
       another one.
   (c) Wherever this ends, C is as it was; or C is abandoned, and each of A and B has all of its budget or is closed,
       and the same words go on with it. To say them once more changes nothing.
   (d) C's name stays used up: in the store, and by a mark of this machine that is made before A or B is opened. A store
       that is restored from before may have C in the format `merging` again, with any of A and B closed. This machine
       goes on with no merge into C, and the same words abandon it there, too. Another machine may go on with it, and
       makes one lineage by (1) to (3): it closes A and B, and opens C with the sums that they have in that store.
       Where it is known that A and B were merged into C, both are refused until the same words were said there.
   (e) A store that is restored from before C was opened knows nothing of what C was charged, and would let it be
       abandoned. That is refused where a journal of this machine has any charge of C, and where the records' digests
       on this machine are C's, as they are wherever the merge was done. What other machines' journals alone have is
       lost to such a store, as is all else since then; their services are refused.

Whatever a merge refuses, it refuses before anything is changed; after that, only what came between two calls.
"""

import time as clock
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from accounting.budgets import Accepts, Budget, is_unproven
from accounting.ledger import wire
from accounting.ledger.accounts import NOTHING, check_done
from accounting.ledger.api_keys import ApiKey
from accounting.ledger.backups import batches
from accounting.ledger.books import ABANDON, FINISH, REOPEN
from accounting.ledger.errors import ActRefused, LedgerDamaged, UnknownLineage
from accounting.ledger.journal import Merge
from accounting.ledger.ledger import Ledger
from accounting.ledger.receipts import Receipt, account_subject
from accounting.ledger.recovery import put_back
from accounting.ledger.values import Account, ClientAccount, GroupAccount, LineageAccount
from accounting.ledger.verification import (
    Watcher,
    all_acts,
    all_receipts,
    difference_from_merged,
    receipt_pages,
    unwatched,
    verify,
)
from accounting.ledger.wire import LineageKeys

_MOST_KEYS = 16
"""Largest number of API keys of a client, as the store has it."""
_RECEIPTS_AT_ONCE = 200

_Inner = TypeVar("_Inner", ClientAccount, GroupAccount)


@dataclass(frozen=True)
class Part:
    """One of the two lineages, as a merge was prepared of it.

    account: None of one that the ledger does not have, as nothing was charged to it. first: when each account, by its
    subject, was charged first, in seconds since the epoch.
    """

    lineage: str
    account: LineageAccount | None
    clients: Mapping[str, ClientAccount] = field(default_factory=dict)
    groups: Mapping[str, GroupAccount] = field(default_factory=dict)
    first: Mapping[str, float] = field(default_factory=dict)

    @property
    def receipts(self) -> int:
        """The number of its receipts."""
        return 0 if self.account is None else self.account.newest_receipt


@dataclass(frozen=True)
class MergedAccount:
    """An account of the new lineage. of: the accounts that it is made of, one or two, in the order of the lineages.

    budget: what it has in the end. opening: the budget with which it opens, and highest: the limit that the former
    ones had in all since they were charged, 0 if they were not.
    """

    of: tuple[Account, ...]
    budget: Budget
    opening: Budget
    highest: int

    @property
    def spent(self) -> int:
        """The sum that it will have spent, in 1e-12 of what it counts."""
        return sum(each.spent for each in self.of)


@dataclass(frozen=True)
class MergedClient(MergedAccount):
    """A client's. keys: those that are of use; revoked: in either lineage."""

    keys: tuple[ApiKey, ...] = ()
    revoked: bool = False


@dataclass(frozen=True)
class MergePlan:
    """A merge that nothing refuses: what adds up. whole: the new lineage's account, None once the store has all of it.

    is_begun: whether the store has a part of it.
    """

    merge: Merge
    parts: tuple[Part, Part]
    whole: MergedAccount | None = None
    groups: Mapping[str, MergedAccount] = field(default_factory=dict)
    clients: Mapping[str, MergedClient] = field(default_factory=dict)
    unit: str | None = None
    promoted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_begun: bool = True


def _refused(text: str) -> ActRefused:
    return ActRefused("merge", text)


async def plan_merge(
    ledger: Ledger,
    merge: Merge,
    budget_of: Callable[[Accepts], Budget],
    *,
    may_be_unknown: Callable[[str], bool] = lambda _: False,
    watch: Watcher = unwatched,
) -> MergePlan:
    """Return what a merge does, having verified both lineages and changed nothing.

    budget_of: returns the new lineage's budget; takes what the former ones accept. may_be_unknown: tells of a lineage
    that the ledger does not have whether it is one all the same, as it was trained and never served.

    Raises ActRefused with what keeps them from being merged, UnknownLineage, LineageClosed, as where a merge into this
    name was abandoned, and StoreBehind where the store lacks what a journal of this machine says.
    """
    a, b = merge.of
    if len({a, b, merge.into}) != 3:
        raise _refused("a merge makes a new lineage of two others: three names, no two of them equal")
    LineageKeys(merge.into)
    await ledger.check_abandoned(merge.into)
    made = None
    with suppress(UnknownLineage):
        made = await ledger.lineage_or_closed(merge.into)
    if made is not None:
        if {*made.merges} != {a, b}:
            raise made.closed or _refused(
                f"the ledger has a lineage {merge.into} already: two lineages are merged into a new one, so that "
                "neither keeps its budget"
            )
        merge = Merge((made.merges[0], made.merges[1]), merge.into)
    parts = [await _read_part(ledger, name, merge, may_be_unknown, watch) for name in merge.of]
    first, second = parts
    if first.account is second.account is None:
        raise UnknownLineage(a)
    if made is not None and not made.is_unfinished:
        return MergePlan(merge, (first, second))
    await _check_questions(ledger, first, second, watch)
    accounts = [part.account for part in parts if part.account is not None]
    whole = _merged(accounts, parts, budget_of(_accepted_by(accounts)), "the new lineage")
    groups = {
        name: MergedAccount(*_inner([part.groups[name] for part in parts if name in part.groups], parts))
        for name in sorted({*first.groups, *second.groups})
    }
    now = clock.time()
    clients = {
        name: _merged_client(name, [part.clients[name] for part in parts if name in part.clients], parts, now)
        for name in sorted({*first.clients, *second.clients})
    }
    _check_keys(clients)
    unit, promoted = await _unit_of(ledger, parts), _promoted(parts)
    begun = made is not None
    return MergePlan(merge, (first, second), MergedAccount(*whole), groups, clients, unit, promoted, begun)


async def _read_part(
    ledger: Ledger, lineage: str, merge: Merge, may_be_unknown: Callable[[str], bool], watch: Watcher
) -> Part:
    try:
        account = await ledger.lineage_or_closed(lineage)
    except UnknownLineage:
        if not may_be_unknown(lineage):
            raise
        await ledger.check_newest(lineage)
        return Part(lineage, None)
    if account.closed is not None and account.merged_into != merge.into:
        raise account.closed
    if account.blocks:
        raise _refused(f"the lineage {lineage} has blocks, each with a budget of its own: such lineages are not merged")
    await ledger.check_newest(lineage)
    checked = await verify(ledger, lineage, watch=watch)
    if checked.findings:
        raise _refused(f"the lineage {lineage} is not right: {checked.findings[0]}; see 'dpserve ledger verify'")
    account, clients, groups, _ = await ledger.snapshot(lineage)
    first: dict[str, float] = {}
    async for receipt in all_receipts(ledger, lineage, account.newest_receipt):
        for scope, name in (("client", receipt.client), ("group", receipt.group), ("lineage", "")):
            subject = account_subject(scope, name)
            first[subject] = min(first.get(subject, receipt.time), receipt.time)
    of_clients, of_groups = {each.client: each for each in clients}, {each.group: each for each in groups}
    return Part(lineage, account, of_clients, of_groups, first)


async def _check_questions(ledger: Ledger, first: Part, second: Part, watch: Watcher) -> None:
    """Raise ActRefused for a question that both have paid for: it would be paid for once."""
    if not first.receipts or not second.receipts:
        return
    async for page in receipt_pages(ledger, second.lineage, second.receipts):
        for some in batches(chain.from_iterable(receipt.questions for receipt in page), 1000):
            if any(await ledger.paid_for(first.lineage, [("", [question]) for question in some])):
                raise _refused(
                    f"the lineages {first.lineage} and {second.lineage} have both paid for one question, which is of "
                    "one model and so of one lineage: run 'dpserve ledger verify'"
                )
        watch(f"the questions of {second.lineage}", page[-1].sequence / second.receipts)


def _charged(accounts: Sequence[Account], parts: Sequence[Part]) -> list[Account]:
    """Return those that have paid for anything, the one that was charged first before the other."""
    first = {part.lineage: part.first for part in parts}
    paid = [each for each in accounts if each.newest_receipt]
    return sorted(paid, key=lambda each: first[each.lineage][each.subject])


def _merged(
    accounts: Sequence[Account], parts: Sequence[Part], budget: Budget, who: str
) -> tuple[tuple[Account, ...], Budget, Budget, int]:
    """Return the fields of the account that others are made into. Raises ActRefused."""
    paid = _charged(accounts, parts)
    if not paid:
        return tuple(accounts), budget, budget, 0
    for each in paid:
        if each.budget.currency is not budget.currency:
            raise _refused(
                f"{who} would count {budget.currency.name}, and {each.title} of {each.lineage} has paid in "
                f"{each.budget.currency.name}: such sums do not add up"
            )
        for cost in each.tally:
            if not budget.pays_for(cost):
                raise _refused(
                    f"{who} would accept {budget.accepts!r} charges, and {each.title} of {each.lineage} has paid for "
                    f"{str(cost)!r}"
                )
    highest = sum(each.highest_limit for each in paid)
    most = max(highest, budget.limit, sum(each.spent for each in paid))
    settled = paid[0].settled_limit if paid[0].raises else paid[0].highest_limit
    try:
        replace(budget, limit=most)
    except ValueError as error:
        raise _refused(f"what {who} paid for does not fit its budget: {error}") from None
    coins = sum(each.coins_spent for each in paid)
    if coins > min(replace(budget, limit=highest).coins_allowed, budget.coins_allowed):
        raise _refused(f"{who} has paid for more releases with a coin than its budget's delta provides for")
    return tuple(accounts), budget, replace(budget, limit=settled, refill=None), highest


def _widest(budgets: Sequence[Budget]) -> Accepts:
    """Return what an account accepts that takes over from accounts of one currency."""
    order: Sequence[Accepts] = ("gaussian", "pure", "any", "unproven-pure", "unproven")
    return max((each.accepts for each in budgets), key=order.index)


def _accepted_by(accounts: Sequence[Account]) -> Accepts:
    """Return what an account accepts that takes over from these, by those of them that were charged."""
    return _widest([each.budget for each in accounts if each.newest_receipt] or [each.budget for each in accounts])


def _inner(accounts: Sequence[_Inner], parts: Sequence[Part]) -> tuple[tuple[Account, ...], Budget, Budget, int]:
    """Return the fields of the account of a client or group: one in both lineages keeps the larger budget."""
    who, budget = accounts[0].title, accounts[0].budget
    if len(accounts) == 2:
        one, other = (each.budget for each in accounts)
        if one.currency is not other.currency or is_unproven(one.accepts) is not is_unproven(other.accepts):
            raise _refused(f"{who} accepts {one.accepts!r} charges in one lineage and {other.accepts!r} in the other")
        if one.refill != other.refill:
            raise _refused(f"{who} has one refill in each lineage: give it the same, or 'none', in both")
        budget = replace(max(one, other, key=lambda each: each.limit), accepts=_widest([one, other]))
    return _merged(accounts, parts, budget, who)


def _merged_client(name: str, accounts: Sequence[ClientAccount], parts: Sequence[Part], now: float) -> MergedClient:
    if len({each.group for each in accounts}) > 1:
        one, other = (f"to {each.group}" if each.group else "to none" for each in accounts)
        raise _refused(
            f"client {name} belongs {one} in one lineage and {other} in the other, and what the members of a group "
            "know together is what the group has paid for: 'dpserve clients set-group' moves one that has asked nothing"
        )
    keys: dict[bytes, ApiKey] = {}
    for key in chain.from_iterable(each.api_keys for each in accounts):
        if keys.setdefault(key.digest, key) != key:
            raise _refused(f"the API key {key.id} of client {name} has other terms in each lineage: remove it from one")
    live = tuple(key for key in keys.values() if not key.has_ended(now))
    if len(live) > _MOST_KEYS:
        raise _refused(
            f"client {name} has {len(live)} API keys in both, and {_MOST_KEYS} are allowed: remove some first"
        )
    return MergedClient(*_inner(accounts, parts), live, any(each.revoked for each in accounts))


def _check_keys(clients: Mapping[str, MergedClient]) -> None:
    owners: dict[bytes, str] = {}
    for name, client in clients.items():
        for key in client.keys:
            if (other := owners.setdefault(key.digest, name)) != name:
                raise _refused(f"the API key {key.id} is client {other}'s in one lineage and {name}'s in the other")


async def _unit_of(ledger: Ledger, parts: Sequence[Part]) -> str | None:
    """Return the privacy unit of both, None before their first models. Raises ActRefused."""
    units = dict[str, str]()
    for part in parts:
        account = part.account
        if account is None or (account.unit is None and not account.newest_receipt):
            continue
        if account.unit is None and await ledger.is_reconciled(part.lineage):
            raise _refused(f"nobody knows which privacy unit the lineage {part.lineage} has, as it was reconciled")
        units[part.lineage] = account.unit or ""
    if len({*units.values()}) > 1:
        protected = [f"{name} protects {unit or 'one record'}" for name, unit in units.items()]
        raise _refused(f"the lineages have different privacy units, and a budget bounds one: {', '.join(protected)}")
    return next(iter(units.values()), None)


def _promoted(parts: Sequence[Part]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part in parts:
        for name, models in (part.account.promoted if part.account is not None else {}).items():
            if found.setdefault(name, models)[:1] != models[:1]:
                raise _refused(
                    f"the served name {name} answers from one model in each lineage: serve one under another name first"
                )
    return found


async def merge_lineages(ledger: Ledger, plan: MergePlan, *, watch: Watcher = unwatched) -> None:
    """Do a merge, or what is left of it. It may be said again after whatever ended it, with a plan made anew.

    Raises ActRefused where a lineage was charged or changed since the plan was made, and LedgerDamaged where the new
    one came out otherwise than it must; then nothing can be charged to it.
    """
    merge = plan.merge
    if plan.whole is None:
        await ledger.note_merge(merge)
        return
    made, keys = ledger.merging(), LineageKeys(merge.into)
    await _open(made, plan, plan.whole)
    for part in plan.parts:
        await _close(ledger, part, merge)
    await ledger.note_merge(merge)
    await _add_accounts(made, plan, plan.whole)
    if plan.unit is not None:
        await made.settle_unit(merge.into, plan.unit)
    await _put_back(made, plan, watch)
    await _settle(made, plan, plan.whole)
    await _check(made, plan, plan.whole, watch)
    total = sum(part.receipts for part in plan.parts)
    of = {part.lineage: part.receipts for part in plan.parts}
    (status,) = await made.act(
        merge.into,
        "finish_merge",
        [keys.receipts],
        {"receipts": total},
        kind=FINISH,
        subject="lineage",
        details={"receipts": of},
    )
    check_done(status, keys.own)


async def _open(made: Ledger, plan: MergePlan, whole: MergedAccount) -> None:
    """Open the new lineage, which nothing but this merge may be done to."""
    merge, keys = plan.merge, LineageKeys(plan.merge.into)
    await made.list_lineage(merge.into)
    terms = wire.budget_arguments(whole.opening)
    await made.act(
        merge.into,
        "open_lineage",
        keys.contents[1:],
        {"budget": terms, "created": repr(clock.time()), "of": " ".join(merge.of)},
        kind="open",
        subject="lineage",
        details={**terms, "merges": list(merge.of)},
    )
    await made.lineage(merge.into)


async def _close(ledger: Ledger, part: Part, merge: Merge) -> None:
    if part.account is None:  # it has an account first, which pays for nothing, and one act
        await ledger.open_lineage(part.lineage, NOTHING, time=clock.time())
    elif part.account.merged_into:
        return
    newest_act = 1 if part.account is None else part.account.newest_act
    keys, (other,) = LineageKeys(part.lineage), set(merge.of) - {part.lineage}
    (status,) = await ledger.act(
        part.lineage,
        "merge_lineage",
        [keys.receipts],
        {"into": merge.into, "receipts": part.receipts, "newest_act": newest_act},
        kind="merge",
        subject="lineage",
        details={"into": merge.into, "with": other, "receipts": part.receipts},
    )
    check_done(status, keys.own)


def _named(plan: MergePlan, whole: MergedAccount) -> list[tuple[MergedAccount, dict[str, str]]]:
    """Return every account of the new lineage, with how `set_budget` names it."""
    groups = [(each, {"group": name}) for name, each in plan.groups.items()]
    clients = [(each, {"client": name}) for name, each in plan.clients.items()]
    return [(whole, {}), *groups, *clients]


async def _add_accounts(made: Ledger, plan: MergePlan, whole: MergedAccount) -> None:
    """Open the accounts that the new lineage lacks, with the API keys of both."""
    into = plan.merge.into
    account, clients, groups, _ = await made.snapshot(into)
    known: dict[str, Account] = {each.subject: each for each in (account, *clients, *groups)}
    for merged, named in _named(plan, whole):
        there = known.get(merged.of[0].subject)
        if there is not None and not there.newest_receipt and there.budget != merged.opening:
            await made.set_budget(into, merged.opening, **named)  # it was opened by a plan that has changed
    for merged in (*plan.groups.values(), *plan.clients.values()):
        own = merged.of[0]
        assert isinstance(own, ClientAccount | GroupAccount)
        display = next((each.display for each in merged.of if isinstance(each, type(own)) and each.display), "")
        if own.subject not in known:
            await made.copy_account(into, replace(own, display=display), merged.opening, time=clock.time())
        if isinstance(merged, MergedClient):
            there = known.get(own.subject)
            held = {key.digest for key in there.api_keys} if isinstance(there, ClientAccount) else set[bytes]()
            for key in merged.keys:
                if key.digest not in held and not merged.revoked:
                    await made.add_key(into, own.name, key)
            if merged.revoked and not (isinstance(there, ClientAccount) and there.revoked):
                await made.revoke(into, own.name)


async def _put_back(made: Ledger, plan: MergePlan, watch: Watcher) -> None:
    """Charge the receipts of both that the new lineage does not have yet."""
    into, total = plan.merge.into, sum(part.receipts for part in plan.parts)
    done = (await made.lineage(into)).newest_receipt
    before = 0
    for part in plan.parts:
        after = min(max(done - before, 0), part.receipts)
        async for some in _some_receipts(made, part, after):
            await put_back(made, into, some)
            watch(f"the receipts of {part.lineage}", (before + some[-1].sequence) / total)
        before += part.receipts


async def _some_receipts(ledger: Ledger, part: Part, after: int) -> AsyncIterator[list[Receipt]]:
    async for page in receipt_pages(ledger, part.lineage, part.receipts, after=after):
        for some in batches(page, _RECEIPTS_AT_ONCE):
            yield list(some)


async def _settle(made: Ledger, plan: MergePlan, whole: MergedAccount) -> None:
    """Give each account its budget: above what was settled it is a raise, as is all that the former ones had."""
    into = plan.merge.into
    account, clients, groups, _ = await made.snapshot(into)
    now: dict[str, Account] = {each.subject: each for each in (account, *clients, *groups)}
    for merged, named in _named(plan, whole):
        there = now[merged.of[0].subject]
        if there.highest_limit < merged.highest and merged.budget.limit < merged.highest:
            await made.set_budget(into, replace(merged.budget, limit=merged.highest, refill=None), **named)
            there = replace(there, budget=replace(merged.budget, limit=merged.highest, refill=None))
        if there.budget != merged.budget:
            await made.set_budget(into, merged.budget, **named)
    for name, models in plan.promoted.items():
        for model in () if account.promoted.get(name) == models else reversed(models):
            await made.promote(into, name, model)


async def _check(made: Ledger, plan: MergePlan, whole: MergedAccount, watch: Watcher) -> None:
    """Raise LedgerDamaged unless every account of the new lineage has what the former ones had, by its receipts."""
    into = plan.merge.into
    parts = [(part.lineage, part.receipts) for part in plan.parts]
    for former, receipts in parts:
        account = await made.lineage_or_closed(former)
        if account.merged_into != into:
            raise _refused(f"the lineage {former} was closed for this merge, and is not any more")
        if (newest := account.newest_receipt) != receipts:
            raise LedgerDamaged(into, f"{former} had {receipts} receipts when it was closed, and now {newest}")
    if difference := await difference_from_merged(made, into, parts):
        raise LedgerDamaged(into, difference)
    if findings := (await verify(made, into, watch=watch)).findings:
        raise LedgerDamaged(into, findings[0])
    account, clients, groups, _ = await made.snapshot(into)
    now: dict[str, Account] = {each.subject: each for each in (account, *clients, *groups)}
    for merged, _ in _named(plan, whole):
        there = now[merged.of[0].subject]
        if there.spent != merged.spent:
            raise LedgerDamaged(into, f"{there.title} has spent {there.spent}, and its former ones {merged.spent}")


async def check_abandonable(ledger: Ledger, into: str) -> Merge:
    """Return the merge into a lineage that can be abandoned, or was: it is not done. Changes nothing.

    Raises ActRefused where it is done or there is none, UnknownLineage, and StoreBehind where a journal of this machine
    says that the lineage was charged, which the store does not know.
    """
    account = await ledger.lineage_or_closed(into)
    if not (account.is_unfinished or account.is_abandoned):
        raise _is_merged(into)
    await ledger.check_newest(into)
    first, second = account.merges
    return Merge((first, second), into)


def _is_merged(into: str) -> ActRefused:
    return ActRefused("merge", f"nothing is being merged into the lineage {into}, or no more: it keeps what it spent")


async def abandon_merge(ledger: Ledger, into: str) -> Merge:
    """Give up the merge into a lineage: that is closed for good, and after it the two are open as before; return it.

    It may be said again after whatever ended it. Raises what `check_abandonable` does, having changed nothing.
    """
    merge = await check_abandonable(ledger, into)
    (status,) = await ledger.act(
        into,
        "abandon_merge",
        [],
        {},
        kind=ABANDON,
        subject="lineage",
        details={"merges": list(merge.of)},
    )
    if status == b"is-merged":
        raise _is_merged(into)
    check_done(status, LineageKeys(into).own)
    await ledger.note_abandoned(merge)
    for lineage in merge.of:
        await _reopen(ledger, lineage, merge)
    return merge


async def _reopen(ledger: Ledger, lineage: str, merge: Merge) -> None:
    """Open a lineage that was merged into one that is abandoned, and keep calls of that merge from closing it later."""
    try:
        account = await ledger.lineage_or_closed(lineage)
    except UnknownLineage:  # a call that opens it to close it may be on its way, and is to find one act more than that
        account = await ledger.open_lineage(lineage, NOTHING, time=clock.time())
    if account.merged_into != merge.into:
        if account.closed is not None:  # otherwise, and no call of this merge is about it any more
            return
        acts = await all_acts(ledger, lineage, account.newest_act)
        if any(act.kind == REOPEN and act.details["into"] == merge.into for act in acts):
            return
    (other,) = {*merge.of} - {lineage}
    (status,) = await ledger.act(
        lineage,
        "reopen_lineage",
        [],
        {"into": merge.into},
        kind=REOPEN,
        subject="lineage",
        details={"into": merge.into, "with": other},
    )
    check_done(status, LineageKeys(lineage).own)
