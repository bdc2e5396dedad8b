"""A model that is paid for by the row: charge a batch in one call of the ledger, then add noise, then answer.

Promises: nothing is answered before its charge is durable; a refusal spends nothing; one row's answer cannot be
another's; nothing but the mechanism's release ever leaves. An answer is a function of the model and of its question
(`dpserve.training.exact.questions`): none is stored, and a question that is asked again is answered alike by every
process."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Literal

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.ledger import Charge, ChargeRequest, ClientAccount, Ledger
from dpserve.accounting.ledger.receipts import charge_terms
from dpserve.mechanisms.answer_noise import AnyNoise, Uncertainty, UnknownNoise
from dpserve.mechanisms.grid import in_range
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import KeyedRandomness, load_cipher
from dpserve.service.batcher import DEEP_BATCH_SIZE, Batcher, BatchLimits, Waiting
from dpserve.service.errors import InvalidRows, Refusal
from dpserve.service.places import Places, in_thread
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
from dpserve.training.exact.questions import MeteredModel, noise_of


class _Inputs(Waiting, eq=False, kw_only=True):
    """Rows that wait for an encoder."""

    X: Floats


class _Arrival(Waiting, eq=False, kw_only=True):
    """A request that waits for its batch. phi: what an encoder made of it. time: when it came, since the epoch."""

    caller: Caller
    request: RowsRequest
    phi: Floats | None
    time: float
    timeline: Timeline | None


def _scale_is_private(sensitivity: Floats) -> UnknownNoise:
    del sensitivity
    return UnknownNoise("its scale follows from how many records the network was trained on, which is nobody's to know")


_timeline_of = attrgetter("timeline")


class MeteredPredictor(Predictor):
    """Serves one model of one lineage through one mechanism at one price."""

    def __init__(
        self,
        head: MeteredModel,
        mechanism: Mechanism,
        ledger: Ledger,
        *,
        largest_batch: int,
        max_batch_size: int | None = None,
        max_batch_time: float = 0.0,
        name: str | None = None,
        clock: Clock = time.time,
    ) -> None:
        """Serve `head`. largest_batch: the most rows of one request. name: under which it is asked, or its own.

        max_batch_size, max_batch_time: as `BatchLimits` has them.
        """
        super().__init__(head.certificate, ledger, largest_batch=largest_batch, name=name, clock=clock)
        self.head = head
        self.mechanism = mechanism
        self.mechanism_name = mechanism.name
        self.mechanism_status: Literal["proven", "unproven"] = mechanism.status
        self.cost = self.price_per_row = mechanism.cost
        certificate = head.certificate
        self._terms = charge_terms(
            certificate.model_id, mechanism.name, mechanism.cost, blocks=tuple(certificate.blocks)
        )
        self._noise_of: Callable[[Floats], AnyNoise] = partial(mechanism.answer_noise, classes=len(certificate.classes))
        """The public noise on answers to rows of given sensitivities, (n,)."""
        if certificate.SENSITIVITY_IS_PRIVATE:
            self._noise_of = _scale_is_private
        self._noise = self._noise_of(np.ones(1))
        self._quoting = Places(1)
        """The turns in which dry runs compute."""
        self._on_encoder = getattr(head, "on_encoder", False) is True
        limits = BatchLimits.of(self._numbers, max_batch_size, max_batch_time)
        self._batcher: Batcher[_Arrival, Prediction] = Batcher(self._answer_batch, limits)
        together = BatchLimits.of(self._numbers, max_batch_size, max_batch_time, most=DEEP_BATCH_SIZE)
        self._encoder: Batcher[_Inputs, Floats] = Batcher(self._encode_batch, together)
        self._encoded_together = together.max_batch_size
        self._can_draw = False

    async def predict(self, caller: Caller, request: RowsRequest) -> Prediction:
        """Put the request into the next batch: requests of a batch share a forward pass and a call of the ledger."""
        traced = timeline.get()
        if traced is not None:
            traced.begin()
        phi = await self._features(caller.client, request) if self._on_encoder else None
        arrival = _Arrival(
            rows=len(request.X),
            client=caller.client,
            deadline=request.deadline,
            caller=caller,
            request=request,
            phi=phi,
            time=self._clock(),
            timeline=traced,
        )
        return await self._batcher.submit(arrival)

    async def _features(self, client: str, request: RowsRequest) -> Floats:
        """Return what an encoder makes of the rows: small requests together, the parts of larger ones in turn."""
        size = self._encoded_together
        parts = [request.X[start : start + size] for start in range(0, len(request.X), size)]

        async def compute(place: int) -> Floats:
            return await self._encoder.submit(
                _Inputs(rows=len(parts[place]), client=client, deadline=request.deadline, X=parts[place])
            )

        if len(parts) == 1:
            return await compute(0)
        return np.concatenate(await self._encoded(client, request, [*map(len, parts)], compute))

    async def _encode_batch(self, batch: Sequence[_Inputs]) -> list[Floats]:
        X = np.concatenate([each.X for each in batch])
        phi = await in_thread(self.head.features, X)  # in which the loop serves others
        ends = np.cumsum([each.rows for each in batch])
        return np.split(phi, ends[:-1])

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch, of any kind."""
        return super().waiting_rows + self._encoder.waiting_rows + self._batcher.waiting_rows

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        await self._batcher.drain()

    async def _answer_batch(self, batch: Sequence[_Arrival]) -> list[Prediction | Refusal]:
        traced = [*filter(None, map(_timeline_of, batch))]
        for timed in traced:
            timed.end("batch wait")
        self._can_draw = self._can_draw or await _ready_to_draw()
        # Features, sensitivities and questions are public, and computed first: what they fail on is never charged.
        if self._on_encoder:
            phi = np.concatenate([arrival.phi for arrival in batch if arrival.phi is not None])
        else:
            X = batch[0].request.X if len(batch) == 1 else np.concatenate([arrival.request.X for arrival in batch])
            phi = self.head.features(X) if len(X) <= FEW_ROWS else await in_thread(self.head.features, X)
        sensitivity = self.head.logit_sensitivity(phi)
        words = noise_of(self.head, self.mechanism, phi, sensitivity)
        for timed in traced:
            timed.end("features")
        # Before the charge, too: it may be another package's.
        noise = self._noise_of(sensitivity) if any(arrival.request.noise for arrival in batch) else None
        requests, refused = self._requests(batch, sensitivity, words.digests)
        # One call for all requests of the batch: what a durable write costs is shared.
        charges = iter(await self._ledger.charge_batch(requests))
        for timed in traced:
            timed.end("ledger charge")
        decisions: list[Charge | Refusal] = []
        charged: list[bool] = []
        for place, arrival in enumerate(batch):
            decisions.append(refused[place] if place in refused else next(charges))
            charged += [isinstance(decisions[-1], Charge)] * arrival.rows
        answers = self._release(phi, sensitivity, words, charged, traced)
        return _predictions(batch, decisions, answers, None if noise is None else Uncertainty(noise, answers))

    def _requests(
        self, batch: Sequence[_Arrival], sensitivity: Floats, digests: tuple[bytes, ...]
    ) -> tuple[list[ChargeRequest], dict[int, Refusal]]:
        """Return what is to be charged, in order, and by place who must not be: too late, or with a row too large."""
        requests: list[ChargeRequest] = []
        refused: dict[int, Refusal] = {}
        inside, start = in_range(sensitivity), 0
        all_inside = inside.all()
        for place, arrival in enumerate(batch):
            rows = slice(start, start + arrival.rows)
            start = rows.stop
            late = self.late(arrival.caller, arrival.deadline)
            if late is not None:
                refused[place] = late
            elif not (all_inside or inside[rows].all()):
                row = int(np.argmin(inside[rows]))
                refused[place] = InvalidRows(f"row {row} is too large to be answered: no noise hides it", row)
            else:
                requests.append(self._charge_request(arrival.caller, arrival.request, arrival.time, digests[rows]))
        return requests, refused

    def _release(
        self, phi: Floats, sensitivity: Floats, words: KeyedRandomness, charged: list[bool], traced: Sequence[Timeline]
    ) -> Floats:
        """Return the answers (n, C) to the rows that were charged, and 1 elsewhere.

        A refusal looks at no logits, and takes no time that depends on any.
        """
        answers = np.ones((len(phi), len(self.head.certificate.classes)))
        if any(charged):
            rows: slice | Integers = slice(None)
            if not all(charged):  # each row's words follow from its question, so that no other row's noise changes
                rows = np.flatnonzero(charged)
                words = words.for_rows(rows.tolist())
            logits = self.head.logits(phi[rows])
            for timed in traced:
                timed.end("logits")
            answers[rows] = self.mechanism.release(logits, sensitivity[rows], words)
            for timed in traced:
                timed.end("noise")
        return answers

    async def quote(self, client: str, request: RowsRequest) -> RowsQuote:
        """Return what rows that `check_rows` returned would cost now.

        Nothing is encoded for it: rows that an encoder takes cost what they cost at most, each different one as new.
        """
        if self._on_encoder or request.deep:
            digests = request.digests()
        else:
            async with self._quoting.in_turn(client):
                phi = await in_thread(self.head.features, request.X)
            sensitivity = self.head.logit_sensitivity(phi)
            digests = noise_of(self.head, self.mechanism, phi, sensitivity).digests
        quote = await self._ledger.quote(self._charge_request(Caller(client), request, self._clock(), digests))
        return RowsQuote(quote.total, quote.free, quote.refusal, quote.currency, quote.shown_cost)

    async def standing(self, account: ClientAccount) -> Standing:
        """Return how many answers the client may still buy: every account that pays has so many left."""
        if account.revoked:
            return Standing(self.name, admitted=False, answers_left=0)
        own, shared, _ = await self._ledger.payers(self.lineage, account.client, self.certificate.blocks)
        left = min(each.answers_left(self.price_per_row) for each in (own, *shared))
        return Standing(self.name, admitted=left > 0, answers_left=left)

    def _charge_request(
        self, caller: Caller, request: RowsRequest, now: float, questions: tuple[bytes, ...]
    ) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.certificate.lineage,
            client=caller.client,
            terms=self._terms,
            questions=questions,
            time=now,
            idempotency=request.idempotency,
            key_digest=caller.key_digest,
        )


async def _ready_to_draw() -> bool:
    """Load what the first answer needs: before anything is charged, and off the loop, which serves others meanwhile."""
    await asyncio.to_thread(load_cipher)
    return True


def _predictions(
    batch: Sequence[_Arrival],
    decisions: Sequence[Charge | Refusal],
    answers: Floats,
    uncertainty: Uncertainty | None,
) -> list[Prediction | Refusal]:
    """Return each request's share of the answers, which lie one behind the other, or its refusal."""
    results: list[Prediction | Refusal] = []
    start = 0
    for arrival, decision in zip(batch, decisions, strict=True):
        rows = slice(start, start + arrival.rows)
        start = rows.stop
        if not isinstance(decision, Charge):
            results.append(decision)
            continue
        new = decision.free.count(False)
        results.append(
            Prediction(
                values=answers[rows],
                noise=uncertainty.part(rows) if uncertainty is not None and arrival.request.noise else None,
                charge=decision,
                charged_rows=new,
                replayed_rows=arrival.rows - new,
            )
        )
    return results
