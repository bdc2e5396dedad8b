"""The owner's acts on the accounts of a ledger: who may ask, and for how much.

Every act is written to the lineage's chain of acts, with who did it, when and why. Whoever acts asks for the end of the
chain first, computes the act's hash, and is told if the chain ends elsewhere by then.
"""

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.accounts import in_turn
from dpserve.accounting.ledger.api_keys import ApiKey
from dpserve.accounting.ledger.errors import (
    ActRefusal,
    ActRefused,
    ClientRevoked,
    LedgerBusy,
    LedgerDamaged,
    OtherUnit,
    TooFewDisks,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    WouldBeDone,
)
from dpserve.accounting.ledger.journal import journal_folder, mark_forgotten, read_acknowledged
from dpserve.accounting.ledger.reading import reading
from dpserve.accounting.ledger.receipts import GENESIS, act_hash, checked_text
from dpserve.accounting.ledger.store import Arguments, binary
from dpserve.accounting.ledger.values import (
    Account,
    BlockAccount,
    ClientAccount,
    GroupAccount,
    LineageAccount,
    checked_display,
)
from dpserve.accounting.ledger.wire import AccountKeys, LineageKeys

if TYPE_CHECKING:
    from dpserve.accounting.ledger.ledger import Ledger

_LONGEST_REASON = 1000
_TRIES = 16
"""Largest number of tries of an act, where other acts keep coming before it."""
_LONGEST_PAUSE = 0.01
"""Seconds before a second try of an act, at most; before a third twice as many, and so on."""


