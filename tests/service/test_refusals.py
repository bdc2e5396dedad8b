"""Every refusal that there is has an answer: none that was added and forgotten is a failure of the service."""

import inspect
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import (
    ActRefused,
    BudgetExhausted,
    LedgerError,
    LedgerRefusal,
    NoBudget,
    NotPaidFor,
    OtherBudget,
    OtherUnit,
    UnitLost,
    UnknownBlock,
    UnknownGroup,
)
from dpserve.accounting.ledger.errors import CannotRecover
from dpserve.accounting.ledger.recovery import LossUndeclared
from dpserve.service.errors import InvalidRows, Overloaded, RequestRefused
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.refusals import REFUSALS, as_problem

OWNERS = {
    *(ActRefused, CannotRecover, LossUndeclared, NoBudget, NotPaidFor, OtherBudget, OtherUnit, UnitLost),
    *(UnknownBlock, UnknownGroup),
}
"""Raised for what the owner does, which no request of a client does."""


def below(base: type[Exception]) -> Iterator[type[Exception]]:
    for each in base.__subclasses__():
        if each.__module__.startswith(("dpserve.accounting.", "dpserve.service.")):
            yield each
            yield from below(each)


RAISED = sorted({each for base in (RequestRefused, LedgerError) for each in below(base)} - {LedgerRefusal}, key=repr)


def made(kind: type[Exception]) -> Exception:
    if kind is BudgetExhausted:
        return BudgetExhausted("client", 5, 1, 3)
    if kind is InvalidRows:
        return InvalidRows("named", row=3)
    if kind is Overloaded:
        return Overloaded(3)
    parameters = inspect.signature(kind.__init__).parameters.values()
    needed = sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters) - 1
    named = getattr(kind, "says", "").count("{") if any(each.kind is each.VAR_POSITIONAL for each in parameters) else 0
    return kind(*["named"] * max(needed, named))


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_every_refusal_is_answered_as_one(kind: type[Exception]) -> None:
    error = made(kind)
    assert isinstance(error, REFUSALS)
    problem = as_problem(error)
    assert (problem.kind is ProblemType.INTERNAL) == (kind in OWNERS)
    if isinstance(error, RequestRefused):
        assert problem.status < HTTPStatus.INTERNAL_SERVER_ERROR or problem.status is HTTPStatus.SERVICE_UNAVAILABLE


def test_a_refusal_that_nobody_listed_is_the_requests_fault_and_no_failure() -> None:
    class Forgotten(RequestRefused):
        pass

    assert as_problem(Forgotten("said")).kind is ProblemType.INVALID_REQUEST


def test_a_problem_is_itself() -> None:
    problem = Problem(ProblemType.NOT_FOUND, "nothing here")
    assert as_problem(problem) is problem


def test_a_client_hears_in_epsilon_what_it_would_pay_and_what_is_left() -> None:
    budget = Budget.from_epsilon_delta(1.0, 1e-6, "gaussian")
    refused = BudgetExhausted.of_budget("client", budget, 2 * budget.limit, 0)
    detail = as_problem(refused).detail
    price, left = budget.words_of_cost(0, 2 * budget.limit)
    assert price in detail
    assert left in detail
    assert "rho" not in detail
    # What others spent is nobody's to hear, and what a request adds to it would tell.
    others = {
        as_problem(BudgetExhausted.of_budget("lineage", budget, 2 * budget.limit, spent)).detail
        for spent in (0, budget.limit // 2, budget.limit)
    }
    assert len(others) == 1


def test_a_problem_holds_nothing_of_the_request_and_no_more_of_what_it_names_than_a_person_reads():
    try:
        raise Problem(ProblemType.INVALID_REQUEST, "x" * 10**6)
    except Problem as raised:
        problem = as_problem(raised)
    assert problem.__traceback__ is None
    assert len(problem.detail) < 5000
