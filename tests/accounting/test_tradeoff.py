import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting import compositions, tradeoff
from dpserve.accounting.losses import Cost, LaplaceLoss, composition_of
from tests.accounting.curves import gaussian_delta

ALPHA = np.linspace(0, 1, 201)


@given(mu=st.floats(0, 8))
def test_no_threshold_test_on_a_gaussian_lies_below_its_curve(mu: float) -> None:
    cuts = np.linspace(-8, 8 + mu, 300)

    beta = scipy.special.ndtr(cuts - mu)

    assert np.all(beta >= tradeoff.gaussian(mu, scipy.special.ndtr(-cuts)) - 1e-15)


@given(epsilon=st.floats(0, 10), delta=st.floats(0, 0.3))
def test_randomised_response_reaches_the_curve_of_epsilon_and_delta(epsilon: float, delta: float) -> None:
    """With probability delta it tells all, else answers truthfully with odds e^epsilon."""
    truthful = 1 / (1 + math.exp(-epsilon))
    alpha = (1 - delta) * (1 - truthful)
    beta = float(tradeoff.epsilon_delta(epsilon, delta, [alpha])[0])

    assert beta == pytest.approx((1 - delta) * (1 - truthful), abs=1e-9)


@given(mu=st.floats(0.01, 4))
def test_the_zcdp_curve_lies_below_the_gaussian_one(mu: float) -> None:
    assert np.all(tradeoff.zcdp(mu * mu / 2, ALPHA) <= tradeoff.gaussian(mu, ALPHA) + 1e-12)


@settings(max_examples=30, deadline=None)
@given(mu=st.floats(0.05, 4))
def test_the_curve_of_many_epsilons_approaches_the_gaussian_from_below(mu: float) -> None:
    epsilons = np.linspace(0, mu * mu / 2 + 6 * mu, 400)

    def delta_at(points: np.ndarray) -> np.ndarray:
        return np.array([gaussian_delta(mu, float(point)) for point in points])

    found, exact = tradeoff.curve_bound(delta_at, epsilons, ALPHA), tradeoff.gaussian(mu, ALPHA)

    assert np.all(found <= exact + 1e-12)
    assert np.max(exact - found) < 2e-3


def test_the_curve_of_a_pld_lies_below_the_truth_for_laplace() -> None:
    """One Laplace release: thresholds at the shift's two ends, exact by hand."""
    epsilon = 1.0
    losses = composition_of({Cost((LaplaceLoss(epsilon),)): 1})
    pld = compositions.privacy_loss_distribution(losses, 0.01)

    cuts = np.linspace(-8, 9, 2000)
    alpha = np.where(cuts > 0, np.exp(-cuts) / 2, 1 - np.exp(cuts) / 2)
    beta = np.where(cuts > epsilon, 1 - np.exp(epsilon - cuts) / 2, np.exp(np.minimum(cuts - epsilon, 0)) / 2)

    found = tradeoff.curve_bound(pld.get_delta_for_epsilon, np.linspace(0, epsilon, 200), alpha)

    assert np.all(found <= beta + 1e-12)
    assert np.max(beta - found) < 5e-3


@given(epsilon=st.floats(0, 5), delta=st.floats(0, 0.2), mu=st.floats(0, 5))
def test_every_curve_falls_and_stays_below_guessing(epsilon: float, delta: float, mu: float) -> None:
    for curve in (
        tradeoff.epsilon_delta(epsilon, delta, ALPHA),
        tradeoff.gaussian(mu, ALPHA),
        tradeoff.zcdp(mu, ALPHA),
    ):
        assert np.all(np.diff(curve) <= 1e-12)
        assert np.all((curve >= 0) & (curve <= 1 - ALPHA))


@pytest.mark.parametrize("alpha", [[-0.1], [1.1], [math.nan], [[0.1]]])
def test_an_impossible_alpha_is_refused(alpha: list[float]) -> None:
    with pytest.raises(ValueError, match="alpha must be an array of one dimension with values between 0 and 1"):
        tradeoff.gaussian(1.0, alpha)
