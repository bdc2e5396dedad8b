"""A pay-once model: hold it, durably, then answer as often as anyone likes.

Promises: nothing is answered before the client holds the tier that answers, and the ledger has that on its disks;
holding costs each client the difference to what it holds, once; every answer after that costs nothing, and is the
same whoever asks, however often and beside whatever rows; what was released was drawn when the model was trained, so
that nothing here draws noise.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from accounting.explanation import AccountExplanation
from accounting.ledger import ClientRevoked, HoldRequest, Idempotency, Ledger, Quote
from accounting.losses import Cost
from accounting.picorho import to_rho
from accounting.report import AccountReport
from service.errors import DeadlinePassed, UnknownTier
from service.predictor import AnswerNoise, Asked, Caller, Clock, Floats, Prediction, Predictor, TierQuote
from training.releases.certificate import ReleaseCertificate, Tier
from training.releases.model import NoisyLogits, ReleasedModel, TieredModel

Report = TypeVar("Report", bound=AccountReport)


class TierForClient(BaseModel):
    """One tier, as a client has it or could have it now."""

    model_config = ConfigDict(frozen=True)

    name: str
    held: bool
    cost_rho: float
    """What moving to it would cost now: the difference to what is held."""
    admitted: bool


class HolderExplanation(AccountExplanation):
    """An account, its explanation, and the tiers of the model that the service has."""

    tiers: tuple[TierForClient, ...]


class PayOncePredictor(Predictor):
    """Serves one released model of one lineage, at every tier that it has."""

    mechanism_status: Literal["proven", "unproven"] = "proven"
    price_per_row = Cost()

    def __init__(self, model: ReleasedModel, ledger: Ledger, *, largest_batch: int, clock: Clock = time.time) -> None:
        """Serve `model`. largest_batch: the most rows of one request."""
        super().__init__(model.certificate, ledger, largest_batch=largest_batch, clock=clock)
        self.released = model.certificate
        self.mechanism_name = self.released.release
        self._tiers = self.released.tiers
        self._models = models_by_tier(model)
        self._answering: set[asyncio.Task[Prediction]] = set()

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers' names, the coarsest first."""
        return tuple(self._models)

    def at(self, tier: str) -> ReleasedModel:
        """Return the model that answers at a tier. Raises KeyError for an unknown name."""
        return self._models[tier]

    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier unless the model has this tier, or none was named."""
        if tier is not None and tier not in self._models:
            raise UnknownTier(f"there is no tier {tier!r}; this model has {', '.join(map(repr, self._models))}")

    async def predict(self, caller: Caller, asked: Asked) -> Prediction:
        """Answer all rows at the tier that is asked for, by default the finest that the client holds."""
        try:
            async with asyncio.timeout(_seconds_until(asked.deadline)):
                caller = await self.confirm(caller)
        except TimeoutError:
            raise DeadlinePassed from None
        # Cancelling the caller must not stop a charged request between its charge and its answer.
        answering = asyncio.create_task(self._answer(caller, asked))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        return await asyncio.shield(answering)

    async def drain(self) -> None:
        """Wait until everything that was charged is answered."""
        while self._answering:
            await asyncio.wait(self._answering)

    async def _answer(self, caller: Caller, asked: Asked) -> Prediction:
        client = caller.client
        tier = await self._tier(client, asked.tier)
        self.check_not_expired(caller)
        if time.monotonic() >= asked.deadline:
            raise DeadlinePassed
        holding = await self._ledger.charge(self._request(client, tier, asked.idempotency, caller.key_digest))
        probabilities = await asyncio.to_thread(self._models[tier].probabilities, asked.X)
        return Prediction(
            probabilities,
            holding.receipt,
            await self.budget(client),
            replayed=0,
            charged_rows=0,
            charged=holding.charged,
            earlier=holding.earlier,
            tier=tier,
        )

    async def quote(self, client: str, asked: Asked) -> TierQuote:
        """Return what being answered at a tier would cost now: the difference to what the client holds."""
        tier = await self._tier(client, asked.tier)
        hold = await self._ledger.quote(self._request(client, tier, asked.idempotency))
        return TierQuote(tier, len(asked.X), hold)

    async def noise(self, X: Floats, tier: str | None = None) -> AnswerNoise | None:
        """Return the noise on a tier's answers, the finest's if none is named: drawn once, and the same in all."""
        model = self._models[tier or self._tiers[-1].name]
        if not isinstance(model, NoisyLogits):
            return None
        scale = await asyncio.to_thread(model.logit_noise, X)
        return AnswerNoise("gaussian", tuple(scale.tolist()))

    async def budget(self, client: str) -> AccountReport:
        """Return what the client has spent and what is left. Answers from what it holds are without limit."""
        report, quote = await asyncio.gather(super().budget(client), self._coarsest(client))
        return _without_limit(report, quote)

    async def explained_budget(self, client: str, *, unlimited: bool = False) -> "HolderExplanation":
        """Return the client's account and its explanation. Answers from what it holds are without limit."""
        quotes = await asyncio.gather(
            *(self._ledger.quote(self._request(client, each.name, None)) for each in self._tiers)
        )
        explained = await super().explained_budget(client, unlimited=unlimited or all(quotes[0].free))
        tiers = tuple(
            TierForClient(
                name=tier.name,
                held=all(quote.free),
                cost_rho=to_rho(quote.total),
                admitted=quote.refusal is None,
            )
            for tier, quote in zip(self._tiers, quotes, strict=True)
        )
        return HolderExplanation(**dict(_without_limit(explained, quotes[0])), tiers=tiers)

    async def holds(self, client: str) -> bool:
        """Return whether the client holds a tier."""
        try:
            return all((await self._coarsest(client)).free)
        except ClientRevoked:
            return False

    async def hold_for_owner(self) -> int:
        """Charge the lineage for a model of one tier, once; return what was charged now, in picorho.

        A model of several tiers is charged as clients move to them. Raises what `Ledger.charge` raises.
        """
        if len(self._tiers) > 1:
            return 0
        return (await self._ledger.charge(self._request("", self._tiers[0].name, None))).charged

    def model(self) -> dict[str, object]:
        """Return the public part of the certificate, and how the model is served."""
        return self.certificate.public() | {
            "mechanism": self.mechanism_name,
            "mechanism_status": self.mechanism_status,
            "price_per_row": {"rho": 0.0, "losses": ""},
            "tiers": price_list(self._tiers),
            "largest_batch": self.largest_batch,
        }

    async def _tier(self, client: str, tier: str | None) -> str:
        """Return the tier to answer at: the one named, or the finest that the client holds, or the coarsest."""
        if tier is not None:
            return tier
        if len(self._tiers) == 1:
            return self._tiers[0].name
        held = (await self._ledger.quote(self._request(client, self._tiers[-1].name, None))).free
        return self._tiers[max(1, held.index(False) if False in held else len(held)) - 1].name

    async def _coarsest(self, client: str) -> Quote:
        """Return what the coarsest tier would cost the client now: whether it holds it, or would be admitted to it."""
        return await self._ledger.quote(self._request(client, self._tiers[0].name, None))

    def _request(self, client: str, tier: str, idempotency: Idempotency | None, key_digest: bytes = b"") -> HoldRequest:
        return hold_request(self.released, client, tier, self._clock(), idempotency, key_digest)


