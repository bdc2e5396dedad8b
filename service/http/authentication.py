"""Who asks: bearer API keys, hashed on arrival, looked up in the ledger, never logged."""

from dataclasses import dataclass
from http import HTTPStatus

from fastapi import Request
from fastapi.security import HTTPBearer

from accounting.ledger import ClientRevoked, KeyExpired, KeyScope, Ledger, ScopeMissing, UnknownKey, key_digest
from service.http.problems import Problem, ProblemType
from service.http.refusals import as_problem

BEARER = HTTPBearer(auto_error=False, scheme_name="API key")
"""Says in the OpenAPI document how to authenticate; `Authentication` does it."""

_LONGEST_CREDENTIAL = 8192


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. key_digest: of the API key that says so, to be looked at again with the charge; empty without one."""

    client: str
    key_digest: bytes = b""


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
        digest = key_digest(credential(request))
        try:
            return Caller((await self._ledger.authenticate(self._lineage, digest, scope)).client, digest)
        except (UnknownKey, ClientRevoked, KeyExpired, ScopeMissing) as refused:
            raise as_problem(refused) from None


def credential(request: Request) -> str:
    """Return what the request says of who sent it, or raise a 401 problem."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not 0 < len(key) <= _LONGEST_CREDENTIAL:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            ProblemType.UNAUTHENTICATED,
            "send your API key in the header 'Authorization: Bearer KEY'",
        )
    return key