@dataclass(kw_only=True)
class Acts:
    """The acts of one person on a ledger's accounts: each says by whom it was done, and why.

    by: 1 to 255 bytes; why: at most 1,000; both printable. after: the number of the newest act that this person knows
    of; after another one, acts are refused with ActRefused. dry: do no act; raise WouldBeDone instead, or what the act
    would raise. Raises ValueError.
    """

    ledger: "Ledger"
    by: str
    why: str = ""
    after: int | None = None
    dry: bool = False
    _short: list[TooFewDisks] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse words that could not be written down, or read."""
        checked_text(self.by, "who acts")
        if not (self.by + self.why).isprintable() or len(self.why.encode()) > _LONGEST_REASON:
            raise ValueError(
                f"who acts, and why, must be text that can be printed, and a reason has at most {_LONGEST_REASON} bytes"
            )

    @contextmanager
    def done_at_primary(self) -> Iterator[list[TooFewDisks]]:
        """Go on in this block once the primary has done an act; give each that too few replicas have on a disk.

        Elsewhere such an act raises TooFewDisks, though it is done: what follows may rely on it.
        """
        self._short = []
        try:
            yield self._short
        finally:
            self._short = None

    async def act(
        self,
        lineage: str,
        function: str,
        keys: Sequence[str],
        arguments: Arguments,
        *,
        kind: str,
        subject: str,
        details: Mapping[str, Any],
        mark: str = "",
    ) -> list[Any]:
        """Call a function that writes an act, with its hash, and return its reply. Raises LedgerBusy.

        Acts of this process wait for each other; one of another process may come between, and then this is tried again
        after a moment that is random, so that not all who lost do so at once.

        A dry run calls it, too, as if after an act that there never was: the function finds that out last of all, once
        it has nothing else to refuse, and before it writes.
        """
        own = LineageKeys(lineage)
        detail = msgspec.json.encode(details).decode()
        async with in_turn(self.ledger.turns_of_acts, lineage, self.ledger.store.deadline):
            for tries in range(_TRIES):
                if tries:
                    await asyncio.sleep(_LONGEST_PAUSE * tries * secrets.randbelow(1000) / 1000)
                end = self.ledger.call(lineage, "end_of_acts", [own.account], {}, durably=False, mark=mark)
                count, newest, now = await end
                with reading(lineage):
                    number, time = int(count) + 1, now.decode()
                if self.after is not None and int(count) != self.after:
                    raise act_refused("act-between")
                words = {"kind": kind, "subject": subject, "detail": detail, "by": self.by, "why": self.why}
                words["time"] = time
                hash_ = act_hash(newest or GENESIS, number, *words.values())
                act = words | {"known": "none" if self.dry else count.decode(), "hash": binary(hash_)}
                named, durably = [own.account, own.acts, *keys], not self.dry
                try:
                    reply = await self.ledger.call(
                        lineage, function, named, {"act": act, **arguments}, durably=durably, mark=mark
                    )
                except TooFewDisks as short:
                    if self._short is None:
                        raise
                    self._short.append(short)
                    reply = short.reply
                if self.dry and reply == [b"stale"]:
                    raise WouldBeDone
                if reply != [b"stale"]:
                    if self.after is not None:
                        self.after = number  # this person's own: what follows it is no surprise
                    return reply
        raise LedgerBusy

    async def note(self, lineage: str, kind: str, details: Mapping[str, Any]) -> None:
        """Write an act that changes nothing in the store, as an export. Raises UnknownLineage."""
        (status,) = await self.act(lineage, "note", [], {}, kind=kind, subject="lineage", details=details)
        check_done(status, LineageKeys(lineage).own)

    async def _change(
        self,
        account: AccountKeys[Account],
        function: str,
        kind: str,
        details: Mapping[str, Any],
        arguments: Arguments,
        keys: Sequence[str] = (),
    ) -> None:
        """Do an act about one account by a function that takes these keys, or that of the account alone."""
        (status,) = await self.act(
            account.lineage,
            function,
            keys or [account.account],
            {"id": account.id, **arguments},
            kind=kind,
            subject=account.subject,
            details=details,
        )
        if status == b"unknown-lineage":
            whole = LineageKeys(account.lineage).own
            await self.ledger.check_unused(whole)
            raise whole.unknown
        check_done(status, account, details.get("group", ""))

    async def open_lineage(self, lineage: str, budget: Budget, *, time: float) -> LineageAccount:
        """Return the lineage's account, having opened it with `budget` if it did not exist.

        An account that exists is left as it is, whatever its budget. `time` is in seconds since the epoch.
        """
        await self.ledger.list_lineage(lineage)
        terms = wire.budget_arguments(budget)
        await self.act(
            lineage,
            "open_lineage",
            LineageKeys(lineage).contents[1:],
            {"budget": terms, "created": repr(time)},
            kind="open",
            subject="lineage",
            details=terms,
        )
        return await self.ledger.lineage(lineage)

    async def forget_lineage(self, lineage: str, *, time: float) -> None:
        """Refuse this name for good, in this store and by the journals of this machine: a mistake that charged nothing.

        Whether the store knew of it or not, nobody can open, restore or charge a lineage of this name again. It may be
        said again, as after a crash. time: seconds since the epoch.

        Raises ActRefused where it has charged anything, or a journal of this machine says so of another store.
        """
        folder, account = self.ledger.journals_folder, None
        with suppress(UnknownLineage):
            account = await self.ledger.lineage_or_forgotten(lineage)
        journals = [] if folder is None else await asyncio.to_thread(read_acknowledged, journal_folder(folder, lineage))
        if not (account and account.newest_receipt) and any(journal.writes for journal in journals):
            raise ActRefused("has-charged", _HAS_CHARGED.format(lineage))
        if account is None:  # it has an account first, which pays for nothing
            account = await self.open_lineage(lineage, NOTHING, time=time)
        if not account.is_forgotten:
            keys = LineageKeys(lineage)
            (status,) = await self.act(
                lineage,
                "forget_lineage",
                [keys.receipts, keys.questions],
                {},
                kind="forget",
                subject="lineage",
                details={},
            )
            check_done(status, keys.own)
        if folder is not None:
            # A backup from before would bring the lineage back, without what the store says of it now.
            await asyncio.to_thread(mark_forgotten, folder, lineage)

    async def settle_unit(self, lineage: str, unit: str) -> None:
        """Have the lineage protect this privacy unit, that of its first model; call it before a model is charged to it.

        unit: the name of the units' column, or empty for one record. What was charged before any model named a unit is
        taken for a model of records. Raises OtherUnit for another unit than the lineage's, UnitLost where it may have
        been lost, as the lineage was reconciled, and UnknownLineage, having changed nothing.
        """
        if await self.ledger.check_unit(lineage, unit) is None:
            await self.write_unit(lineage, unit, lost=False)
        self.ledger.note_unit(lineage, unit)

    async def restore_unit(self, lineage: str, unit: str) -> None:
        """Settle the unit that a restored store lost, by what a journal or the owner says. Raises OtherUnit."""
        if (await self.ledger.lineage(lineage)).unit != unit:
            await self.write_unit(lineage, unit, lost=True)

    async def write_unit(self, lineage: str, unit: str, *, lost: bool, mark: str = "") -> None:
        """Write the lineage's privacy unit, which may have been lost. Raises OtherUnit. mark: of `Store.call`."""
        status, *fields = await self.act(
            lineage,
            "settle_unit",
            [],
            {"unit": unit, "lost": lost},
            kind="unit",
            subject="lineage",
            details={"unit": unit},
            mark=mark,
        )
        if status == b"other-unit":
            raise OtherUnit(lineage, fields[0].decode(), unit)
        check_done(status, LineageKeys(lineage).own)

    async def set_budget(
        self, lineage: str, budget: Budget, *, client: str = "", group: str = "", block: str = ""
    ) -> None:
        """Replace the budget of a client, of a group, of a block, or else of the lineage; what is spent stays spent.

        A budget below what is spent refuses further releases and nothing else. Raises UnknownClient, UnknownGroup,
        UnknownBlock or UnknownLineage; ActRefused for a block that would count in another currency than the others, if
        an account that accepted any charge would, after its first release, accept only Gaussian ones, which would
        choose the conversion by looking at what was charged, or if the new delta provides for fewer coins, or for less
        of the noise sampler's error, than it paid for.
        """
        keys = LineageKeys(lineage)
        own: AccountKeys[Account] = keys.own
        if client or group or block:
            own = keys.client(client) if client else keys.group(group) if group else keys.block(block)
        _check_delta(await self.ledger.read_account(own), budget)
        terms = wire.budget_arguments(budget)
        await self._change(own, "set_budget", "budget", terms, {"budget": terms})

    async def add_client(
        self,
        lineage: str,
        client: str,
        budget: Budget,
        key: ApiKey | bytes,
        *,
        time: float,
        group: str = "",
        display: str = "",
    ) -> ClientAccount:
        """Open a client's account with its first API key, or the `key_digest` of one that is good for all and for ever.

        time: seconds since the epoch. group: what it belongs to, if to any. display: how the owner calls it.

        Raises UnknownLineage, UnknownGroup, and ActRefused if there is a client of this name or the key is another
        client's.
        """
        first = key if isinstance(key, ApiKey) else ApiKey(key)
        details = {"group": group, **_charge_act_fields(first)}
        more = {"group": group, "key": wire.key_arguments(first)}
        await self._add(LineageKeys(lineage).client(client), budget, time, display, details, more)
        return await self.ledger.client(lineage, client)

    async def add_group(
        self, lineage: str, group: str, budget: Budget, *, time: float, display: str = ""
    ) -> GroupAccount:
        """Open a group's account: what its members together may learn. Raises as `add_client` does."""
        await self._add(LineageKeys(lineage).group(group), budget, time, display, {}, {"group": ""})
        return await self.ledger.group(lineage, group)

    async def open_block(self, lineage: str, block: str, budget: Budget, *, time: float) -> BlockAccount:
        """Return a block's account, having opened it with `budget` if the lineage did not have it.

        A block that exists is left as it is, whatever its budget. time: seconds since the epoch.

        Raises UnknownLineage, and ActRefused for a budget in another currency than the lineage's.
        """
        try:
            await self._add(LineageKeys(lineage).block(block), budget, time, "", {}, {"group": ""})
        except ActRefused as refused:
            if refused.reason != "exists":
                raise
        return await self.ledger.block(lineage, block)

    async def _add(
        self,
        own: AccountKeys[Account],
        budget: Budget,
        time: float,
        display: str,
        details: Mapping[str, Any],
        more: Arguments,
    ) -> None:
        keys, scope = LineageKeys(own.lineage), own.kind.scope
        stated, named = wire.budget_arguments(budget), {"display": checked_display(display)}
        opened = {"scope": scope, "name": own.name, "budget": stated, "created": repr(time), **named, **more}
        account_keys = [keys.clients, keys.groups, keys.blocks, keys.api_keys, own.account, *own.contents]
        await self._change(own, "add_account", f"add-{scope}", {**stated, **named, **details}, opened, account_keys)

    async def rename(self, lineage: str, client: str, display: str) -> None:
        """Change how the owner calls a client; its id stays. Raises UnknownClient."""
        await self._describe(lineage, client, "rename", {"display": checked_display(display)})

    async def set_group(self, lineage: str, client: str, group: str) -> None:
        """Put a client into a group, or with an empty name into none.

        What the members of a group know together is what the group has paid for. So ActRefused is raised for a client
        that has asked anything: it stays where it was, or begins anew under another name. Raises UnknownClient,
        UnknownGroup.
        """
        await self._describe(lineage, client, "group", {"group": group})

    async def _describe(self, lineage: str, client: str, kind: str, details: Mapping[str, str]) -> None:
        keys = LineageKeys(lineage)
        own = keys.client(client)
        await self._change(own, "describe", kind, details, details, [keys.groups, own.account])

    async def revoke(self, lineage: str, client: str) -> None:
        """Refuse this client from now on, the questions that it paid for included.

        Raises UnknownClient; LedgerDamaged, having revoked the client, if the act cannot be written.
        """
        keys = LineageKeys(lineage)
        own = keys.client(client)
        if self.dry:  # the function takes the right away before it looks at anything else
            await self.ledger.client(lineage, client)
            await self.note(lineage, "revoke", {})
        subject, named = own.subject, {"id": own.id}
        try:
            status, *failure = await self.act(
                lineage, "revoke", [own.account], named, kind="revoke", subject=subject, details={}
            )
        except LedgerDamaged as error:  # the act cannot be numbered, and must not keep the right alive
            words = dict.fromkeys(("known", "detail", "by", "why", "time"), "")
            act = words | {"kind": "revoke", "subject": subject, "hash": binary(bytes(32))}
            keys_of_it = [keys.account, keys.acts, own.account]
            await self.ledger.call(lineage, "revoke", keys_of_it, {"act": act, **named}, durably=True)
            status, failure = b"", [error.what.encode()]
        if status == b"unknown":
            raise UnknownClient(client)
        if failure:
            why = failure[0].decode(errors="replace")
            raise LedgerDamaged(lineage, f"{client} is revoked now, but the record of this could not be written: {why}")

    async def rotate_key(
        self, lineage: str, client: str, key: ApiKey | bytes, *, replaced: bytes | None = None, overlap: int = 0
    ) -> None:
        """Give a client another API key; the former ones are unknown from now on, or after `overlap` seconds.

        key: or the `key_digest` of one that is good for all and for ever. replaced: the digest of the one key that
        ends, if not all of them do. Raises UnknownClient, ClientRevoked, UnknownKey if `replaced` is none of the
        client's, and ActRefused if the new key is known already.
        """
        new = key if isinstance(key, ApiKey) else ApiKey(key)
        await self._change_keys(lineage, client, "rotate-key", new, "all" if replaced is None else replaced, overlap)

    async def add_key(self, lineage: str, client: str, key: ApiKey) -> None:
        """Give a client a further API key. Raises UnknownClient, ClientRevoked and ActRefused."""
        await self._change_keys(lineage, client, "add-key", key, "none", 0)

    async def remove_key(self, lineage: str, client: str, digest: bytes) -> None:
        """Take one API key away from a client, at once. Raises UnknownClient, ClientRevoked and UnknownKey."""
        await self._change_keys(lineage, client, "remove-key", None, digest, 0)

    async def _change_keys(
        self, lineage: str, client: str, kind: str, new: ApiKey | None, ending: str | bytes, seconds: int
    ) -> None:
        keys = LineageKeys(lineage)
        own = keys.client(client)
        which = ending if isinstance(ending, str) else ending[:6].hex()
        named: dict[str, Any] = {
            "name": client,
            "ending": ending if isinstance(ending, str) else binary(ending),
            "seconds": seconds,
        }
        details: dict[str, Any] = {"ends": which, "after_seconds": seconds}
        if new is not None:
            named["key"] = wire.key_arguments(new)
            details |= _charge_act_fields(new)
        await self._change(own, "change_keys", kind, details, named, [keys.api_keys, own.account])


