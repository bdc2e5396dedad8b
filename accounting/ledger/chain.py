"""The hashes that chain a lineage's receipts, and its acts: SHA-256, each over the one before it.

Promises: whoever holds the newest hash of a chain holds all of it. An entry that was altered, dropped, moved or
slipped in changes every later hash, unless SHA-256 has a second preimage. `receipts.lua` computes the same hashes
inside the store, where the one before is known without a doubt.
"""

import hashlib

GENESIS = bytes(32)
"""What stands before the first entry of a chain."""


def terms_digest(lineage: str, client: str, model: str, mechanism: str, cost: str, price: int, time: float) -> bytes:
    """Return the SHA-256 of what a receipt says before it is decided: 32 bytes. Parts go in behind their lengths."""
    digest = hashlib.sha256(b"dpserve receipt")
    for part in (lineage, client, model, mechanism, cost, str(price), repr(time)):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def receipt_hash(previous: bytes, terms: bytes, sequence: int, rows: int) -> bytes:
    """Return a receipt's hash: 32 bytes, over the hash before it, its terms, its number and its rows."""
    return hashlib.sha256(previous + terms + sequence.to_bytes(8, "big") + rows.to_bytes(8, "big")).digest()


def step_hash(previous: bytes, terms: bytes, sequence: int, rows: int, step: bytes, *, shared: bool) -> bytes:
    """Return the hash of the receipt of a step: 32 bytes, over what `receipt_hash` covers, the step and `shared`.

    Its message is longer than that of any other receipt, so that neither can be taken for the other.
    """
    numbers = sequence.to_bytes(8, "big") + rows.to_bytes(8, "big")
    return hashlib.sha256(previous + terms + numbers + step + bytes([shared])).digest()


def act_hash(previous: bytes, sequence: int, kind: str, subject: str, detail: str, time: str) -> bytes:
    """Return an act's hash: 32 bytes, over the hash before it, its number and its words, each behind its length."""
    digest = hashlib.sha256(previous + sequence.to_bytes(8, "big"))
    for part in (kind, subject, detail, time):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big") + encoded)
    return digest.digest()
