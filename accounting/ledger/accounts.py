"""The accounts of the ledger, as they are read: who may ask, for how much, and what was paid for.

`owner` has what changes them, and `ledger` what spends from them.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.authentication import ApiKeys
from dpserve.accounting.ledger.errors import (
    LedgerBusy,
    LedgerDamaged,
    LineageForgotten,
    OtherUnit,
    StoreBehind,
    UnitLost,
    UnknownLineage,
)
from dpserve.accounting.ledger.journal import (
    Acknowledged,
    Journal,
    Witness,
    is_forgotten,
)
from dpserve.accounting.ledger.reading import UNREADABLE, reading
from dpserve.accounting.ledger.receipts import (
    Act,
    Numbers,
    Receipt,
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
)
from dpserve.accounting.ledger.wire import AccountKeys, Fields, Kind, LineageKeys

_LINEAGES_AT_ONCE = 64


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
        self.api_keys = ApiKeys(self)
        self.journals_folder = journals
        self._witnesses: dict[str, Witness] = {}
        self._groups: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, tuple[str, Numbers]] = {}
        self._units: dict[str, str] = {}
        self.turns_of_acts: dict[str, asyncio.Lock] = {}

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
        if self.journals_folder is None:
            return
        if is_forgotten(self.journals_folder, lineage):
            raise LineageForgotten(lineage)
        if isinstance(self._witnesses.get(lineage), Journal):
            return
        self._witnesses[lineage] = await asyncio.to_thread(Journal.open, self.journals_folder, lineage)
        self.store.forget(lineage)
        await self._read_fields(lineage)

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

    async def account_of(self, keys: AccountKeys[Kind], fields: Fields, *, listed: bool = False) -> Kind:
        """Read an account; one that is `listed` somewhere is lost if there is none.

        Raises UnknownLineage, UnknownGroup or UnknownClient.
        """
        with reading(keys.lineage):
            account = wire.read_account(keys, fields)
        if account is None:
            if not listed:
                await self.check_unused(keys)
            raise LedgerDamaged(keys.lineage, f"{keys.title} is lost") if listed else keys.unknown
        return account

    async def read_account(self, keys: AccountKeys[Kind]) -> Kind:
        """Return an account. Raises UnknownLineage, UnknownGroup, UnknownBlock or UnknownClient."""
        (fields,) = await self._read_fields(keys.lineage, keys.account)
        return await self.account_of(keys, fields)

    async def check_unused(self, keys: AccountKeys[Account]) -> None:
        """Raise LedgerDamaged if an account is missing whose other keys are there: then it was lost."""
        if any(kind != "none" for kind in await self.key_types(keys.lineage, keys.contents)):
            raise LedgerDamaged(keys.lineage, f"{keys.title} is lost")

    # Lineages

    async def check_unit(self, lineage: str, unit: str) -> str | None:
        """Return the lineage's privacy unit, None before its first model. Raises what `settle_unit` would raise."""
        account = await self.lineage(lineage)
        if account.unit is None and account.newest_receipt and await self.is_reconciled(lineage):
            raise UnitLost(lineage)
        if account.unit is not None and account.unit != unit:
            raise OtherUnit(lineage, account.unit, unit)
        return account.unit

    def note_unit(self, lineage: str, unit: str) -> None:
        """Remember the lineage's privacy unit, also in this service's journal: before anything is charged under it."""
        self._units[lineage] = unit
        if (witness := self._witnesses.get(lineage)) is not None:
            witness.settle(unit)

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
        await self.store.command("SADD", wire.LINEAGES, lineage, durably=True)

    async def lineage(self, lineage: str) -> LineageAccount:
        """Return the lineage's account. Raises UnknownLineage, and LineageForgotten."""
        return _open(await self.lineage_or_forgotten(lineage))

    async def lineage_or_forgotten(self, lineage: str) -> LineageAccount:
        """Return the lineage's account, also of one that was forgotten. Raises UnknownLineage."""
        return await self.read_account(LineageKeys(lineage).own)

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
        listed = await self.store.command("SMEMBERS", wire.LINEAGES)
        with reading(wire.LINEAGES):
            return sorted(name.decode() for name in listed)

    async def snapshot(
        self, lineage: str
    ) -> tuple[LineageAccount, list[ClientAccount], list[GroupAccount], list[BlockAccount]]:
        """Return the accounts of a lineage and of its clients, groups and blocks, by name, as they were at one instant.

        Of one that was forgotten, too. Raises UnknownLineage.
        """
        fields = await self.read_accounts(lineage)
        keys = LineageKeys(lineage)
        account = await self.account_of(keys.own, fields.lineage)
        clients = [await self.account_of(keys.client(name), each, listed=True) for name, each in fields.clients.items()]
        groups = [await self.account_of(keys.group(name), each, listed=True) for name, each in fields.groups.items()]
        blocks = [await self.account_of(keys.block(name), each, listed=True) for name, each in fields.blocks.items()]
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

    async def block(self, lineage: str, block: str) -> BlockAccount:
        """Return a block's account. Raises UnknownBlock."""
        return await self.read_account(LineageKeys(lineage).block(block))

    async def blocks(self, lineage: str, names: Sequence[str] | None = None) -> list[BlockAccount]:
        """Return the lineage's named blocks, at one instant; or those of these names. Raises UnknownBlock."""
        if names is None:
            return (await self._read_blocks(lineage))[1]
        keys = [LineageKeys(lineage).block(name) for name in names]
        fields = await self._read_fields(lineage, *(key.account for key in keys))
        return [await self.account_of(key, each) for key, each in zip(keys, fields, strict=True)]

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
        blocks = [await self.account_of(key, each, listed=True) for key, each in zip(keys, fields, strict=True)]
        return await self.account_of(own.own, whole), blocks

    async def client(self, lineage: str, client: str) -> ClientAccount:
        """Return a client's account. Raises UnknownClient."""
        return await self.read_account(LineageKeys(lineage).client(client))

    async def group(self, lineage: str, group: str) -> GroupAccount:
        """Return a group's account. Raises UnknownGroup."""
        return await self.read_account(LineageKeys(lineage).group(group))

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
            account = await self.account_of(keys.client(client), own)
            if account.group == group:
                break
            group = self._groups[lineage, client] = account.group
        blocks_paying = [await self.account_of(part, fields) for part, fields in zip(parts, rest, strict=False)]
        groups = [await self.account_of(keys.group(group), fields) for fields in rest[len(parts) :]]
        return Payers(account, [*groups, *blocks_paying], _open(await self.account_of(keys.own, whole)))

    async def above(self, lineage: str, group: str = "") -> list[Account]:
        """Return the accounts that pay, too, for what a client of this group asks: the group's, the lineage's.

        Raises UnknownGroup and UnknownLineage.
        """
        groups: list[Account] = [await self.group(lineage, group)] if group else []
        return [*groups, await self.lineage(lineage)]

    async def clients(self, lineage: str) -> list[ClientAccount]:
        """Return the lineage's clients, by name, the revoked ones included."""
        return (await self.snapshot(lineage))[1]

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


def _check_no_gap(lineage: str, after: int, newest: int, numbers: Sequence[int]) -> None:
    """Raise LedgerDamaged unless a page of the receipts above `after` has every number from the next one on.

    newest: as it was before the page was read.
    """
    for before, number in itertools.pairwise([after, *numbers]):
        if number != before + 1:
            raise LedgerDamaged(lineage, f"receipt {before + 1} is missing")
    if not numbers and newest > after:
        raise LedgerDamaged(lineage, f"receipt {after + 1} is missing")


def _open(account: LineageAccount) -> LineageAccount:
    """Return the account, unless it was forgotten. Raises LineageForgotten."""
    if account.is_forgotten:
        raise LineageForgotten(account.lineage)
    return account
