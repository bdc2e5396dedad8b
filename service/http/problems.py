"""Errors as RFC 9457 problems, each with a type that programs can rely on."""

from enum import StrEnum
from http import HTTPStatus
from typing import Any, Self, cast

import msgspec
from fastapi.responses import JSONResponse, Response
from msgspec import UNSET, Struct, UnsetType

from dpserve.accounting.disclosure import Asked, Declared, Disclosed

MEDIA_TYPE = "application/problem+json"


class ProblemType(StrEnum):
    """The types of problem this service answers with. Stable: a client may compare them as text."""

    word: str
    """The last word of the type."""
    status: HTTPStatus
    """Status of the answer, unless the problem says otherwise."""

    def __new__(cls, word: str, status: HTTPStatus) -> Self:
        """Make `urn:dpserve:problem:WORD`."""
        made = str.__new__(cls, f"urn:dpserve:problem:{word}")
        made._value_, made.word, made.status = str(made), word, status
        return made

    BUDGET_EXHAUSTED = "budget-exhausted", HTTPStatus.FORBIDDEN
    BODY_TOO_LARGE = "body-too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    IDEMPOTENCY_CONFLICT = "idempotency-conflict", HTTPStatus.UNPROCESSABLE_ENTITY
    INVALID_ROWS = "invalid-rows", HTTPStatus.UNPROCESSABLE_ENTITY
    INVALID_REQUEST = "invalid-request", HTTPStatus.BAD_REQUEST
    MALFORMED_ARRAY = "malformed-array", HTTPStatus.BAD_REQUEST
    MALFORMED_JSON = "malformed-json", HTTPStatus.BAD_REQUEST
    MECHANISM_NOT_ACCEPTED = "mechanism-not-accepted", HTTPStatus.FORBIDDEN
    OVERLOADED = "overloaded", HTTPStatus.SERVICE_UNAVAILABLE
    DEADLINE_PASSED = "deadline-passed", HTTPStatus.SERVICE_UNAVAILABLE
    LEDGER_UNAVAILABLE = "ledger-unavailable", HTTPStatus.SERVICE_UNAVAILABLE
    NOT_FOUND = "not-found", HTTPStatus.NOT_FOUND
    METHOD_NOT_ALLOWED = "method-not-allowed", HTTPStatus.METHOD_NOT_ALLOWED
    UNAUTHENTICATED = "unauthenticated", HTTPStatus.UNAUTHORIZED
    INSUFFICIENT_SCOPE = "insufficient-scope", HTTPStatus.FORBIDDEN
    KEY_EXPIRED = "key-expired", HTTPStatus.UNAUTHORIZED
    KEY_REVOKED = "key-revoked", HTTPStatus.UNAUTHORIZED
    TOKENS_UNAVAILABLE = "tokens-unavailable", HTTPStatus.SERVICE_UNAVAILABLE
    TOO_MANY_REQUESTS = "too-many-requests", HTTPStatus.TOO_MANY_REQUESTS
    UNKNOWN_MODEL = "unknown-model", HTTPStatus.NOT_FOUND
    NOT_EXPORTABLE = "not-exportable", HTTPStatus.FORBIDDEN
    MODEL_NOT_PAID_FOR = "model-not-paid-for", HTTPStatus.FORBIDDEN
    ACT_REFUSED = "act-refused", HTTPStatus.CONFLICT
    CROSS_ORIGIN = "cross-origin", HTTPStatus.FORBIDDEN
    INTERNAL = "internal", HTTPStatus.INTERNAL_SERVER_ERROR


_LONGEST_DETAIL = 4096
"""Characters of a sentence, which may repeat a name as long as a body."""


class ProblemOut(Disclosed, Struct):
    """An error (RFC 9457). Which of the members behind `detail` there are, its type says."""

    type: Declared[str]
    title: Declared[str]
    status: Declared[int]
    detail: Asked[str]
    row: Asked[int | UnsetType | None] = UNSET
    """The first row that cannot be asked about; null where it is none."""
    column: Asked[int | UnsetType | None] = UNSET
    """Its first such column, likewise."""
    scope: Asked[str | UnsetType] = UNSET
    """The scope that a key lacks, or the account that refuses: client, group or lineage."""
    currency: Asked[str | UnsetType] = UNSET
    """The currency of the amounts."""
    cost: Asked[float | UnsetType] = UNSET
    spent: Asked[float | UnsetType] = UNSET
    remaining: Asked[float | UnsetType] = UNSET
    limit: Asked[float | UnsetType] = UNSET
    limit_bytes: Declared[int | UnsetType] = UNSET
    """The most bytes of a body."""
    retry_after: Asked[int | UnsetType] = UNSET
    """In how many seconds to ask again."""


class Problem(Exception):
    """Raised by routes to answer with a problem."""

    def __init__(self, kind: ProblemType, detail: str, *, status: HTTPStatus | None = None, **members: Any) -> None:
        """detail: one sentence for a person. status: if not the type's. members: further fields of `ProblemOut`."""
        detail = detail if len(detail) <= _LONGEST_DETAIL else f"{detail[:_LONGEST_DETAIL]}..."
        super().__init__(detail)
        self.kind = kind
        self.status = status or kind.status
        self.detail = detail
        self.members = members

    def content(self) -> dict[str, Any]:
        """Return what it says, as RFC 9457 has it."""
        said = ProblemOut(self.kind, self.status.phrase, int(self.status), self.detail, **self.members)
        return cast(dict[str, Any], msgspec.to_builtins(said))

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        headers = {"dpserve-problem": self.kind.word}
        if self.status is HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = 'Bearer realm="dpserve"'
        if self.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            headers["Connection"] = "close"  # the rest of the body may not have been read
        if self.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            headers["Retry-After"] = str(self.members.get("retry_after", 1))
        return JSONResponse(self.content(), status_code=self.status, media_type=MEDIA_TYPE, headers=headers)


def open_inference_error(problem: Problem) -> Response:
    """Return a problem as the Open Inference Protocol has errors: its sentence alone, its type in `dpserve-problem`."""
    response = problem.response()
    headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return JSONResponse({"error": problem.detail}, status_code=problem.status, headers=headers)
