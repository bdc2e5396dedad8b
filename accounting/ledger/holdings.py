"""Holding a pay-once model: what a client, or the owner, has paid for and never pays for again.

Such a model consists of steps, each a private release of its own that is finer than those before it: one for a model
that is released whole, one for each precision of released weights. A step is charged as a question is, by the same
function of the store, so that all that holds for questions holds for steps:

- A client's account pays for the steps that the client does not hold, the lineage's for those that nobody held
  before, so that k clients together cost the lineage the finest that any of them holds, and not the sum.
- Both pay or neither, and each step at most once: asking again, for whatever reason, charges nothing.
- Every step that is charged has a receipt, which says whether the lineage paid for it.
- A step's question is a hash of the release, the costs of the steps up to it, and what was drawn. The receipt says what
  goes into the last link, so that no receipt can mark a step as held for less than the step costs
  (`receipts.step_question`): none is put back that does, and `verify` reports one.

Why the lineage pays the maximum. A step is drawn once and is the same for everyone who holds it: who sees it second
learns nothing that was not paid for. Everything that anyone can learn is computed from the steps that someone holds,
whose costs, each counted once, are what the lineage has spent. (`training.kinds.weights.model` has the mathematics.)
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from accounting import sampling_error
from accounting.ledger.receipts import charge_terms, checked_time, release_question, step_question
from accounting.ledger.values import Idempotency, LedgerRequest, Line, checked_client, checked_lineage
from accounting.losses import Cost

MOST_STEPS = 64


@dataclass(frozen=True)
class HoldRequest:
    """One wish to hold a release up to some step. `client` is empty for the owner, who holds on the lineage's account.

    `model` is the release's random id, and `drawn` 32 bytes derived from what was drawn under it, so that another
    release under the same id is paid for again. It must say nothing about what was drawn, because receipts are seen by
    clients who paid for none of it (`ReleaseCertificate.drawn`). `mechanism` is for the receipts, and names the tier.
    `steps` are the costs of the steps from the first to the one wished for. `time` is in seconds since the epoch.
    `key_digest` is that of the API key that the request came with, which must be the client's and good for predictions
    at that instant; empty where the client is known otherwise.
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
    blocks: tuple[str, ...] = ()
    """The blocks of the lineage that the release was trained on."""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold, and a step that no budget provides for."""
        if len(self.drawn) != hashlib.sha256().digest_size:
            raise ValueError("what stands for what was drawn must have 32 bytes")
        checked_lineage(self.lineage)
        if self.client:
            checked_client(self.client)
        elif self.idempotency is not None:
            raise ValueError("the owner holds without an idempotency key")
        checked_time(self.time)
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise ValueError(f"a release has 1 to {MOST_STEPS} steps, not {len(self.steps)}")
        for cost in self.steps:
            sampling_error.check_release_rho(cost.rho)
        _ = self.lines

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """One line for each step, of the one question that stands for it."""
        lines = list[Line]()
        after = release_question(self.model, self.drawn, self.blocks)
        for cost in self.steps:
            terms = charge_terms(self.model, self.mechanism, cost, 1, after, self.blocks)
            after = step_question(after, self.model, str(cost))
            lines.append(Line(terms, (after,)))
        return tuple(lines)

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it: the key stands for the model, as another tier that is held is free."""
        named = self.idempotency
        key, fingerprint = (named.key_digest, named.fingerprint(self.model)) if named is not None else (b"", b"")
        return LedgerRequest(self.lineage, self.client, self.time, self.lines, self.key_digest, key, fingerprint)


@dataclass(frozen=True)
class JointHoldRequest:
    """Several wishes of one lineage's owner: the lineage pays for all of them at once, or for none."""

    wishes: tuple[HoldRequest, ...]

    def __post_init__(self) -> None:
        """Refuse wishes that the lineage's account alone could not pay for together."""
        if len({wish.lineage for wish in self.wishes}) != 1 or any(wish.client for wish in self.wishes):
            raise ValueError("wishes that are paid for together are the owner's, in one lineage")

    @property
    def lineage(self) -> str:
        """The lineage that pays."""
        return self.wishes[0].lineage

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it."""
        lines = tuple(line for wish in self.wishes for line in wish.lines)
        return LedgerRequest(self.lineage, "", max(wish.time for wish in self.wishes), lines)
