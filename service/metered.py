"""A model that is paid for by the row: charge a batch in one call of the ledger, then add noise, then answer.

Promises: nothing is answered before its charge is durable; a refusal spends nothing; one row's answer cannot be
another's; nothing but the mechanism's release ever leaves. An answer is a function of the model and of its question
(`training.questions`): none is stored, and a question that is asked again is answered alike by every process.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import numpy as np
from msgspec import Struct

from accounting.ledger import (
    Charge,
    ChargeRequest,
    ClientRevoked,
    KeyExpired,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    Quote,
    UnknownKey,
)
from accounting.losses import GaussianLoss, LaplaceLoss
from accounting.picorho import to_rho
from accounting.report import AccountReport, report_at
from mechanisms.gaussian import Gaussian
from mechanisms.grid import in_range
from mechanisms.label import Label
from mechanisms.laplace import Laplace
from mechanisms.mechanism import Mechanism
from mechanisms.selected_neuron import SelectedNeuron
from service.batcher import Batcher, BatchLimits
from service.errors import DeadlinePassed, InvalidRows, RequestRefused, UnknownTier
from service.predictor import AnswerNoise, Asked, Caller, Clock, Floats, Prediction, Predictor
from training.bundle import CertifiedHead
from training.published.bundle import PublishedNetwork
from training.questions import noise_of
from training.teachers.bundle import Teachers

_LAWS: dict[type, Literal["gaussian", "laplace"]] = {
    Gaussian: "gaussian",
    GaussianLoss: "gaussian",
    Laplace: "laplace",
    LaplaceLoss: "laplace",
}

_BATCH_SIZE = 1000
"""Rows of a batch, unless told otherwise: enough to share costs, not enough to keep others waiting."""

_DEEP_BATCH_SIZE = 64
"""Rows of a batch where a deep network computes the features: what it takes at a time. A row may be a megabyte."""


class _Request(Struct, frozen=True, eq=False):
    caller: Caller
    asked: Asked
    time: float
    """When it came, in seconds since the epoch."""


Refusal = LedgerError | RequestRefused

ServedModel = CertifiedHead | PublishedNetwork | Teachers
"""What can be served with noise on every answer: the second only by a mechanism that is unproven itself."""


class MeteredPredictor(Predictor):
    """Serves one model of one lineage through one mechanism at one price."""

    def __init__(
        self,
        head: ServedModel,
        mechanism: Mechanism,
        ledger: Ledger,
        *,
        largest_batch: int,
        max_batch_size: int | None = None,
        max_batch_time: float = 0.0,
        clock: Clock = time.time,
    ) -> None:
        """Serve `head`. largest_batch: the most rows of one request.

        max_batch_size, max_batch_time: as `BatchLimits` has them.
        """
        super().__init__(head.certificate, ledger, largest_batch=largest_batch, clock=clock)
        self.head = head
        self.mechanism = mechanism
        self.mechanism_name = mechanism.name
        self.mechanism_status: Literal["proven", "unproven"] = mechanism.status
        self.cost = self.price_per_row = mechanism.cost
        limits = BatchLimits(
            max_batch_size=max_batch_size or (_DEEP_BATCH_SIZE if self._on_encoder else _BATCH_SIZE),
            max_batch_time=max_batch_time,
        )
        self._batcher: Batcher[_Request, Prediction] = Batcher(self._answer, limits)

    @property
    def _on_encoder(self) -> bool:
        return isinstance(self.head, CertifiedHead) and self.head.on_encoder

    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier if one was named: each answer has noise of its own, and no tiers."""
        if tier is not None:
            raise UnknownTier("this model has no tiers: every answer is paid for at the same price")

    async def predict(self, caller: Caller, asked: Asked) -> Prediction:
        """Answer all rows or none; requests that wait at the same time share a forward pass and a call of the ledger.

        Cancelling the caller withdraws what is not charged yet; what is charged stays so, and asking again is free.
        """
        try:
            return await self._submit(caller, asked)
        except UnknownKey:
            # Whose the key was is remembered, and it may be another's now.
            return await self._submit(await self.confirm(caller), asked)
        except (ClientRevoked, KeyExpired):
            self._ledger.forget(self.lineage, caller.key_digest)
            raise

    def _submit(self, caller: Caller, asked: Asked) -> "asyncio.Future[Prediction]":
        request = _Request(caller, asked, self._clock())
        return self._batcher.submit(request, len(asked.X), deadline=asked.deadline)

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        await self._batcher.drain()

    async def _answer(self, requests: Sequence[_Request]) -> list[Prediction | Refusal]:
        # Features, sensitivities and questions are public, and computed first: what they fail on is never charged.
        X = requests[0].asked.X if len(requests) == 1 else np.concatenate([each.asked.X for each in requests])
        phi = await self._features(X)
        sensitivity = self.head.logit_sensitivity(phi)
        noise = noise_of(self.head, self.mechanism, phi, sensitivity)
        lengths = [len(each.asked.X) for each in requests]
        rows = _slices(lengths)
        refused = self._refused(requests, rows, sensitivity)
        charges = await self._charge(requests, rows, noise.digests, refused)
        charged = np.flatnonzero(np.repeat([isinstance(charge, Charge) for charge in charges], lengths))
        answers = np.empty((len(X), len(self.head.certificate.classes)))
        if len(charged):
            # A refusal looks at no logits, and takes no time that depends on any.
            logits = self.head.logits(phi[charged])
            answers[charged] = self.mechanism.release(logits, sensitivity[charged], noise.of(charged.tolist()))
        budgets = self._budgets(requests, charges)
        return [
            _prediction(charge, answers[of], budgets[each.caller.client]) if isinstance(charge, Charge) else charge
            for each, of, charge in zip(requests, rows, charges, strict=True)
        ]

    def _refused(self, requests: Sequence[_Request], rows: Sequence[slice], sensitivity: Floats) -> dict[int, Refusal]:
        """Return by place who must not be charged, and why: with a row that no noise hides, too late, or expired."""
        refused: dict[int, Refusal] = {}
        inside = in_range(sensitivity)
        if not inside.all():
            for place, of in enumerate(rows):
                outside = np.flatnonzero(~inside[of])
                if len(outside):
                    row = int(outside[0])
                    refused[place] = InvalidRows(f"row {row} is too large to be answered: no noise hides it", row)
        now, date = time.monotonic(), self._clock()
        for place, each in enumerate(requests):
            if now >= each.asked.deadline:
                refused[place] = DeadlinePassed()
            elif date >= each.caller.expires:
                refused[place] = KeyExpired("token")
        return refused

    async def _charge(
        self,
        requests: Sequence[_Request],
        rows: Sequence[slice],
        digests: tuple[bytes, ...],
        refused: dict[int, Refusal],
    ) -> list[Charge | Refusal]:
        """Charge all but the refused in one call, and return everybody's charge or refusal, in order.

        Raises LedgerUnavailable where no decision is known of any.
        """
        charging = [
            self._charge_request(each.caller, each.asked, digests[of], each.time)
            for place, (each, of) in enumerate(zip(requests, rows, strict=True))
            if place not in refused
        ]
        decided = await self._ledger.charge_batch(charging) if charging else []
        if decided and isinstance(decided[0], LedgerUnavailable) and all(each is decided[0] for each in decided):
            raise decided[0]
        decisions = iter(decided)
        return [refused.get(place) or next(decisions) for place in range(len(requests))]

    async def _features(self, X: Floats) -> Floats:
        """phi of each row, (n, D). An encoder takes its time, in which the loop serves others."""
        if self._on_encoder:
            return await asyncio.to_thread(self.head.features, X)
        return self.head.features(X)

    def _budgets(self, requests: Sequence[_Request], charges: Sequence[Charge | Refusal]) -> dict[str, AccountReport]:
        """Return each client's account, once for the batch: as it stood after the last of its requests."""
        last = {
            each.caller.client: charge.standing
            for each, charge in zip(requests, charges, strict=True)
            if isinstance(charge, Charge)
        }
        return {
            client: report_at(standing.spent, standing.budget, price=self.cost, lineage_left=standing.lineage_left)
            for client, standing in last.items()
        }

    async def quote(self, client: str, asked: Asked) -> Quote:
        """Return what rows that `check_rows` returned would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """
        phi = await self._features(asked.X)
        digests = noise_of(self.head, self.mechanism, phi, self.head.logit_sensitivity(phi)).digests
        return await self._ledger.quote(self._charge_request(Caller(client), asked, digests, self._clock()))

    async def noise(self, X: Floats, tier: str | None = None) -> AnswerNoise | None:
        """Return the noise on answers to rows that `check_rows` returned, of the mechanisms whose law is known."""
        del tier
        mechanism = self.mechanism
        if not isinstance(mechanism, Gaussian | Laplace | SelectedNeuron | Label):
            return None
        sensitivity = self.head.logit_sensitivity(await self._features(X))
        match mechanism:
            case Label():
                return AnswerNoise("exponential", tuple(mechanism.scale(sensitivity).tolist()), "selection")
            case SelectedNeuron():
                law = _LAWS[type(mechanism.noise)]
                return AnswerNoise(law, tuple(mechanism.noise_scale(sensitivity).tolist()), "log-odds")
        scale = mechanism.noise_scale(sensitivity, len(self.head.certificate.classes))
        return AnswerNoise(_LAWS[type(mechanism)], tuple(scale.tolist()))

    def _charge_request(self, caller: Caller, asked: Asked, questions: tuple[bytes, ...], time: float) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.lineage,
            client=caller.client,
            key_digest=caller.key_digest,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            questions=questions,
            time=time,
            idempotency=asked.idempotency,
        )

    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""
        return self.head.certificate.public() | {
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": {"rho": to_rho(self.cost.picorho), "losses": str(self.cost)},
            "largest_batch": self.largest_batch,
        }


def _slices(lengths: Sequence[int]) -> list[slice]:
    """Return where each of several parts of these lengths lies, one behind the other."""
    ends = list(accumulate(lengths))
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def _prediction(charge: Charge, answers: Floats, budget: AccountReport) -> Prediction:
    """Return one request's answers, (n, C)."""
    return Prediction(
        answers,
        charge.receipt,
        budget,
        replayed=len(answers) - charge.new_to_client,
        charged_rows=charge.new_to_client,
        charged=charge.charged,
        earlier=charge.earlier,
    )
