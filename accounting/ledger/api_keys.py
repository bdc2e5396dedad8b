"""API keys, as the ledger keeps them: a digest, when it ends, and what it is good for."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

KeyScope = Literal["predict", "budget-read"]
"""The permissions of a key: to ask for answers and quotes; to read the account and its receipts."""

SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)

KEY = b"k:"
"""Prefix of the fields of a client's account that hold the terms of an API key; the key's digest follows."""

_DIGEST = hashlib.sha256().digest_size
_NEVER = "-"
_LONGEST_LIFE = 100 * 366 * 86400


def checked_scopes(names: Iterable[str]) -> tuple[KeyScope, ...]:
    """Return the scopes of these names, each once. Raises ValueError for none, and for an unknown name."""
    asked = set(names)
    if not asked or asked - set(SCOPES):
        raise ValueError(f"the scopes of an API key are one or more of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in asked)


def expiry(life: float | None, *, now: float) -> int | None:
    """Return when a key ends that is to last `life` seconds from `now` on, rounded down; None lasts for ever.

    Raises ValueError for a life that is over before it begins, or of more than a hundred years.
    """
    if life is None:
        return None
    if not 1 <= life <= _LONGEST_LIFE:
        raise ValueError("an API key lasts from a second to a hundred years, or for ever")
    return math.floor(now + life)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key. digest: `key_digest` of it; expires: whole seconds since the epoch by the store's clock, or None."""

    digest: bytes
    expires: int | None = None
    scopes: tuple[KeyScope, ...] = SCOPES

    def __post_init__(self) -> None:
        """Refuse what the store could not hold."""
        if len(self.digest) != _DIGEST:
            raise ValueError("the digest of an API key has 32 bytes")
        if self.expires is not None and not 0 <= self.expires < 2**53:
            raise ValueError("an API key expires at a time from 0 to 2^53 seconds since the epoch")
        if self.scopes != checked_scopes(self.scopes):
            raise ValueError(f"the scopes of an API key are in the order of {', '.join(SCOPES)}")

    @property
    def id(self) -> str:
        """The owner's name for it: twelve hexadecimal digits of its digest. It opens nothing."""
        return self.digest[:6].hex()

    @property
    def terms(self) -> tuple[str, str]:
        """When it expires and its scopes, as the store writes them."""
        return _NEVER if self.expires is None else str(self.expires), ",".join(self.scopes)

    def has_ended(self, now: float) -> bool:
        """Whether it is of no use any more. now: seconds since the epoch."""
        return self.expires is not None and now >= self.expires


def read_key(digest: bytes, terms: bytes) -> ApiKey:
    """Read an API key from what its client's account says of it. Raises ValueError."""
    expires, scopes = terms.decode().split(" ")
    named = cast(tuple[KeyScope, ...], tuple(scopes.split(",")))  # which ApiKey checks
    return ApiKey(digest, None if expires == _NEVER else int(expires), named)
