"""A pay-once model: the client pays for it, durably, and is then answered as often as it likes.

Promises: nothing is answered before the client has paid for the model, and the ledger has that on its disks; the model
costs each client its price, once; every answer after that costs nothing, and is the same whoever asks, however often
and beside whatever rows; what was released was drawn when the model was trained, so that nothing here draws noise.

Who has paid is known in memory, for SECONDS_REMEMBERED after the ledger was asked: in between answers make no call. A
request in the second half of that time has the ledger asked again, once for a key, and is answered meanwhile, so that
nobody waits as long as requests keep coming.

What the ledger is asked is the charge itself, which costs nothing where the model is paid for. It says in one durable
call that the API key is the client's and good, that the client is not revoked, that the model is paid for, and that the
store lost nothing that it acknowledged (`dpserve.accounting.ledger.ledger`). So a client or key that is revoked, or a
store that is older than it was, silent or gone, keeps nobody's answers going for longer than that; and an outage that
such a call meets ends all that is remembered at once.

Why a time and not a message. A store can tell its clients of changes (`CLIENT TRACKING`), but a connection that has
fallen silent tells nothing, so that what is remembered needs an end in time all the same; a store that was rolled back
has nothing to tell; and Sentinels and Clusters take a connection for each server, which ends at every failover. The
time alone is enough, and costs each key that is in use at most four calls a second for each worker.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from msgspec import Struct, structs

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Asked, DisclosedModel
from dpserve.accounting.explanation import AccountExplanation
from dpserve.accounting.ledger import (
    BudgetExhausted,
    Charge,
    ClientAccount,
    ClientRevoked,
    Idempotency,
    Ledger,
    LedgerUnavailable,
    Quote,
    ReleaseRequest,
)
from dpserve.accounting.losses import Cost
from dpserve.accounting.report import RowPrice, row_price
from dpserve.mechanisms.answer_noise import Uncertainty
from dpserve.service.batcher import DEEP_BATCH_SIZE, USUAL_BATCH_SIZE, Batcher, BatchLimits, Waiting, copy_of
from dpserve.service.errors import Overloaded, Refusal
from dpserve.service.places import in_thread
from dpserve.service.predictor import (
    FEW_ROWS,
    Caller,
    Clock,
    Prediction,
    Predictor,
    RowsQuote,
    RowsRequest,
    Standing,
)
from dpserve.service.telemetry.timeline import Timeline, timeline
from dpserve.training.features.maps import Encoder
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.pay_once.prediction_sets import PredictionSets
from dpserve.training.purchases import release_request

SECONDS_REMEMBERED = 0.5
"""Seconds for which a worker trusts the ledger's last reply about a client, counted from when it asked."""

_MOST_REMEMBERED = 10_000


class ModelForClient(DisclosedModel):
    """The model, as a client has it or could have it now. paid: whether it has paid for it."""

    paid: Asked[bool]
    cost: Asked[float]
    """The cost of paying for it now, in what the account counts: 0 once it is paid for."""
    shown_cost: Asked[float | None]
    """The growth of the account in the currency `shown_in`; null where it never pays for such a model."""
    admitted: Asked[bool]


class PayOnceExplanation(AccountExplanation):
    """An account, its explanation, and the client's share in the model that the service has."""

    model: Asked[ModelForClient]


class _Payment(Waiting, eq=False, kw_only=True):
    """A request to pay for the model that waits for the ledger. time: when it came, in seconds since the epoch."""

    caller: Caller
    idempotency: Idempotency | None
    time: float
    timeline: Timeline | None


class _Paid(Struct, eq=False):
    """The ledger's reply that by this charge the client has paid. asked: when, by `time.monotonic`.

    renewing: whether it is being asked again.
    """

    charge: Charge
    asked: float
    renewing: bool = False


class _Rows(Waiting, eq=False, kw_only=True):
    """Rows (n, d) to be computed. noise: whether to say how far noise may have moved their answers."""

    X: Floats
    noise: bool
    timeline: Timeline | None


_Computed = tuple[Floats, Uncertainty | None]
_timeline_of, _wants_noise = attrgetter("timeline"), attrgetter("noise")


