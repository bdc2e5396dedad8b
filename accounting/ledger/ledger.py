"""The ledger: who may learn how much, who has paid for what, and the one answer each payment bought.

Two accounts pay for every release, the lineage's and the client's. The order of a request's way is: charge,
compute, settle, send what settling returned. Promises:

- A charge that `charge` returned is durable, and is never given back.
- An account never pays more than its budget; a refusal changes nothing.
- A row is charged once. Asking again, for whatever reason, finds it charged or answered, at no cost: a charge
  whose outcome is not known (`LedgerUnavailable`) may therefore be asked again with the same rows.
- A row has one answer: the first that was settled. Whoever settles later gets that one to send.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from accounting.budgets import Budget
from accounting.ledger import wire
from accounting.ledger.embedded import EmbeddedStore
from accounting.ledger.errors import (
    AcceptsTooLate,
    ClientExists,
    ClientRevoked,
    KeyInUse,
    LedgerRefusal,
    RowNotCharged,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
)
from accounting.ledger.micro_batches import MicroBatches
from accounting.ledger.store import DEADLINE, Store
from accounting.ledger.values import Charge, ChargeRequest, ClientAccount, LineageAccount, Receipt
from accounting.ledger.wire import LineageKeys

ROWS_IN_A_BATCH = 1000
"""How many rows of several requests share a call: enough to share its cost, not enough to keep others waiting."""

Settlement = Sequence[tuple[bytes, bytes]]
"""Row ids, each with the answer that was computed for it."""


class Ledger:
    """A ledger in a store that speaks the Redis protocol. Make one with `connect` or `open`."""

    def __init__(self, store: Store) -> None:
        """Use `store`, which was verified."""
        self._store = store
        self._charges: dict[str, MicroBatches[ChargeRequest, Charge]] = {}
        self._settlements: dict[str, MicroBatches[Settlement, list[bytes]]] = {}

    @classmethod
    async def connect(cls, url: str, *, rehearsal: bool = False, deadline: float = DEADLINE) -> Self:
        """Connect to the store at `url` and verify its settings and function library.

        `rehearsal` accepts a store that may lose what it acknowledged. Raises LedgerUnavailable if the store
        cannot be reached within `deadline` seconds, UnsafeStore with what to set, ValueError for a bad URL.
        """
        store = Store(url, deadline=deadline)
        try:
            await store.verify(rehearsal=rehearsal)
        except BaseException:
            await store.close()
            raise
        return cls(store)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store: str | Path, *, rehearsal: bool = False, deadline: float = DEADLINE
    ) -> AsyncIterator[Self]:
        """Open the ledger at a URL, or the embedded one in a folder, for as long as the context lasts."""
        if isinstance(store, str) and "://" in store:
            async with await cls.connect(store, rehearsal=rehearsal, deadline=deadline) as ledger:
                yield ledger
            return
        embedded = EmbeddedStore(Path(store))
        await asyncio.to_thread(embedded.open)
        try:
            async with await cls.connect(embedded.url, rehearsal=rehearsal, deadline=deadline) as ledger:
                yield ledger
        finally:
            await asyncio.to_thread(embedded.close)

    async def __aenter__(self) -> Self:
        """Return the ledger."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the ledger."""
        await self.close()

    async def close(self) -> None:
        """Wait for the calls under way, then close every connection."""
        for charges in self._charges.values():
            await charges.drain()
        for settlements in self._settlements.values():
            await settlements.drain()
        await self._store.close()

    # Releases

    async def charge(self, request: ChargeRequest) -> Charge:
        """Charge both accounts for the request's new rows, durably, or raise.

        Raises BudgetExhausted, MechanismNotAccepted, IdempotencyConflict, ClientRevoked, UnknownClient or
        UnknownLineage, having changed nothing; LedgerUnavailable if no decision is known. Rows that were paid
        for before are free and come back answered, or unanswered for the caller to compute. Charges that are
        asked for at the same time go to the store in one call.
        """
        batches = self._charges.get(request.lineage)
        if batches is None:
            batches = self._charges[request.lineage] = MicroBatches(
                self.charge_batch, weight=lambda asked: len(asked.rows), capacity=ROWS_IN_A_BATCH
            )
        return await batches.submit(request)

    async def charge_batch(self, requests: Sequence[ChargeRequest]) -> list[Charge | LedgerRefusal]:
        """Decide on the requests one after the other, each whole or not at all, in one call per lineage.

        Returns a charge or a refusal for each, in order. Raises LedgerUnavailable if no decision is known.
        """
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            positions.setdefault(request.lineage, []).append(position)
        decisions: dict[int, Charge | LedgerRefusal] = {}
        for lineage, places in positions.items():
            decided = await self._charge_lineage(lineage, [requests[place] for place in places])
            decisions.update(zip(places, decided, strict=True))
        return [decisions[position] for position in range(len(requests))]

    async def _charge_lineage(self, lineage: str, requests: Sequence[ChargeRequest]) -> list[Charge | LedgerRefusal]:
        replies = await self._store.call("charge", *wire.charge_call(lineage, requests))
        return [wire.read_decision(request, reply) for request, reply in zip(requests, replies, strict=True)]

    async def settle(self, lineage: str, answers: Settlement) -> list[bytes]:
        """Store an answer for each row that has none yet, durably; return each row's answer, by position.

        Send what is returned, not what was given: another caller may have been first. Raises RowNotCharged,
        having stored nothing, if a row was never charged; LedgerUnavailable if it is not known what is stored.
        """
        if not answers:
            return []
        batches = self._settlements.get(lineage)
        if batches is None:

            async def send(settlements: Sequence[Settlement]) -> list[list[bytes] | RowNotCharged]:
                return await self._settle_lineage(lineage, settlements)

            batches = self._settlements[lineage] = MicroBatches(send, weight=len, capacity=ROWS_IN_A_BATCH)
        return await batches.submit(answers)

    async def _settle_lineage(
        self, lineage: str, settlements: Sequence[Settlement]
    ) -> list[list[bytes] | RowNotCharged]:
        rows = LineageKeys(lineage).rows
        replies = await self._store.call("settle", [rows], wire.settle_call(settlements))
        return [wire.read_standing(given, reply) for given, reply in zip(settlements, replies, strict=True)]

    # Accounts

    async def open_lineage(self, lineage: str, budget: Budget, *, time: float) -> LineageAccount:
        """Return the lineage's account, having opened it with `budget` if it did not exist.

        An account that exists is left as it is, whatever its budget. `time` is in seconds since the epoch.
        """
        keys = LineageKeys(lineage)
        await self._store.command("SADD", wire.LINEAGES, lineage)
        await self._store.call("open_lineage", [keys.account], [*wire.budget_arguments(budget), repr(time)])
        return await self.lineage(lineage)

    async def lineage(self, lineage: str) -> LineageAccount:
        """Return the lineage's account. Raises UnknownLineage."""
        keys = LineageKeys(lineage)
        account = wire.read_lineage(lineage, await self._store.call("read", [keys.account, keys.tally], []))
        if account is None:
            raise UnknownLineage(lineage)
        return account

    async def lineages(self) -> list[LineageAccount]:
        """Return every lineage's account, by name."""
        names = sorted(name.decode() for name in await self._store.command("SMEMBERS", wire.LINEAGES))
        accounts = []
        for name in names:
            with suppress(UnknownLineage):  # listed, but the call that would have opened it did not arrive
                accounts.append(await self.lineage(name))
        return accounts

    async def set_lineage_budget(self, lineage: str, budget: Budget) -> LineageAccount:
        """Replace the lineage's budget; what is spent stays spent.

        A budget below what is spent refuses further releases and nothing else. Raises UnknownLineage, and
        AcceptsTooLate if an account that accepted any charge would, after its first release, accept only
        Gaussian ones: that would choose the conversion by looking at what was charged.
        """
        keys = LineageKeys(lineage)
        await self._set_budget(keys.account, keys.tally, budget, UnknownLineage(lineage))
        return await self.lineage(lineage)

    async def add_client(
        self, lineage: str, client: str, budget: Budget, digest: bytes, *, time: float
    ) -> ClientAccount:
        """Open a client's account; `digest` is `key_digest` of its API key, `time` in seconds since the epoch.

        Raises UnknownLineage, ClientExists, and KeyInUse if the key is another client's.
        """
        keys = LineageKeys(lineage)
        (status,) = await self._store.call(
            "add_client",
            [keys.account, keys.clients, keys.api_keys, keys.client(client).account],
            [*wire.budget_arguments(budget), repr(time), client, digest],
        )
        if status == b"unknown-lineage":
            raise UnknownLineage(lineage)
        if status == b"exists":
            raise ClientExists(client)
        if status == b"key-in-use":
            raise KeyInUse
        return await self.client(lineage, client)

    async def client(self, lineage: str, client: str) -> ClientAccount:
        """Return a client's account. Raises UnknownClient."""
        keys = LineageKeys(lineage).client(client)
        reply = await self._store.call("read", [keys.account, keys.tally], [])
        account = wire.read_client(lineage, client, reply)
        if account is None:
            raise UnknownClient(client)
        return account

    async def clients(self, lineage: str) -> list[ClientAccount]:
        """Return the lineage's clients, by name, the revoked ones included."""
        names = await self._store.call("list_clients", [LineageKeys(lineage).clients], [])
        return [await self.client(lineage, name.decode()) for name in sorted(names)]

    async def set_client_budget(self, lineage: str, client: str, budget: Budget) -> ClientAccount:
        """Replace a client's budget, as `set_lineage_budget` does a lineage's. Raises UnknownClient."""
        keys = LineageKeys(lineage).client(client)
        await self._set_budget(keys.account, keys.tally, budget, UnknownClient(client))
        return await self.client(lineage, client)

    async def revoke(self, lineage: str, client: str) -> None:
        """Refuse this client from now on, its replays included. Raises UnknownClient."""
        (status,) = await self._store.call("revoke", [LineageKeys(lineage).client(client).account], [])
        if status == b"unknown-client":
            raise UnknownClient(client)

    async def authenticate(self, lineage: str, digest: bytes) -> ClientAccount:
        """Return the account of the client whose API key has this digest. Raises UnknownKey, ClientRevoked."""
        (name,) = await self._store.call("find_client", [LineageKeys(lineage).api_keys], [digest])
        if name is None:
            raise UnknownKey
        account = await self.client(lineage, name.decode())
        if account.revoked:
            raise ClientRevoked(account.client)
        return account

    async def receipts(
        self, lineage: str, *, client: str | None = None, after: int = 0, count: int = 100
    ) -> list[Receipt]:
        """Return at most `count` receipts of a lineage, or of one client in it, oldest first.

        Only those with a sequence number above `after` are returned: page on with the last one's.
        """
        keys = LineageKeys(lineage)
        listed = keys.receipts if client is None else keys.client(client).receipts
        entries = await self._store.call("list_receipts", [listed], [f"({after}-0", "+", count])
        if client is not None:
            calls = (self._store.call("list_receipts", [keys.receipts], [one, one, 1]) for one, _ in entries)
            entries = [entry for found in await asyncio.gather(*calls) for entry in found]
        return [wire.read_receipt(entry) for entry in entries]

    async def _set_budget(self, account: str, tally: str, budget: Budget, unknown: LedgerRefusal) -> None:
        (status,) = await self._store.call("set_budget", [account, tally], wire.budget_arguments(budget))
        if status == b"unknown":
            raise unknown
        if status == b"too-late":
            raise AcceptsTooLate
