"""Holding a release that is paid for once: what a client, or the owner, has paid for and never pays for again.

A release consists of steps, each a private release of its own that is finer than those before it: one for a model
that is released whole, one for each precision of released weights. Promises, all of them kept by one call of the
store's function (`holdings.lua`):

- A client's account pays for the steps that the client does not hold, the lineage's for those that nobody held
  before, so that k clients together cost the lineage the finest that any of them holds, and not the sum.
- Both pay or neither, and each step at most once: asking again, for whatever reason, charges nothing.
- Every step that is charged has a receipt in the lineage's chain, which says whether the lineage paid for it.
- A step's id is a hash of the release, the costs of the steps up to it, and what was drawn. The receipt says what goes
  into the last link, so that no receipt can mark a step as held for less than the step costs (`chain.step_id`): the
  store refuses to write one or to put one back, and `verify` reports one.

Why the lineage pays the maximum. A step is drawn once and is the same for everyone who holds it: who sees it second
learns nothing that was not paid for. Everything that anyone can learn is computed from the steps that someone holds,
whose costs, each counted once, are what the lineage has spent. (`training.releases.weights` has the mathematics.)
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accounting import picorho, sampling_error
from accounting.ledger import chain, wire
from accounting.ledger.errors import LedgerRefusal, LedgerUnavailable, MechanismNotAccepted
from accounting.ledger.values import Idempotency, Receipt, Terms, checked_name, checked_text, terms_of
from accounting.ledger.wire import Argument, LineageKeys
from accounting.losses import ApproximateGaussianLoss, Cost

MOST_STEPS = 64

LEAST_DELTA_PER_PICORHO = (
    sampling_error.COINS_PER_RHO * (1 + 2.0**-20) / sampling_error.COIN_SHARE / picorho.PICORHO_PER_RHO
)
"""What an account's delta must be for each picorho of its limit, to pay for coins (`sampling_error.pays_for_coins`)."""


def check_coins(cost: Cost) -> None:
    """Raise ValueError unless budgets provide for the coins of one step, or of one declared loss, at this cost.

    `accounting.sampling_error` counts one coin for each LEAST_RELEASE_RHO, and a cost is one step's.
    """
    coins = sum(isinstance(loss, ApproximateGaussianLoss) for loss in cost.losses)
    if coins > 1:
        raise ValueError(f"a step that is paid for once has at most one coin, and {str(cost)!r} has {coins}")
    if coins:
        sampling_error.check_release_rho(cost.rho)


