import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting.budgets import Accepts, Budget
from dpserve.accounting.explanation import explain_account
from dpserve.accounting.losses import ClaimedGaussianLoss, Cost, GaussianLoss, LaplaceLoss
from dpserve.accounting.report import AccountState, account_report

GAUSSIAN = Cost((GaussianLoss(0.05),))
LAPLACE = Cost((LaplaceLoss(0.01),))


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize("accepts", ["gaussian", "any"])
def test_a_lowered_limit_does_not_bound_what_was_released_under_the_higher_one(accepts):
    low, high = (Budget.from_rho(rho, 1e-6, accepts) for rho in (0.1, 0.5))
    before = explain_account(AccountState.after_releases({GAUSSIAN: 1}, high), price=GAUSSIAN)
    after = explain_account(AccountState.after_releases({GAUSSIAN: 1}, low, highest_limit=high.limit), price=GAUSSIAN)
    assert after.limit.rho == pytest.approx(0.1)
    assert after.posterior_belief_bound.when_spent == before.posterior_belief_bound.when_spent
    assert after.membership_advantage_bound.when_spent == before.membership_advantage_bound.when_spent
    assert after.explanation.identifiability == before.explanation.identifiability


@given(
    limit=st.integers(0, 10**13),
    spent=st.integers(0, 10**13),
    accepts=st.sampled_from(["gaussian", "any"]),
    delta=st.floats(1e-6, 1e-2),
)
def test_every_number_is_finite_and_survives_json(limit: int, spent: int, accepts: Accepts, delta: float) -> None:
    report = account_report(
        AccountState.after_releases({GAUSSIAN: min(spent, limit) // GAUSSIAN.picorho}, Budget(limit, accepts, delta)),
        price=GAUSSIAN,
    )
    read_back = json.loads(report.model_dump_json())

    assert all(math.isfinite(number) for number in numbers(read_back))
    assert report.queries_left == limit // GAUSSIAN.picorho - min(spent, limit) // GAUSSIAN.picorho
    assert report.spent.epsilon + report.remaining.epsilon == pytest.approx(report.limit.epsilon)
    assert report.posterior_belief_bound.now <= report.posterior_belief_bound.when_spent
    assert report.posterior_belief_at_epsilon.when_spent <= report.posterior_belief_bound.when_spent


def test_the_report_adds_up_what_was_released() -> None:
    budget = Budget.from_epsilon_delta(1, 1e-6, "any")
    report = account_report(AccountState.after_releases({GAUSSIAN: 3, LAPLACE: 10}, budget), price=LAPLACE)

    spent = 3 * GAUSSIAN.picorho + 10 * LAPLACE.picorho
    assert report.spent.rho == spent / 1e12
    assert report.queries_left == (budget.limit - spent) // LAPLACE.picorho
    assert report.price is not None
    assert Cost.parse(report.price.losses) == LAPLACE


def test_without_a_price_no_queries_are_promised() -> None:
    budget = Budget.from_mu(1, 1e-6)

    assert account_report(AccountState.after_releases({}, budget), price=None).queries_left is None
    assert account_report(AccountState.after_releases({}, budget), price=Cost()).queries_left is None


def test_a_charge_that_the_account_does_not_accept_is_refused() -> None:
    with pytest.raises(ValueError, match="accepts 'gaussian' charges"):
        account_report(AccountState.after_releases({LAPLACE: 1}, Budget.from_mu(1, 1e-6)), price=None)
    with pytest.raises(ValueError, match="must not be negative"):
        account_report(AccountState.after_releases({GAUSSIAN: -1}, Budget.from_mu(1, 1e-6)), price=None)


def test_importing_the_report_loads_nothing_heavy() -> None:
    """The service imports it at start; the accountants of others stay out until an explanation needs them."""
    code = "import sys, dpserve.accounting.report; print(*sorted(m for m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"dp_accounting", "scipy.stats", "scipy.optimize", "pandas", "torch"} & set(loaded)


def test_an_account_of_claims_bounds_nothing():
    spent = {Cost((ClaimedGaussianLoss(0.1),)): 3}
    for accepts in ("gaussian", "any"):
        with pytest.raises(ValueError, match=r"charges, not 'claimed-gaussian:0.1'"):
            account_report(AccountState.after_releases(spent, Budget.from_rho(1.0, 1e-6, accepts)), price=None)
    report = account_report(AccountState.after_releases(spent, Budget.from_rho(1.0, 1e-6, "unproven")), price=None)
    assert report.status == "unproven"
    assert report.membership_advantage_bound.now == report.posterior_belief_bound.now == 1


def test_only_the_bound_of_the_whole_budget_holds_for_who_chooses_when_to_stop():
    """A client that stops when it is surest passes the bound of the moment more often than delta, never the limit's.

    20,000 runs of 64 Gaussian answers; the limit's bound would be passed in more than delta + 6 standard deviations
    of them with a chance below 1e-8.
    """
    delta, mu, answers, runs = 0.05, 0.2, 64, 20_000
    cost = Cost((GaussianLoss(mu),))
    budget = Budget(answers * cost.picorho, "gaussian", delta)
    steps = np.random.default_rng(4).normal(mu**2 / 2, mu, (runs, answers))
    log_odds = np.cumsum(steps, axis=1)
    beliefs = np.array([budget.posterior_belief_at(n * cost.picorho) for n in range(1, answers + 1)])
    bounds = np.log(beliefs / (1 - beliefs))
    assert (log_odds > bounds).any(axis=1).mean() > 3 * delta
    allowed = delta + 6 * np.sqrt(delta * (1 - delta) / runs)
    assert (log_odds[:, 0] > bounds[0]).mean() <= allowed
    assert (log_odds[:, -1] > bounds[-1]).mean() <= allowed
