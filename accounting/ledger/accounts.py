"""The accounts of the ledger: who may ask, for how much, and what the owner changed.

Every act of the owner is written to the lineage's chain of acts, with who did it, when and why (`acting`). Whoever acts
asks for the end of the chain first, computes the act's hash, and is told if the chain ends elsewhere by then.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import msgspec

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.api_keys import ApiKey, KeyScope
from dpserve.accounting.ledger.errors import (
    ActRefusal,
    ActRefused,
    ClientRevoked,
    KeyExpired,
    LedgerBusy,
    LedgerDamaged,
    LedgerRefusal,
    LineageForgotten,
    OtherUnit,
    ScopeMissing,
    StoreBehind,
    UnitLost,
    UnknownClient,
    UnknownGroup,
    UnknownKey,
    UnknownLineage,
    WouldBeDone,
)
from dpserve.accounting.ledger.journal import (
    Acknowledged,
    Journal,
    Witness,
    is_forgotten,
    journal_folder,
    mark_forgotten,
    read_acknowledged,
)
from dpserve.accounting.ledger.receipts import (
    GENESIS,
    Act,
    Numbers,
    Receipt,
    act_hash,
    checked_text,
    paying,
    read_act,
    read_receipt,
)
from dpserve.accounting.ledger.store import OWNER, Arguments, Asker, Store, binary
from dpserve.accounting.ledger.values import (
    Account,
    BlockAccount,
    ClientAccount,
    GroupAccount,
    LineageAccount,
    checked_display,
)
from dpserve.accounting.ledger.wire import AccountKeys, Fields, Kind, LineageKeys

_MOST_NAMED = 10_000
"""Number of API keys whose clients are remembered, so that one call can read both."""

_LONGEST_REASON = 1000

_LINEAGES_AT_ONCE = 64
_TRIES = 16
"""Largest number of tries of an act, where other acts keep coming before it."""
_LONGEST_PAUSE = 0.01
"""Seconds before a second try of an act, at most; before a third twice as many, and so on."""


@asynccontextmanager
async def in_turn(turns: dict[str, asyncio.Lock], lineage: str, deadline: float) -> AsyncIterator[None]:
    """Wait until the calls of this process for a lineage that came before are done. Raises LedgerBusy at the deadline.

    turns: a lock for each lineage; made here. deadline: seconds.
    """
    turn = turns.setdefault(lineage, asyncio.Lock())
    try:
        async with asyncio.timeout(deadline):
            await turn.acquire()
    except TimeoutError as error:
        raise LedgerBusy from error
    try:
        yield
    finally:
        turn.release()


@contextmanager
def reading(lineage: str) -> Iterator[None]:
    """Raise LedgerDamaged for what cannot be read of the lineage."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(lineage, error) from error


UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""The errors that reading a damaged value raises."""


def unreadable(lineage: str, error: Exception) -> LedgerDamaged:
    """Return what to raise for what cannot be read of the lineage."""
    return LedgerDamaged(lineage, f"what the store holds cannot be read: {error!r}")


@dataclass(frozen=True)
class AccountFields:
    """The fields of all accounts of a lineage, as they were at one instant: of clients, groups and blocks by name."""

    lineage: Fields
    clients: dict[str, Fields]
    groups: dict[str, Fields]
    others: list[Fields]
    blocks: dict[str, Fields]


class Payers(NamedTuple):
    """The accounts that pay for what a client asks of a model: its own, and its group's and the blocks'."""

    client: ClientAccount
    shared: list[GroupAccount | LineageAccount | BlockAccount]
    lineage: LineageAccount


class Accounts:
    """The accounts in a store. `Ledger` adds what spends from them."""

    def __init__(self, store: Store, journals: Path | None = None) -> None:
        """Use `store`, which was verified. `journals`: the folder of this service's journals, if it is one."""
        self.store = store
        self.store.compare = self._compare
        self._journals_folder = journals
        self._witnesses: dict[str, Witness] = {}
        self.clients_by_key: dict[tuple[str, bytes], str] = {}
        """The client that had an API key when `authenticate` last found it, by lineage and the key's digest.

        It says to whom a request is to be charged whose `key_digest` is then checked with the charge.
        """
        self._groups: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, tuple[str, Numbers]] = {}
        self._units: dict[str, str] = {}
        self._acts: dict[str, asyncio.Lock] = {}
        self._by, self._why = "", ""
        self._after: int | None = None
        self._dry = False

    def acting(self, by: str, why: str = "", *, after: int | None = None, dry: bool = False) -> Self:
        """Return this ledger for what one person does: acts say by whom, and why.

        by: 1 to 255 bytes; why: at most 1,000; both printable. after: the number of the newest act that this person
        knows of; after another one, acts are refused with ActRefused. dry: do no act; raise WouldBeDone instead, or
        what the act would raise. Raises ValueError.
        """
        checked_text(by, "who acts")
        if not (by + why).isprintable() or len(why.encode()) > _LONGEST_REASON:
            raise ValueError(
                f"who acts, and why, must be text that can be printed, and a reason has at most {_LONGEST_REASON} bytes"
            )
        other = copy(self)
        other._by, other._why, other._after, other._dry = by, why, after, dry
        return other

    @property
    def rehearsal(self) -> bool:
        """Whether the store may lose what it acknowledged."""
        return self.store.rehearsal

    async def join(self, lineage: str) -> None:
        """Take up this service's journal of the lineage: from now on a store that is older is not believed.

        Raises StoreBehind if the store is older than any journal of the lineage in the folder says, LineageForgotten if
        it was forgotten here, whatever the store says, and LedgerUnavailable if the journal cannot be written. Without
        a folder of journals nothing is checked.
        """
        if self._journals_folder is None:
            return
        if is_forgotten(self._journals_folder, lineage):
            raise LineageForgotten(lineage)
        if isinstance(self._witnesses.get(lineage), Journal):
            return
        self._witnesses[lineage] = await asyncio.to_thread(Journal.open, self._journals_folder, lineage)
        self.store.forget(lineage)
        await self._read_fields(lineage)

    async def _compare(self, lineage: str, mark: str) -> None:
        """Raise StoreBehind if the store is older than any journal of a lineage that this service has joined says.

        A store that comes back may lack what it acknowledged to another service of this machine alone. It may also lack
        the lineage's privacy unit, which is settled again; raises LedgerDamaged if it is another by now.
        """
        units = set[str | None]()
        if self._journals_folder is not None and isinstance(self._witnesses.get(lineage), Journal):
            folder = journal_folder(self._journals_folder, lineage)
            services = [LineageKeys(lineage).services]
            journals = await asyncio.to_thread(read_acknowledged, folder)
            for journal in journals:
                await self.store.call(
                    lineage, "read", services, {}, asker=(journal.service, journal.writes), durably=False, mark=mark
                )
            units = {journal.charged_unit for journal in journals}
        for unit in units | {self._units.get(lineage)}:
            if unit is not None:
                await self._compare_unit(lineage, unit, mark)

    async def _compare_unit(self, lineage: str, unit: str, mark: str) -> None:
        keys, asker = LineageKeys(lineage), self._asker(lineage)
        named = [keys.services, keys.account]
        (fields,), _ = await self.store.call(lineage, "read", named, {}, asker=asker, durably=False, mark=mark)
        if isinstance(fields, bytes) or not fields or wire.fields_of(fields).get(b"unit") == unit.encode():
            return  # whoever is answered finds out what else is damaged, or lost
        try:
            await self._settle_unit(lineage, unit, lost=True, mark=mark)
        except OtherUnit as error:
            raise LedgerDamaged(lineage, f"its privacy unit was changed: {error}") from error

    async def check(self, lineage: str) -> LineageAccount:
        """Return the lineage's account, if it can be charged now: what a service is ready for.

        Raises LedgerUnavailable if the store cannot be called or the journal not be written, and UnknownLineage.
        """
        self.witness(lineage).check()
        return await self.lineage(lineage)

    async def services_behind(self, lineage: str, journals: Iterable[Acknowledged]) -> int:
        """Return of how many of these services the store has fewer writes than it acknowledged."""
        behind = 0
        for journal in journals:
            try:
                await self._read_fields(lineage, asker=(journal.service, journal.writes))
            except StoreBehind:
                behind += 1
        return behind

    async def close(self) -> None:
        """Close every connection and journal."""
        await self.store.close()
        for witness in self._witnesses.values():
            await asyncio.to_thread(witness.close)

    def witness(self, lineage: str) -> Witness:
        """Return what this service knows of its own chain: of one that keeps no journal, until it ends."""
        if lineage not in self._witnesses:
            self._witnesses[lineage] = Witness.fresh(lineage)
        return self._witnesses[lineage]

    def _asker(self, lineage: str) -> Asker:
        witness = self._witnesses.get(lineage)
        return OWNER if witness is None else (witness.known.service, witness.known.writes)

    async def call(
        self, lineage: str, function: str, keys: Sequence[str], arguments: Arguments, *, durably: bool, mark: str = ""
    ) -> list[Any]:
        """Call a function of the library on a lineage, as this service, and return its reply. mark: of `Store.call`."""
        named, sent = [wire.services_key(lineage), *keys], arguments
        asker = self._asker(lineage)
        return (await self.store.call(lineage, function, named, sent, asker=asker, durably=durably, mark=mark))[0]

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
        async with in_turn(self._acts, lineage, self.store.deadline):
            for tries in range(_TRIES):
                if tries:
                    await asyncio.sleep(_LONGEST_PAUSE * tries * secrets.randbelow(1000) / 1000)
                end = self.call(lineage, "end_of_acts", [own.account], {}, durably=False, mark=mark)
                count, newest, now = await end
                with reading(lineage):
                    number, time = int(count) + 1, now.decode()
                if self._after is not None and int(count) != self._after:
                    raise act_refused("act-between")
                words = {"kind": kind, "subject": subject, "detail": detail, "by": self._by, "why": self._why}
                words["time"] = time
                hash_ = act_hash(newest or GENESIS, number, *words.values())
                act = words | {"known": "none" if self._dry else count.decode(), "hash": binary(hash_)}
                named, durably = [own.account, own.acts, *keys], not self._dry
                reply = await self.call(lineage, function, named, {"act": act, **arguments}, durably=durably, mark=mark)
                if self._dry and reply == [b"stale"]:
                    raise WouldBeDone
                if reply != [b"stale"]:
                    if self._after is not None:
                        self._after = number  # this person's own: what follows it is no surprise
                    return reply
        raise LedgerBusy

    async def note(self, lineage: str, kind: str, details: Mapping[str, Any]) -> None:
        """Write an act that changes nothing in the store, as an export. Raises UnknownLineage."""
        (status,) = await self.act(lineage, "note", [], {}, kind=kind, subject="lineage", details=details)
        check_done(status, LineageKeys(lineage).own)

    async def _read_fields(self, lineage: str, *keys: str, asker: Asker | None = None) -> list[Fields]:
        """Return the fields of each key, or raise LedgerDamaged for one that is no hash."""
        named = [LineageKeys(lineage).services, *keys]
        asker = asker or self._asker(lineage)
        values, _ = await self.store.call(lineage, "read", named, {}, asker=asker, durably=False)
        for value in values:
            if isinstance(value, bytes):
                raise LedgerDamaged(lineage, value.decode())
        return [wire.fields_of(value) for value in values]

    async def key_types(self, lineage: str, keys: Sequence[str]) -> list[str]:
        """Return the type of each key of the lineage, `none` where there is none; with a stream's newest number."""
        return [kind.decode() for kind in await self.call(lineage, "types", keys, {}, durably=False)]

    async def _account(self, keys: AccountKeys[Kind], fields: Fields, *, listed: bool = False) -> Kind:
        """Read an account; one that is `listed` somewhere is lost if there is none.

        Raises UnknownLineage, UnknownGroup or UnknownClient.
        """
        with reading(keys.lineage):
            account = wire.read_account(keys, fields)
        if account is None:
            if not listed:
                await self._check_unused(keys)
            raise LedgerDamaged(keys.lineage, f"{keys.title} is lost") if listed else keys.unknown
        return account

    async def _read_account(self, keys: AccountKeys[Kind]) -> Kind:
        (fields,) = await self._read_fields(keys.lineage, keys.account)
        return await self._account(keys, fields)

    async def _check_unused(self, keys: AccountKeys[Account]) -> None:
        """Raise LedgerDamaged if an account is missing whose other keys are there: then it was lost."""
        if any(kind != "none" for kind in await self.key_types(keys.lineage, keys.contents)):
            raise LedgerDamaged(keys.lineage, f"{keys.title} is lost")

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
            await self._check_unused(whole)
            raise whole.unknown
        check_done(status, account, details.get("group", ""))

    # Lineages

    async def open_lineage(self, lineage: str, budget: Budget, *, time: float) -> LineageAccount:
        """Return the lineage's account, having opened it with `budget` if it did not exist.

        An account that exists is left as it is, whatever its budget. `time` is in seconds since the epoch.
        """
        await self.list_lineage(lineage)
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
        return await self.lineage(lineage)

    async def forget_lineage(self, lineage: str, *, time: float) -> None:
        """Refuse this name for good, in this store and by the journals of this machine: a mistake that charged nothing.

        Whether the store knew of it or not, nobody can open, restore or charge a lineage of this name again. It may be
        said again, as after a crash. time: seconds since the epoch.

        Raises ActRefused where it has charged anything, or a journal of this machine says so of another store.
        """
        folder, account = self._journals_folder, None
        with suppress(UnknownLineage):
            account = await self.lineage_or_forgotten(lineage)
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
        if await self.check_unit(lineage, unit) is None:
            await self._settle_unit(lineage, unit, lost=False)
        self._units[lineage] = unit
        if (witness := self._witnesses.get(lineage)) is not None:  # before anything is charged under it
            witness.settle(unit)

    async def check_unit(self, lineage: str, unit: str) -> str | None:
        """Return the lineage's privacy unit, None before its first model. Raises what `settle_unit` would raise."""
        account = await self.lineage(lineage)
        if account.unit is None and account.newest_receipt and await self.is_reconciled(lineage):
            raise UnitLost(lineage)
        if account.unit is not None and account.unit != unit:
            raise OtherUnit(lineage, account.unit, unit)
        return account.unit

    async def restore_unit(self, lineage: str, unit: str) -> None:
        """Settle the unit that a restored store lost, by what a journal or the owner says. Raises OtherUnit."""
        if (await self.lineage(lineage)).unit != unit:
            await self._settle_unit(lineage, unit, lost=True)

    async def _settle_unit(self, lineage: str, unit: str, *, lost: bool, mark: str = "") -> None:
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

    async def is_reconciled(self, lineage: str) -> bool:
        """Return whether receipts may have been put back, and its privacy unit been lost."""
        after = 0
        while page := await self.acts(lineage, after=after):
            if any(act.kind == "reconcile" for act in page):
                return True
            after = page[-1].sequence
        return False

    async def list_lineage(self, lineage: str) -> None:
        """Let the store's list of lineages name this one."""
        LineageKeys(lineage)
        await self.store.command(wire.LINEAGES, "SADD", wire.LINEAGES, lineage, durably=True)

    async def lineage(self, lineage: str) -> LineageAccount:
        """Return the lineage's account. Raises UnknownLineage, and LineageForgotten."""
        return _open(await self.lineage_or_forgotten(lineage))

    async def lineage_or_forgotten(self, lineage: str) -> LineageAccount:
        """Return the lineage's account, also of one that was forgotten. Raises UnknownLineage."""
        return await self._read_account(LineageKeys(lineage).own)

    async def lineages(self) -> list[LineageAccount]:
        """Return every lineage's account, by name, but of those that were forgotten."""
        names = await self.lineage_names()
        accounts: list[LineageAccount | BaseException] = []
        for start in range(0, len(names), _LINEAGES_AT_ONCE):  # each with the store's deadline, which waiting counts in
            some = map(self.lineage_or_forgotten, names[start : start + _LINEAGES_AT_ONCE])
            accounts += await asyncio.gather(*some, return_exceptions=True)
        for error in accounts:
            # Listed, but the call that would have opened it did not arrive: it is no lineage yet.
            if isinstance(error, BaseException) and not isinstance(error, UnknownLineage):
                raise error
        return [account for account in accounts if isinstance(account, LineageAccount) and not account.is_forgotten]

    async def lineage_names(self) -> list[str]:
        """Return the names of the lineages that the store lists: some may be damaged, closed, or not opened yet."""
        listed = await self.store.command(wire.LINEAGES, "SMEMBERS", wire.LINEAGES)
        with reading(wire.LINEAGES):
            return sorted(name.decode() for name in listed)

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
        _check_delta(await self._read_account(own), budget)
        terms = wire.budget_arguments(budget)
        await self._change(own, "set_budget", "budget", terms, {"budget": terms})

    async def snapshot(
        self, lineage: str
    ) -> tuple[LineageAccount, list[ClientAccount], list[GroupAccount], list[BlockAccount]]:
        """Return the accounts of a lineage and of its clients, groups and blocks, by name, as they were at one instant.

        Of one that was forgotten, too. Raises UnknownLineage.
        """
        fields = await self.read_accounts(lineage)
        keys = LineageKeys(lineage)
        account = await self._account(keys.own, fields.lineage)
        clients = [await self._account(keys.client(name), each, listed=True) for name, each in fields.clients.items()]
        groups = [await self._account(keys.group(name), each, listed=True) for name, each in fields.groups.items()]
        blocks = [await self._account(keys.block(name), each, listed=True) for name, each in fields.blocks.items()]
        return account, clients, groups, blocks

    async def read_accounts(self, lineage: str, *keys: str) -> "AccountFields":
        """Return the fields of every account of a lineage, and of further keys of it, of one instant."""
        own = LineageKeys(lineage)
        listed = await self._names(lineage)
        while True:
            clients, groups, blocks = listed
            accounts = [own.client(name).account for name in clients] + [own.group(name).account for name in groups]
            accounts += [own.block(name).account for name in blocks]
            fields = await self._read_fields(lineage, own.account, *keys, *accounts)
            before, listed = listed, await self._names(lineage)
            if before == listed:  # or else one that was added meanwhile is named in receipts and not here
                break
        others, rest = fields[1 : len(keys) + 1], iter(fields[len(keys) + 1 :])
        of_clients = {name: next(rest) for name in clients}
        of_groups = {name: next(rest) for name in groups}
        return AccountFields(fields[0], of_clients, of_groups, others, {name: next(rest) for name in blocks})

    async def _names(self, lineage: str) -> tuple[list[str], list[str], list[str]]:
        """Return the names of the lineage's clients, of its groups and of its blocks."""
        keys = LineageKeys(lineage)
        fields = await self._read_fields(lineage, keys.clients, keys.groups, keys.blocks)
        with reading(lineage):
            clients, groups, blocks = (sorted(name.decode() for name in numbers) for numbers in fields)
        return clients, groups, blocks

    async def numbers(self, lineage: str) -> Numbers:
        """Return what the numbers in the lineage's receipts stand for, as the store has it now."""
        keys = LineageKeys(lineage)
        fields = await self._read_fields(lineage, keys.terms, keys.clients, keys.groups, keys.services)
        with reading(lineage):
            numbers = wire.read_numbers(*fields)
        self._numbers[lineage] = self.store.mark(lineage), numbers
        return numbers

    async def scan(self, lineage: str, key: str) -> dict[bytes, bytes]:
        """Return the fields of a hash of the lineage, which may be large; of a set its members, with nothing."""
        entries: dict[bytes, bytes] = {}
        async for some in self.scan_pages(lineage, key):
            entries |= some
        return entries

    async def scan_pages(self, lineage: str, key: str) -> AsyncIterator[dict[bytes, bytes]]:
        """Yield what `scan` returns in parts of bounded size; the same field may come more than once."""
        cursor = b"0"
        while True:
            cursor, some = await self.call(lineage, "scan", [key], {"cursor": cursor.decode()}, durably=False)
            yield wire.fields_of(some)
            if cursor == b"0":
                return

    async def acts(self, lineage: str, *, after: int = 0, count: int = 1000) -> list[Act]:
        """Return at most `count` acts of a lineage with a sequence number above `after`, oldest first."""
        page = {"after": after, "count": count}
        entries = await self.call(lineage, "page", [LineageKeys(lineage).acts], page, durably=False)
        with reading(lineage):
            return [read_act(entry) for entry in entries]

    # Clients and groups

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
        return await self.client(lineage, client)

    async def add_group(
        self, lineage: str, group: str, budget: Budget, *, time: float, display: str = ""
    ) -> GroupAccount:
        """Open a group's account: what its members together may learn. Raises as `add_client` does."""
        await self._add(LineageKeys(lineage).group(group), budget, time, display, {}, {"group": ""})
        return await self.group(lineage, group)

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
        return await self.block(lineage, block)

    async def block(self, lineage: str, block: str) -> BlockAccount:
        """Return a block's account. Raises UnknownBlock."""
        return await self._read_account(LineageKeys(lineage).block(block))

    async def blocks(self, lineage: str, names: Sequence[str] | None = None) -> list[BlockAccount]:
        """Return the lineage's named blocks, at one instant; or those of these names. Raises UnknownBlock."""
        if names is None:
            return (await self._read_blocks(lineage))[1]
        keys = [LineageKeys(lineage).block(name) for name in names]
        fields = await self._read_fields(lineage, *(key.account for key in keys))
        return [await self._account(key, each) for key, each in zip(keys, fields, strict=True)]

    async def all_blocks(self, lineage: str) -> list[LineageAccount | BlockAccount]:
        """Return the accounts of all blocks of a lineage, at one instant: first the one without a name.

        Raises UnknownLineage, and LineageForgotten.
        """
        whole, blocks = await self._read_blocks(lineage)
        return [_open(whole), *blocks]

    async def _read_blocks(self, lineage: str) -> tuple[LineageAccount, list[BlockAccount]]:
        own = LineageKeys(lineage)
        (listed,) = await self._read_fields(lineage, own.blocks)
        with reading(lineage):
            keys = [own.block(name) for name in sorted(name.decode() for name in listed)]
        whole, *fields = await self._read_fields(lineage, own.account, *(key.account for key in keys))
        blocks = [await self._account(key, each, listed=True) for key, each in zip(keys, fields, strict=True)]
        return await self._account(own.own, whole), blocks

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

    async def client(self, lineage: str, client: str) -> ClientAccount:
        """Return a client's account. Raises UnknownClient."""
        return await self._read_account(LineageKeys(lineage).client(client))

    async def group(self, lineage: str, group: str) -> GroupAccount:
        """Return a group's account. Raises UnknownGroup."""
        return await self._read_account(LineageKeys(lineage).group(group))

    async def groups(self, lineage: str) -> list[GroupAccount]:
        """Return the lineage's groups, by name."""
        return (await self.snapshot(lineage))[2]

    async def payers(self, lineage: str, client: str, blocks: Sequence[str] = ()) -> "Payers":
        """Return a client's account, and those that pay for its releases, too, as they are at one instant.

        blocks: of the model that is asked. Raises UnknownClient, UnknownBlock and UnknownLineage.
        """
        keys, group = LineageKeys(lineage), self._groups.get((lineage, client), "")
        while True:
            named = [keys.group(group).account] if group else []
            parts = [keys.payer(block) for block in paying(blocks)]
            read = (keys.client(client).account, keys.account, *(part.account for part in parts), *named)
            own, whole, *rest = await self._read_fields(lineage, *read)
            account = await self._account(keys.client(client), own)
            if account.group == group:
                break
            group = self._groups[lineage, client] = account.group
        blocks_paying = [await self._account(part, fields) for part, fields in zip(parts, rest, strict=False)]
        groups = [await self._account(keys.group(group), fields) for fields in rest[len(parts) :]]
        return Payers(account, [*groups, *blocks_paying], _open(await self._account(keys.own, whole)))

    async def above(self, lineage: str, group: str = "") -> list[Account]:
        """Return the accounts that pay, too, for what a client of this group asks: the group's, the lineage's.

        Raises UnknownGroup and UnknownLineage.
        """
        groups: list[Account] = [await self.group(lineage, group)] if group else []
        return [*groups, await self.lineage(lineage)]

    async def clients(self, lineage: str) -> list[ClientAccount]:
        """Return the lineage's clients, by name, the revoked ones included."""
        return (await self.snapshot(lineage))[1]

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
        if self._dry:  # the function takes the right away before it looks at anything else
            await self.client(lineage, client)
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
            await self.call(lineage, "revoke", keys_of_it, {"act": act, **named}, durably=True)
            status, failure = b"", [error.what.encode()]
        if status == b"unknown":
            raise UnknownClient(client)
        if failure:
            why = failure[0].decode(errors="replace")
            raise LedgerDamaged(lineage, f"{client} is revoked now, but the record of this could not be written: {why}")

    async def authenticate(self, lineage: str, digest: bytes, scope: KeyScope = "predict") -> ClientAccount:
        """Return the account of the client whose API key has this digest and is good for `scope` now.

        Raises UnknownKey, KeyExpired, ScopeMissing and ClientRevoked.
        """
        keys, name = LineageKeys(lineage), self.clients_by_key.get((lineage, digest))
        while True:  # who has this key now is asked, whoever had it before
            named: dict[str, Any] = {"digest": binary(digest), "scope": scope}
            own = []
            if name is not None:
                expected_keys = keys.client(name)
                own, named["id"] = [expected_keys.account], expected_keys.id
            status, *reply = await self.call(lineage, "find_client", [keys.api_keys, *own], named, durably=False)
            if not status:
                self.forget(lineage, digest)
                raise UnknownKey
            with reading(lineage):
                expected, name = name, status.decode()
            if name == expected:
                break
        refused, fields = reply
        account = await self._account(keys.client(name), wire.fields_of(fields), listed=True)
        error = ClientRevoked(name) if account.revoked else _refused_key(refused, scope)
        if error is None:
            if len(self.clients_by_key) >= _MOST_NAMED:
                self.clients_by_key.clear()
            self.clients_by_key[lineage, digest] = name
            return account
        if not isinstance(error, ScopeMissing):
            self.forget(lineage, digest)
        raise error

    def forget(self, lineage: str, digest: bytes) -> None:
        """Forget whose API key this was: it is refused now."""
        self.clients_by_key.pop((lineage, digest), None)

    # API keys

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

    # Receipts

    async def receipts(self, lineage: str, *, after: int = 0, count: int = 100) -> list[Receipt]:
        """Return at most `count` receipts of a lineage with a sequence number above `after`, oldest first."""
        page = {"after": after, "count": count}
        entries = await self.call(lineage, "page", [LineageKeys(lineage).receipts], page, durably=False)
        return await self._read_receipts(lineage, entries)

    async def client_receipts(
        self, lineage: str, client: str, *, after: int = 0, count: int = 100, newest_first: bool = False
    ) -> list[Receipt]:
        """Return at most `count` receipts of a client with a number of its own above `after`, oldest first.

        `newest_first` returns the newest instead, whatever `after` says.
        """
        keys = LineageKeys(lineage)
        page = {"after": after, "count": count, "newest_first": newest_first}
        named = [keys.client(client).receipts, keys.receipts]
        entries = await self.call(lineage, "page_of_client", named, page, durably=False)
        receipts = await self._read_receipts(lineage, entries)
        if any(receipt.client != client for receipt in receipts):
            raise LedgerDamaged(lineage, f"a receipt that client {client} would be shown is not this client's")
        return receipts

    async def client_page(self, lineage: str, client: str, *, after: int, count: int) -> list[Receipt]:
        """Return what `client_receipts` does. Raises UnknownClient, and LedgerDamaged where a receipt is missing."""
        newest = (await self.client(lineage, client)).newest_receipt
        receipts = await self.client_receipts(lineage, client, after=after, count=count)
        _check_no_gap(lineage, after, newest, [receipt.number for receipt in receipts])
        return receipts

    async def lineage_page(self, lineage: str, *, after: int, count: int) -> list[Receipt]:
        """Return what `receipts` does. Raises UnknownLineage, and LedgerDamaged where a receipt is missing."""
        newest = (await self.lineage(lineage)).newest_receipt
        receipts = await self.receipts(lineage, after=after, count=count)
        _check_no_gap(lineage, after, newest, [receipt.sequence for receipt in receipts])
        return receipts

    async def client_index(self, lineage: str, client: str, *, after: int = 0, count: int = 1000) -> list[bytes]:
        """Return at most `count` entries of a client's index, `OWN-NUMBER`: its own number of a receipt, the lineage's.

        after: the client's own number that they are above.
        """
        key = LineageKeys(lineage).client(client).receipts
        entries = await self.call(lineage, "page", [key], {"after": after, "count": count}, durably=False)
        with reading(lineage):
            return [entry[0] for entry in entries]

    async def paid_for(self, lineage: str, asked: Sequence[tuple[str, Sequence[bytes]]]) -> list[bool]:
        """Return for each client and its questions whether it has paid for all of these; without a client, anybody."""
        keys = LineageKeys(lineage)
        named, receipts = [keys.questions], list[dict[str, Any]]()
        for client, questions in asked:
            own = keys.client(client) if client else None
            named += [own.account, own.questions] if own else []
            receipts.append({"id": own.id if own else "", "questions": binary(b"".join(questions))})
        reply = await self.call(lineage, "paid", list(dict.fromkeys(named)), {"receipts": receipts}, durably=False)
        return [paid == 1 for paid in reply]

    async def _read_receipts(self, lineage: str, entries: Sequence[Any]) -> list[Receipt]:
        """Read entries of the stream. What a number stands for never changes, so it is remembered for this run."""
        if not entries:
            return []
        mark, numbers = self._numbers.get(lineage, ("", {}))
        if mark == self.store.mark(lineage):
            with suppress(*UNREADABLE):  # what is newer than what is remembered, or damaged
                return [read_receipt(lineage, entry, numbers) for entry in entries]
        numbers = await self.numbers(lineage)
        with reading(lineage):
            return [read_receipt(lineage, entry, numbers) for entry in entries]


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


def _check_no_gap(lineage: str, after: int, newest: int, numbers: Sequence[int]) -> None:
    """Raise LedgerDamaged unless a page of the receipts above `after` has every number from the next one on.

    newest: as it was before the page was read.
    """
    for before, number in itertools.pairwise([after, *numbers]):
        if number != before + 1:
            raise LedgerDamaged(lineage, f"receipt {before + 1} is missing")
    if not numbers and newest > after:
        raise LedgerDamaged(lineage, f"receipt {after + 1} is missing")


def _charge_act_fields(key: ApiKey) -> dict[str, str]:
    """Return what an act says of a key that it gives."""
    expires, scopes = key.terms
    return {"key": key.id, "expires": expires, "scopes": scopes}


def _open(account: LineageAccount) -> LineageAccount:
    """Return the account, unless it was forgotten. Raises LineageForgotten."""
    if account.is_forgotten:
        raise LineageForgotten(account.lineage)
    return account


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


def _refused_key(word: bytes, scope: KeyScope) -> LedgerRefusal | None:
    match word:
        case b"":
            return None
        case b"key-expired":
            return KeyExpired()
        case b"key-scope":
            return ScopeMissing(scope)
    return UnknownKey()
