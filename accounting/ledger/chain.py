"""The hashes that chain a lineage's receipts, and its acts: SHA-256, each over the one before it.

Promises: whoever holds the newest hash of a chain holds all of it. An entry that was altered, dropped, moved or
slipped in changes every later hash, unless SHA-256 has a second preimage. `receipts.lua` computes the same hashes
inside the store, where the one before is known without a doubt.
"""

import hashlib
from functools import lru_cache

GENESIS = bytes(32)
"""What stands before the first entry of a chain."""


def terms_digest(lineage: str, client: str, model: str, mechanism: str, cost: str, price: int, time: float) -> bytes:
    """Return the SHA-256 of what a receipt says before it is decided: 32 bytes. Parts go in behind their lengths."""
    digest = _before_the_time(lineage, client, model, mechanism, cost, price).copy()
    encoded = repr(time).encode()
    digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


@lru_cache(maxsize=4096)
def _before_the_time(lineage: str, client: str, model: str, mechanism: str, cost: str, price: int) -> "hashlib._Hash":
    digest = hashlib.sha256(b"dpserve receipt")
    for part in (lineage, client, model, mechanism, cost, str(price)):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest


def receipt_hash(previous: bytes, terms: bytes, sequence: int, rows: int) -> bytes:
    """Return a receipt's hash: 32 bytes, over the hash before it, its terms, its number and its rows."""
    return hashlib.sha256(previous + terms + sequence.to_bytes(8, "big") + rows.to_bytes(8, "big")).digest()


def step_hash(previous: bytes, terms: bytes, sequence: int, rows: int, step: bytes, *, shared: bool) -> bytes:
    """Return the hash of the receipt of a step: 32 bytes, over what `receipt_hash` covers, the step and `shared`.

    Its message is longer than that of any other receipt, so that neither can be taken for the other.
    """
    numbers = sequence.to_bytes(8, "big") + rows.to_bytes(8, "big")
    return hashlib.sha256(previous + terms + numbers + step + bytes([shared])).digest()


def step_id(after: bytes, model: str, cost: str) -> bytes:
    """Return the id of a step of a release that is paid for once: 32 bytes, over what it comes after and what it costs.

    `after`: the id of the step before it, or the release's (`release_id`) for the first. No other cost has the id of a
    step, unless SHA-256 has a second preimage, so that whoever reads a receipt can tell whether it paid for its step.
    """
    digest = hashlib.sha256(b"dpserve step" + after)
    for part in (model, cost):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def release_id(model: str, drawn: bytes) -> bytes:
    """Return what the first step of a release comes after: 32 bytes, over the model's id and what was drawn.

    `drawn`: 32 bytes that are a release's alone and say nothing about it (`HoldRequest`).
    """
    encoded = model.encode()
    return hashlib.sha256(b"dpserve release" + len(encoded).to_bytes(8, "big") + encoded + drawn).digest()


def act_hash(previous: bytes, sequence: int, kind: str, subject: str, detail: str, time: str) -> bytes:
    """Return an act's hash: 32 bytes, over the hash before it, its number and its words, each behind its length."""
    digest = hashlib.sha256(previous + sequence.to_bytes(8, "big"))
    for part in (kind, subject, detail, time):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()