NOTHING = Budget(0, "any", 1e-9)
"""The budget of a lineage that is opened to be forgotten, or to be told that it is not to be."""

_HAS_CHARGED = (
    "a journal of this machine says that a service charged the lineage {}, in this store or in another one: what was "
    "learnt stays learnt"
)

_REFUSALS: Mapping[ActRefusal, str] = {
    "act-between": "something else was done since this was prepared: look at the accounts again",
    "exists": "the lineage already has a client or group of this name, and a name is not given again once it is "
    "revoked",
    "has-asked": "the client has asked as a member of its group, or of none, and stays there: what the members of a "
    "group know together is what the group has paid for; add the client under another name",
    "has-charged": "the lineage has charged somebody: what was learnt stays learnt, and its account stays with it",
    "key-in-use": "this API key is another client's",
    "too-many-keys": "the client has the most API keys that are allowed: remove one first",
    "too-late": "the account has paid for releases, so it can neither be narrowed to Gaussian or proven ones nor "
    "count in another currency: what it accepts, and so what its figures mean, is chosen before the first release",
    "other-currency": "all blocks of a lineage count rho, or all count pure epsilon: give it such a budget",
    "coins": "the account has paid for more releases that are Gaussian except with a small probability than this "
    "budget's delta provides for; give it a larger delta",
}


