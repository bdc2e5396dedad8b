"""Who asks: bearer API keys, hashed on arrival, looked up in the ledger, never logged."""

from http import HTTPStatus

from fastapi import Request
from fastapi.security import HTTPBearer

from accounting.ledger import ClientRevoked, KeyExpired, KeyScope, Ledger, ScopeMissing, UnknownKey, key_digest
from service.http.problems import Problem, ProblemType
from service.http.refusals import as_problem
from service.plane import Caller

BEARER = HTTPBearer(auto_error=False, scheme_name="API key")
"""Says in the OpenAPI document how to authenticate; `Authentication` does it."""

_LONGEST_CREDENTIAL = 8192


class Authentication:
    """Tells who sent a request to one lineage's service."""

    def __init__(self, ledger: Ledger, lineage: str) -> None:
        """Look keys up in `ledger`."""
        self._ledger = ledger
        self._lineage = lineage

    async def caller(self, request: Request, scope: KeyScope) -> Caller:
        """Return who asks, or raise a problem: 401, or 403 for a key that is not good for `scope`.

        A key that is not known is answered alike, whether it is a near miss or a wild guess.
        """
        return await self._authenticated(key_digest(credential(request.headers.get("authorization", ""))), scope)

    async def payer(self, authorization: str) -> Caller:
        """Return who asks for something that is charged, or raise a problem as `caller` does.

        authorization: the header. A key that was authenticated before asks the ledger nothing now: it is checked again
        with the charge. It is looked up by its SHA-256, in time that says nothing about any other key.
        """
        digest = key_digest(credential(authorization))
        client = self._ledger.remembered(self._lineage, digest)
        return await self._authenticated(digest, "predict") if client is None else Caller(client, digest)

    async def _authenticated(self, digest: bytes, scope: KeyScope) -> Caller:
        try:
            return Caller((await self._ledger.authenticate(self._lineage, digest, scope)).client, digest)
        except (UnknownKey, ClientRevoked, KeyExpired, ScopeMissing) as refused:
            raise as_problem(refused) from None


def credential(authorization: str) -> str:
    """Return what the header says of who sent the request, or raise a 401 problem."""
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not 0 < len(key) <= _LONGEST_CREDENTIAL:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            ProblemType.UNAUTHENTICATED,
            "send your API key in the header 'Authorization: Bearer KEY'",
        )
    return key
