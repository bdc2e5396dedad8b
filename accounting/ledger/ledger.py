"""The ledger: who may learn how much, and which questions were paid for by whom.

Two accounts pay for every release, the client's and the lineage's, and between them that of the client's group if it
has one. `charge` is the only call of a prediction: charge,
then answer. The answer is a function of the question and of the model, so that it needs no storing. Promises:

- A charge that `charge` returned is durable, and is never given back.
- An account never pays more than its budget; a refusal changes nothing.
- The lineage pays once for a question, whoever asks it again, a group once whichever of its members ask, and each
  client once from its own account. Asking again,
  for whatever reason, is free: a charge whose outcome is not known (`LedgerUnavailable`) may be asked again.
- A store that lost what it acknowledged, to this service or to another one of this machine, gives no decision (`join`).

Each service has a chain of receipts of its own in each lineage (`receipts`), and makes one call on a lineage at a
time. A call names how many writes of the service the store has acknowledged. Since nobody else writes under the
service's name, the store can have more only if it did a call whose reply did not arrive: then it decides nothing and
says so, the service reads the receipts of that call, takes them into its journal and chain, and asks again. So

- no service ever waits for, or is refused because of, another one: nothing is tried again but after a lost reply;
- a call that is still under way when it was given up cannot be done after a later one;
- no receipt is missing from the journal of its service once the service has charged again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import dropwhile
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpserve.accounting.ledger import wire
from dpserve.accounting.ledger.accounts import Accounts, in_turn
from dpserve.accounting.ledger.embedded import EmbeddedStore
from dpserve.accounting.ledger.errors import LedgerBusy, LedgerDamaged, LedgerError, LedgerUnavailable, OtherUnit
from dpserve.accounting.ledger.journal import Acknowledged, Journal, Witness, journal_folder, read_acknowledged
from dpserve.accounting.ledger.owner import Acts
from dpserve.accounting.ledger.reading import UNREADABLE, reading, unreadable
from dpserve.accounting.ledger.receipts import Receipt, pairs
from dpserve.accounting.ledger.store import DEADLINE, Store
from dpserve.accounting.ledger.values import Charge, Chargeable, LedgerRequest, Quote
from dpserve.accounting.ledger.wire import LineageKeys

_TRIES = 4
"""Largest number of times a call is sent: once, twice more after lost replies, and once where the client's group was
not known."""

_PAGE = 1000

_SERVICE = "a service"
"""Acts in a service's own name: it settles a privacy unit again that the store has lost."""

_MOST_REMEMBERED = 100_000
"""Number of clients whose groups are remembered, which saves a call each."""


_ledger_request_of: Callable[[Chargeable], LedgerRequest] = attrgetter("ledger_request")


