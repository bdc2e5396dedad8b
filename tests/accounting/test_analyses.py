import itertools
import math
from collections import Counter

import dp_accounting
import numpy as np
import pytest
import scipy
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting import analyses, compositions, conversions
from dpserve.accounting.domains import OutOfRange
from dpserve.accounting.losses import (
    ApproximateGaussianLoss,
    BoundedRangeLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    PureLoss,
    ReplacementGaussianLoss,
    SubsampledGaussianLoss,
    composition_of,
)
from tests.accounting.curves import gaussian_delta

pure = st.floats(0.01, 2)
mus = st.floats(0.01, 2)
deltas = st.floats(math.log(1e-9), math.log(1e-2)).map(math.exp)


def releases(loss: PrivacyLoss, times: int) -> dict[Cost, int]:
    return {Cost((loss,)): times}


class TestGaussian:
    @given(mu=mus, times=st.integers(1, 10**6), delta=deltas)
    def test_the_exact_curve_is_the_tightest(self, mu: float, times: int, delta: float) -> None:
        found = analyses.side_by_side(releases(GaussianLoss(mu), times), delta)

        exact = conversions.gaussian_epsilon(mu * math.sqrt(times), delta)
        assert found["exact"].epsilon == pytest.approx(exact, rel=1e-9)
        assert found.tightest == "exact" or times == 1
        for analysis in found.analyses:
            assert analysis.epsilon is not None
            assert analysis.epsilon >= exact * (1 - 1e-9)


class TestPure:
    @settings(max_examples=25, deadline=None)
    @given(epsilon=pure, delta=deltas)
    def test_one_laplace_release_is_never_below_the_exact_value(self, epsilon: float, delta: float) -> None:
        """delta(e) = 1 - e^((e - epsilon)/2), so epsilon_exact = epsilon + 2 ln(1 - delta)."""
        exact = max(0.0, epsilon + 2 * math.log1p(-delta))
        found = analyses.side_by_side(releases(LaplaceLoss(epsilon), 1), delta)

        for analysis in found.analyses:
            assert analysis.epsilon is None or analysis.epsilon >= exact * (1 - 1e-9)
        assert found["exact"].epsilon == pytest.approx(exact, rel=1e-3, abs=1e-3)

    @settings(max_examples=10, deadline=None)
    @given(epsilon=st.floats(0.05, 1), times=st.integers(2, 200))
    def test_laplace_agrees_with_dp_accounting(self, epsilon: float, times: int) -> None:
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1 / epsilon), times)
        pld = PLDAccountant(value_discretization_interval=epsilon / 100).compose(event)
        rdp = RdpAccountant(1 + np.geomspace(1e-3, 1e4, 2001)).compose(event)
        found = analyses.side_by_side(releases(LaplaceLoss(epsilon), times), 1e-6)

        assert found["exact"].epsilon == pytest.approx(pld.get_epsilon(1e-6), rel=2e-3)
        assert pld.get_epsilon(1e-6) * (1 - 2e-3) <= found["rdp"].epsilon <= rdp.get_epsilon(1e-6) * (1 + 1e-3)

    @given(epsilon=pure, order=st.floats(1.01, 200))
    def test_the_renyi_divergence_of_laplace_is_that_of_its_densities(self, epsilon: float, order: float) -> None:
        x = np.linspace(-60, 60, 400001)
        integrand = -order * np.abs(x - epsilon) - (1 - order) * np.abs(x) - math.log(2)
        numeric = (np.logaddexp.reduce(integrand) + math.log(x[1] - x[0])) / (order - 1)

        closed = float(compositions.renyi_divergence(LaplaceLoss(epsilon), np.array([order]))[0])
        assert closed == pytest.approx(numeric, rel=1e-4, abs=1e-5)


class TestBoundedRange:
    @given(epsilon=pure, share=st.floats(0, 1), at=st.floats(-1.5, 1.5))
    def test_no_two_point_law_exceeds_the_curve(self, epsilon: float, share: float, at: float) -> None:
        t, e = share * epsilon, at * epsilon
        likely = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
        p, q = np.array([likely, 1 - likely]), np.array([likely * math.exp(-t), (1 - likely) * math.exp(epsilon - t)])

        delta = float(np.maximum(p - math.exp(e) * q, 0).sum())

        assert q.sum() == pytest.approx(1)
        assert delta <= float(compositions.bounded_range_delta(epsilon, np.array([e]))[0]) + 1e-12

    @given(epsilon=st.floats(0.01, 0.5), times=st.integers(1, 1000), delta=deltas)
    def test_the_range_is_worth_a_quarter_of_the_rho(self, epsilon: float, times: int, delta: float) -> None:
        ranged = analyses.zcdp(composition_of(releases(BoundedRangeLoss(epsilon), times)), delta)
        laplace = analyses.zcdp(composition_of(releases(LaplaceLoss(epsilon / 2), times)), delta)

        assert ranged.epsilon == pytest.approx(laplace.epsilon, rel=1e-9)