@dataclass(frozen=True)
class HoldRequest:
    """One wish to hold a release up to some step. `client` is empty for the owner, who holds on the lineage's account.

    `model` is the release's random id, and `drawn` 32 bytes derived from what was drawn under it, so that another
    release under the same id is paid for again. It must say nothing about what was drawn, because the hashes of
    receipts are seen by clients who paid for none of it (`ReleaseCertificate.drawn`). `mechanism` is for the receipts,
    and names the tier. `steps` are the costs of the steps from the first to the one wished for. `time` is in seconds
    since the epoch. `key_digest` is that of the API key that the request came with, which must be the client's and good
    for predictions at that instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    model: str
    drawn: bytes
    mechanism: str
    steps: tuple[Cost, ...]
    time: float
    idempotency: Idempotency | None = None
    key_digest: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold, and a step that no budget provides for."""
        if len(self.drawn) != hashlib.sha256().digest_size:
            raise ValueError("what stands for what was drawn must have 32 bytes")
        checked_name(self.lineage, "lineage")
        if self.client:
            checked_name(self.client, "client's name")
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise ValueError(f"a release has 1 to {MOST_STEPS} steps, not {len(self.steps)}")
        checked_text(self.model, "a model's id")
        checked_text(self.mechanism, "a mechanism's name")
        for cost in self.steps:
            terms_of(cost)
            sampling_error.check_release_rho(cost.rho)
            check_coins(cost)
        if not math.isfinite(self.time):
            raise ValueError(f"a request's time must be finite, not {self.time}")

    @property
    def terms(self) -> Terms:
        """Those of the last step: what a refusal names."""
        return terms_of(self.steps[-1])

    @property
    def step_ids(self) -> tuple[bytes, ...]:
        """The steps' ids of 32 bytes: of what was drawn, and of the costs up to and including each."""
        return self._ids[1:]

    @property
    def befores(self) -> tuple[bytes, ...]:
        """What each step comes after, of 32 bytes: the id of the step before it, or the release's."""
        return self._ids[:-1]

    @cached_property
    def _ids(self) -> tuple[bytes, ...]:
        ids = [chain.release_id(self.model, self.drawn)]
        for cost in self.steps:
            ids.append(chain.step_id(ids[-1], self.model, terms_of(cost).text))
        return tuple(ids)

    def terms_digest(self, cost: Cost) -> bytes:
        """Return the digest of what the receipt of a step at this cost says, but for its place and its step."""
        terms = terms_of(cost)
        return chain.terms_digest(
            self.lineage, self.client, self.model, self.mechanism, terms.text, terms.price, self.time
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """What holding cost now: one receipt for each step that was charged, in order.

    `decided` is set where this is a request that came before, by its idempotency key, and was decided for another
    mechanism, that is another tier, than it names now: it is the mechanism named then. Nothing was charged. `earlier`
    is the number of the receipt that the same request got when it came before, or None.
    """

    receipts: tuple[Receipt, ...]
    decided: str | None = None
    earlier: int | None = None

    @property
    def receipt(self) -> Receipt | None:
        """The newest receipt, None if everything was held before."""
        return self.receipts[-1] if self.receipts else None

    @property
    def charged(self) -> int:
        """What the client's account paid, in picorho; the lineage's, where the owner holds."""
        return sum(receipt.total for receipt in self.receipts)


@dataclass(frozen=True, slots=True)
class HoldQuote:
    """What holding would cost now, in picorho, and whether it would be admitted. Nothing is spent by asking.

    `held` says of each step whether it is held already.
    """

    total: int
    held: tuple[bool, ...]
    refusal: LedgerRefusal | None


def hold_call(request: HoldRequest) -> tuple[list[str], list[Argument]]:
    """Return the keys, without the lineage's services, and arguments of the functions `hold` and `quote_hold`."""
    keys = LineageKeys(request.lineage)
    named = [keys.account, keys.tally, keys.receipts, keys.held]
    if request.client:
        client = keys.client(request.client)
        named += [client.account, client.tally, client.receipts, client.held, client.requests, client.old_requests]
        named += [keys.clients, keys.api_keys]
    idempotency = request.idempotency
    arguments: list[Argument] = [request.lineage, request.client, request.model, request.mechanism]
    arguments += [repr(request.time), idempotency.key if idempotency else ""]
    arguments += [idempotency.body_digest if idempotency else "", wire.IDEMPOTENCY_KEYS // 2]
    arguments += [repr(LEAST_DELTA_PER_PICORHO), request.key_digest]
    for step, after, cost in zip(request.step_ids, request.befores, request.steps, strict=True):
        arguments += _step(step, after, cost, request.terms_digest(cost))
    return named, arguments


def read_holding(request: HoldRequest, reply: Sequence[Any]) -> Holding | LedgerRefusal:
    """Read what the function `hold` replied."""
    if reply[0] == b"decided":
        return Holding((), reply[1].decode())
    if reply[0] != b"held":
        return _refusal(request, reply)
    letters, earlier, parts = reply[1].decode(), int(reply[2]), reply[3:]
    charged = [position for position, letter in enumerate(letters) if letter != "h"]
    if len(letters) != len(request.steps) or len(parts) != 3 * len(charged):
        raise LedgerUnavailable("the ledger's store gave a reply that cannot be read")
    receipts = []
    for place, position in enumerate(charged):
        number, previous, own = parts[3 * place : 3 * place + 3]
        cost = request.steps[position]
        receipts.append(
            Receipt(
                sequence=int(number),
                lineage=request.lineage,
                client=request.client,
                model=request.model,
                mechanism=request.mechanism,
                cost=cost,
                price=cost.picorho,
                rows=1,
                total=cost.picorho,
                time=request.time,
                previous=previous,
                hash=own,
                held=request.step_ids[position],
                after=request.befores[position],
                shared=letters[position] == "s",
            )
        )
    return Holding(tuple(receipts), earlier=earlier or None)


def read_hold_quote(request: HoldRequest, reply: Sequence[Any]) -> HoldQuote | LedgerRefusal:
    """Read what the function `quote_hold` replied."""
    if reply[0] != b"quoted":
        return _refusal(request, reply)
    held = tuple(letter == ord("h") for letter in reply[1])
    total = sum(cost.picorho for cost, free in zip(request.steps, held, strict=True) if not free)
    return HoldQuote(total, held, _refusal(request, reply[2]) if len(reply) > 2 else None)


def apply_held_call(receipt: Receipt) -> tuple[list[str], list[Argument]]:
    """Return the keys, without the lineage's services, and arguments that put the receipt of a step back."""
    keys = LineageKeys(receipt.lineage)
    named = [keys.account, keys.tally, keys.receipts, keys.held, keys.applied, keys.clients]
    if receipt.client:
        client = keys.client(receipt.client)
        named += [client.account, client.tally, client.receipts, client.held]
    arguments: list[Argument] = [receipt.lineage, receipt.client, receipt.model, receipt.mechanism]
    arguments += [repr(receipt.time), receipt.sequence, receipt.hash, int(receipt.shared)]
    return named, arguments + _step(receipt.held, receipt.after, receipt.cost, receipt.terms_digest)


def _step(step: bytes, after: bytes, cost: Cost, terms_digest: bytes) -> list[Argument]:
    terms = terms_of(cost)
    return [step, after, terms.text, terms.standing, terms.price, int(cost.coin > 0), terms_digest]


def _refusal(request: HoldRequest, reply: Sequence[Any]) -> LedgerRefusal:
    words = [reply[0].decode(), *reply[1:]]
    match words:
        case ["not-accepted", scope, cost]:
            return MechanismNotAccepted(wire.scope_of(scope), cost.decode())
    return wire.refusal(request, words)