class Ledger(Accounts):
    """A ledger in a store that speaks the Redis protocol. Make one with `connect` or `open`."""

    def __init__(self, store: Store, *, journals: Path | None = None) -> None:
        """Use `store`, which was verified. `journals`: the folder of this service's journals."""
        super().__init__(store, journals)
        self.store.compare = self._compare
        self._turns: dict[str, asyncio.Lock] = {}

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        rehearsal: bool = False,
        deadline: float = DEADLINE,
        replicas: int = 0,
        journals: Path | None = None,
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
            return cls(store, journals=journals)
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
    ) -> AsyncIterator[Self]:
        """Open the ledger at a URL, or the embedded one in a folder, for as long as the context lasts."""
        connect = partial(cls.connect, rehearsal=rehearsal, deadline=deadline, replicas=replicas, journals=journals)
        if isinstance(store, str) and "://" in store:
            async with await connect(store) as ledger:
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
            async with await connect(embedded.url, check=embedded.check_in_place) as ledger:
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
        for turn in self._turns.values():
            async with turn:
                pass
        await super().close()

    def acting(self, by: str, why: str = "", *, after: int | None = None, dry: bool = False) -> Acts:
        """Return what one person does with the accounts: see `Acts`. Raises ValueError."""
        return Acts(ledger=self, by=by, why=why, after=after, dry=dry)

    async def _compare(self, lineage: str, mark: str) -> None:
        """Raise StoreBehind if the store is older than any journal of a lineage that this service has joined says.

        A store that comes back may lack what it acknowledged to another service of this machine alone. It may also lack
        the lineage's privacy unit, which is settled again; raises LedgerDamaged if it is another by now.
        """
        units = set[str | None]()
        if self.journals_folder is not None and isinstance(self._witnesses.get(lineage), Journal):
            folder = journal_folder(self.journals_folder, lineage)
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
            await Acts(ledger=self, by=_SERVICE).write_unit(lineage, unit, lost=True, mark=mark)
        except OtherUnit as error:
            raise LedgerDamaged(lineage, f"its privacy unit was changed: {error}") from error

    async def charge(self, request: Chargeable) -> Charge:
        """Charge its accounts for what is new to them of the request, durably, or raise.

        Raises BudgetExhausted, MechanismNotAccepted, IdempotencyConflict, ClientRevoked, UnknownClient, UnknownKey,
        KeyExpired, ScopeMissing or UnknownLineage, having changed nothing; LedgerUnavailable if no decision is known:
        ask again, it is charged once.
        """
        (decision,) = await self.charge_batch([request])
        if isinstance(decision, LedgerError):
            raise decision
        return decision

    async def charge_batch(self, requests: Sequence[Chargeable]) -> list[Charge | LedgerError]:
        """Decide on requests of one lineage one after the other, each whole or not at all, in one durable call.

        Returns for each, in order, a charge, a refusal, or the LedgerUnavailable that kept it alone from being decided.
        Raises LedgerUnavailable where no decision is known of any, and LineageForgotten.
        """
        return await self._decide("charge", [*map(_ledger_request_of, requests)]) if requests else []

    async def apply(self, requests: Sequence[LedgerRequest]) -> list[Charge]:
        """Charge a lineage for what was released before and may be lost from the store, whatever its limit and rights.

        What was paid for is not charged again. Raises UnknownLineage, LedgerUnavailable.
        """
        charges = []
        for decision in await self._decide("apply", requests):
            if isinstance(decision, LedgerError):
                raise decision
            charges.append(decision)
        return charges

    async def quote(self, request: Chargeable | LedgerRequest) -> Quote:
        """Return what charging the request would cost now and whether it would be admitted; spend nothing.

        Raises ClientRevoked, UnknownClient, UnknownLineage or IdempotencyConflict: such a request has no price.
        """
        asked = request if isinstance(request, LedgerRequest) else request.ledger_request
        for _ in range(_TRIES):
            keys, arguments, _ = wire.charge_call([asked], self._groups)
            reply = await self.call(asked.lineage, "quote", keys, arguments, durably=False)
            if reply[:1] != [b"regroup"]:
                break
            self._regroup(asked.lineage, reply)
        with reading(asked.lineage):
            quote = wire.read_quote(asked, reply)
        if isinstance(quote, LedgerError):
            raise quote
        return quote

    async def _decide(self, function: str, requests: Sequence[LedgerRequest]) -> list[Charge | LedgerError]:
        """Let the store decide on requests of one lineage, when it is this call's turn."""
        lineage = requests[0].lineage
        # The link of a call's first receipt follows from the replies before: two calls at once would fork the chain.
        async with in_turn(self._turns, lineage, self.store.deadline):
            witness = self.witness(lineage)
            for _ in range(_TRIES):
                # A journal that cannot be written to must refuse before the store charges, not after.
                witness.check()
                known = witness.known
                keys, arguments, groups = wire.charge_call(
                    requests, self._groups, writes=known.writes, link=known.link, covered=witness.covered
                )
                replies, writes = await self.store.call(
                    lineage,
                    function,
                    [wire.services_key(lineage), *keys],
                    arguments,
                    asker=(known.service, known.writes),
                )
                if replies == [b"stale"]:
                    await self._catch_up(lineage, witness, writes)
                elif replies[:1] == [b"regroup"]:
                    self._regroup(lineage, replies)
                else:
                    charges, receipts = _read_each(known, requests, groups, replies)
                    # Before anything is answered, and whatever becomes of the other requests.
                    if writes > known.writes:
                        witness.note(writes, receipts)
                        witness.covered = replies[0]
                    return charges
        raise LedgerBusy

    def _regroup(self, lineage: str, reply: Sequence[Any]) -> None:
        """Take note of the groups that the store says clients belong to."""
        if len(self._groups) >= _MOST_REMEMBERED:
            # Forgetting costs one more call for each client, and no memory grows with the number of clients.
            self._groups.clear()
        for client, group in pairs(reply[1:]):
            self._groups[lineage, client.decode()] = group.decode()

    async def _catch_up(self, lineage: str, witness: Witness, writes: int) -> None:
        """Take down the receipts of this service's calls whose replies did not arrive."""
        acknowledged = witness.known
        # After a reconciliation the receipt of that number may be another one, or none.
        newest = await self.receipts(lineage, after=acknowledged.newest - 1, count=1) if acknowledged.newest else []
        is_there = newest and (newest[0].sequence, newest[0].service) == (acknowledged.newest, acknowledged.service)
        # Without a receipt to start from all are read: after a reconciliation the numbers may have moved.
        own, after = list[Receipt](), acknowledged.newest if is_there else 0
        while page := await self.receipts(lineage, after=after, count=_PAGE):
            own += [receipt for receipt in page if receipt.service == acknowledged.service]
            after = page[-1].sequence
        # What is before the acknowledged link was noted when it was acknowledged.
        missed = list(dropwhile(lambda receipt: receipt.link != acknowledged.link, own))
        if is_there and len(missed) != len(own):
            raise LedgerDamaged(lineage, f"receipt {own[0].sequence} does not follow from this service's before it")
        witness.note(writes, missed)


def _read_each(
    acknowledged: Acknowledged, requests: Sequence[LedgerRequest], groups: Sequence[str], replies: Sequence[Any]
) -> tuple[list[Charge | LedgerError], list[Receipt]]:
    """Read each reply by itself: one that cannot be read, or is missing, is an error of its own request alone.

    groups: of each request's client.
    """
    charges: list[Charge | LedgerError] = []
    receipts: list[Receipt] = []
    _, digits, stood, *parts = replies
    start = 0
    for place, (request, group) in enumerate(zip(requests, groups, strict=True)):
        decision: Charge | LedgerError
        end = start
        for line in request.lines:
            end += len(line.questions)
        try:
            decision = wire.read_charge(
                request,
                group,
                parts[wire.PARTS * place : wire.PARTS * (place + 1)],
                digits[start:end],
                stood,
                acknowledged.service,
                b"" if receipts else acknowledged.link,
            )
        except LedgerError as error:
            decision = error
        except UNREADABLE as error:
            decision = unreadable(request.lineage, error)
        start = end
        if isinstance(decision, Charge):
            receipts += decision.receipts
        charges.append(decision)
    return charges, receipts
