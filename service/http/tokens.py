"""Bearer tokens (JWT, RFC 7519) of an OpenID Connect provider: verified here, the client named by one claim.

Promises: only algorithms of the owner's list are taken, all of them asymmetric; the signature is by a key of the
provider's set, which was read not long ago; issuer, audience and expiry are there and right. A token says who asks,
until when and, where the owner names a claim for it, for what: the client, its budget and whether it was revoked are in
the ledger.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

import jwt

from dpserve.accounting.ledger import SCOPES, KeyScope
from dpserve.accounting.ledger.values import checked_client
from dpserve.accounting.messages import Message
from dpserve.service.errors import CannotServe
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.urls import error_without_secrets, without_secrets

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms that may be allowed. A shared secret is not among them: whoever can verify a token could make one."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECONDS_BETWEEN_LOOKS = 60.0
_SECONDS_TO_KEEP = 3600.0
_SECONDS_TO_TRUST = 2 * 3600.0
"""Seconds for which old keys are taken if new ones cannot be read: a withdrawn one may be in a thief's hands."""

_SECONDS_TO_READ = 5
_SECONDS_AHEAD = 60.0
_UNREADABLE = (OSError, ValueError, jwt.PyJWTError)
_UNUSABLE = (jwt.PyJWTError, OverflowError, RecursionError, ValueError)
"""Errors for text that is no token, has a time that no clock reaches, or is nested too deep."""

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}

Jwk = dict[str, Any]
"""One public key of a provider's set, as RFC 7517 writes it."""


@dataclass(frozen=True)
class TokenSettings:
    """The issuer whose tokens are taken. keys: a URL or a file with the provider's JSON Web Key Set."""

    issuer: str
    audience: str
    keys: str
    claim: str = "sub"
    """Which claim names the client."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    scope_claim: str | None = None
    """Which claim lists what the token is good for, among it `predict` and `budget-read`; None: for both."""

    def __post_init__(self) -> None:
        """Raise CannotServe for settings that would take anybody's tokens."""
        if not self.issuer or not self.audience or not self.claim:
            raise CannotServe(
                Message("tokens need an issuer, an audience and a claim: {jwt_issuer}, {jwt_audience}, {jwt_claim}")
            )
        unknown = sorted(set(self.algorithms) - set(ALGORITHMS))
        if unknown or not self.algorithms:
            raise CannotServe(
                Message("{jwt_algorithm} takes {}, not {}", ", ".join(ALGORITHMS), ", ".join(unknown) or "nothing")
            )
        url = urlsplit(self.keys)
        if url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise CannotServe(
                Message("{jwt_keys} must be a file or an https:// URL: whoever controls it decides who may ask")
            )


@dataclass(frozen=True, slots=True)
class Verified:
    """The content of a verified token. expires: seconds since the epoch, by the provider's clock."""

    client: str
    expires: float
    scopes: frozenset[KeyScope]


