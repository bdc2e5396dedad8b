"""A pay-once model: hold it, durably, then answer as often as anyone likes.

Promises: nothing is answered before the client holds the tier that answers, and the ledger has that on its disks;
holding costs each client the difference to what it holds, once; every answer after that costs nothing, and is the
same whoever asks, however often and beside whatever rows; what was released was drawn when the model was trained, so
that nothing here draws noise.

Whoever holds a tier is known in memory, for SECONDS_HELD after the ledger was asked: in between answers make no call.
A request in the second half of that time has the ledger asked again, once for a key and tier, and is answered
meanwhile, so that nobody waits as long as requests keep coming.

What the ledger is asked is the charge itself, which costs nothing where the tier is held. It says in one durable call
that the API key is the client's and good, that the client is not revoked, that the tier is paid for, and that the store
lost nothing that it acknowledged (`accounting.ledger.ledger`). So a client or key that is revoked, or a store that is
older than it was, silent or gone, keeps nobody's answers going for longer than that; and an outage that such a call
meets ends all that is remembered at once.

Why a time and not a message. A store can tell its clients of changes (`CLIENT TRACKING`), but a connection that has
fallen silent tells nothing, so that what is remembered needs an end in time all the same; a store that was rolled back
has nothing to tell; and Sentinels and Clusters take a connection for each server, which ends at every failover. The
time alone is enough, and costs each key that is in use at most four calls a second for each worker.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from accounting.arrays import Floats
from accounting.explanation import AccountExplanation
from accounting.ledger import (
    BudgetExhausted,
    Charge,
    ClientAccount,
    ClientRevoked,
    HoldRequest,
    Idempotency,
    Ledger,
    LedgerError,
    LedgerUnavailable,
    Quote,
)
from accounting.losses import Cost
from accounting.picorho import to_rho
from accounting.report import row_price
from mechanisms.answer_noise import Uncertainty
from service.batcher import DEEP_BATCH_SIZE, USUAL_BATCH_SIZE, Batcher, BatchLimits, Waiting, copy_of
from service.errors import Overloaded, Refusal, UnknownTier
from service.predictor import Caller, Clock, Prediction, Predictor, RowsQuote, RowsRequest, Standing
from service.telemetry.timeline import Timeline, timeline
from training.features.maps import Encoder
from training.pay_once.certificate import ReleaseCertificate, Tier
from training.pay_once.model import ReleasedModel, model_at
from training.pay_once.prediction_sets import PredictionSets

SECONDS_HELD = 0.5
"""Seconds for which a worker trusts the ledger's last reply about a client, counted from when it asked."""

_MOST_REMEMBERED = 10_000
_FEW_ROWS = 64
"""Rows that are computed on the event loop; while more are computed, other requests go on."""


class TierForClient(BaseModel):
    """One tier, as a client has it or could have it now."""

    model_config = ConfigDict(frozen=True)

    name: str
    held: bool
    cost: float
    """The cost of moving to it now: the difference to the tier that is held."""
    admitted: bool


class HolderExplanation(AccountExplanation):
    """An account, its explanation, and the tiers of the model that the service has."""

    tiers: tuple[TierForClient, ...]


class _Wish(Waiting, eq=False, kw_only=True):
    """A request to hold a tier that waits for the ledger. tier: None for the finest that is held.

    time: when it came, in seconds since the epoch.
    """

    caller: Caller
    tier: str | None
    idempotency: Idempotency | None
    time: float
    timeline: Timeline | None


class _Held(Struct, eq=False):
    """The ledger's reply that by this charge the client holds the tier. asked: when, by `time.monotonic`.

    renewing: whether it is being asked again.
    """

    tier: str
    charge: Charge
    asked: float
    renewing: bool = False


class _Rows(Waiting, eq=False, kw_only=True):
    """Rows (n, d) to be computed at a tier."""

    tier: str
    X: Floats
    timeline: Timeline | None


