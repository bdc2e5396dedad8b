"""Bearer API keys: hashed on arrival, looked up in the ledger, never logged."""

from http import HTTPStatus

from fastapi import Request
from fastapi.security import HTTPBearer

from accounting.ledger import ClientRevoked, Ledger, UnknownKey, key_digest
from service.http.problems import Problem, ProblemType

BEARER = HTTPBearer(auto_error=False, scheme_name="API key")
"""Says in the OpenAPI document how to authenticate; `authenticated_client` does it."""

_LONGEST_KEY = 256


async def authenticated_client(request: Request, ledger: Ledger, lineage: str) -> str:
    """Return the client's name, or raise a 401 problem. The answer does not tell a near miss from a wild guess."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not 0 < len(key) <= _LONGEST_KEY:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            ProblemType.UNAUTHENTICATED,
            "send your API key in the header 'Authorization: Bearer KEY'",
        )
    try:
        return (await ledger.authenticate(lineage, key_digest(key))).client
    except UnknownKey:
        raise Problem(HTTPStatus.UNAUTHORIZED, ProblemType.UNAUTHENTICATED, "this API key is not known") from None
    except ClientRevoked:
        raise Problem(HTTPStatus.UNAUTHORIZED, ProblemType.KEY_REVOKED, "this API key was revoked") from None
