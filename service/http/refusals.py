"""The service's refusals as problems: one table for every route."""

import logging
from collections.abc import Mapping
from typing import Any

from dpserve.accounting.ledger import (
    BudgetExhausted,
    ClientRevoked,
    IdempotencyConflict,
    KeyExpired,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerUnavailable,
    LineageForgotten,
    MechanismNotAccepted,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
)
from dpserve.service.errors import (
    DeadlinePassed,
    InvalidRows,
    Overloaded,
    RequestRefused,
    UnknownModel,
)
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.telemetry.logs import REQUESTS, kinds

_log = logging.getLogger(REQUESTS)

REFUSALS = (Problem, RequestRefused, LedgerError)
"""The bases of what `as_problem` knows: a class that is added below one of them is a refusal on every route."""

FAILED = "the service failed; the owner's log says where"


_IN_WORDS: Mapping[type[Exception], tuple[ProblemType, str]] = {
    UnknownModel: (ProblemType.UNKNOWN_MODEL, ""),
    IdempotencyConflict: (ProblemType.IDEMPOTENCY_CONFLICT, ""),
    KeyExpired: (ProblemType.KEY_EXPIRED, ""),
    UnknownKey: (ProblemType.UNAUTHENTICATED, "this API key is not known"),
    UnknownClient: (ProblemType.UNAUTHENTICATED, "the token names no client of this service"),
    ClientRevoked: (ProblemType.KEY_REVOKED, "this API key was revoked"),
    DeadlinePassed: (
        ProblemType.DEADLINE_PASSED,
        "the request's deadline passed before it was charged; nothing was charged",
    ),
    RequestRefused: (ProblemType.INVALID_REQUEST, ""),
}
"""Refusals of which nothing but a sentence is told; where there is none here, their own. A class stands for those below
it that are not here themselves."""


def as_problem(error: Exception) -> Problem:
    """Return the problem that a refusal is answered with; what it says may be read by anyone."""
    match error:
        case Problem():
            # Whoever keeps it as a problem is in its traceback: a circle, with the body that is refused.
            return error.with_traceback(None)
        case BudgetExhausted():
            return _exhausted(error)
        case InvalidRows():
            return Problem(ProblemType.INVALID_ROWS, str(error), row=error.row, column=error.column)
        case ScopeMissing():
            return Problem(ProblemType.INSUFFICIENT_SCOPE, str(error), scope=error.needed)
        case MechanismNotAccepted():
            return Problem(ProblemType.MECHANISM_NOT_ACCEPTED, str(error), scope=error.scope)
        case Overloaded():
            detail = "too many requests are waiting; nothing was charged: ask again later"
            return Problem(ProblemType.OVERLOADED, detail, retry_after=error.retry_after)
        case LedgerUnavailable() | UnknownLineage() | LineageForgotten():
            return Problem(ProblemType.LEDGER_UNAVAILABLE, _why_unavailable(error))
    for known in type(error).__mro__:
        if known in _IN_WORDS:
            kind, sentence = _IN_WORDS[known]
            return Problem(kind, sentence or str(error))
    _log.error("unexpected refusal of the ledger: %s", type(error).__name__)
    return Problem(ProblemType.INTERNAL, FAILED)


def _exhausted(error: BudgetExhausted) -> Problem:
    """Return a 403 problem, with the account's amounts where it is the client's: another's tell what others ask."""
    currency = error.currency
    known: dict[str, Any] = {"scope": error.scope, "currency": currency.name, "cost": currency.value(error.cost)}
    costs = f"costs more than is left in the budget of the {f'block {error.block}' if error.block else error.scope}"
    if error.scope == "client":
        known |= {name: currency.value(getattr(error, name)) for name in ("spent", "remaining", "limit")}
        costs = f"{error.price}, and {error.left} in the client's budget"
    return Problem(ProblemType.BUDGET_EXHAUSTED, f"this request {costs}; nothing was charged", **known)


def _why_unavailable(error: Exception) -> str:
    if isinstance(error, LedgerBusy):
        return "too many requests wait for the ledger; nothing was charged: ask again in a second"
    # Not the store's own words, which can repeat the call, and with it what was asked and answered.
    _log.error(
        "the ledger is unavailable (%s): `dpserve ledger status` and `dpserve ledger verify` say why", kinds(error)
    )
    if isinstance(error, LedgerDamaged):
        return "the ledger is damaged and its owner must look (`dpserve ledger verify`); nothing was charged for this"
    return "the ledger cannot be reached, so nothing is answered; asking again is safe and is charged once"
