"""The way of a request, without a transport: validate, charge durably, compute, make private, store, answer.

Promises: nothing is computed before it is charged; nothing is answered before it is stored, and what is answered
is what was stored first; a refusal spends nothing; replies are put together by row identity, so one row's answer
cannot be another's; nothing but the mechanism's release ever leaves.
"""

import time
from typing import Literal

import numpy as np

from accounting.ledger import Answered, Charge, ChargeRequest, Idempotency, Ledger, Quote
from mechanisms.mechanism import Mechanism
from mechanisms.randomness import Randomness
from service.errors import UnknownTier
from service.fault_points import pass_point
from service.plane import Clock, Floats, Plane, Prediction
from training.bundle import CertifiedHead
from training.published.bundle import PublishedNetwork
from training.teachers.bundle import Teachers

ServedModel = CertifiedHead | PublishedNetwork | Teachers
"""What can be served with noise on every answer: the second only by a mechanism that is unproven itself."""


class DataPlane(Plane):
    """Serves one certified head of one lineage through one mechanism at one price."""

    def __init__(
        self,
        head: ServedModel,
        mechanism: Mechanism,
        ledger: Ledger,
        randomness: Randomness,
        *,
        largest_batch: int,
        clock: Clock = time.time,
    ) -> None:
        """Serve `head`. largest_batch: the most rows of one request."""
        super().__init__(head.certificate, ledger, largest_batch=largest_batch, clock=clock)
        self.head = head
        self.mechanism = mechanism
        self.mechanism_name = mechanism.name
        self.mechanism_status: Literal["proven", "unproven"] = mechanism.status
        self.cost = self.price_per_row = mechanism.cost
        self._randomness = randomness

    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier if one was named: each answer has noise of its own, and no tiers."""
        if tier is not None:
            raise UnknownTier("this model has no tiers: every answer is paid for at the same price")

    async def predict(
        self, client: str, X: Floats, idempotency: Idempotency | None = None, tier: str | None = None
    ) -> Prediction:
        """Answer rows that `check_rows` returned, charging the client and the lineage for those that are new.

        Raises what `Ledger.charge` raises; then nothing was charged.
        """
        del tier
        # Features and sensitivities are public, and computed first: what they fail on is never charged.
        phi = self.head.features(X)
        sensitivity = self.head.logit_sensitivity(phi)
        charge = await self._ledger.charge(self._request(client, X, idempotency))
        pass_point("charged")
        answers = await self._answers(charge, phi, sensitivity)
        probabilities = np.stack([np.frombuffer(answers[row.row_id], dtype="<f8") for row in charge.rows])
        receipt = charge.receipt
        rows = receipt.rows if receipt else 0
        return Prediction(
            probabilities,
            receipt,
            replayed=len(charge.rows) - rows,
            charged_rows=rows,
            charged=receipt.total if receipt else 0,
            earlier=charge.earlier,
        )

    async def quote(
        self, client: str, X: Floats, idempotency: Idempotency | None = None, tier: str | None = None
    ) -> Quote:
        """Return what rows that `check_rows` returned would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """
        del tier
        return await self._ledger.quote(self._request(client, X, idempotency))

    def _request(self, client: str, X: Floats, idempotency: Idempotency | None) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.lineage,
            client=client,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            rows=tuple(row.tobytes() for row in X),
            time=self._clock(),
            idempotency=idempotency,
        )

    async def _answers(self, charge: Charge, phi: Floats, sensitivity: Floats) -> dict[bytes, bytes]:
        """Return every row's stored answer by the row's id, computing and storing those that have none."""
        answers: dict[bytes, bytes] = {}
        unanswered: dict[bytes, int] = {}
        for position, row in enumerate(charge.rows):
            if isinstance(row, Answered):
                answers[row.row_id] = row.answer
            else:
                unanswered.setdefault(row.row_id, position)
        if unanswered:
            rows = list(unanswered.values())
            released = self.mechanism.release(self.head.logits(phi[rows]), sensitivity[rows], self._randomness)
            drawn = [(row_id, row.astype("<f8").tobytes()) for row_id, row in zip(unanswered, released, strict=True)]
            pass_point("released")
            stored = await self._ledger.settle(self.lineage, drawn)
            pass_point("settled")
            answers.update(zip(unanswered, stored, strict=True))
        return answers

    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""
        return self.head.certificate.public() | {
            "mechanism": self.mechanism.name,
            "mechanism_status": self.mechanism.status,
            "price_per_row": {"rho": float(self.cost.rho), "losses": str(self.cost)},
            "largest_batch": self.largest_batch,
        }
