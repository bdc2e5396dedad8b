"""Algorithm 1 as printed: its budget split, its laws, and the counterexample to its claim.

Statistical tests have fixed seeds; each states its false-alarm rate, at most 1e-6.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpserve.accounting.losses import ClaimedGaussianLoss, ClaimedLaplaceLoss
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.published import Noise, Published, probability_sensitivity, sampling_probabilities
from tests.seeded import Seeded


@dataclass
class Given:
    """The same words every time: both neighbours with equal luck."""

    words_given: list[int]

    def words(self, count: int) -> np.ndarray:
        return np.resize(np.array(self.words_given, dtype=np.uint64), count)


noises = st.sampled_from(["laplace", "gaussian"])
epsilons = st.floats(1e-6, 1e4)


@given(st.integers(2, 1000), epsilons)
def test_the_parts_compose_to_no_more_than_the_claim(classes: int, epsilon: float) -> None:
    laplace = Published(classes, epsilon, "laplace")
    part = Fraction(laplace.epsilon_neuron)
    assert (2 * classes + 1) * part <= Fraction(epsilon)
    assert float((2 * classes + 1) * part) == pytest.approx(epsilon)
    assert laplace.cost.losses == (ClaimedLaplaceLoss(epsilon),)
    gaussian = Published(classes, epsilon, "gaussian")
    part = Fraction(gaussian.epsilon_neuron)
    assert (4 * classes + 1) * part**2 <= Fraction(epsilon) ** 2
    assert float((4 * classes + 1) * part**2) == pytest.approx(epsilon**2)
    assert gaussian.cost.losses == (ClaimedGaussianLoss(epsilon),)


@given(
    st.integers(2, 12),
    st.integers(0, 6),
    epsilons,
    noises,
    st.floats(1e-300, 1e300),
    st.floats(1e-3, 1e200),
    st.integers(0, 2**32),
)
def test_answers_are_distributions_at_every_magnitude(
    classes: int, n: int, epsilon: float, noise: Noise, sensitivity: float, magnitude: float, seed: int
) -> None:
    logits = np.random.default_rng(seed).normal(size=(n, classes)) * magnitude
    answers = Published(classes, epsilon, noise).release(logits, np.full(n, sensitivity), Seeded(seed))
    assert answers.shape == (n, classes)
    assert np.isfinite(answers).all()
    assert (answers >= 0).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_noise_of_the_sampled_neuron_has_the_printed_law(noise: Noise) -> None:
    """One neuron is sampled almost surely, so its log-ratio is logit + noise. KS test, false alarm 1e-6."""
    n, delta_z = 20_000, 0.05
    mechanism = Published(2, 40.0, noise)
    logits = np.tile([3.0, -3.0], (n, 1))
    sensitivity = np.full(n, delta_z)
    chosen = sampling_probabilities(softmax(logits[:1]), sensitivity[:1], mechanism.epsilon_neuron)
    assert chosen[0, 0] > 1 - 1e-12
    answers = mechanism.release(logits, sensitivity, Seeded(11))
    noises_drawn = np.log(answers[:, 0] / answers[:, 1]) - 6
    law = stats.laplace if noise == "laplace" else stats.norm
    assert stats.kstest(noises_drawn, law(scale=delta_z / mechanism.epsilon_neuron).cdf).pvalue > 1e-6


def test_the_neuron_is_sampled_by_the_exponential_mechanism() -> None:
    """Which coordinate left the logits' line tells the neuron. Chi-square test, false alarm 1e-6."""
    n, mechanism = 40_000, Published(4, 30.0, "laplace")
    logits = np.tile([1.0, 0.5, 0.0, -1.0], (n, 1))
    sensitivity = np.full(n, 0.2)
    shifts = np.log(mechanism.release(logits, sensitivity, Seeded(3))) - logits
    neurons = np.abs(shifts - np.median(shifts, axis=1, keepdims=True)).argmax(axis=1)
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    weights = np.exp(30.0 / 9 * p / (2 * math.expm1(0.4)))
    expected = n * weights / weights.sum()
    assert stats.chisquare(np.bincount(neurons, minlength=4), expected).pvalue > 1e-6


def test_delta_p_is_corollary_2() -> None:
    delta_z = np.array([1e-9, 0.1871, 0.2, 0.3465, 0.35, 3.119, 1e300])
    expected = [math.expm1(2e-9), math.expm1(0.3742), math.expm1(0.4), math.expm1(0.693), 1, 1, 1]
    np.testing.assert_allclose(probability_sensitivity(delta_z), expected, rtol=1e-12)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), noises, st.integers(3, 8))
def test_with_three_classes_an_un_noised_log_ratio_is_released_exactly(
    first: int, second: int, noise: Noise, classes: int
) -> None:
    """The counterexample to Theorem 6: of any three coordinates at least two keep their difference, whatever the noise.

    Neighbouring models whose un-noised differences are distinct have answers on disjoint sets: no epsilon holds.
    """
    rng = np.random.default_rng(classes)
    z = rng.uniform(-1, 1, size=(1, classes))
    z_neighbour = z + rng.uniform(-0.1, 0.1, size=(1, classes))
    mechanism = Published(classes, 0.1, noise)

    def exact_ratios(logits: np.ndarray) -> np.ndarray:
        """Which pairs (i, j) of one answer to `logits` show exactly z_i - z_j of this model."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p = np.log(mechanism.release(logits, np.array([0.1]), Given([first, second])))[0]
            seen = log_p[:, None] - log_p[None, :]
            truth = logits[0][:, None] - logits[0][None, :]
            return np.abs(seen - truth) < 1e-9

    for own in (z, z_neighbour):
        with np.errstate(divide="ignore"):
            answer = mechanism.release(own, np.array([0.1]), Given([first, second]))
        if (answer < 1e-12).any():  # the noise swamped the other coordinates: their ratio is lost to rounding
            continue
        off_diagonal = exact_ratios(own) & ~np.eye(classes, dtype=bool)
        assert off_diagonal.sum() >= (classes - 1) * (classes - 2)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two classes"):
        Published(1, 1.0, "laplace")
    for epsilon in (0.0, -1.0, math.inf, math.nan, 5e-324):
        with pytest.raises(ValueError, match="claimed epsilon"):
            Published(2, epsilon, "laplace")
    with pytest.raises(ValueError, match="laplace or gaussian"):
        Published(2, 1.0, "uniform")  # type: ignore[arg-type]
    mechanism = Published(2, 1.0, "laplace")
    ones = np.ones(1)
    for logits, sensitivity in (
        (np.zeros((1, 3)), ones),
        (np.zeros(2), ones),
        (np.zeros((1, 2)), np.ones(2)),
        (np.array([[0.0, np.nan]]), ones),
        (np.zeros((1, 2)), np.zeros(1)),
        (np.zeros((1, 2)), np.array([np.inf])),
    ):
        with pytest.raises(ValueError, match=r"shape|finite"):
            mechanism.release(logits, sensitivity, Seeded(0))
