"""Who asks: an API key, hashed on arrival, looked up in the ledger, never logged; or a provider's token."""

from collections.abc import Collection
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import Request
from fastapi.security import HTTPBearer

from dpserve.accounting.ledger import (
    ClientRevoked,
    KeyExpired,
    KeyScope,
    Ledger,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    key_digest,
)
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.refusals import as_problem
from dpserve.service.http.requests import RequestHeader, invalid
from dpserve.service.predictor import Caller

if TYPE_CHECKING:
    from dpserve.service.http.failed_tries import FailedTries
    from dpserve.service.http.tokens import Tokens, Verified

BEARER = HTTPBearer(auto_error=False, scheme_name="API key")
"""Says in the OpenAPI document how to authenticate; `Authentication` does it."""

LONGEST_CREDENTIAL = 8192
"""Characters of an API key or a token at most."""

_DOTS_OF_A_TOKEN = 2
"""In a JWT; an API key has none."""


class Authentication:
    """Tells who sent a request: which client of the lineage that is asked."""

    def __init__(
        self,
        ledger: Ledger,
        tokens: "Tokens | None" = None,
        failed_tries: "FailedTries | None" = None,
    ) -> None:
        """Look keys up in `ledger`. tokens: verifies those that are taken beside keys.

        failed_tries: limits those of each address.
        """
        self._ledger = ledger
        self._tokens = tokens
        self._failed_tries = failed_tries

    async def caller(self, request: Request, lineage: str, scope: KeyScope) -> Caller:
        """Return who asks, or raise a problem: 401, 403 for a key that is not good for `scope`, or 429.

        A key that is not known is answered alike, whether it is a near miss or a wild guess.
        """
        shown = credential(authorization_of(request))
        peer = request.client.host if request.client is not None else ""
        by_token = await self._by_token(shown, scope, peer)
        if by_token is not None:
            await self._check_client(lineage, by_token.client)
            return by_token
        return await self._by_key(key_digest(shown), lineage, scope, peer)

    async def payer(self, header: RequestHeader, lineage: str) -> Caller:
        """Return who asks for something that is charged, or raise a problem as `caller` does.

        A token, or a key that was authenticated before, asks the ledger nothing now: whether it is the client's is
        checked with the charge. A key is looked up by its SHA-256, in time that says nothing about any other key.
        """
        authorization = header.fields.get(b"authorization", b"").decode("latin-1")
        shown = credential(authorization)
        if self._tokens is not None:
            by_token = await self._by_token(shown, "predict", header.peer)
            if by_token is not None:
                return by_token
        digest = key_digest(shown)
        client = self._ledger.api_keys.clients.get((lineage, digest))
        if client is not None:
            return Caller(client, digest)
        return await self._by_key(digest, lineage, "predict", header.peer)

    async def accounts(self, request: Request, lineages: Collection[str], scope: KeyScope) -> dict[str, Caller]:
        """Return who asks in each of these lineages that knows the credential; raise a problem as `caller` does.

        A credential that no lineage knows counts as one failed try, however many lineages there are.
        """
        shown = credential(authorization_of(request))
        peer = request.client.host if request.client is not None else ""
        callers: dict[str, Caller] = {}
        refusals: list[Problem] = []
        if self._failed_tries is not None:
            await self._failed_tries.check(peer)
        verified = await self._token(shown, peer)
        known = key_digest(shown) if verified is None else _scoped(verified, scope)
        for lineage in lineages:
            try:
                callers[lineage] = await self._account(lineage, known, scope)
            except Problem as problem:
                refusals.append(problem)
        if not callers:
            # A key that is revoked in one lineage and unknown in the others is refused as revoked.
            refusal = next((each for each in refusals if each.kind is not ProblemType.UNAUTHENTICATED), refusals[0])
            if self._failed_tries is not None and refusal.status is HTTPStatus.UNAUTHORIZED:
                await self._failed_tries.count(peer)
            raise refusal
        return callers

    async def _account(self, lineage: str, credential: Caller | bytes, scope: KeyScope) -> Caller:
        """Return who a token's caller or a key's digest is in a lineage, or raise a problem."""
        if isinstance(credential, Caller):
            await self._check_client(lineage, credential.client)
            return credential
        try:
            return Caller((await self._ledger.api_keys.authenticate(lineage, credential, scope)).client, credential)
        except (UnknownKey, ClientRevoked, KeyExpired, ScopeMissing) as refused:
            raise as_problem(refused) from None

    async def admit(self, header: RequestHeader, lineages: Collection[str]) -> tuple[str, str]:
        """Return who asks, before it is known of which of these lineages; raise a problem as `caller` does.

        A lineage and its client: others may have one of that name. Of a token no lineage, for it names one in all.

        What follows is to ask `payer`.
        """
        shown = credential(header.field(b"authorization") or "")
        if (token := await self._token(shown, header.peer)) is not None:
            return "", token.client
        digest = key_digest(shown)
        for lineage in lineages:
            if (client := self._ledger.api_keys.clients.get((lineage, digest))) is not None:
                return lineage, client
        return await self._look_up(digest, lineages, header.peer)

    async def _look_up(self, digest: bytes, lineages: Collection[str], peer: str) -> tuple[str, str]:
        """Return in which of these lineages this is a key, and whose; raise a problem where it is nobody's in any."""
        if self._failed_tries is not None:
            await self._failed_tries.check(peer)
        refusal: Exception = UnknownKey()
        for lineage in lineages:
            try:
                return lineage, (await self._ledger.api_keys.authenticate(lineage, digest, "predict")).client
            except UnknownKey:
                continue
            except (ClientRevoked, KeyExpired, ScopeMissing) as refused:
                refusal = refused
        if self._failed_tries is not None and not isinstance(refusal, ScopeMissing):
            await self._failed_tries.count(peer)
        raise as_problem(refusal)

    async def _by_token(self, shown: str, scope: KeyScope, peer: str) -> Caller | None:
        """Return the client that a token names; None for what is no token."""
        token = await self._token(shown, peer)
        return None if token is None else _scoped(token, scope)

    async def _token(self, shown: str, peer: str) -> "Verified | None":
        """Return the verified token; None for what is no token."""
        if self._tokens is None or shown.count(".") != _DOTS_OF_A_TOKEN:
            return None
        return await self._verified(self._tokens, shown, peer)

    async def _verified(self, tokens: "Tokens", shown: str, peer: str) -> "Verified":
        try:
            return await tokens.verify(shown)
        except Problem as problem:
            if problem.status is HTTPStatus.UNAUTHORIZED and self._failed_tries is not None:
                await self._failed_tries.check(peer)
                await self._failed_tries.count(peer)
            raise

    async def _check_client(self, lineage: str, client: str) -> None:
        """Raise a problem unless the ledger knows the client."""
        try:
            account = await self._ledger.client(lineage, client)
        except UnknownClient as unknown:
            raise as_problem(unknown) from None
        if account.revoked:
            raise as_problem(ClientRevoked(client))

    async def _by_key(self, digest: bytes, lineage: str, scope: KeyScope, peer: str) -> Caller:
        if self._failed_tries is not None and self._ledger.api_keys.clients.get((lineage, digest)) is None:
            await self._failed_tries.check(peer)
        try:
            return Caller((await self._ledger.api_keys.authenticate(lineage, digest, scope)).client, digest)
        except (UnknownKey, ClientRevoked, KeyExpired, ScopeMissing) as refused:
            if self._failed_tries is not None and not isinstance(refused, ScopeMissing):
                await self._failed_tries.count(peer)
            raise as_problem(refused) from None


def _scoped(token: "Verified", scope: KeyScope) -> Caller:
    """Return the caller of a verified token, or raise a 403 problem for one without the scope."""
    if scope not in token.scopes:
        raise as_problem(ScopeMissing(scope, "token"))
    return Caller(token.client, expires=token.expires)


def authorization_of(request: Request) -> str:
    """Return the header Authorization, empty without one.

    Raises a 400 problem for several: a proxy before the service may have looked at another than is looked at here.
    """
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise invalid("send one header 'Authorization', not several")
    return headers[0] if headers else ""


def credential(authorization: str, longest: int = LONGEST_CREDENTIAL, what: str = "your API key") -> str:
    """Return what the header shows by the scheme 'Bearer', or raise a 401 problem for nothing, or for what is longer.

    longest: in characters. what: the credential, in words.
    """
    scheme, _, shown = authorization.partition(" ")
    shown = shown.strip()
    if scheme.lower() != "bearer" or not 0 < len(shown) <= longest:
        raise no_credential(what)
    return shown


def no_credential(what: str) -> Problem:
    """Return the 401 problem of a request without it."""
    return Problem(ProblemType.UNAUTHENTICATED, f"send {what} in the header 'Authorization: Bearer KEY'")
