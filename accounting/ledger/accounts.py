"""The accounts of the ledger: who may ask, for how much, and what the owner changed.

Every act of the owner that changes what may be spent, or by whom, is written to the lineage's chain of acts.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accounting.budgets import Budget
from accounting.ledger import wire
from accounting.ledger.api_keys import ApiKey, KeyScope, read_keys, read_owner
from accounting.ledger.errors import (
    AcceptsTooLate,
    ClientExists,
    ClientRevoked,
    CoinsNotProvidedFor,
    KeyExpired,
    KeyInUse,
    LedgerDamaged,
    LedgerError,
    LedgerRefusal,
    ScopeMissing,
    StoreBehind,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
)
from accounting.ledger.journal import Acknowledged, Journal, journal_folder, read_acknowledged
from accounting.ledger.store import OWNER, Asker, Store
from accounting.ledger.values import Act, ClientAccount, LineageAccount, Receipt
from accounting.ledger.wire import ClientKeys, LineageKeys

_INDEX_PAGE = 10_000

_MOST_NAMED = 10_000
"""Of how many API keys it is remembered whose they were, so that one call is enough to look at both."""


@contextmanager
def reading(lineage: str) -> Iterator[None]:
    """Raise LedgerDamaged for what cannot be read of the lineage."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(lineage, error) from error


UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, struct.error)
"""What reading a damaged value raises."""


def unreadable(lineage: str, error: Exception) -> LedgerDamaged:
    """Return what to raise for what cannot be read of the lineage."""
    return LedgerDamaged(lineage, f"what the store holds cannot be read: {error!r}")


