"""The ledger: who may learn how much, who has paid for what, and the one answer each payment bought.

Two accounts pay for every release, the lineage's and the client's. The order of a request's way is: charge,
compute, settle, send what settling returned. Promises:

- A charge that `charge` returned is durable, and is never given back.
- An account never pays more than its budget; a refusal changes nothing.
- A row is charged once. Asking again, for whatever reason, finds it charged or answered, at no cost: a charge
  whose outcome is not known (`LedgerUnavailable`) may therefore be asked again with the same rows.
- A row has one answer: the first that was settled. Whoever settles later gets that one to send.
- A store that lost what it acknowledged to this service is found out and gives no decision (`join`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from accounting.ledger import wire
from accounting.ledger.accounts import UNREADABLE, reading, unreadable
from accounting.ledger.embedded import EmbeddedStore
from accounting.ledger.errors import LedgerError, LedgerRefusal, LedgerUnavailable
from accounting.ledger.heads import Head, Heads, SharedHeads
from accounting.ledger.holdings import (
    Holding,
    HoldQuote,
    HoldRequest,
    hold_call,
    read_hold_quote,
    read_holding,
)
from accounting.ledger.keyed_accounts import KeyedAccounts
from accounting.ledger.micro_batches import MicroBatches
from accounting.ledger.store import DEADLINE, Reply, Store
from accounting.ledger.values import Charge, ChargeRequest, Quote, Standing
from accounting.ledger.wire import DecidedBefore, LineageKeys

ROWS_IN_A_BATCH = 1000
"""How many rows of several requests share a call: enough to share its cost, not enough to keep others waiting."""

MOST_TIMES_TOLD = 2
"""How often a call is sent again because the chain ended elsewhere than its hashes were foreseen from."""

FEWEST_TOLD_ONCE, FEWEST_TOLD = 4, 8
"""Requests of a call that is sent again at most once, and so often: for fewer the store's own hashes are as cheap."""

SHARE_TO_BE_TOLD = 0.1
"""Of the deadline for one call: what has taken longer is sent to be decided."""

REMEMBERED_ROWS = 1_000_000
"""How many answered rows of a lineage are remembered at most, unless the owner says otherwise."""

Asked = TypeVar("Asked")
Got = TypeVar("Got")

Settlement = Sequence[tuple[bytes, bytes]]
"""Row ids, each with the answer that was computed for it."""


