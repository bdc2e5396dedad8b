"""The way of a request, without a transport: validate, charge durably, compute, make private, store, answer.

Promises: nothing is computed before it is charged; nothing is answered before it is stored, and what is answered
is what was stored first; a refusal spends nothing; replies are put together by row identity, so one row's answer
cannot be another's; nothing but the mechanism's release ever leaves.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import Struct

from accounting.ledger import (
    Answered,
    Charge,
    ChargeRequest,
    ClientRevoked,
    Idempotency,
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
from service.errors import DeadlinePassed, InvalidRows, RequestRefused, UnknownTier
from service.fault_points import pass_point
from service.plane import AnswerNoise, Caller, Clock, Floats, Plane, Prediction
from service.ticks import QueueLimits, Ticks
from training.bundle import CertifiedHead
from training.published.bundle import PublishedNetwork
from training.teachers.bundle import Teachers

_LAWS: dict[type, Literal["gaussian", "laplace"]] = {
    Gaussian: "gaussian",
    GaussianLoss: "gaussian",
    Laplace: "laplace",
    LaplaceLoss: "laplace",
}

ROWS_IN_A_TICK = 1000
"""How many rows of several requests are answered together: enough to share costs, not enough to keep others waiting."""

ROWS_IN_A_DEEP_TICK = 64
"""The same where a deep network computes the features: what it takes at a time. A row is an image, of a megabyte."""


class _Asked(Struct, frozen=True, eq=False):
    """A request of a tick. X: (n, d). deadline: by `time.monotonic`, after which it is not charged any more."""

    request: ChargeRequest
    X: Floats
    deadline: float
    expires: float
    """When the caller's token ends, in seconds since the epoch: after that nothing is charged."""


Refusal = LedgerError | RequestRefused


@dataclass(frozen=True, slots=True)
class _Tick:
    """A tick that was charged: its rows' features (n, D) and sensitivities (n,), and what became of each request."""

    phi: Floats
    sensitivity: Floats
    charges: Sequence[Charge | Refusal]


ServedModel = CertifiedHead | PublishedNetwork | Teachers
"""What can be served with noise on every answer: the second only by a mechanism that is unproven itself."""