class Accounts:
    """The accounts in a store. `Ledger` adds what spends from them."""

    def __init__(self, store: Store, journals: Path | None = None) -> None:
        """Use `store`, which was verified. `journals`: the folder of this service's journals, if it is one."""
        self._store = store
        self._journals_folder = journals
        self._journals: dict[str, Journal] = {}
        self._named: dict[tuple[str, bytes], str] = {}

    @property
    def rehearsal(self) -> bool:
        """Whether the store may lose what it acknowledged."""
        return self._store.rehearsal

    async def join(self, lineage: str) -> None:
        """Take up this service's journal of the lineage: from now on a store that is older is not believed.

        Raises StoreBehind if the store is older than any journal of the lineage in the folder says,
        LedgerUnavailable if the journal cannot be written. Without a folder of journals nothing is checked.
        """
        if self._journals_folder is None or lineage in self._journals:
            return
        journal = await asyncio.to_thread(Journal.open, self._journals_folder, lineage)
        self._journals[lineage] = journal
        for contents in await asyncio.to_thread(read_acknowledged, journal_folder(self._journals_folder, lineage)):
            asker = Asker(contents.service, contents.writes)
            await self._read(lineage, asker=asker)

    async def services_behind(self, lineage: str, journals: Iterable[Acknowledged]) -> int:
        """Return of how many of these services the store has fewer writes than it acknowledged."""
        behind = 0
        for journal in journals:
            try:
                await self._read(lineage, asker=Asker(journal.service, journal.writes))
            except StoreBehind:
                behind += 1
        return behind

    async def close(self) -> None:
        """Close every connection and journal."""
        await self._store.close()
        for journal in self._journals.values():
            await asyncio.to_thread(journal.close)

    def _asker(self, lineage: str) -> Asker:
        journal = self._journals.get(lineage)
        return OWNER if journal is None else Asker(journal.service, journal.writes)

    def _note(self, lineage: str, writes: int, receipts: Sequence[Receipt] = ()) -> None:
        journal = self._journals.get(lineage)
        if journal is not None and (receipts or writes > journal.writes):
            journal.note(writes, receipts)

    async def call(
        self, lineage: str, function: str, keys: Sequence[str], arguments: Sequence[wire.Argument], *, durably: bool
    ) -> list[Any]:
        """Call a function of the library on a lineage, as this service if it has joined, and return its reply."""
        named = [LineageKeys(lineage).services, *keys]
        asker = self._asker(lineage)
        return (await self._store.call(lineage, function, named, arguments, asker=asker, durably=durably)).values

    async def _read(self, lineage: str, *keys: str, asker: Asker | None = None) -> list[Any]:
        """Return the fields of each key, or raise LedgerDamaged for one that is no hash."""
        named = [LineageKeys(lineage).services, *keys]
        asker = asker or self._asker(lineage)
        values = (await self._store.call(lineage, "read", named, [], asker=asker, durably=False)).values
        for value in values:
            if isinstance(value, bytes):
                raise LedgerDamaged(lineage, value.decode())
        return values

    async def key_types(self, lineage: str, keys: Sequence[str]) -> list[str]:
        """Return the type of each key of the lineage, `none` where there is none; with a stream's newest number."""
        named = [LineageKeys(lineage).services, *keys]
        return [kind.decode() for kind in await self.call(lineage, "types", named[1:], [], durably=False)]

    async def _unknown(
        self, lineage: str, unknown: LedgerRefusal, others: Sequence[str], client: str = ""
    ) -> LedgerError:
        """Return what to raise where an account is not there: it was lost if others of its keys are."""
        account = f"the account of {client}" if client else "the lineage's account"
        for key in others:
            if await self._store.command(key, "EXISTS", key):
                return LedgerDamaged(lineage, f"{account} is lost")
        return unknown

    # Lineages

    async def open_lineage(self, lineage: str, budget: Budget, *, time: float) -> LineageAccount:
        """Return the lineage's account, having opened it with `budget` if it did not exist.

        An account that exists is left as it is, whatever its budget. `time` is in seconds since the epoch.
        """
        keys = LineageKeys(lineage)
        await self.list_lineage(lineage)
        await self.call(
            lineage,
            "open_lineage",
            [keys.account, *keys.contents],
            [*wire.budget_arguments(budget), repr(time)],
            durably=True,
        )
        return await self.lineage(lineage)

    async def list_lineage(self, lineage: str) -> None:
        """Let the store's list of lineages name this one."""
        LineageKeys(lineage)
        await self._store.command(wire.LINEAGES, "SADD", wire.LINEAGES, lineage, durably=True)

    async def lineage(self, lineage: str) -> LineageAccount:
        """Return the lineage's account. Raises UnknownLineage."""
        keys = LineageKeys(lineage)
        replies = await self._read(lineage, keys.account, keys.tally)
        with reading(lineage):
            account = wire.read_lineage(lineage, replies)
        if account is None:
            raise await self._unknown(lineage, UnknownLineage(lineage), keys.contents)
        return account

    async def lineages(self) -> list[LineageAccount]:
        """Return every lineage's account, by name."""
        names = await self.lineage_names()
        found = await asyncio.gather(*map(self.lineage, names), return_exceptions=True)
        for error in found:
            # Listed, but the call that would have opened it did not arrive: it is no lineage yet.
            if isinstance(error, BaseException) and not isinstance(error, UnknownLineage):
                raise error
        return [account for account in found if isinstance(account, LineageAccount)]

    async def lineage_names(self) -> list[str]:
        """Return the names of the lineages that the store lists: some may be damaged, and some not opened yet."""
        listed = await self._store.command(wire.LINEAGES, "SMEMBERS", wire.LINEAGES)
        with reading(wire.LINEAGES):
            return sorted(name.decode() for name in listed)

    async def set_lineage_budget(self, lineage: str, budget: Budget) -> LineageAccount:
        """Replace the lineage's budget; what is spent stays spent.

        A budget below what is spent refuses further releases and nothing else. Raises UnknownLineage, and
        AcceptsTooLate if an account that accepted any charge would, after its first release, accept only
        Gaussian ones: that would choose the conversion by looking at what was charged. Raises CoinsNotProvidedFor if
        the account paid for what is Gaussian but for a coin, and the new delta does not provide for coins.
        """
        keys = LineageKeys(lineage)
        await self._set_budget(lineage, "", [keys.account, keys.tally], budget, UnknownLineage(lineage))
        return await self.lineage(lineage)

    async def snapshot(self, lineage: str) -> tuple[LineageAccount, list[ClientAccount]]:
        """Return the accounts of a lineage and of all its clients, by name, as they were at one instant.

        Raises UnknownLineage.
        """
        keys = LineageKeys(lineage)
        names, replies = await self._read_with_clients(
            lineage, [keys.account, keys.tally], lambda own: [own.account, own.tally]
        )
        with reading(lineage):
            account = wire.read_lineage(lineage, replies[:2])
            found = {
                name: wire.read_client(lineage, name, replies[2 * place : 2 * place + 2])
                for place, name in enumerate(names, 1)
            }
        if account is None:
            raise await self._unknown(lineage, UnknownLineage(lineage), keys.contents)
        for name, client in found.items():
            if client is None:
                raise LedgerDamaged(lineage, f"the account of {name} is lost")
        return account, [client for client in found.values() if client is not None]

    async def _read_with_clients(
        self, lineage: str, keys: Sequence[str], of_client: Callable[[ClientKeys], Sequence[str]]
    ) -> tuple[list[str], list[Any]]:
        """Return every client's name, and the fields of keys of the lineage and then of each client, at one instant."""
        listed = set(await self._client_names(lineage))
        while True:
            names = sorted(name.decode() for name in listed)
            own = [key for name in names for key in of_client(LineageKeys(lineage).client(name))]
            replies = await self._read(lineage, *keys, *own)
            before, listed = listed, set(await self._client_names(lineage))
            if before == listed:  # or else one that was added meanwhile is named in receipts and not here
                return names, replies

    async def applied(self, lineage: str) -> set[bytes]:
        """Return the hashes of the receipts that were put back under new numbers."""
        key = LineageKeys(lineage).applied
        return set(await self._store.command(key, "SMEMBERS", key))

    async def holdings(self, lineage: str) -> dict[str, dict[bytes, int]]:
        """Return the steps held by each client, and under the empty name by the lineage, with the receipts' numbers.

        Raises LedgerDamaged for what is no number, and where an account counts another number of steps.
        """
        keys = LineageKeys(lineage)
        names, replies = await self._read_with_clients(
            lineage, [keys.held, keys.account], lambda own: [own.held, own.account]
        )
        with reading(lineage):
            read = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies]
            found = {
                name: {step: int(number) for step, number in held.items()}
                for name, held in zip(["", *names], read[::2], strict=True)
            }
            for (name, held), account in zip(found.items(), read[1::2], strict=True):
                if int(account.get(b"held", len(held))) != len(held):
                    who = f"client {name}" if name else "the lineage"
                    raise LedgerDamaged(
                        lineage, f"what {who} holds is not in its receipts, or not as many steps as it counts"
                    )
        return found

    async def api_keys(self, lineage: str) -> tuple[list[tuple[str, ApiKey]], dict[str, tuple[ApiKey, ...]]]:
        """Return each API key that opens something with whose it is, and the keys that each client's account states.

        There are none of the latter for a client that only its receipts brought back.
        """
        names, replies = await self._read_with_clients(
            lineage, [LineageKeys(lineage).api_keys], lambda own: [own.account]
        )
        with reading(lineage):
            known, *accounts = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies)
            owners = [read_owner(digest, entry) for digest, entry in known.items()]
            stated = {name: read_keys(fields[b"api_keys"]) for name, fields in zip(names, accounts, strict=True)}
            return owners, stated

    async def indexed_receipts(self, lineage: str, client: str, upto: int) -> list[int]:
        """Return the numbers up to `upto` of the receipts that the client is shown as its own."""
        stream, numbers = LineageKeys(lineage).client(client).receipts, [0]
        while entries := await self._page(lineage, stream, numbers[-1], _INDEX_PAGE):
            numbers += [int(number.split(b"-")[0]) for number, _ in entries]
        return [number for number in numbers[1:] if number <= upto]

    async def stored_fields(
        self, lineage: str
    ) -> tuple[dict[bytes, bytes], dict[str, dict[bytes, bytes]], frozenset[str]]:
        """Return the fields of the lineage's account and of each client's, as they lie in the store, at one instant.

        And the services that ever wrote to the lineage. Raises UnknownLineage.
        """
        keys = LineageKeys(lineage)
        names = await self._client_names(lineage)
        while True:
            clients = sorted(name.decode() for name in names)
            replies = await self._read(
                lineage, keys.services, keys.account, *(keys.client(name).account for name in clients)
            )
            before, names = names, await self._client_names(lineage)
            if set(before) == set(names):  # or else one that was added meanwhile is named in receipts and not here
                break
        services, own, *others = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replies)
        if not own:
            raise await self._unknown(lineage, UnknownLineage(lineage), keys.contents)
        return own, dict(zip(clients, others, strict=True)), frozenset(name.decode() for name in services)

    async def acts(self, lineage: str, *, after: int = 0, count: int = 1000) -> list[Act]:
        """Return at most `count` acts of a lineage with a sequence number above `after`, oldest first."""
        entries = await self._page(lineage, LineageKeys(lineage).acts, after, count)
        with reading(lineage):
            return [wire.read_act(entry) for entry in entries]

    # Clients

    async def add_client(
        self, lineage: str, client: str, budget: Budget, key: ApiKey | bytes, *, time: float
    ) -> ClientAccount:
        """Open a client's account with its first API key, or the `key_digest` of one that is good for all and for ever.

        time: seconds since the epoch.

        Raises UnknownLineage, ClientExists, and KeyInUse if the key is another client's.
        """
        first = key if isinstance(key, ApiKey) else ApiKey(key)
        keys, own = LineageKeys(lineage), LineageKeys(lineage).client(client)
        (status,) = await self.call(
            lineage,
            "add_client",
            [keys.account, keys.acts, keys.clients, keys.api_keys, own.account, own.tally, own.receipts, own.held],
            [*wire.budget_arguments(budget), repr(time), client, first.digest, *first.terms],
            durably=True,
        )
        if status == b"unknown-lineage":
            raise await self._unknown(lineage, UnknownLineage(lineage), keys.contents)
        if status == b"exists":
            raise ClientExists(client)
        if status == b"key-in-use":
            raise KeyInUse
        return await self.client(lineage, client)

    async def client(self, lineage: str, client: str) -> ClientAccount:
        """Return a client's account. Raises UnknownClient."""
        keys = LineageKeys(lineage).client(client)
        replies = await self._read(lineage, keys.account, keys.tally)
        with reading(lineage):
            account = wire.read_client(lineage, client, replies)
        if account is None:
            raise await self._unknown(lineage, UnknownClient(client), [keys.tally, keys.receipts, keys.held], client)
        return account

    async def payers(self, lineage: str, client: str) -> tuple[ClientAccount, LineageAccount]:
        """Return both accounts that pay for a client's releases, as they are at one instant.

        Raises UnknownClient and UnknownLineage.
        """
        keys = LineageKeys(lineage)
        own = keys.client(client)
        replies = await self._read(lineage, own.account, own.tally, keys.account, keys.tally)
        with reading(lineage):
            account, whole = wire.read_client(lineage, client, replies), wire.read_lineage(lineage, replies[2:])
        if account is None:
            raise await self._unknown(lineage, UnknownClient(client), [own.tally, own.receipts, own.held], client)
        if whole is None:
            raise await self._unknown(lineage, UnknownLineage(lineage), keys.contents)
        return account, whole

    async def clients(self, lineage: str) -> list[ClientAccount]:
        """Return the lineage's clients, by name, the revoked ones included."""
        return (await self.snapshot(lineage))[1]

    async def set_client_budget(self, lineage: str, client: str, budget: Budget) -> ClientAccount:
        """Replace a client's budget, as `set_lineage_budget` does a lineage's. Raises UnknownClient."""
        keys = LineageKeys(lineage).client(client)
        await self._set_budget(lineage, client, [keys.account, keys.tally], budget, UnknownClient(client))
        return await self.client(lineage, client)

    async def revoke(self, lineage: str, client: str) -> None:
        """Refuse this client from now on, its replays included.

        Raises UnknownClient; LedgerDamaged, having revoked the client, if the act cannot be written.
        """
        keys = LineageKeys(lineage)
        status, *failure = await self.call(
            lineage, "revoke", [keys.account, keys.acts, keys.client(client).account], [client], durably=True
        )
        if status == b"unknown-client":
            raise UnknownClient(client)
        if failure:
            why = failure[0].decode(errors="replace")
            raise LedgerDamaged(lineage, f"{client} is revoked now, and the act of it could not be written: {why}")

    async def authenticate(self, lineage: str, digest: bytes, scope: KeyScope = "predict") -> ClientAccount:
        """Return the account of the client whose API key has this digest and is good for `scope` now.

        Raises UnknownKey, KeyExpired, ScopeMissing and ClientRevoked.
        """
        keys = LineageKeys(lineage)
        expected = self._named.get((lineage, digest))  # who has this key now is asked all the same
        own = [] if expected is None else [keys.client(expected).account, keys.client(expected).tally]
        found, refused, *fields = await self.call(
            lineage, "find_client", [keys.api_keys, *own], [digest, scope], durably=False
        )
        if not found:
            self.forget(lineage, digest)
            raise UnknownKey
        name = found.decode()
        account = None
        if name == expected and all(isinstance(one, list) for one in fields):
            with reading(lineage):
                account = wire.read_client(lineage, name, fields)
        if account is None:
            try:
                account = await self.client(lineage, name)
            except UnknownClient as error:
                raise LedgerDamaged(lineage, f"the account of {name} is lost") from error
            if len(self._named) >= _MOST_NAMED:
                self._named.clear()
            self._named[lineage, digest] = name
        if account.revoked:
            self.forget(lineage, digest)
            raise ClientRevoked(account.client)
        if refused == b"key-expired":
            self.forget(lineage, digest)
            raise KeyExpired
        if refused:
            raise ScopeMissing(scope)
        return account

    def forget(self, lineage: str, digest: bytes) -> None:
        """Remember no more whose API key this was: it is refused now, and no doing of that client's any more."""
        self._named.pop((lineage, digest), None)

    def remembered(self, lineage: str, digest: bytes) -> str | None:
        """Return whose the API key of this digest was when `authenticate` last found it, or None.

        Asks nothing: it says to whom a request is to be charged whose `key_digest` is then checked with the charge.
        """
        return self._named.get((lineage, digest))

    # Receipts

    async def receipts(
        self, lineage: str, *, client: str | None = None, after: int = 0, count: int = 100
    ) -> list[Receipt]:
        """Return at most `count` receipts of a lineage, or of one client in it, oldest first.

        Only those with a sequence number above `after` are returned: page on with the last one's.
        """
        keys = LineageKeys(lineage)
        listed = keys.receipts if client is None else keys.client(client).receipts
        entries = await self._page(lineage, listed, after, count)
        if client is not None:
            entries = await self._pick(lineage, entries)
        with reading(lineage):
            return [wire.read_receipt(entry) for entry in entries]

    async def newest_receipts(self, lineage: str, client: str, count: int) -> list[Receipt]:
        """Return a client's newest receipts, at most `count` of them, newest first."""
        stream = LineageKeys(lineage).client(client).receipts
        entries = await self._store.command(stream, "XREVRANGE", stream, "+", "-", "COUNT", count)
        picked = await self._pick(lineage, entries)
        with reading(lineage):
            return [wire.read_receipt(entry) for entry in picked]

    async def _pick(self, lineage: str, named: Sequence[Any]) -> list[Any]:
        """Return the lineage's receipts that entries of a client's stream name."""
        numbers = [number for number, _ in named]
        return await self.call(lineage, "pick", [LineageKeys(lineage).receipts], numbers, durably=False)

    async def _page(self, lineage: str, stream: str, after: int, count: int) -> list[Any]:
        return await self.call(lineage, "page", [stream], [f"({after}-0", "+", count], durably=False)

    async def _client_names(self, lineage: str) -> list[bytes]:
        return await self.call(lineage, "list_clients", [LineageKeys(lineage).clients], [], durably=False)

    async def _set_budget(
        self, lineage: str, subject: str, keys: Sequence[str], budget: Budget, unknown: LedgerRefusal
    ) -> None:
        own = LineageKeys(lineage)
        arguments = [*wire.budget_arguments(budget), subject, int(budget.pays_for_coins)]
        (status,) = await self.call(lineage, "set_budget", [own.account, own.acts, *keys], arguments, durably=True)
        if status == b"unknown":
            raise unknown
        if status == b"too-late":
            raise AcceptsTooLate
        if status == b"coins":
            raise CoinsNotProvidedFor