_Computed = tuple[Floats, Uncertainty]


class PayOncePredictor(Predictor):
    """Serves one released model of one lineage, at every tier that it has."""

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
        self._tiers = self.released.tiers
        self._models = models_by_tier(model)
        self._held: dict[tuple[Caller, str | None], _Held] = {}
        self._batcher: Batcher[_Wish, _Held] = Batcher(self._hold)
        features = self.released.feature_map
        _, self._noise = model.answers(np.asarray(features.lower)[None])
        # An encoder takes its time, in which the loop serves others.
        self._few_rows, most = (0, DEEP_BATCH_SIZE) if isinstance(features, Encoder) else (_FEW_ROWS, USUAL_BATCH_SIZE)
        numbers = len(features.lower) + features.dimension
        limits = BatchLimits.of(numbers, max_batch_size, max_batch_time, most=most)
        self._computing: Batcher[_Rows, _Computed] = Batcher(self._compute_batch, limits)

    @property
    def tier_names(self) -> tuple[str, ...]:
        """The tiers' names, the coarsest first."""
        return tuple(self._models)

    @property
    def prediction_sets(self) -> PredictionSets | None:
        """Those of the certificate."""
        return self.released.prediction_sets

    def at(self, tier: str) -> ReleasedModel:
        """Return the model that answers at a tier. Raises KeyError for an unknown name."""
        return self._models[tier]

    def check_tier(self, tier: str | None) -> None:
        """Raise UnknownTier unless the model has this tier, or none was named."""
        if tier is not None and tier not in self._models:
            raise UnknownTier(f"there is no tier {tier!r}; this model has {', '.join(map(repr, self._models))}")

    async def _answered(self, caller: Caller, request: RowsRequest) -> Prediction:
        """Answer at the tier that is asked for, by default the finest that the client holds."""
        traced, held, age = timeline.get(), self._held.get((caller, request.tier)), math.inf
        if held is not None:
            age = time.monotonic() - held.asked
        if held is None or age >= SECONDS_HELD or request.idempotency is not None:
            held = await self._batcher.submit(self._wish(caller, request, traced))
        elif (late := self.late(caller, request.deadline)) is not None:
            raise late
        elif age >= SECONDS_HELD / 2 and not held.renewing:
            self._renew(held, caller, request.tier)
        if traced is not None:
            traced.begin()
        rows = _Rows(rows=len(request.X), deadline=request.deadline, tier=held.tier, X=request.X, timeline=traced)
        values, noise = await self._computing.submit(rows)
        return Prediction(values=values, noise=noise, charge=held.charge, tier=held.tier)

    def _wish(self, caller: Caller, request: RowsRequest, traced: Timeline | None) -> _Wish:
        if traced is not None:
            traced.begin()
        return _Wish(
            rows=1,
            deadline=request.deadline,
            caller=caller,
            tier=request.tier,
            idempotency=request.idempotency,
            time=self._clock(),
            timeline=traced,
        )

    def _renew(self, held: _Held, caller: Caller, tier: str | None) -> None:
        """Ask the ledger again, which costs nothing; what it refuses or does not decide is refused to the next."""
        wish = _Wish(rows=1, caller=caller, tier=tier, idempotency=None, time=self._clock(), timeline=None)
        try:
            result = self._batcher.submit(wish)
        except Overloaded:
            return  # the next request tries again
        held.renewing = True

        def end(result: "asyncio.Future[_Held]") -> None:
            held.renewing = False
            if not result.cancelled():
                result.exception()  # which nobody waits for

        result.add_done_callback(end)

    @property
    def waiting_rows(self) -> int:
        """Rows of the requests that wait for a batch, of any kind."""
        return super().waiting_rows + self._batcher.waiting_rows + self._computing.waiting_rows

    async def drain(self) -> None:
        """Wait until every charge that was sent to the ledger is decided, and what is held is answered."""
        await self._batcher.drain()
        await self._computing.drain()

    async def _compute_batch(self, batch: Sequence[_Rows]) -> list[_Computed]:
        """Return every request's answers: all rows at one tier are one product of matrices."""
        traced = [each.timeline for each in batch if each.timeline is not None]
        for timed in traced:
            timed.end("batch wait")
        by_tier: dict[str, list[int]] = {}
        for place, each in enumerate(batch):
            by_tier.setdefault(each.tier, []).append(place)
        computed: list[Any] = [None] * len(batch)
        for tier, places in by_tier.items():
            X = batch[places[0]].X if len(places) == 1 else np.concatenate([batch[place].X for place in places])
            answers = self._models[tier].answers
            values, noise = answers(X) if len(X) <= self._few_rows else await asyncio.to_thread(answers, X)
            known, start = Uncertainty(noise, values), 0
            for place in places:
                rows = slice(start, start + batch[place].rows)
                computed[place] = values[rows], known.part(rows)
                start = rows.stop
        for timed in traced:
            timed.end("forward pass")
        return computed

    async def _hold(self, wishes: Sequence[_Wish]) -> list[_Held | Refusal]:
        """Charge each client, in one call, for what it does not hold yet; return what it holds then, or a refusal.

        Requests of one client for one tier ask once together, except by a name of their own: the first is charged.
        """
        asked = time.monotonic()
        traced = [each.timeline for each in wishes if each.timeline is not None]
        for timed in traced:
            timed.end("batch wait")
        outcomes: list[Any] = [None] * len(wishes)
        alike: dict[object, list[int]] = {}
        for place, wish in enumerate(wishes):
            outcomes[place] = self.late(wish.caller, wish.deadline)
            if outcomes[place] is None:
                alike.setdefault(place if wish.idempotency else (wish.caller, wish.tier), []).append(place)
        firsts = [wishes[places[0]] for places in alike.values()]
        tiers = await asyncio.gather(*map(self._tier_or_refusal, firsts))
        requests = [
            self._request(wish.caller.client, tier, wish.time, wish.idempotency, wish.caller.key_digest)
            for wish, tier in zip(firsts, tiers, strict=True)
            if isinstance(tier, str)
        ]
        try:
            decisions = iter(await self._charge(requests))
        except LedgerUnavailable:
            self._held.clear()
            raise
        for timed in traced:
            timed.end("ledger charge")
        for wish, tier, (first, *others) in zip(firsts, tiers, alike.values(), strict=True):
            decision = next(decisions) if isinstance(tier, str) else tier
            if isinstance(decision, Charge):
                assert isinstance(tier, str)
                outcomes[first] = _Held(tier, decision, asked)
                again = self._remember(wish, outcomes[first])
                for place in others:
                    outcomes[place] = again
                continue
            self._held.pop((wish.caller, wish.tier), None)
            outcomes[first] = decision
            for place in others:
                outcomes[place] = copy_of(decision)
        return outcomes

    def _remember(self, wish: _Wish, held: _Held) -> _Held:
        """Remember what the ledger said of a client; return it as it is said to the requests after the first."""
        if len(self._held) >= _MOST_REMEMBERED:
            self._held.clear()
        if held.charge.charged:
            self._held.pop((wish.caller, None), None)  # which may be a finer one by now
        again = _Held(held.tier, replace(held.charge, receipts=(), earlier=None), held.asked)
        self._held[wish.caller, wish.tier] = again
        return again

    async def _tier_or_refusal(self, wish: _Wish) -> str | LedgerError:
        try:
            return await self._tier(wish.caller.client, wish.tier)
        except LedgerError as refused:
            if isinstance(refused, LedgerUnavailable):
                self._held.clear()
            return refused

    async def quote(self, client: str, request: RowsRequest) -> RowsQuote:
        """Return what being answered at a tier would cost now: the difference to what the client holds."""
        tier = await self._tier(client, request.tier)
        hold = await self._ledger.quote(self._request(client, tier, self._clock(), request.idempotency))
        _, noise = await asyncio.to_thread(self._models[tier].answers, request.X)
        # What is held answers every row: only the holding costs anything.
        return RowsQuote(hold.total, (True,) * len(request.X), hold.refusal, noise, tier, hold.currency)

    async def explained_budget(
        self, client: str, *, unlimited: bool = False, limiting_block: str | None = None
    ) -> "HolderExplanation":
        """Return the client's account and its explanation. Answers from what it holds are without limit."""
        quotes = await asyncio.gather(*(self._quoted(client, tier.name) for tier in self._tiers))
        holds = all(quotes[0].free)
        refusal = quotes[0].refusal
        explained = await super().explained_budget(
            client,
            unlimited=unlimited or holds,
            limiting_block=refusal.block if isinstance(refusal, BudgetExhausted) and refusal.block else limiting_block,
        )
        tiers = tuple(
            TierForClient(
                name=tier.name,
                held=all(quote.free),
                cost=quote.currency.value(quote.total),
                admitted=quote.refusal is None,
            )
            for tier, quote in zip(self._tiers, quotes, strict=True)
        )
        # No number of queries is left, or none where not even one would be answered.
        left = {"queries_left": None if quotes[0].refusal is None else 0, "unlimited": holds}
        return HolderExplanation(**(dict(explained) | left), tiers=tiers)

    async def standing(self, account: ClientAccount) -> Standing:
        """Return which tier the client holds, and what the next one would cost it."""
        names, model = [tier.name for tier in self._tiers], self.name
        try:
            finest = await self._quoted(account.client, names[-1])
            held = self.held_by(finest)
            if held == len(names):
                return Standing(model, names[-1])
            following = finest if held + 1 == len(names) else await self._quoted(account.client, names[held])
        except ClientRevoked:
            return Standing(model)
        admitted = following.refusal is None
        return Standing(model, names[held - 1] if held else None, names[held], following.total, admitted)

    def model(self) -> dict[str, object]:
        """Return what anyone may see of the certificate, and how the model is served."""
        return self.released.shown_to_strangers() | {
            "name": self.name,
            "mechanism": self.mechanism_name,
            "mechanism_status": self.mechanism_status,
            "price_per_row": row_price(Cost()).model_dump(),
            "tiers": price_list(self._tiers),
            "largest_batch": self.largest_batch,
            "outputs": self.outputs.described(),
        }

    async def _tier(self, client: str, tier: str | None) -> str:
        """Return the tier to answer at: the one named, or the finest that the client holds, or the coarsest."""
        if tier is not None:
            return tier
        if len(self._tiers) == 1:
            return self._tiers[0].name
        return self.answered_at(await self._quoted(client, self._tiers[-1].name))

    def held_by(self, finest: Quote) -> int:
        """Return how many tiers a client holds, from the coarsest on. finest: what the finest would cost it."""
        return (*finest.free, False).index(False)

    def answered_at(self, finest: Quote) -> str:
        """Return the finest tier that a client holds, or the coarsest where it holds none. finest: as for `held_by`."""
        return self._tiers[max(1, self.held_by(finest)) - 1].name

    async def _quoted(self, client: str, tier: str) -> Quote:
        """Return what a tier would cost the client now: whether it holds it, or would be admitted to it."""
        return await self._ledger.quote(self._request(client, tier, self._clock()))

    def _request(
        self, client: str, tier: str, now: float, idempotency: Idempotency | None = None, key_digest: bytes = b""
    ) -> HoldRequest:
        return hold_request(self.released, client, tier, now, idempotency, key_digest)


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
        blocks=certificate.blocks,
    )


def models_by_tier(model: ReleasedModel) -> dict[str, ReleasedModel]:
    """Return the model that answers at each tier, by name, the coarsest first."""
    tiers = [tier.name for tier in model.certificate.tiers]
    return {name: model_at(model, name) for name in tiers}


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
