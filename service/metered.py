"""A model that is paid for by the row: charge a batch in one call of the ledger, then add noise, then answer.

Promises: nothing is answered before its charge is durable; a refusal spends nothing; one row's answer cannot be
another's; nothing but the mechanism's release ever leaves.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from accounting.ledger import (
    Answered,
    Charge,
    ChargeRequest,
    ClientRevoked,
    KeyExpired,
    Ledger,
    LedgerError,
    Quote,
    Unanswered,
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
from mechanisms.randomness import Randomness
from mechanisms.selected_neuron import SelectedNeuron
from service.batcher import Batcher, BatchLimits
from service.errors import DeadlinePassed, InvalidRows, RequestRefused, UnknownTier
from service.predictor import AnswerNoise, Asked, Caller, Clock, Floats, Prediction, Predictor
from training.bundle import CertifiedHead
from training.published.bundle import PublishedNetwork
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
    charge: ChargeRequest


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
        randomness: Randomness,
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
        self._randomness = randomness
        limits = BatchLimits(
            max_batch_size=max_batch_size or (_DEEP_BATCH_SIZE if self._on_backbone else _BATCH_SIZE),
            max_batch_time=max_batch_time,
        )
        self._batcher: Batcher[_Request, Prediction] = Batcher(self._answer, limits)

    @property
    def _on_backbone(self) -> bool:
        return isinstance(self.head, CertifiedHead) and self.head.on_backbone

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
        request = _Request(caller, asked, self._charge_request(caller, asked))
        return self._batcher.submit(request, len(asked.X), deadline=asked.deadline)

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        await self._batcher.drain()

    async def _answer(self, requests: Sequence[_Request]) -> list[Prediction | Refusal]:
        # Features and sensitivities are public, and computed first: what they fail on is never charged.
        X = requests[0].asked.X if len(requests) == 1 else np.concatenate([each.asked.X for each in requests])
        phi = await self._features(X)
        sensitivity = self.head.logit_sensitivity(phi)
        refused = self._refused(requests, sensitivity)
        charges = await self._charge_others(requests, refused)
        return await self._finish(requests, charges, phi, sensitivity)

    def _refused(self, requests: Sequence[_Request], sensitivity: Floats) -> dict[int, Refusal]:
        """Return by place who must not be charged, and why: with a row that no noise hides, too late, or expired."""
        refused: dict[int, Refusal] = {}
        inside = in_range(sensitivity)
        if not inside.all():
            first = 0
            for place, each in enumerate(requests):
                outside = np.flatnonzero(~inside[first : first + len(each.asked.X)])
                if len(outside):
                    row = int(outside[0])
                    refused[place] = InvalidRows(f"row {row} is too large to be answered: no noise hides it", row)
                first += len(each.asked.X)
        now, date = time.monotonic(), self._clock()
        for place, each in enumerate(requests):
            if now >= each.asked.deadline:
                refused[place] = DeadlinePassed()
            elif date >= each.caller.expires:
                refused[place] = KeyExpired("token")
        return refused

    async def _charge_others(
        self, requests: Sequence[_Request], refused: dict[int, Refusal]
    ) -> Sequence[Charge | Refusal]:
        """Charge all but the refused in one call, and return everybody's charge or refusal, in order."""
        if not refused:
            return await self._ledger.charge_batch([each.charge for each in requests])
        others = [each.charge for place, each in enumerate(requests) if place not in refused]
        charged = iter(await self._ledger.charge_batch(others) if others else ())
        return [refused.get(place) or next(charged) for place in range(len(requests))]

    async def _features(self, X: Floats) -> Floats:
        """phi of each row, (n, D). A backbone takes its time, in which the loop serves others."""
        if self._on_backbone:
            return await asyncio.to_thread(self.head.features, X)
        return self.head.features(X)

    async def _finish(
        self, requests: Sequence[_Request], charges: Sequence[Charge | Refusal], phi: Floats, sensitivity: Floats
    ) -> list[Prediction | Refusal]:
        """Each request gets its own rows' answers, found by row identity, or its own refusal."""
        answers, unanswered = _known(charges, [len(each.asked.X) for each in requests])
        failed: dict[int, LedgerError] = {}
        if unanswered:
            rows = list(unanswered.values())
            released = self.mechanism.release(self.head.logits(phi[rows]), sensitivity[rows], self._randomness)
            drawn = {
                row_id: row.tobytes()
                for row_id, row in zip(unanswered, released.astype("<f8", copy=False), strict=True)
            }
            failed = await self._settle(charges, drawn, answers)
        budgets = self._budgets(requests, charges)
        return [
            charge
            if not isinstance(charge, Charge)
            else failed.get(place) or _prediction(charge, answers, budgets[each.caller.client])
            for place, (each, charge) in enumerate(zip(requests, charges, strict=True))
        ]

    def _budgets(
        self, requests: Sequence[_Request], charges: Sequence[Charge | Refusal]
    ) -> dict[str, AccountReport | LedgerError]:
        """Return each client's account, once for the batch: as it stood after the last of its requests."""
        last = {
            each.caller.client: (each.charge, charge)
            for each, charge in zip(requests, charges, strict=True)
            if isinstance(charge, Charge)
        }
        budgets: dict[str, AccountReport | LedgerError] = {}
        for client, decided in last.items():
            try:
                standing = self._ledger.standing(*decided)
            except LedgerError as error:
                budgets[client] = error
            else:
                budgets[client] = report_at(
                    standing.spent, standing.budget, price=self.cost, lineage_left=standing.lineage_left
                )
        return budgets

    async def _settle(
        self, charges: Sequence[Charge | Refusal], drawn: dict[bytes, bytes], answers: dict[bytes, bytes]
    ) -> dict[int, LedgerError]:
        """Store what was drawn, request by request, and enter into `answers` what now stands.

        Returns the requests whose rows could not be settled, by place.
        """
        places: list[int] = []
        settlements: list[list[tuple[bytes, bytes]]] = []
        for place, charge in enumerate(charges):
            if isinstance(charge, Charge):
                needed = dict.fromkeys(row.row_id for row in charge.rows if isinstance(row, Unanswered))
                if needed:
                    places.append(place)
                    settlements.append([(row_id, drawn[row_id]) for row_id in needed])
        failed: dict[int, LedgerError] = {}
        settled = await self._ledger.settle_batch(self.lineage, settlements)
        for place, settlement, stored in zip(places, settlements, settled, strict=True):
            if isinstance(stored, LedgerError):
                failed[place] = stored
            else:
                answers.update((row_id, answer) for (row_id, _), answer in zip(settlement, stored, strict=True))
        return failed

    async def quote(self, client: str, asked: Asked) -> Quote:
        """Return what rows that `check_rows` returned would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """
        return await self._ledger.quote(self._charge_request(Caller(client), asked))

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

    def _charge_request(self, caller: Caller, asked: Asked) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.lineage,
            client=caller.client,
            key_digest=caller.key_digest,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            rows=tuple(row.tobytes() for row in asked.X),
            time=self._clock(),
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


