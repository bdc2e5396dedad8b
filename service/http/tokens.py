"""Bearer tokens (JWT, RFC 7519) of an OpenID Connect provider: verified here, the client named by one claim.

Promises: only algorithms of the owner's list are taken, all of them asymmetric; the signature is by a key of the
provider's set; issuer, audience and expiry are there and right. A token says who asks and nothing else: the client, its
budget and whether it was revoked are in the ledger.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from service.errors import CannotServe
from service.http.problems import Problem, ProblemType

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""What may be allowed. A shared secret is not among them: whoever can verify a token could make one."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LARGEST_SET = 1 << 20
_SECONDS_BETWEEN_LOOKS = 60.0
_SECONDS_TO_KEEP = 3600.0
_LONGEST_NAME = 128


@dataclass(frozen=True)
class TokenSettings:
    """Whose tokens are taken. keys: a URL or a file with the provider's JSON Web Key Set."""

    issuer: str
    audience: str
    keys: str
    claim: str = "sub"
    """Which claim names the client."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")

    def __post_init__(self) -> None:
        """Raise CannotServe for settings that would take anybody's tokens."""
        if not self.issuer or not self.audience or not self.claim:
            raise CannotServe(
                "tokens need an issuer, an audience and a claim: --jwt-issuer, --jwt-audience, --jwt-claim"
            )
        unknown = sorted(set(self.algorithms) - set(ALGORITHMS))
        if unknown or not self.algorithms:
            raise CannotServe(f"--jwt-algorithm takes {', '.join(ALGORITHMS)}, not {', '.join(unknown) or 'nothing'}")
        url = urlsplit(self.keys)
        if url.scheme == "http" and url.hostname not in _LOOPBACK:
            raise CannotServe("--jwt-keys must be a file or an https:// URL: whoever answers it says who may ask")


class Tokens:
    """Verifies tokens of one provider, whose keys are looked up again when an unknown one is named."""

    def __init__(self, settings: TokenSettings, keys: jwt.PyJWKSet) -> None:
        """Take `keys` for the provider's of now."""
        self._settings = settings
        self._keys = keys
        self._looked = time.monotonic()
        self._looking = asyncio.Lock()

    @classmethod
    async def open(cls, settings: TokenSettings) -> "Tokens":
        """Return what verifies tokens, having read the provider's keys. Raises CannotServe if they cannot be read."""
        try:
            return cls(settings, await _read_keys(settings.keys))
        except (OSError, ValueError, httpx.HTTPError, jwt.PyJWTError) as error:
            raise CannotServe(f"the keys of --jwt-keys {settings.keys} cannot be read: {error}") from error

    async def client(self, token: str) -> str:
        """Return the name of the client that the token names. Raises a 401 problem, 503 if no key can be looked up."""
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
        except jwt.ExpiredSignatureError:
            raise Problem(HTTPStatus.UNAUTHORIZED, ProblemType.KEY_EXPIRED, "this token has expired") from None
        except jwt.PyJWTError:
            raise _refused("this token is not one for this service") from None
        return _name_of(claims, self._settings.claim)

    async def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK | None:
        if header.get("alg") not in self._settings.algorithms:
            return None
        named = header.get("kid")
        found = self._find(named)
        now = time.monotonic()
        wait = _SECONDS_BETWEEN_LOOKS if found is None else _SECONDS_TO_KEEP
        if now - self._looked >= wait and await self._look_again(now):
            found = self._find(named)
        return found

    def _find(self, named: Any) -> jwt.PyJWK | None:
        # Without a name there must be no choice.
        found = [key for key in self._keys.keys if key.key_id == named or (named is None and len(self._keys.keys) == 1)]
        return found[0] if len(found) == 1 else None

    async def _look_again(self, now: float) -> bool:
        """Read the provider's keys anew; strangers who name unknown keys have this done once a minute at most."""
        async with self._looking:
            if self._looked > now:
                return True
            self._looked = time.monotonic()
            try:
                self._keys = await _read_keys(self._settings.keys)
            except (OSError, ValueError, httpx.HTTPError, jwt.PyJWTError):
                return False  # the keys of before stand: what they verify is still the provider's
        return True


async def _read_keys(where: str) -> jwt.PyJWKSet:
    if "://" not in where:
        text = await asyncio.to_thread(Path(where).read_text, "utf-8")
    else:
        async with httpx.AsyncClient(timeout=5.0, follow_redirects=False) as http:
            response = await http.get(where)
        if response.status_code != HTTPStatus.OK or len(response.content) > _LARGEST_SET:
            raise ValueError(f"it answered {response.status_code}")
        text = response.text
    content = json.loads(text)
    found = content.get("keys") if isinstance(content, dict) else None
    public = [key for key in found or [] if isinstance(key, dict) and key.get("kty") != "oct"]
    return jwt.PyJWKSet.from_dict({"keys": public})


def _name_of(claims: dict[str, Any], claim: str) -> str:
    name = claims[claim]
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise _refused(f"the token's claim {claim!r} names no client")
    return name


def _refused(detail: str) -> Problem:
    return Problem(HTTPStatus.UNAUTHORIZED, ProblemType.UNAUTHENTICATED, detail)
