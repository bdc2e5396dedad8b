"""Errors as RFC 9457 problems, each with a type that programs can rely on."""

from enum import StrEnum
from http import HTTPStatus

from fastapi.responses import JSONResponse, Response

MEDIA_TYPE = "application/problem+json"


class ProblemType(StrEnum):
    """The types of problem this service answers with. Stable: a client may compare them as text."""

    BUDGET_EXHAUSTED = "urn:dpserve:problem:budget-exhausted"
    BODY_TOO_LARGE = "urn:dpserve:problem:body-too-large"
    IDEMPOTENCY_CONFLICT = "urn:dpserve:problem:idempotency-conflict"
    INVALID_ROWS = "urn:dpserve:problem:invalid-rows"
    INVALID_REQUEST = "urn:dpserve:problem:invalid-request"
    MALFORMED_ARRAY = "urn:dpserve:problem:malformed-array"
    MALFORMED_JSON = "urn:dpserve:problem:malformed-json"
    MECHANISM_NOT_ACCEPTED = "urn:dpserve:problem:mechanism-not-accepted"
    OVERLOADED = "urn:dpserve:problem:overloaded"
    DEADLINE_PASSED = "urn:dpserve:problem:deadline-passed"
    LEDGER_UNAVAILABLE = "urn:dpserve:problem:ledger-unavailable"
    NOT_FOUND = "urn:dpserve:problem:not-found"
    METHOD_NOT_ALLOWED = "urn:dpserve:problem:method-not-allowed"
    UNAUTHENTICATED = "urn:dpserve:problem:unauthenticated"
    INSUFFICIENT_SCOPE = "urn:dpserve:problem:insufficient-scope"
    KEY_EXPIRED = "urn:dpserve:problem:key-expired"
    KEY_REVOKED = "urn:dpserve:problem:key-revoked"
    NOT_READY = "urn:dpserve:problem:not-ready"
    TOKENS_UNAVAILABLE = "urn:dpserve:problem:tokens-unavailable"
    RATE_UNKNOWN = "urn:dpserve:problem:rate-unknown"
    TOO_MANY_REQUESTS = "urn:dpserve:problem:too-many-requests"
    UNKNOWN_MODEL = "urn:dpserve:problem:unknown-model"
    NOT_EXPORTABLE = "urn:dpserve:problem:not-exportable"
    TIER_NOT_HELD = "urn:dpserve:problem:tier-not-held"
    UNKNOWN_TIER = "urn:dpserve:problem:unknown-tier"
    ACT_REFUSED = "urn:dpserve:problem:act-refused"
    CROSS_ORIGIN = "urn:dpserve:problem:cross-origin"
    INTERNAL = "urn:dpserve:problem:internal"


class Problem(Exception):
    """Raised by routes to answer with a problem."""

    def __init__(self, status: HTTPStatus, kind: ProblemType, detail: str, **members: object) -> None:
        """detail: one sentence for a person. members: extension members for programs."""
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.members = members

    def content(self) -> dict[str, object]:
        """Return what it says, as RFC 9457 has it."""
        plain = {"type": self.kind, "title": self.status.phrase, "status": int(self.status), "detail": self.detail}
        return plain | self.members

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        headers = {"dpserve-problem": self.kind.rpartition(":")[2]}
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