def _known(charges: Sequence[Charge | Refusal], lengths: Sequence[int]) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
    """Return the stored answers by row id, and by row id the place in the tick of each row that has none."""
    answers: dict[bytes, bytes] = {}
    unanswered: dict[bytes, int] = {}
    first = 0
    for charge, length in zip(charges, lengths, strict=True):
        if isinstance(charge, Charge):
            for place, row in enumerate(charge.rows, first):
                if isinstance(row, Answered):
                    answers[row.row_id] = row.answer
                else:
                    unanswered.setdefault(row.row_id, place)
        first += length
    return answers, unanswered


def _prediction(
    charge: Charge, answers: dict[bytes, bytes], budget: AccountReport | LedgerError
) -> Prediction | LedgerError:
    """Return one request's answers, each row's found by its id."""
    if isinstance(budget, LedgerError):
        return budget
    receipt = charge.receipt
    rows = receipt.rows if receipt else 0
    found = np.frombuffer(b"".join([answers[row.row_id] for row in charge.rows]), dtype="<f8")
    return Prediction(
        found.reshape(len(charge.rows), -1),
        receipt,
        budget,
        replayed=len(charge.rows) - rows,
        charged_rows=rows,
        charged=receipt.total if receipt else 0,
        earlier=charge.earlier,
    )
