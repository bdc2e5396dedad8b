"""Claims for one and for two records added or removed, against what exact laws allow."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting import identifiability
from dpserve.accounting.losses import BoundedRangeLoss, ClaimedLaplaceLoss, Cost, GaussianLoss, LaplaceLoss
from dpserve.audit.membership.claims import claim_of_accounts, claim_of_releases, spread_of_strangers

RATES = np.array([0.0, 0.001, 0.1, 0.5, 1.0])


@given(st.floats(0.01, 1.5), st.integers(1, 9))
def test_gaussian_releases_are_one_gaussian_of_the_composed_mu(mu, releases):
    claim = claim_of_releases(Cost((GaussianLoss(mu),)), releases, 1e-6)
    composed = mu * np.sqrt(releases)
    assert claim.advantage() == pytest.approx(identifiability.gaussian_advantage(composed), rel=1e-6)
    assert claim.advantage(2) == pytest.approx(identifiability.gaussian_advantage(2 * composed), rel=1e-6)
    # Both errors of the test between N(0, 1) and N(2 composed, 1) at any threshold lie within the claim.
    thresholds = np.linspace(-3, 6, 19)
    false_alarms = scipy.stats.norm.sf(thresholds)
    power = scipy.stats.norm.sf(thresholds - 2 * composed)
    assert (power <= claim.power(false_alarms, 2) + 1e-9).all()


@given(st.floats(0.01, 2.0), st.floats(0, 1))
def test_randomised_response_twice_removed_stays_within_twice_the_epsilon(epsilon, rate):
    """The worst pure mechanism for two steps answers truthfully with odds e^(2 epsilon)."""
    claim = claim_of_releases(Cost((LaplaceLoss(epsilon),)), 1, 1e-6)
    truthful = 1 / (1 + np.exp(-2 * epsilon))
    assert 2 * truthful - 1 <= claim.advantage(2) + 1e-9
    assert truthful <= claim.power(np.array([1 - truthful]), 2)[0] + 1e-9
    assert claim.epsilon(2) <= 2 * epsilon
    assert 0 <= claim.power(np.array([rate]), 2)[0] <= 1


def test_what_is_only_claimed_says_so_and_is_held_to_its_word():
    claim = claim_of_releases(Cost((ClaimedLaplaceLoss(0.1),)), 3, 1e-6)
    assert not claim.proven
    assert claim.pure == pytest.approx(0.3)
    assert claim.epsilon() == pytest.approx(0.3, rel=1e-6)


def test_a_selection_is_bounded_by_zcdp_and_by_pure_epsilon():
    claim = claim_of_releases(Cost((BoundedRangeLoss(0.5),)), 1, 1e-6)
    assert claim.rho == pytest.approx(0.5**2 / 8)
    assert claim.advantage() <= np.tanh(0.25)
    assert (np.diff(claim.power(RATES, 2)) >= 0).all()


def test_accounts_are_added_up_and_nothing_spent_claims_that_nothing_is_told():
    account = {"spent": {"rho": 0.5}, "currency": "rho", "accepts": "gaussian", "delta": 1e-6, "status": "proven"}
    assert claim_of_accounts([account, account]).advantage() == pytest.approx(
        identifiability.gaussian_advantage(np.sqrt(2)), rel=1e-6
    )
    mixed = claim_of_accounts([account, account | {"accepts": "any"}])
    assert not mixed.gaussian
    nothing = claim_of_accounts([account | {"spent": {"rho": 0.0}}])
    assert nothing.epsilon(2) == nothing.advantage(2) == 0
    np.testing.assert_array_equal(nothing.power(RATES), RATES)
    pure = {"spent": {"rho": None, "epsilon": 1.0}, "currency": "epsilon", "accepts": "pure"}
    claimed = claim_of_accounts([account | pure, account | pure])
    assert (claimed.pure, claimed.rho) == (2.0, pytest.approx(1.0))
    assert claim_of_accounts([account, account | pure]).pure == np.inf


@pytest.mark.parametrize(("records", "pool"), [(1, 2), (3, 6), (2, 7)])
def test_a_stranger_s_models_spread_as_the_draw_without_replacement_says(records, pool):
    """The variance of the mean of every choice of records out of the pool, beside that of a mean of new ones."""
    numbers = np.random.default_rng(pool).standard_normal(pool)
    means = [np.mean(chosen) for chosen in itertools.combinations(numbers, records)]
    strangers = np.var(numbers, ddof=1) / records
    assert spread_of_strangers(records, pool) ** 2 == pytest.approx(strangers / np.var(means))
