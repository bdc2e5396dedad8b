"""Buying a model: what its certificate says is to be paid for it, and by which blocks."""

import secrets
import time

from dpserve.accounting.budgets import Budget, accepts_for
from dpserve.accounting.ledger import Idempotency, Purchase, ReleaseRequest
from dpserve.accounting.ledger.receipts import UNNAMED, paying
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.kinds.registry import release_certificate
from dpserve.training.pay_once.certificate import ReleaseCertificate


def release_request(
    certificate: ReleaseCertificate,
    client: str,
    now: float,
    idempotency: Idempotency | None = None,
    key_digest: bytes = b"",
) -> ReleaseRequest:
    """Return the request to pay for a pay-once model. client: empty for the owner. now: seconds since 1970.

    key_digest: of the API key that it came with, if it did.
    """
    return ReleaseRequest(
        lineage=certificate.lineage,
        client=client,
        model=certificate.model_id,
        drawn=certificate.drawn,
        mechanism=certificate.release,
        cost=certificate.price,
        time=now,
        idempotency=idempotency,
        key_digest=key_digest,
        blocks=certificate.blocks,
    )


def model_purchase(
    certificate: ModelCertificate, *, budget: Budget | None = None, per_answer: Cost | None = None
) -> Purchase:
    """Return the purchase of a model: of its release, or of what lets its answers be paid for one by one.

    budget: with which the block without a name opens; those with names have what the certificate declares. per_answer:
    the cost of an answer of a metered model, where it is known.
    """
    release, declared = release_certificate(certificate), None
    cost = per_answer if release is None else release.price
    if certificate.block_budget:
        declared = Budget.parse(certificate.block_budget, "any" if cost is None else accepts_for(cost))
    return Purchase(
        title=certificate.name,
        lineage=certificate.lineage,
        unit=getattr(certificate, "unit", None),
        payers={block: budget if block == UNNAMED else declared for block in paying(certificate.blocks)},
        releases=() if release is None else (release_request(release, "", time.time()),),
        per_answer=None if release is not None else per_answer,
    )


def planned_purchase(
    lineage: str, unit: str | None, price: int, budget: Budget | None, blocks: BlockDeclaration | None
) -> Purchase:
    """Return the purchase of a model that is yet to be trained, to check before the training what pays for it.

    price: what the model costs at most, in picorho. budget: with which the block without a name opens.
    """
    names = () if blocks is None else blocks.names
    payers = {UNNAMED: budget} if blocks is None else dict.fromkeys(names, Budget.parse(blocks.budget, "gaussian"))
    cost, own = Cost((GaussianLoss(mu_for(price)),)), secrets.token_hex(16)
    release = ReleaseRequest(lineage, "", own, secrets.token_bytes(32), "training", cost, time.time(), blocks=names)
    return Purchase(title="the model", lineage=lineage, unit=unit, payers=payers, releases=(release,))
