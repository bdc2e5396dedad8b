"""A client's name for a request: the header Idempotency-Key."""

import hashlib
import re
from http import HTTPStatus
from typing import Any

from accounting.ledger import Idempotency
from service.http.problems import Problem, ProblemType

_LONGEST = 255
_KEY = re.compile(rf"[!-~]{{1,{_LONGEST}}}")

IDEMPOTENCY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST, "pattern": "^[!-~]+$"},
    "description": "Your name for this request: sent again, it is answered again and charged once.",
}
"""What the OpenAPI document says of it."""


def idempotency_of(key: str | None, said: bytes) -> Idempotency | None:
    """Return the name of a request that says `said`, if it has one. Raises a 400 problem for what is no name."""
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            ProblemType.INVALID_REQUEST,
            f"an Idempotency-Key has 1 to {_LONGEST} visible ASCII characters",
        )
    return Idempotency(key, hashlib.sha256(said).digest())