class DataPlane(Plane):
    """Serves one certified head of one lineage through one mechanism at one price."""

    begins_at_once = True

    def __init__(
        self,
        head: ServedModel,
        mechanism: Mechanism,
        ledger: Ledger,
        randomness: Randomness,
        *,
        largest_batch: int,
        clock: Clock = time.time,
        limits: QueueLimits | None = None,
    ) -> None:
        """Serve `head`. largest_batch: the most rows of one request. limits: how much may wait."""
        super().__init__(head.certificate, ledger, largest_batch=largest_batch, clock=clock)
        self.head = head
        self.mechanism = mechanism
        self.mechanism_name = mechanism.name
        self.mechanism_status: Literal["proven", "unproven"] = mechanism.status
        self.cost = self.price_per_row = mechanism.cost
        self._randomness = randomness
        self._ticks: Ticks[_Asked, _Tick, Prediction] = Ticks(
            self._charge,
            self._finish,
            weight=lambda asked: len(asked.X),
            client=lambda asked: asked.request.client,
            capacity=self._rows_in_a_tick,
            limits=limits,
        )

    @property
    def _on_backbone(self) -> bool:
        return isinstance(self.head, CertifiedHead) and self.head.on_backbone

    @property
    def _rows_in_a_tick(self) -> int:
        return ROWS_IN_A_DEEP_TICK if self._on_backbone else ROWS_IN_A_TICK

    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier if one was named: each answer has noise of its own, and no tiers."""
        if tier is not None:
            raise UnknownTier("this model has no tiers: every answer is paid for at the same price")

    async def answer(
        self,
        caller: Caller,
        X: Floats,
        idempotency: Idempotency | None = None,
        tier: str | None = None,
        deadline: float = math.inf,
    ) -> Prediction:
        """Answer rows that `check_rows` returned, charging the client and the lineage for those that are new.

        Requests that come while others are on their way go together in the next tick: one charge, one forward pass,
        one draw, one settlement. Raises what `Ledger.charge` and `Ledger.settle` raise, Overloaded and DeadlinePassed;
        a refusal charged nothing.
        """
        del tier
        try:
            return await self._submit(caller, X, idempotency, deadline)
        except UnknownKey:
            # Whose the key was is remembered, and it may be another's now.
            return await self._submit(await self.confirm(caller), X, idempotency, deadline)
        except (ClientRevoked, KeyExpired):
            self._ledger.forget(self.lineage, caller.key_digest)
            raise

    def begin(
        self, caller: Caller, X: Floats, idempotency: Idempotency | None = None, deadline: float = math.inf
    ) -> "asyncio.Future[Prediction]":
        """Put rows that `check_rows` returned into the next tick."""
        return self._submit(caller, X, idempotency, deadline)

    def _submit(
        self, caller: Caller, X: Floats, idempotency: Idempotency | None, deadline: float
    ) -> "asyncio.Future[Prediction]":
        asked = _Asked(self._request(caller, X, idempotency), X, deadline, caller.expires)
        return self._ticks.submit(asked, deadline=deadline)

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        await self._ticks.drain()

    async def _charge(self, asked: Sequence[_Asked]) -> _Tick:
        """Charge the requests of a tick, in one call."""
        # Features and sensitivities are public, and computed first: what they fail on is never charged.
        phi = await self._features(np.concatenate([one.X for one in asked]))
        sensitivity = self.head.logit_sensitivity(phi)
        refused = self._refused(asked, sensitivity)
        charged = await self._charge_others(asked, refused)
        pass_point("charged")
        return _Tick(phi, sensitivity, charged)

    def _refused(self, asked: Sequence[_Asked], sensitivity: Floats) -> dict[int, Refusal]:
        """Return by place who must not be charged, and why: with a row that no noise hides, too late, or expired."""
        refused: dict[int, Refusal] = {}
        inside = in_range(sensitivity)
        if not inside.all():
            first = 0
            for place, one in enumerate(asked):
                outside = np.flatnonzero(~inside[first : first + len(one.X)])
                if len(outside):
                    row = int(outside[0])
                    refused[place] = InvalidRows(f"row {row} is too large to be answered: no noise hides it", row)
                first += len(one.X)
        now, date = time.monotonic(), self._clock()
        refused |= {place: DeadlinePassed() for place, one in enumerate(asked) if now >= one.deadline}
        return refused | {place: KeyExpired("token") for place, one in enumerate(asked) if date >= one.expires}

    async def _charge_others(self, asked: Sequence[_Asked], refused: dict[int, Refusal]) -> Sequence[Charge | Refusal]:
        """Charge whom nothing speaks against, and return everybody's charge or refusal, in order."""
        if not refused:
            return await self._ledger.charge_batch([one.request for one in asked])
        others = [one.request for place, one in enumerate(asked) if place not in refused]
        charged = iter(await self._ledger.charge_batch(others) if others else ())
        return [refused.get(place) or next(charged) for place in range(len(asked))]

    async def _finish(self, asked: Sequence[_Asked], tick: _Tick) -> list[Prediction | Refusal]:
        """Answer requests together: each gets its own rows' answers, found by row identity, or its own refusal."""
        answers, unanswered = _known(tick.charges, [len(one.X) for one in asked])
        failed: dict[int, LedgerError] = {}
        if unanswered:
            rows = list(unanswered.values())
            released = self.mechanism.release(
                self.head.logits(tick.phi[rows]), tick.sensitivity[rows], self._randomness
            ).astype("<f8", copy=False)
            drawn = {row_id: row.tobytes() for row_id, row in zip(unanswered, released, strict=True)}
            pass_point("released")
            settling = asyncio.get_running_loop().create_task(self._settle(tick.charges, drawn, answers))
            await asyncio.sleep(0)  # it is on its way: while the disk writes, there is time for the reports
            try:
                budgets = self._budgets(asked, tick.charges)
            finally:
                failed = await settling
            pass_point("settled")
        else:
            budgets = self._budgets(asked, tick.charges)
        return [
            charge
            if not isinstance(charge, Charge)
            else failed.get(place) or _prediction(charge, answers, budgets[one.request.client])
            for place, (one, charge) in enumerate(zip(asked, tick.charges, strict=True))
        ]

    async def _features(self, X: Floats) -> Floats:
        """phi of each row, (n, D). A backbone takes its time, in which the loop serves others."""
        if self._on_backbone:
            return await asyncio.to_thread(self.head.features, X)
        return self.head.features(X)

    def _budgets(
        self, asked: Sequence[_Asked], charges: Sequence[Charge | Refusal]
    ) -> dict[str, AccountReport | LedgerError]:
        """Return each client's account, once for the tick: as it stood after the last of its requests."""
        last = {
            one.request.client: (one.request, charge)
            for one, charge in zip(asked, charges, strict=True)
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

    async def quote(
        self, client: str, X: Floats, idempotency: Idempotency | None = None, tier: str | None = None
    ) -> Quote:
        """Return what rows that `check_rows` returned would cost now. Spends nothing and computes no logits.

        Raises what `Ledger.quote` raises.
        """
        del tier
        return await self._ledger.quote(self._request(Caller(client), X, idempotency))

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

    def _request(self, caller: Caller, X: Floats, idempotency: Idempotency | None) -> ChargeRequest:
        return ChargeRequest(
            lineage=self.lineage,
            client=caller.client,
            key_digest=caller.key_digest,
            model=self.head.certificate.model_id,
            mechanism=self.mechanism.name,
            cost=self.cost,
            rows=tuple(row.tobytes() for row in X),
            time=self._clock(),
            idempotency=idempotency,
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