def _charge_act_fields(key: ApiKey) -> dict[str, str]:
    """Return what an act says of a key that it gives."""
    expires, scopes = key.terms
    return {"key": key.id, "expires": expires, "scopes": scopes}


def _check_delta(account: Account, budget: Budget) -> None:
    """Raise ActRefused if no bound could be stated at the budget's delta of what the account was charged."""
    charged = max(account.spent, account.highest_limit if account.spent else 0)
    try:
        replace(budget, limit=max(budget.limit, charged))
    except ValueError as error:
        text = f"the account was charged within a larger budget, and keeps its bound: {error}"
        raise ActRefused("delta", text) from error


def check_done(status: bytes, keys: AccountKeys[Account], group: str = "") -> None:
    """Raise for an act about an account that was not done. group: which it was to belong to."""
    match status:
        case b"unknown":
            raise keys.unknown
        case b"unknown-group":
            raise UnknownGroup(group)
        case b"unknown-key":
            raise UnknownKey
        case b"revoked":
            raise ClientRevoked(keys.name)
    if status.decode() in _REFUSALS:
        raise act_refused(cast(ActRefusal, status.decode()))


def act_refused(reason: ActRefusal) -> ActRefused:
    """Return the refusal of an act for a reason that has one line of text."""
    return ActRefused(reason, _REFUSALS[reason])