class Tokens:
    """Verifies tokens of one provider, whose keys are looked up again when an unknown one is named."""

    def __init__(self, settings: TokenSettings, keys: Sequence[Jwk]) -> None:
        """Take `keys` for the provider's of now."""
        self._settings = settings
        self._keys = keys
        self._read = self._tried = monotonic()
        self._failed = False
        self._looking = asyncio.Lock()

    @classmethod
    async def open(cls, settings: TokenSettings) -> "Tokens":
        """Return what verifies tokens, having read the provider's keys. Raises CannotServe if they cannot be read."""
        try:
            return cls(settings, await _read_keys(settings.keys))
        except _UNREADABLE as error:
            raise CannotServe(
                Message(
                    "the keys of {jwt_keys} {} cannot be read: {}",
                    without_secrets(settings.keys),
                    error_without_secrets(error, settings.keys),
                )
            ) from error

    async def verify(self, token: str) -> Verified:
        """Return what the token says. Raises a 401 problem, or 503 if the provider's keys cannot be looked up."""
        try:
            key = await self._key_of(jwt.get_unverified_header(token))
            if key is None:
                raise _refused("this token is not signed by a known key")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(self._settings.algorithms),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options={"require": ["exp", "iss", "aud", self._settings.claim], "verify_iat": False},
            )
            expires = _checked_times(claims)
        except jwt.ExpiredSignatureError:
            raise Problem(ProblemType.KEY_EXPIRED, "this token has expired") from None
        except _UNUSABLE:
            raise _refused("this token is not one for this service") from None
        scopes = _scopes_of(claims, self._settings.scope_claim)
        return Verified(_name_of(claims, self._settings.claim), expires, scopes)

    async def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK | None:
        """Return the provider's key that a token with this header is to be verified with, by its algorithm."""
        algorithm, named = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            return None
        key = self._find(named)
        now = monotonic()
        due = key is None or now - self._read >= _SECONDS_TO_KEEP
        if due and now - self._tried >= _SECONDS_BETWEEN_LOOKS:
            await self._look_again(now)
            key = self._find(named)
        # A key that is not there may be one that could not be looked up; one that is, may have been withdrawn since.
        if self._failed and (key is None or now - self._read >= _SECONDS_TO_TRUST):
            raise Problem(
                ProblemType.TOKENS_UNAVAILABLE,
                "the keys that tokens are verified with cannot be looked up; nothing was charged: ask again later",
            )
        return None if key is None or not _fits(key, algorithm) else jwt.PyJWK(key, algorithm=algorithm)

    def _find(self, named: Any) -> Jwk | None:
        # Without a name there must be no choice.
        keys = [key for key in self._keys if key.get("kid") == named or (named is None and len(self._keys) == 1)]
        return keys[0] if len(keys) == 1 else None

    async def _look_again(self, now: float) -> None:
        """Read the provider's keys anew; strangers who name unknown keys have this done once a minute at most."""
        async with self._looking:
            if self._tried > now:
                return
            self._tried = monotonic()
            try:
                self._keys = await _read_keys(self._settings.keys)
            except _UNREADABLE:
                self._failed = True  # the keys of before stand for a while, and this is tried again in a minute
                return
            self._failed, self._read = False, monotonic()


def _checked_times(claims: dict[str, Any]) -> float:
    """Return when a token expires. Raises ValueError for a time that is no number, and for one issued later than now.

    A provider's clock may be ahead of this one by a minute.
    """
    for name in ("exp", "iat", "nbf"):
        if type(claims.get(name, 0)) not in (int, float):
            raise ValueError(f"the token's claim {name!r} is no number")
    if float(claims.get("iat", 0)) > time() + _SECONDS_AHEAD:
        raise ValueError("the token was issued later than now")
    return float(claims["exp"])


def _fits(key: Jwk, algorithm: str) -> bool:
    """Whether a key is one to verify signatures of this algorithm with, as far as it says (RFC 7517, 7518)."""
    return bool(
        key.get("kty") == _KINDS[algorithm[:2]]
        and key.get("alg") in (None, algorithm)
        and key.get("crv") == _CURVES.get(algorithm, key.get("crv"))
    )


async def _read_keys(where: str) -> list[Jwk]:
    """Return the public keys that are there for signatures. Raises what `Tokens.open` makes a CannotServe of."""
    if "://" in where:
        client = jwt.PyJWKClient(where, cache_jwk_set=False, timeout=_SECONDS_TO_READ)
        content = await asyncio.to_thread(client.fetch_data)
    else:
        content = json.loads(await asyncio.to_thread(Path(where).read_text, "utf-8"))
    keys = content.get("keys") if isinstance(content, dict) else None
    public = [key for key in keys or [] if isinstance(key, dict) and _is_for_signatures(key)]
    jwt.PyJWKSet.from_dict({"keys": public})  # raises where none can be used
    return public


def _is_for_signatures(key: Jwk) -> bool:
    operations = key.get("key_ops")
    return bool(
        key.get("kty") in _KINDS.values()
        and key.get("use") in (None, "sig")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _name_of(claims: dict[str, Any], claim: str) -> str:
    name = claims[claim]
    try:
        return checked_client(name)  # as it is: nothing is cut, folded or composed
    except (TypeError, ValueError, AttributeError):
        raise _refused(f"the token's claim {claim!r} names no client") from None


def _scopes_of(claims: dict[str, Any], claim: str | None) -> frozenset[KeyScope]:
    """Return what the token is good for: a claim lists it, or has it in one text with blanks between (RFC 8693)."""
    if claim is None:
        return frozenset(SCOPES)
    value = claims.get(claim, ())
    named = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return frozenset(scope for scope in SCOPES if scope in named)


def _refused(detail: str) -> Problem:
    return Problem(ProblemType.UNAUTHENTICATED, detail)
