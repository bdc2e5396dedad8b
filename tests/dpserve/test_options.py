"""A budget in the owner's words is the budget that `dpserve.accounting.budgets` makes of them."""

import json
import math

import pytest

from dpserve.accounting.budgets import Budget
from dpserve.commands.options import BudgetOptions
from dpserve.training.errors import WrongOption

DELTA = 1e-6


@pytest.mark.parametrize("accepts", ["gaussian", "any"])
@pytest.mark.parametrize(
    ("words", "make"),
    [
        ({"epsilon": 1.0}, lambda accepts: Budget.from_epsilon_delta(1.0, DELTA, accepts)),
        ({"rho": 0.1}, lambda accepts: Budget.from_rho(0.1, DELTA, accepts)),
        ({"posterior_belief": 0.9}, lambda accepts: Budget.from_posterior_belief(0.9, DELTA, accepts)),
        ({"advantage": 0.25}, lambda accepts: Budget.from_advantage(0.25, DELTA, accepts)),
    ],
)
def test_every_word_is_understood(words, make, accepts):
    assert BudgetOptions(**words, delta=DELTA).budget(accepts) == make(accepts)


def test_mu_is_for_gaussian_noise():
    assert BudgetOptions(mu=0.5, delta=DELTA).budget("gaussian") == Budget.from_mu(0.5, DELTA)
    with pytest.raises(WrongOption, match="Gaussian noise only"):
        BudgetOptions(mu=0.5, delta=DELTA).budget("any")


@pytest.mark.parametrize("words", [{"delta": DELTA}, {"rho": 1.0}, {"rho": 1.0, "mu": 1.0, "delta": DELTA}])
def test_one_word_and_a_delta_are_needed(words):
    with pytest.raises(WrongOption, match="one of `epsilon`"):
        BudgetOptions(**words).budget("gaussian")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"epsilon": -1.0}, "epsilon must be a finite number above 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must lie strictly between 0 and 1"),
        ({"rho": 0.0}, "rho must lie above 0 and within"),
        ({"mu": -2.0}, "mu must be a finite number above 0"),
        ({"posterior_belief": 1.0}, "the posterior belief must lie strictly between 0.5 and 1"),
        ({"posterior_belief": 0.4}, "the posterior belief must lie strictly between 0.5 and 1"),
        ({"advantage": 1.0}, "the membership advantage must lie strictly between"),
        ({"advantage": math.nan}, "must be finite, not nan"),
    ],
)
def test_nonsense_is_refused_with_the_valid_range(words, said):
    with pytest.raises(ValueError, match=said):
        BudgetOptions(**{"delta": DELTA} | words).budget("gaussian")


def test_whether_a_budget_is_given_shows():
    assert not BudgetOptions().is_given
    assert BudgetOptions(delta=DELTA).is_given


def test_the_words_are_taken_wherever_a_budget_is(run, bundle):
    run("lineage", "set-budget", bundle, "--advantage", 0.5, "--delta", DELTA)
    run("clients", "add", "alice", "--posterior-belief", 0.9, "--delta", DELTA)
    run("clients", "add", "bob", "--mu", 0.1, "--delta", DELTA)
    explained = json.loads(run("explain", "--client", "alice", "--json").stdout)
    assert explained["limit"]["rho"] == Budget.from_posterior_belief(0.9, DELTA, "gaussian").limit / 1e12
    assert explained["posterior_belief_bound"]["when_spent"] <= 0.9
    process, _ = run.start(bundle, "--port", 0, "--advantage", 0.5, "--delta", DELTA)
    process.terminate()
    process.communicate()
    assert "another budget already" in run.fails("serve", bundle, "--port", 0, "--mu", 0.5, "--delta", DELTA)
