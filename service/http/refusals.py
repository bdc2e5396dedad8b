"""What the service refuses, as problems: one table for every route."""

import logging
from http import HTTPStatus

from accounting.ledger import (
    BudgetExhausted,
    ClientRevoked,
    IdempotencyConflict,
    KeyExpired,
    LedgerBusy,
    LedgerDamaged,
    LedgerError,
    LedgerRefusal,
    LedgerUnavailable,
    MechanismNotAccepted,
    ScopeMissing,
    UnknownClient,
    UnknownKey,
    UnknownLineage,
)
from accounting.picorho import to_rho
from service.errors import DeadlinePassed, InvalidRows, Overloaded, UnknownModel, UnknownTier
from service.http.problems import Problem, ProblemType
from service.telemetry.logs import kinds

_log = logging.getLogger("dpserve")

REFUSALS = (Problem, InvalidRows, UnknownModel, UnknownTier, Overloaded, DeadlinePassed, LedgerError)
"""What `as_problem` knows."""


def as_problem(error: Exception) -> Problem:
    """Return the problem that a refusal is answered with; what it says may be read by anyone."""
    return error if isinstance(error, Problem) else _problem_of(error)


def _problem_of(error: Exception) -> Problem:
    match error:
        case LedgerRefusal() if isinstance(error, _OF_WHO_ASKS):
            return _problem_of_who_asks(error)
        case InvalidRows():
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                ProblemType.INVALID_ROWS,
                str(error),
                row=error.row,
                column=error.column,
            )
        case UnknownModel():
            return Problem(HTTPStatus.NOT_FOUND, ProblemType.UNKNOWN_MODEL, str(error))
        case UnknownTier():
            return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ProblemType.UNKNOWN_TIER, str(error))
        case Overloaded() | DeadlinePassed():
            return _too_late(error)
        case BudgetExhausted():
            return _exhausted(error)
        case MechanismNotAccepted():
            return Problem(HTTPStatus.FORBIDDEN, ProblemType.MECHANISM_NOT_ACCEPTED, str(error), scope=error.scope)
        case IdempotencyConflict():
            return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ProblemType.IDEMPOTENCY_CONFLICT, str(error))
        case LedgerUnavailable() | UnknownLineage():
            return Problem(HTTPStatus.SERVICE_UNAVAILABLE, ProblemType.LEDGER_UNAVAILABLE, _why_unavailable(error))
    _log.error("unexpected refusal of the ledger: %s", type(error).__name__)
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, ProblemType.INTERNAL, "the service failed; the owner's log says where"
    )


def _exhausted(error: BudgetExhausted) -> Problem:
    """Return a 403 problem, with the account's amounts where it is the client's: another's tell what others ask."""
    cost = to_rho(error.cost)
    if error.scope != "client":
        return Problem(
            HTTPStatus.FORBIDDEN,
            ProblemType.BUDGET_EXHAUSTED,
            f"this request costs rho = {cost:.6g}, more than is left in the {error.scope}'s budget; nothing was "
            "charged",
            scope=error.scope,
            unit="rho",
            cost=cost,
        )
    amounts = {name: to_rho(getattr(error, name)) for name in ("spent", "remaining", "limit")}
    refilled = {"refilled": error.refilled.isoformat()} if error.refilled is not None else {}
    until = f" until {error.refilled.isoformat()}" if error.refilled is not None else ""
    return Problem(
        HTTPStatus.FORBIDDEN,
        ProblemType.BUDGET_EXHAUSTED,
        f"this request costs rho = {cost:.6g}, and {amounts['remaining']:.6g} of {amounts['limit']:.6g} is left in "
        f"the client's budget{until}; nothing was charged",
        scope=error.scope,
        unit="rho",
        cost=cost,
        **amounts,
        **refilled,
    )


_OF_WHO_ASKS = (ClientRevoked, UnknownClient, UnknownKey, KeyExpired, ScopeMissing)


def _problem_of_who_asks(error: LedgerRefusal) -> Problem:
    match error:
        case UnknownKey():
            return Problem(HTTPStatus.UNAUTHORIZED, ProblemType.UNAUTHENTICATED, "this API key is not known")
        case UnknownClient():
            return Problem(
                HTTPStatus.UNAUTHORIZED, ProblemType.UNAUTHENTICATED, "the token names no client of this service"
            )
        case KeyExpired():
            return Problem(HTTPStatus.UNAUTHORIZED, ProblemType.KEY_EXPIRED, str(error))
        case ScopeMissing():
            return Problem(HTTPStatus.FORBIDDEN, ProblemType.INSUFFICIENT_SCOPE, str(error), scope=error.needed)
    return Problem(HTTPStatus.UNAUTHORIZED, ProblemType.KEY_REVOKED, "this API key was revoked")


def _too_late(error: Overloaded | DeadlinePassed) -> Problem:
    if isinstance(error, Overloaded):
        return Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            ProblemType.OVERLOADED,
            "too many requests are waiting; nothing was charged: ask again later",
            retry_after=error.retry_after,
        )
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        ProblemType.DEADLINE_PASSED,
        "the request's deadline passed before it was charged; nothing was charged",
    )


def _why_unavailable(error: Exception) -> str:
    match error:
        case LedgerBusy():
            return "too many requests wait for the ledger; nothing was charged: ask again in a second"
    # Not the store's own words, which can repeat the call, and with it what was asked and answered.
    _log.error(
        "the ledger is unavailable (%s): `dpserve ledger status` and `dpserve ledger verify` say why", kinds(error)
    )
    if isinstance(error, LedgerDamaged):
        return "the ledger is damaged and its owner must look (`dpserve ledger verify`); nothing was charged for this"
    return "the ledger cannot be reached, so nothing is answered; asking again is safe and is charged once"
