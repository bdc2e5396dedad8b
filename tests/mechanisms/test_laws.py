"""Laws of added noise: their densities, and bounds of their tails that hold."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from dpserve.mechanisms.laws import COVERAGE, GAUSSIAN, LAPLACE

DISTRIBUTIONS = ((GAUSSIAN, scipy.stats.norm), (LAPLACE, scipy.stats.laplace))


@pytest.mark.parametrize(("law", "distribution"), DISTRIBUTIONS)
def test_a_law_states_its_variance_quantile_and_density(law, distribution):
    assert distribution.var() == pytest.approx(law.variance)
    assert COVERAGE <= 1 - 2 * distribution.sf(law.quantile) <= COVERAGE + 2e-3
    e = np.linspace(-5, 5, 11)
    apart = law.log_density(e) - distribution.logpdf(e)
    np.testing.assert_allclose(apart, apart[0], rtol=1e-12)


@pytest.mark.parametrize(("law", "distribution"), DISTRIBUTIONS)
@pytest.mark.parametrize(("deviation", "scale"), [(0.3, 2.0), (2.0, 0.5), (1.0, 1.0)])
def test_the_density_of_normal_noise_and_this_noise_together(law, distribution, deviation, scale):
    def integrand(shift, x):
        return scipy.stats.norm.pdf(x - shift, scale=deviation) * distribution.pdf(shift, scale=scale)

    x = np.array([-7.0, -0.4, 0.0, 1.3, 9.0])
    expected = [scipy.integrate.quad(integrand, -60, 60, args=(at,), points=[0.0, at], limit=400)[0] for at in x]
    apart = law.blurred(x[:, None], deviation, np.array([[scale]]))[:, 0] - np.log(expected)
    np.testing.assert_allclose(apart, apart[0], atol=1e-6)


@pytest.mark.parametrize("rank", [1, pytest.param(5, marks=pytest.mark.slow), 60])
def test_the_bound_for_laplace_noise_lies_above_the_frequencies(rank):
    """A projection of 80 numbers: 100,000 draws, at quantiles that are seen often enough to be sure of 10 %."""
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.normal(size=(80, rank)))[0]
    leverages = dict.fromkeys((basis**2).sum(axis=1).tolist(), 1.0)
    squares = ((rng.laplace(size=(100_000, 80)) @ basis) ** 2).sum(axis=1)
    for level in (0.01, 0.1, 0.5):
        bound = LAPLACE.lower_tail(float(np.quantile(squares, level)), leverages)
        assert 0.9 * level <= bound
    assert LAPLACE.lower_tail(1e-6 * rank, leverages) < 1e-2


def test_the_bound_for_gaussian_noise_is_exact():
    assert GAUSSIAN.lower_tail(3.0, {0.5: 20.0}) == pytest.approx(scipy.stats.chi2.cdf(3.0, 10), rel=1e-12)
