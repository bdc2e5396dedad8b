"""The hashes that chain a lineage's receipts and acts: SHA-256, computed by whoever calls the store.

Each service has a chain of its own, so that services which charge one lineage at the same time do not wait for each
other. A link is the hash of the link before it and of all receipts of one call, in order; the first receipt of a call
carries the link of the calls before. What a call is charged is decided inside the store, so its receipts are linked by
the service's next call; until then they stand in the service's journal.

Promises: whoever holds a link of a chain holds all of it up to there. A receipt that was altered, dropped, moved or
slipped in changes a later link, unless SHA-256 has a second preimage. The newest call of each service is covered by its
journal alone, and by the balances. Acts of the owner form one chain, whose newest hash the account holds.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

GENESIS = bytes(32)
"""What stands before the first act of a lineage."""


def receipt_hash(lineage: str, client: str, terms: bytes, number: int, time: int, questions: bytes) -> bytes:
    """Return the SHA-256 of what a receipt says to its client: 32 bytes. Parts of any length go behind their lengths.

    What a client must not hear, how many receipts others have and who else asked, is no part of it, for a hash of so
    few possible values would tell. It goes into the link: `linked`.
    """
    digest = _begun(lineage, client, terms).copy()
    for value in (number, time):
        digest.update(value.to_bytes(16, "big", signed=True))
    digest.update(questions)
    return digest.digest()


def linked(receipt: bytes, sequence: int, lineage_questions: int) -> bytes:
    """Return what a link covers of a receipt with this hash: 48 bytes."""
    return receipt + sequence.to_bytes(8, "big") + lineage_questions.to_bytes(8, "big")


@lru_cache(maxsize=4096)
def _begun(lineage: str, client: str, terms: bytes) -> "hashlib._Hash":
    digest = hashlib.sha256(b"dpserve receipt")
    for part in (lineage.encode(), client.encode(), terms):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest


def first_link(lineage: str, service: str) -> bytes:
    """Return what stands before the first receipt of a service: 32 bytes that are its own."""
    return hashlib.sha256(f"dpserve service {service} {lineage}".encode()).digest()


def next_link(link: bytes, receipts: Iterable[bytes]) -> bytes:
    """Return the link after a call's receipts, each as `linked`: 32 bytes; the same link if there are none."""
    joined = b"".join(receipts)
    return hashlib.sha256(link + joined).digest() if joined else link


def step_question(after: bytes, model: str, cost: str) -> bytes:
    """Return the question of a step of a pay-once model: 16 bytes, over what it comes after and what it costs.

    `after`: the question of the step before it, or `release_question` for the first. No other cost has the question of
    a step, unless SHA-256, cut to 16 bytes, has a second preimage; so whoever reads a receipt can tell whether it paid
    for its step.
    """
    digest = hashlib.sha256(b"dpserve step" + after)
    for part in (model, cost):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()[:16]


def release_question(model: str, drawn: bytes) -> bytes:
    """Return what the first step of a release comes after: 16 bytes, over the model's id and what was drawn.

    `drawn`: 32 bytes that are a release's alone and say nothing about it (`HoldRequest`).
    """
    encoded = model.encode()
    return hashlib.sha256(b"dpserve release" + len(encoded).to_bytes(8, "big") + encoded + drawn).digest()[:16]


def act_hash(previous: bytes, sequence: int, kind: str, subject: str, detail: str, time: str) -> bytes:
    """Return an act's hash: 32 bytes, over the hash before it, its number and its words, each behind its length."""
    digest = hashlib.sha256(previous + sequence.to_bytes(8, "big"))
    for part in (kind, subject, detail, time):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()