class Ledger(KeyedAccounts):
    """A ledger in a store that speaks the Redis protocol. Make one with `connect` or `open`."""

    def __init__(
        self,
        store: Store,
        *,
        journals: Path | None = None,
        remembered_rows: int = REMEMBERED_ROWS,
        heads: SharedHeads | None = None,
    ) -> None:
        """Use `store`, which was verified.

        `remembered_rows`: the most answered rows to keep for replays, no fewer than half of them; a forgotten
        answer costs again. `journals`: the folder of this service's journals. `heads`: what it shares with the other
        processes of this machine that charge the same lineages.
        """
        if remembered_rows < 1:
            raise ValueError(f"at least one row must be remembered, not {remembered_rows}")
        super().__init__(store, journals)
        self._remembered_rows = remembered_rows
        self._heads = Heads(heads)
        self._charges: dict[str, MicroBatches[ChargeRequest, Charge]] = {}
        self._settlements: dict[str, MicroBatches[Settlement, list[bytes]]] = {}

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        rehearsal: bool = False,
        deadline: float = DEADLINE,
        replicas: int = 0,
        journals: Path | None = None,
        remembered_rows: int = REMEMBERED_ROWS,
        heads: SharedHeads | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Self:
        """Connect to the store at `url` and verify its settings and function library.

        `check` is called before each call and raises LedgerUnavailable if it must not be made.

        `rehearsal` accepts a store that may lose what it acknowledged; otherwise a write counts once it is on the
        store's disk and on those of `replicas` replicas. Raises LedgerUnavailable if the store cannot be reached
        within `deadline` seconds, UnsafeStore with what to set, ValueError for a bad URL.
        """
        store = Store(url, deadline=deadline, replicas=replicas, rehearsal=rehearsal, check=check)
        try:
            await store.verify()
            return cls(store, journals=journals, remembered_rows=remembered_rows, heads=heads)
        except BaseException:
            await store.close()
            raise

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: str | Path,
        *,
        rehearsal: bool = False,
        deadline: float = DEADLINE,
        replicas: int = 0,
        journals: Path | None = None,
        remembered_rows: int = REMEMBERED_ROWS,
        heads: SharedHeads | None = None,
    ) -> AsyncIterator[Self]:
        """Open the ledger at a URL, or the embedded one in a folder, for as long as the context lasts."""
        if isinstance(store, str) and "://" in store:
            async with await cls.connect(
                store,
                rehearsal=rehearsal,
                deadline=deadline,
                replicas=replicas,
                journals=journals,
                remembered_rows=remembered_rows,
                heads=heads,
            ) as ledger:
                yield ledger
            return
        embedded = EmbeddedStore(Path(store))
        opening = asyncio.ensure_future(asyncio.to_thread(embedded.open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped, and what it starts must not be left behind.
            with suppress(LedgerUnavailable):
                await opening
                await asyncio.to_thread(embedded.close)
            raise
        keeping = asyncio.create_task(embedded.keep_running())
        try:
            async with await cls.connect(
                embedded.url,
                rehearsal=rehearsal,
                deadline=deadline,
                replicas=replicas,
                journals=journals,
                remembered_rows=remembered_rows,
                heads=heads,
                check=embedded.check_in_place,
            ) as ledger:
                yield ledger
        except LedgerUnavailable as error:
            # A server that cannot write ends, and a connection that closes does not say why.
            if type(error) is not LedgerUnavailable or not (full := embedded.fullness()):
                raise
            raise LedgerUnavailable(f"{error}{full}") from error
        finally:
            keeping.cancel()
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
        """Wait for the calls under way, then close every connection and journal."""
        for charges in self._charges.values():
            await charges.drain()
        for settlements in self._settlements.values():
            await settlements.drain()
        await super().close()

    # Releases

    async def charge(self, request: ChargeRequest) -> Charge:
        """Charge both accounts for the request's new rows, durably, or raise.

        Raises BudgetExhausted, MechanismNotAccepted, IdempotencyConflict, ClientRevoked, UnknownClient, UnknownKey
        or UnknownLineage, having changed nothing; LedgerUnavailable if no decision is known. Rows that were paid
        for before are free and come back answered, or unanswered for the caller to compute. Charges that are
        asked for at the same time go to the store in one call.
        """
        batches = self._charges.get(request.lineage)
        if batches is None:
            batches = self._charges[request.lineage] = MicroBatches(
                self.charge_batch, weight=lambda asked: len(asked.rows), capacity=ROWS_IN_A_BATCH
            )
        return await batches.submit(request)

    async def charge_batch(self, requests: Sequence[ChargeRequest]) -> list[Charge | LedgerError]:
        """Decide on the requests one after the other, each whole or not at all, in one call per lineage.

        Returns for each, in order, a charge, a refusal, or the LedgerUnavailable that kept it from being decided.
        Raises LedgerUnavailable if no decision is known.
        """
        positions: dict[str, list[int]] = {}
        for position, request in enumerate(requests):
            positions.setdefault(request.lineage, []).append(position)
        decisions: dict[int, Charge | LedgerError] = {}
        for lineage, places in positions.items():
            decided = await self._charge_lineage(lineage, [requests[place] for place in places])
            decisions.update(zip(places, decided, strict=True))
        return [decisions[position] for position in range(len(requests))]

    async def _charge_lineage(self, lineage: str, requests: Sequence[ChargeRequest]) -> list[Charge | LedgerError]:
        reply, began, foreseen = await self._send_charges(lineage, requests)
        read: list[Charge | DecidedBefore | LedgerError]
        read = list(_read_each(lineage, wire.read_decision, requests, reply.values))
        # Before anything else can fail: what was charged is written down, whatever becomes of the others.
        receipts = [charge.receipt for charge in read if isinstance(charge, Charge) and charge.receipt]
        came = Head(receipts[-1].sequence, receipts[-1].hash) if receipts else began
        self._heads.came(lineage, came, foreseen=foreseen)
        self._note(lineage, reply.writes, receipts)
        return [
            await self._charge_as_before(decision) if isinstance(decision, DecidedBefore) else decision
            for decision in read
        ]

    async def _send_charges(self, lineage: str, requests: Sequence[ChargeRequest]) -> tuple[Reply, Head, Head]:
        """Return the reply, the head that hashes were foreseen from, and the one that was foreseen last.

        The store says if the chain ends elsewhere, having decided nothing: others write too. A few requests are decided
        all the same, and so are those that others came before so often: then the store computes their hashes. A store
        that is slow to say so is not asked to again, so that the calls together take about two deadlines at most.
        """
        head, began = self._heads.newest(lineage), time.monotonic()
        may_be_told = 0 if len(requests) < FEWEST_TOLD_ONCE else 1 if len(requests) < FEWEST_TOLD else MOST_TIMES_TOLD
        while True:
            told = may_be_told > 0 and time.monotonic() - began < self._store.deadline * SHARE_TO_BE_TOLD
            call = wire.charge_call(requests, remembered_rows=self._remembered_rows, head=head, told=told)
            assert call.head is not None
            self._heads.foresee(lineage, call.head)
            reply = await self._store.call(lineage, "charge", call.keys, call.arguments, asker=self._asker(lineage))
            with reading(lineage):
                newest = wire.read_stale(reply.values)
            if newest is None:
                return reply, head, call.head
            head, may_be_told = newest, may_be_told - 1

    async def _charge_as_before(self, decided: DecidedBefore) -> Charge | LedgerError:
        """Ask again at the terms of then; the others of the batch were decided, and are told so if this fails."""
        try:
            (decision,) = await self._charge_lineage(decided.request.lineage, [decided.request])
        except LedgerError as error:
            return error
        except UNREADABLE as error:
            return unreadable(decided.request.lineage, error)
        return decision

    @staticmethod
    def standing(request: ChargeRequest, charge: Charge) -> Standing:
        """Return how both accounts stood once `request` was decided so. Raises LedgerDamaged."""
        return wire.read_standing_of(request.lineage, charge)

    async def quote(self, request: ChargeRequest) -> Quote:
        """Return what charging the request would cost now and whether it would be admitted; spend nothing.

        Raises ClientRevoked, UnknownClient, UnknownLineage or IdempotencyConflict: such a request has no price.
        """
        call = wire.charge_call([request], remembered_rows=self._remembered_rows, head=None)
        (reply,) = await self.call(request.lineage, "quote", call.keys[1:], call.arguments, durably=False)
        with reading(request.lineage):
            quote = wire.read_quote(request, reply)
        if isinstance(quote, DecidedBefore):
            return await self.quote(quote.request)
        if isinstance(quote, LedgerError):
            raise quote
        return quote

    async def hold(self, request: HoldRequest) -> Holding:
        """See to it that a release is held and paid for, durably, or raise; what is held already costs nothing.

        The client's account pays for the steps that it does not hold, the lineage's for those that nobody held.
        Raises BudgetExhausted, MechanismNotAccepted, IdempotencyConflict, ClientRevoked, UnknownClient or
        UnknownLineage, having changed nothing; LedgerUnavailable if no decision is known: ask again, it is charged
        once.
        """
        named, arguments = hold_call(request)
        lineage = request.lineage
        keys = [LineageKeys(lineage).services, *named]
        reply = await self._store.call(lineage, "hold", keys, arguments, asker=self._asker(lineage))
        with reading(request.lineage):
            holding = read_holding(request, reply.values)
        if isinstance(holding, LedgerRefusal):
            raise holding
        if holding.receipt:
            self._heads.came(lineage, Head(holding.receipt.sequence, holding.receipt.hash))
        self._note(lineage, reply.writes, holding.receipts)
        return holding

    async def quote_hold(self, request: HoldRequest) -> HoldQuote:
        """Return what holding a release would cost now and whether it would be admitted; spend nothing.

        Raises ClientRevoked, UnknownClient, UnknownLineage or IdempotencyConflict: such a request has no price.
        """
        named, arguments = hold_call(request)
        reply = await self.call(request.lineage, "quote_hold", named, arguments, durably=False)
        with reading(request.lineage):
            quote = read_hold_quote(request, reply)
        if isinstance(quote, LedgerRefusal):
            raise quote
        return quote

    async def settle(self, lineage: str, answers: Settlement) -> list[bytes]:
        """Store an answer for each row that has none yet, durably; return each row's answer, by position.

        Send what is returned, not what was given: another caller may have been first. Raises RowNotCharged,
        having stored nothing, if a row was never charged; LedgerUnavailable if it is not known what is stored.
        """
        if not answers:
            return []
        batches = self._settlements.get(lineage)
        if batches is None:

            async def send(settlements: Sequence[Settlement]) -> list[list[bytes] | LedgerError]:
                return await self.settle_batch(lineage, settlements)

            batches = self._settlements[lineage] = MicroBatches(send, weight=len, capacity=ROWS_IN_A_BATCH)
        return await batches.submit(answers)

    async def settle_batch(self, lineage: str, settlements: Sequence[Settlement]) -> list[list[bytes] | LedgerError]:
        """Settle each as `settle` does, whatever becomes of the others, in one call.

        Returns for each, in order, every row's answer, or the error that `settle` would raise. Raises LedgerUnavailable
        if it is not known what is stored.
        """
        keys = LineageKeys(lineage)
        named = [keys.services, keys.account, keys.rows, keys.old_rows]
        arguments = wire.settle_call(settlements)
        reply = await self._store.call(lineage, "settle", named, arguments, asker=self._asker(lineage))
        self._note(lineage, reply.writes)
        return list(_read_each(lineage, partial(wire.read_standing, lineage), settlements, reply.values))


def _read_each(
    lineage: str, read: Callable[[Asked, Any], Got | LedgerError], asked: Sequence[Asked], replies: Sequence[Any]
) -> Iterator[Got | LedgerError]:
    """Read each reply by itself: one that cannot be read, or is missing, is an error of its own request alone."""
    for one, reply in zip_longest(asked, replies[: len(asked)]):
        try:
            yield read(one, reply)
        except LedgerError as error:
            yield error
        except UNREADABLE as error:
            yield unreadable(lineage, error)
