"""Paying for a pay-once model: what a client, or the owner, has paid for and never pays for again.

Such a model is one private release. It is charged as a question is, by the same function of the store, so that all that
holds for questions holds for models:

- A client's account pays for the models that the client has not paid for, the lineage's for those that nobody paid for
  before, so that k clients together cost the lineage what one of them does.
- Both pay or neither, and each at most once: asking again, for whatever reason, charges nothing.
- Every charge has a receipt, which says whether the lineage paid.
- A model's question is a hash of the release, its cost, and what was drawn. The receipt says what goes into the last
  link, so that no receipt can mark a model as paid for less than it costs (`receipts.model_question`): none is put back
  that does, and `verify` reports one.

Why the lineage pays once. A model is drawn once and is the same for everyone: who sees it second learns nothing that
was not paid for.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from dpserve.accounting import sampling_error
from dpserve.accounting.ledger.receipts import charge_terms, checked_time, model_question, release_digest
from dpserve.accounting.ledger.values import Idempotency, LedgerRequest, Line, checked_client, checked_lineage
from dpserve.accounting.losses import Cost


@dataclass(frozen=True)
class HoldRequest:
    """One wish to pay for a release. `client` is empty for the owner, who pays on the lineage's account.

    `model` is the release's random id, and `drawn` 32 bytes derived from what was drawn under it, so that another
    release under the same id is paid for again. It must say nothing about what was drawn, because receipts are seen by
    clients who paid for none of it (`ReleaseCertificate.drawn`). `mechanism` is for the receipts. `cost` is that of the
    whole release. `time` is in seconds since the epoch.
    `key_digest` is that of the API key that the request came with, which must be the client's and good for predictions
    at that instant; empty where the client is known otherwise.
    """

    lineage: str
    client: str
    model: str
    drawn: bytes
    mechanism: str
    cost: Cost
    time: float
    idempotency: Idempotency | None = None
    key_digest: bytes = b""
    blocks: tuple[str, ...] = ()
    """The blocks of the lineage that the release was trained on."""

    def __post_init__(self) -> None:
        """Refuse what the store could not hold, and a cost that no budget provides for."""
        if len(self.drawn) != hashlib.sha256().digest_size:
            raise ValueError("what stands for what was drawn must have 32 bytes")
        checked_lineage(self.lineage)
        if self.client:
            checked_client(self.client)
        elif self.idempotency is not None:
            raise ValueError("the owner holds without an idempotency key")
        checked_time(self.time)
        sampling_error.check_release_rho(self.cost.rho)
        _ = self.line

    @cached_property
    def line(self) -> Line:
        """The line of the one question that stands for the release."""
        release = release_digest(self.model, self.drawn, self.blocks)
        terms = charge_terms(self.model, self.mechanism, self.cost, 1, release, self.blocks)
        return Line(terms, (model_question(release, self.model, str(self.cost)),))

    @property
    def ledger_request(self) -> LedgerRequest:
        """The request as the ledger charges it: the key stands for the model."""
        named = self.idempotency
        key, fingerprint = (named.key_digest, named.fingerprint(self.model)) if named is not None else (b"", b"")
        return LedgerRequest(self.lineage, self.client, self.time, (self.line,), self.key_digest, key, fingerprint)


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
        lines = tuple(wish.line for wish in self.wishes)
        return LedgerRequest(self.lineage, "", max(wish.time for wish in self.wishes), lines)