def hold_request(
    certificate: ReleaseCertificate,
    client: str,
    tier: str,
    now: float,
    idempotency: Idempotency | None = None,
    key_digest: bytes = b"",
) -> HoldRequest:
    """Return the wish to hold a release at one of its tiers. client: empty for the owner. now: seconds since 1970.

    key_digest: of the API key that it came with, if it did.
    """
    names = [each.name for each in certificate.tiers]
    return HoldRequest(
        lineage=certificate.lineage,
        client=client,
        model=certificate.model_id,
        drawn=certificate.drawn,
        mechanism=f"{certificate.release}/{tier}",
        steps=tuple(each.cost for each in certificate.tiers[: names.index(tier) + 1]),
        time=now,
        idempotency=idempotency,
        key_digest=key_digest,
    )


def models_by_tier(model: ReleasedModel) -> dict[str, ReleasedModel]:
    """Return the model that answers at each tier, by name, the coarsest first."""
    tiers = [tier.name for tier in model.certificate.tiers]
    if isinstance(model, TieredModel):
        return {name: model.at(name) for name in tiers}
    return dict.fromkeys(tiers, model)


def price_list(tiers: Sequence[Tier]) -> list[dict[str, object]]:
    """Return what holding each tier costs in all, and beyond the one before."""
    prices, total = [], 0
    for tier in tiers:
        total += tier.cost.picorho
        prices.append(
            {
                "name": tier.name,
                "rho": to_rho(total),
                "rho_beyond_the_one_before": to_rho(tier.cost.picorho),
                "losses_beyond_the_one_before": str(tier.cost),
            }
        )
    return prices


def _without_limit(report: Report, coarsest: Quote) -> Report:
    """Return the report with no number of queries left, or none left where not even one would be answered."""
    left = None if coarsest.refusal is None else 0
    return report.model_copy(update={"queries_left": left, "unlimited": all(coarsest.free)})


def _seconds_until(deadline: float) -> float | None:
    return deadline - time.monotonic() if deadline < float("inf") else None