class TestSampledGaussian:
    @pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.01, 1000), (0.7, 0.01, 300)])
    def test_rdp_and_pld_agree_with_dp_accounting(self, sigma: float, rate: float, steps: int) -> None:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        event = dp_accounting.SelfComposedDpEvent(step, steps)
        found = analyses.side_by_side(releases(SubsampledGaussianLoss(sigma, rate), steps), 1e-5)

        rdp = RdpAccountant().compose(event).get_epsilon(1e-5)
        pld = PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(1e-5)
        assert rdp * (1 - 0.03) <= found["rdp"].epsilon <= rdp * (1 + 1e-6)
        assert found["exact"].epsilon == pytest.approx(pld, rel=0.03)
        assert found["zcdp"].epsilon > found["rdp"].epsilon

    def test_no_sampling_is_the_gaussian(self) -> None:
        sampled = analyses.side_by_side(releases(SubsampledGaussianLoss(2.0, 1.0), 10), 1e-5)
        plain = analyses.side_by_side(releases(GaussianLoss(0.5), 10), 1e-5)

        assert sampled["zcdp"].epsilon == pytest.approx(plain["zcdp"].epsilon)
        assert sampled["basic"].epsilon == pytest.approx(plain["basic"].epsilon, rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(mu=mus, epsilon=pure, selection=pure, times=st.lists(st.integers(0, 50), min_size=3, max_size=3), delta=deltas)
def test_more_releases_never_cost_less(
    mu: float, epsilon: float, selection: float, times: list[int], delta: float
) -> None:
    kinds = [Cost((GaussianLoss(mu),)), Cost((LaplaceLoss(epsilon),)), Cost((BoundedRangeLoss(selection),))]
    fewer = analyses.side_by_side(dict(zip(kinds, times, strict=True)), delta)
    more = analyses.side_by_side({kind: count + 1 for kind, count in zip(kinds, times, strict=True)}, delta)

    for name in ("basic", "advanced", "zcdp", "rdp"):
        less, greater = fewer[name].epsilon, more[name].epsilon
        assert less is not None
        assert greater is not None
        assert less <= greater * (1 + 1e-3)


@given(selection=pure, mu=mus, times=st.integers(1, 1000), delta=deltas)
def test_a_cost_of_two_losses_counts_as_both(selection: float, mu: float, times: int, delta: float) -> None:
    together = Cost((BoundedRangeLoss(selection), GaussianLoss(mu)))
    apart = {Cost((BoundedRangeLoss(selection),)): times, Cost((GaussianLoss(mu),)): times}

    assert composition_of({together: times}) == analyses.composition_of(apart)


@given(epsilon=pure, mu=mus, times=st.integers(1, 1000), delta=deltas)
def test_the_belief_bound_is_never_below_that_of_the_gaussian_part(
    epsilon: float, mu: float, times: int, delta: float
) -> None:
    losses = composition_of({Cost((GaussianLoss(mu), LaplaceLoss(epsilon))): times})
    total = mu * math.sqrt(times)
    tail = total**2 / 2 + total * math.sqrt(-2 * math.log(delta))

    assert compositions.log_odds(losses, delta) >= min(tail, epsilon * times) * 0.9


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_pure_release_is_never_below_randomised_response(epsilon: float, times: int) -> None:
    """Kairouz, Oh and Viswanath 2015: of k responses j are lies with odds e^-epsilon each, exactly."""
    found = analyses.side_by_side(releases(PureLoss(epsilon), times), 1e-3)
    truth, deltas = math.exp(epsilon) / (1 + math.exp(epsilon)), np.linspace(0, times * epsilon, 20_001)
    exact = np.zeros_like(deltas)
    for lies in range(times + 1):
        loss = (times - 2 * lies) * epsilon
        mass = math.comb(times, lies) * truth ** (times - lies) * (1 - truth) ** lies
        exact += mass * np.maximum(0.0, -np.expm1(deltas - loss))
    least = deltas[np.argmax(exact <= 1e-3)]
    for analysis in found.analyses:
        assert analysis.epsilon is None or analysis.epsilon >= least - epsilon / 5_000
    assert found["exact"].epsilon == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize("analyse", [analyses.basic, analyses.advanced, analyses.zcdp, analyses.rdp, analyses.exact])
def test_delta_at_is_a_delta_at_which_the_epsilon_holds(analyse) -> None:
    losses = composition_of({Cost((GaussianLoss(0.1),)): 30})

    delta = analyses.delta_at(analyse, losses, 4.0)

    assert analyse(losses, delta).epsilon <= 4.0
    assert analyse(losses, delta * 0.99).epsilon > 4.0 or delta < 1e-200


@pytest.mark.parametrize(
    "kind",
    [GaussianLoss(1e-3), LaplaceLoss(1e-3), BoundedRangeLoss(1e-3), PureLoss(1e-3), SubsampledGaussianLoss(2.0, 1e-3)],
)
@pytest.mark.parametrize("times", [1, 10**12])
def test_any_number_of_releases_has_a_finite_answer(kind: PrivacyLoss, times: int) -> None:
    found = analyses.side_by_side(releases(kind, times), 1e-6)

    assert math.isfinite(found.epsilon)
    assert found.epsilon >= 0
    assert found[found.tightest].epsilon == found.epsilon


def test_nothing_released_costs_nothing() -> None:
    assert analyses.side_by_side({}, 1e-6).epsilon == 0


@pytest.mark.parametrize("count", [-1, 10**13])
def test_an_impossible_number_of_releases_is_refused(count: int) -> None:
    with pytest.raises(OutOfRange, check=lambda error: error.name == "a number of releases"):
        analyses.side_by_side(releases(GaussianLoss(1.0), count), 1e-6)


@given(mu=mus, coin=st.floats(1e-14, 2.0**-40), times=st.integers(1, 50), delta=deltas)
def test_coins_come_off_delta_and_the_rest_is_gaussian(mu: float, coin: float, times: int, delta: float) -> None:
    found = analyses.side_by_side(releases(ApproximateGaussianLoss(mu, coin), times), delta)
    ideal = analyses.side_by_side(releases(GaussianLoss(mu), times), delta - coin * times)

    for analysis, without in zip(found.analyses, ideal.analyses, strict=True):
        assert analysis.epsilon == pytest.approx(without.epsilon, rel=1e-9)
        assert "failure probabilities take" in analysis.method
    exact = found["exact"].epsilon
    profile = coin * times + (1 - coin) ** times * gaussian_delta(mu * math.sqrt(times), exact)
    assert profile <= delta * (1 + 1e-9)


def test_where_the_coins_take_all_of_delta_no_epsilon_is_given() -> None:
    many = releases(ApproximateGaussianLoss(0.1, 2.0**-40), 1000)

    with pytest.raises(ValueError, match="no epsilon can be given at delta = 1e-10: failure probabilities take"):
        analyses.side_by_side(many, 1e-10)
    assert analyses.delta_at(analyses.exact, composition_of(many), 50.0) >= 1000 * 2.0**-40


def noisy_sums(noise, batch, others, own):
    """The means of a step's noisy sum over all draws, equally likely, for gradients of one coordinate."""
    gradients = [*others, own]
    means = [sum(gradients[place] for place in draw) for draw in itertools.product(range(len(gradients)), repeat=batch)]
    return np.array(means, dtype=float) / noise


@pytest.mark.parametrize(("noise", "batch"), [(1.0, 1), (1.0, 2), (0.7, 3), (2.0, 3)])
@pytest.mark.parametrize("others", [(1.0, 1.0), (-1.0, 0.5), (0.0, 0.0)])
def test_draws_with_replacement_tell_no_more_than_their_curve(noise, batch, others):
    """One of three records is replaced; the hockey-stick divergence of the two exact mixtures is integrated."""
    loss = ReplacementGaussianLoss(noise, batch, 3)
    grid = np.linspace(-12 / noise - 8, 12 / noise + 8, 40_001)
    one, other = (
        scipy.stats.norm.pdf(grid[:, None], noisy_sums(noise, batch, others, own)).mean(axis=1) for own in (1.0, -1.0)
    )
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        bound = compositions.replacement_delta(loss, np.array([epsilon]))[0]
        for first, second in ((one, other), (other, one)):
            exact = np.maximum(first - np.exp(epsilon) * second, 0).sum() * (grid[1] - grid[0])
            assert exact <= bound + 1e-7  # of the integration


def test_one_draw_of_one_record_is_gaussian_noise_for_a_replaced_one():
    at = np.array([0.0, 0.3, 1.0, 2.0])
    found = compositions.replacement_delta(ReplacementGaussianLoss(3.0, 1, 1), at)
    assert found == pytest.approx([gaussian_delta(2 / 3, epsilon) for epsilon in at], rel=1e-6)


def test_draws_with_replacement_compose_to_no_less_than_one_of_their_steps_and_near_poisson_sampling():
    replacement = Counter({ReplacementGaussianLoss(8.0, 100, 10_000): 1000})
    alike = Counter({SubsampledGaussianLoss(4.0, 0.01): 1000})
    one = analyses.exact(Counter({ReplacementGaussianLoss(8.0, 100, 10_000): 1}), 1e-6).epsilon
    together = analyses.exact(replacement, 1e-6).epsilon
    assert one < together
    assert analyses.exact(alike, 1e-6).epsilon < together < 1.3 * analyses.exact(alike, 1e-6).epsilon
    assert analyses.basic(replacement, 1e-6).epsilon > together