class PayOncePredictor(Predictor):
    """Serves one released model of one lineage."""

    mechanism_status: Literal["proven", "unproven"] = "proven"
    price_per_row = Cost()

    def __init__(
        self,
        model: ReleasedModel,
        ledger: Ledger,
        *,
        largest_batch: int,
        max_batch_size: int | None = None,
        max_batch_time: float = 0.0,
        name: str | None = None,
        clock: Clock = time.time,
    ) -> None:
        """Serve `model`. largest_batch: the most rows of one request. name: under which it is asked, or its own.

        max_batch_size, max_batch_time: of what is computed together, as `BatchLimits` has them.
        """
        super().__init__(model.certificate, ledger, largest_batch=largest_batch, name=name, clock=clock)
        self.released = model.certificate
        self.mechanism_name = self.released.release
        self.answering = model
        self._paid: dict[Caller, _Paid] = {}
        self._batcher: Batcher[_Payment, _Paid] = Batcher(self._pay)
        features = self.released.feature_map
        _, self._noise = model.answers(np.asarray(features.lower)[None])
        self._on_encoder = isinstance(features, Encoder)
        # An encoder takes its time, in which the loop serves others.
        self._few_rows, most = (0, DEEP_BATCH_SIZE) if self._on_encoder else (FEW_ROWS, USUAL_BATCH_SIZE)
        limits = BatchLimits.of(self._numbers, max_batch_size, max_batch_time, most=most)
        self._computing: Batcher[_Rows, _Computed] = Batcher(self._compute_batch, limits)

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Those of the certificate."""
        return self.released.prediction_sets

    async def predict(self, caller: Caller, request: RowsRequest) -> Prediction:
        """Answer once the client has paid for the model."""
        traced, paid, age = timeline.get(), self._paid.get(caller), math.inf
        if paid is not None:
            age = time.monotonic() - paid.asked
        if paid is None or age >= SECONDS_REMEMBERED or request.idempotency is not None:
            paid = await self._batcher.submit(self._payment(caller, request, traced))
        elif (late := self.late(caller, request.deadline)) is not None:
            raise late
        elif age >= SECONDS_REMEMBERED / 2 and not paid.renewing:
            self._renew(paid, caller)
        if traced is not None:
            traced.begin()
        rows = _Rows(
            rows=len(request.X),
            client=caller.client,
            deadline=request.deadline,
            X=request.X,
            noise=request.noise,
            timeline=traced,
        )
        values, noise = await self._computing.submit(rows)
        return Prediction(values=values, noise=noise, charge=paid.charge)

    def _payment(self, caller: Caller, request: RowsRequest, traced: Timeline | None) -> _Payment:
        if traced is not None:
            traced.begin()
        return _Payment(
            rows=1,
            client=caller.client,
            deadline=request.deadline,
            caller=caller,
            idempotency=request.idempotency,
            time=self._clock(),
            timeline=traced,
        )

    def _renew(self, paid: _Paid, caller: Caller) -> None:
        """Ask the ledger again, which costs nothing; what it refuses or does not decide is refused to the next."""
        payment = _Payment(
            rows=1, client=caller.client, caller=caller, idempotency=None, time=self._clock(), timeline=None
        )
        try:
            result = self._batcher.submit(payment)
        except Overloaded:
            return  # the next request tries again
        paid.renewing = True

        def end(result: "asyncio.Future[_Paid]") -> None:
            paid.renewing = False
            if not result.cancelled():
                result.exception()  # which nobody waits for

        result.add_done_callback(end)

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch, of any kind."""
        return super().waiting_rows + self._batcher.waiting_rows + self._computing.waiting_rows

    async def drain(self) -> None:
        """Wait until every charge that was sent to the ledger is decided, and what is paid for is answered."""
        await self._batcher.drain()
        await self._computing.drain()

    async def _compute_batch(self, batch: Sequence[_Rows]) -> list[_Computed]:
        """Return every request's answers: all rows are one product of matrices."""
        traced = [*filter(None, map(_timeline_of, batch))]
        for timed in traced:
            timed.end("batch wait")
        computed: list[_Computed] = []
        X = batch[0].X if len(batch) == 1 else np.concatenate([each.X for each in batch])
        compute = self._with_noise if any(map(_wants_noise, batch)) else self.answering.values
        answers = compute(X) if len(X) <= self._few_rows else await in_thread(compute, X)
        values, noise = answers if isinstance(answers, tuple) else (answers, None)
        start = 0
        for each in batch:
            rows = slice(start, start + each.rows)
            computed.append((values[rows], noise.part(rows) if noise is not None and each.noise else None))
            start = rows.stop
        for timed in traced:
            timed.end("forward pass")
        return computed

    def _with_noise(self, X: Floats) -> tuple[Floats, Uncertainty]:
        values, noise = self.answering.answers(X)
        return values, Uncertainty(noise, values)

    async def _pay(self, payments: Sequence[_Payment]) -> list[_Paid | Refusal]:
        """Charge each client that has not paid, in one call; return that it has, or a refusal.

        Requests of one client ask once together, except by a name of their own: the first is charged.
        """
        asked = time.monotonic()
        traced = [*filter(None, map(_timeline_of, payments))]
        for timed in traced:
            timed.end("batch wait")
        outcomes: list[Any] = [None] * len(payments)
        alike: dict[object, list[int]] = {}
        for place, payment in enumerate(payments):
            outcomes[place] = self.late(payment.caller, payment.deadline)
            if outcomes[place] is None:
                alike.setdefault(place if payment.idempotency else payment.caller, []).append(place)
        firsts = [payments[places[0]] for places in alike.values()]
        requests = [
            self._request(payment.caller.client, payment.time, payment.idempotency, payment.caller.key_digest)
            for payment in firsts
        ]
        try:
            decisions = await self._ledger.charge_batch(requests)
        except LedgerUnavailable:
            self._paid.clear()
            raise
        for timed in traced:
            timed.end("ledger charge")
        for payment, decision, (first, *others) in zip(firsts, decisions, alike.values(), strict=True):
            if isinstance(decision, Charge):
                outcomes[first] = _Paid(decision, asked)
                again = self._remember(payment, outcomes[first])
                for place in others:
                    outcomes[place] = again
                continue
            self._paid.pop(payment.caller, None)
            outcomes[first] = decision
            for place in others:
                outcomes[place] = copy_of(decision)
        return outcomes

    def _remember(self, payment: _Payment, paid: _Paid) -> _Paid:
        """Remember what the ledger said of a client; return it as it is said to the requests after the first."""
        if len(self._paid) >= _MOST_REMEMBERED:
            self._paid.clear()
        again = _Paid(structs.replace(paid.charge, receipts=(), earlier=None, charged=0), paid.asked)
        self._paid[payment.caller] = again
        return again

    async def quote(self, client: str, request: RowsRequest) -> RowsQuote:
        """Return what being answered would cost now: the model's price, or nothing once it is paid for.

        It asks no model: what that would answer is of releases that the client may not have paid for.
        """
        quote = await self._ledger.quote(self._request(client, self._clock(), request.idempotency))
        # The model answers every row: only the model costs anything.
        return RowsQuote(quote.total, (True,) * len(request.X), quote.refusal, quote.currency, quote.shown_cost)

    async def explained_budget(
        self, client: str, *, unlimited: bool = False, limiting_block: str | None = None
    ) -> "PayOnceExplanation":
        """Return the client's account and its explanation. Answers of what it has paid for are without limit."""
        quote = await self._quoted(client)
        paid, refusal = all(quote.free), quote.refusal
        explained = await super().explained_budget(
            client,
            unlimited=unlimited or paid,
            limiting_block=refusal.block if isinstance(refusal, BudgetExhausted) and refusal.block else limiting_block,
        )
        mine = ModelForClient(
            paid=paid,
            cost=quote.currency.value(quote.total),
            shown_cost=quote.shown_cost,
            admitted=refusal is None,
        )
        # No number of queries is left, or none where not even one would be answered.
        left = {"queries_left": None if refusal is None else 0, "unlimited": paid}
        return PayOnceExplanation(**(dict(explained) | left), model=mine)

    async def standing(self, account: ClientAccount) -> Standing:
        """Return whether the client has paid for the model, and what it would cost it."""
        try:
            quote = await self._quoted(account.client)
        except ClientRevoked:
            return Standing(self.name, paid=False)
        if all(quote.free):
            return Standing(self.name, paid=True)
        return Standing(self.name, paid=False, shown_cost=quote.shown_cost, admitted=quote.refusal is None)

    @property
    def _price(self) -> RowPrice:
        """The price of the model."""
        return row_price(self.released.price)

    async def _quoted(self, client: str) -> Quote:
        """Return what the model would cost the client now: whether it has paid, or would be admitted to it."""
        return await self._ledger.quote(self._request(client, self._clock()))

    def _request(
        self, client: str, now: float, idempotency: Idempotency | None = None, key_digest: bytes = b""
    ) -> ReleaseRequest:
        return release_request(self.released, client, now, idempotency, key_digest)
