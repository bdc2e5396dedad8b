"""A model that is paid for by the row: charge a batch in one call of the ledger, then add noise, then answer.

Promises: nothing is answered before its charge is durable; a refusal spends nothing; one row's answer cannot be
another's; nothing but the mechanism's release ever leaves. An answer is a function of the model and of its question
(`dpserve.training.exact.questions`): none is stored, and a question that is asked again is answered alike by every
process."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.ledger import Charge, ChargeRequest, ClientAccount, Ledger
from dpserve.accounting.report import row_price
from dpserve.mechanisms.answer_noise import AnyNoise, Uncertainty, UnknownNoise
from dpserve.mechanisms.grid import in_range
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import load_cipher
from dpserve.service.batcher import DEEP_BATCH_SIZE, USUAL_BATCH_SIZE, Batcher, BatchLimits, Waiting
from dpserve.service.errors import InvalidRows, Refusal
from dpserve.service.predictor import Caller, Clock, Prediction, Predictor, RowsQuote, RowsRequest, Standing
from dpserve.service.telemetry.timeline import Timeline, timeline
from dpserve.training.exact.questions import MeteredModel, noise_of
from dpserve.training.features.maps import FeatureMap


class _Arrival(Waiting, eq=False, kw_only=True):
    """A request that waits for its batch. time: when it came, in seconds since the epoch."""

    caller: Caller
    request: RowsRequest
    time: float
    timeline: Timeline | None


_SCALE_IS_PRIVATE = UnknownNoise(
    "its scale follows from how many records the network was trained on, which is nobody's to know"
)


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
        self._noise = self._noise_of(np.ones(1))
        features = head.certificate.feature_map
        numbers = len(features.lower) + (features.dimension if isinstance(features, FeatureMap) else 0)
        self._on_encoder = getattr(head, "on_encoder", False) is True
        most = DEEP_BATCH_SIZE if self._on_encoder else USUAL_BATCH_SIZE
        limits = BatchLimits.of(numbers, max_batch_size, max_batch_time, most=most)
        self._batcher: Batcher[_Arrival, Prediction] = Batcher(self._answer_batch, limits)
        self._can_draw = False

    def _answered(self, caller: Caller, request: RowsRequest) -> "asyncio.Future[Prediction]":
        """Put the request into the next batch: requests of a batch share a forward pass and a call of the ledger."""
        traced = timeline.get()
        if traced is not None:
            traced.begin()
        arrival = _Arrival(
            rows=len(request.X),
            deadline=request.deadline,
            caller=caller,
            request=request,
            time=self._clock(),
            timeline=traced,
        )
        return self._batcher.submit(arrival)

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch, of any kind."""
        return super().waiting_rows + self._batcher.waiting_rows

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        await self._batcher.drain()

    async def _answer_batch(self, batch: Sequence[_Arrival]) -> list[Prediction | Refusal]:
        traced = [each.timeline for each in batch if each.timeline is not None]
        for timed in traced:
            timed.end("batch wait")
        self._can_draw = self._can_draw or await _ready_to_draw()
        # Features, sensitivities and questions are public, and computed first: what they fail on is never charged.
        X = batch[0].request.X if len(batch) == 1 else np.concatenate([each.request.X for each in batch])
        # An encoder takes its time, in which the loop serves others.
        phi = await asyncio.to_thread(self.head.features, X) if self._on_encoder else self.head.features(X)
        sensitivity = self.head.logit_sensitivity(phi)
        words = noise_of(self.head, self.mechanism, phi, sensitivity)
        rows = _slices(batch)
        decisions: dict[int, Charge | Refusal] = {**self._refused(batch, rows, sensitivity)}
        for timed in traced:
            timed.end("features")
        charging = [place for place in range(len(batch)) if place not in decisions]
        # Before the charge, too: it may be another package's.
        noise_law = self._noise_of(sensitivity)
        requests = []
        for place in charging:
            each = batch[place]
            requests.append(self._charge_request(each.caller, each.request, each.time, words.digests[rows[place]]))
        # One call for all requests of the batch: what a durable write costs is shared.
        decisions.update(zip(charging, await self._charge(requests), strict=True))
        for timed in traced:
            timed.end("ledger charge")
        charged = _charged_rows(rows, decisions)
        answers = np.ones((len(X), len(self.head.certificate.classes)))
        if len(charged):
            # A refusal looks at no logits, and takes no time that depends on any.
            logits = self.head.logits(phi[charged])
            for timed in traced:
                timed.end("logits")
            # Each row's words follow from its question, so leaving rows out changes no other row's noise.
            noise = words if len(charged) == len(X) else words.for_rows(charged)
            answers[charged] = self.mechanism.release(logits, sensitivity[charged], noise)
            for timed in traced:
                timed.end("noise")
        known = Uncertainty(noise_law, answers)
        results: list[Prediction | Refusal] = []
        for place, of in enumerate(rows):
            decided = decisions[place]
            if not isinstance(decided, Charge):
                results.append(decided)
                continue
            new = decided.new_to_client
            results.append(
                Prediction(
                    values=answers[of],
                    noise=known.part(of),
                    charge=decided,
                    charged_rows=new,
                    replayed_rows=batch[place].rows - new,
                )
            )
        return results

    def _refused(self, batch: Sequence[_Arrival], rows: Sequence[slice], sensitivity: Floats) -> dict[int, Refusal]:
        """Return by place who must not be charged, and why: with a row that no noise hides, too late, or expired."""
        refused: dict[int, Refusal] = {}
        inside = in_range(sensitivity)
        if not inside.all():
            for place, of in enumerate(rows):
                outside = np.flatnonzero(~inside[of])
                if len(outside):
                    row = int(outside[0])
                    refused[place] = InvalidRows(f"row {row} is too large to be answered: no noise hides it", row)
        for place, each in enumerate(batch):
            late = self.late(each.caller, each.request.deadline)
            if late is not None:
                refused[place] = late
        return refused

    async def quote(self, client: str, request: RowsRequest) -> RowsQuote:
        """Return what rows that `check_rows` returned would cost now, and the noise of their answers."""
        phi = await asyncio.to_thread(self.head.features, request.X)
        sensitivity = self.head.logit_sensitivity(phi)
        digests = noise_of(self.head, self.mechanism, phi, sensitivity).digests
        wish = self._charge_request(Caller(client), request, self._clock(), digests)
        quote = await self._ledger.quote(wish)
        return RowsQuote(quote.total, quote.free, quote.refusal, self._noise_of(sensitivity), currency=quote.currency)

    async def standing(self, account: ClientAccount) -> Standing:
        """Return how many answers the client may still buy: every account that pays has so many left."""
        if account.revoked:
            return Standing(self.name, admitted=False, answers_left=0)
        own, shared, _ = await self._ledger.payers(self.lineage, account.client, self.certificate.blocks)
        left = min(each.answers_left(self.price_per_row) for each in (own, *shared))
        return Standing(self.name, admitted=left > 0, answers_left=left)

    def _noise_of(self, sensitivity: Floats) -> AnyNoise:
        """Return what is public of the noise on answers to rows of these sensitivities."""
        if self.head.certificate.SENSITIVITY_IS_PRIVATE:
            return _SCALE_IS_PRIVATE
        return self.mechanism.answer_noise(sensitivity, len(self.head.certificate.classes))

    def _charge_request(
        self, caller: Caller, request: RowsRequest, now: float, questions: tuple[bytes, ...]
    ) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.certificate.lineage,
            client=caller.client,
            key_digest=caller.key_digest,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            questions=questions,
            time=now,
            idempotency=request.idempotency,
            blocks=self.certificate.blocks,
        )

    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""
        public: dict[str, object] = self.head.certificate.public()
        return public | {
            "name": self.name,
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": row_price(self.cost).model_dump(),
            "largest_batch": self.largest_batch,
            "outputs": self.outputs.described(),
        }


async def _ready_to_draw() -> bool:
    """Load what the first answer needs: before anything is charged, and off the loop, which serves others meanwhile."""
    await asyncio.to_thread(load_cipher)
    return True


def _slices(batch: Sequence[_Arrival]) -> list[slice]:
    """Return where the rows of each request lie, one behind the other."""
    slices, start = [], 0
    for each in batch:
        slices.append(slice(start, start + each.rows))
        start += each.rows
    return slices


def _charged_rows(rows: Sequence[slice], decisions: Mapping[int, Charge | Refusal]) -> list[int]:
    """Return the rows of the requests that were charged, in order."""
    charged: list[int] = []
    for place, each in enumerate(rows):
        if isinstance(decisions[place], Charge):
            charged += range(each.start, each.stop)
    return charged
