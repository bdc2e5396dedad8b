"""Attacks on a release that is paid for once: answers cost nothing after the first, and a decision saw all of it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from dpserve.accounting.budgets import Budget
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss
from dpserve.accounting.report import AccountState, account_report
from dpserve.audit.endpoint import Exhausted
from dpserve.audit.in_process import ReleaseEndpoint, price_of_release
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.claims import claim_of_releases
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.kinds.weights.train import release_weights

RHO = 0.125
"""mu = 1/2."""


@pytest.fixture(scope="module")
def released(head):
    return release_weights(head, int(RHO * 10**12), "colours-lineage", SeededRandomness(0, ("weights",)))


def test_a_decision_is_held_against_the_whole_release_however_many_keys_asked(released, candidates):
    choices = AttackChoices(shadow_models=2)
    outcome = Attack([ReleaseEndpoint(released) for _ in range(2)], candidates, choices).run()
    assert outcome.decided == (60, 60)
    assert outcome.plan.left is None
    assert outcome.verdict.decision.rho == pytest.approx(RHO, rel=1e-6)
    assert outcome.verdict.total == outcome.verdict.decision
    assert [account["spent"]["rho"] for account in outcome.accounts] == pytest.approx([RHO, RHO], rel=1e-6)
    assert not outcome.convicted
    assert (outcome.replays.answers, outcome.replays.charged) == (1, 0.0)


def test_the_first_answer_is_paid_for_and_no_other(released, candidates):
    endpoint = ReleaseEndpoint(released, Budget.from_rho(0.2, 1e-6, "gaussian"))
    assert endpoint.budget()["spent"]["rho"] == 0
    first = endpoint.answers(candidates.members.X)
    np.testing.assert_array_equal(endpoint.answers(candidates.members.X), first)
    assert endpoint.budget()["spent"]["rho"] == pytest.approx(RHO, rel=1e-6)
    poor = ReleaseEndpoint(released, Budget.from_rho(0.1, 1e-6, "gaussian"))
    assert poor.budget()["queries_left"] == 0
    with pytest.raises(Exhausted):
        poor.answers(candidates.members.X)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_coin_that_tells_everything_widens_the_claim_by_what_two_of_them_can_tell(mu):
    """The worst case for one step: tell everything with probability delta, otherwise N(0, 1) against N(mu, 1).

    Its power h, taken twice, is the most that two steps can reach.
    """
    cost = Cost((ApproximateGaussianLoss(mu, 2.0**-40),))
    plain = claim_of_releases(Cost(cost.losses), 1, 1e-6)
    rates = np.array([0.0, 1e-9, 1e-3, 0.2])

    def power(at):
        from scipy.special import ndtr, ndtri

        return 2.0**-40 + (1 - 2.0**-40) * ndtr(ndtri(at) + mu)

    assert (power(rates) <= plain.power(rates) + 1e-12).all()
    assert (power(power(rates)) <= plain.power(rates, 2) + 1e-12).all()
    assert plain.advantage(2) <= 1
    assert plain.epsilon(2) >= plain.epsilon()


def test_a_claim_whose_failures_take_its_delta_is_stated_at_a_larger_one():
    """At delta 1e-6 two steps of a release of rho 4 have no epsilon, and no attack could exceed one."""
    cost = Cost((ApproximateGaussianLoss(2.83, 2.0**-40),))
    claim = claim_of_releases(cost, 1, 1e-6)
    assert claim.epsilon(2) == math.inf
    stated = claim.with_an_epsilon(2)
    assert 1e-6 < stated.delta < 1e-4
    assert stated.epsilon(2) < 40
    plain = claim_of_releases(Cost((GaussianLoss(1.0),)), 1, 1e-6)
    assert plain.with_an_epsilon(2) == plain


@pytest.mark.parametrize("mu", [0.1, 1.0, 2.83])
def test_a_bundles_account_pays_for_a_release_with_coins_without_a_stated_budget(mu):
    cost = Cost((ApproximateGaussianLoss(mu, 2.0**-40),))
    certificate = SimpleNamespace(cost=str(cost), price=cost)
    budget = price_of_release(SimpleNamespace(certificate=certificate), 1e-6)
    state = AccountState.after_releases({cost: 1}, budget)
    assert account_report(state, price=None).spent.rho == pytest.approx(mu**2 / 2)
