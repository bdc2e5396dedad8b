"""The log-odds on the grid in exact arithmetic, and the law of what is released."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from dpserve.accounting.losses import GaussianLoss, LaplaceLoss
from dpserve.mechanisms import grid, selected_neuron
from dpserve.mechanisms.selected_neuron import SelectedNeuron, log_odds_on_grid

NOISES = [GaussianLoss(0.003), GaussianLoss(0.1), LaplaceLoss(0.01), LaplaceLoss(2.0)]
steps = st.one_of(st.floats(2.0**-34, 2.0**-20), st.floats(1e-6, 10), st.floats(1e10, 1e190))


@given(st.data(), st.integers(2, 12), steps)
def test_log_odds_are_as_exact_as_the_proof_says(data, classes, step):
    """Within 1/2 + 2^-5 steps of the log-odds of the clipped logits, up to the clip at 2^44 steps."""
    bound = 2.0**44 * step
    row = data.draw(st.lists(st.floats(-1.5 * bound, 1.5 * bound), min_size=classes, max_size=classes))
    selected = data.draw(st.integers(0, classes - 1))
    found = log_odds_on_grid(np.array([row]), np.array([selected]), np.array([step]))[0]
    with mp.workdps(400):
        clipped = [mpmath.mpf(min(max(z, -bound), bound)) for z in row]
        others = [z for j, z in enumerate(clipped) if j != selected]
        largest = max(others)
        exact = clipped[selected] - largest - mpmath.log(sum(mpmath.exp(z - largest) for z in others))
        assert abs(int(found) - exact / step) <= 0.5 + 2.0**-5


def test_log_odds_of_many_classes_are_as_exact_as_the_proof_says():
    rows = np.random.default_rng(1).normal(scale=[[1e-9], [1.0], [30.0]], size=(3, 1024))
    found = log_odds_on_grid(rows, np.array([5, 0, 1023]), np.full(3, 2.0**-34))
    with mp.workdps(60):
        for row, selected, integer in zip(rows, [5, 0, 1023], found.tolist(), strict=True):
            others = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(z)) for z in np.delete(row, selected)))
            assert abs(integer - (mpmath.mpf(row[selected]) - others) * 2**34) <= 0.5 + 2.0**-5


@given(st.data(), st.sampled_from(NOISES), st.integers(2, 8), st.floats(1e-9, 1e3))
def test_neighbours_on_the_grid_are_as_close_as_the_noise_allows(data, noise, classes, sensitivity):
    """Down the gradient: the selected logit up and one of the others down, by sensitivity / sqrt(2) each."""
    scale, per_sensitivity = selected_neuron.noise_scale(noise)
    step = grid.steps_of(np.array([sensitivity]), per_sensitivity, selected_neuron._SMALLEST_STEP)
    row = np.array(data.draw(st.lists(st.floats(-20, 20), min_size=classes, max_size=classes)))
    neighbour = row.copy()
    neighbour[0] += sensitivity / math.sqrt(2) * (1 - 1e-9)
    neighbour[1] -= sensitivity / math.sqrt(2) * (1 - 1e-9)
    row[1] += 10  # so that the other classes are this one
    neighbour[1] += 10
    moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row.tolist(), neighbour.tolist(), strict=True))
    if moved <= Fraction(sensitivity) ** 2:
        k, k_ = (int(log_odds_on_grid(z[None], np.zeros(1, dtype=np.int64), step)[0]) for z in (row, neighbour))
        assert abs(k - k_) <= scale * Fraction(noise.parameters[0])


def test_an_answer_tells_one_class_and_its_log_odds_only(seeded):
    logits = np.random.default_rng(4).normal(scale=3, size=(200, 6))
    answers = SelectedNeuron(0.5, GaussianLoss(0.3)).release(logits, np.full(200, 0.05), seeded(3))
    for answer in answers:
        assert len(np.unique(answer)) == 2
        assert (np.unique(answer, return_counts=True)[1] == 1).any()


@pytest.mark.parametrize("noise", [GaussianLoss(0.3), LaplaceLoss(0.3)], ids=["gaussian", "laplace"])
def test_the_log_odds_have_the_noise_that_is_paid_for(noise, seeded):
    """A selection that is all but certain, then Kolmogorov-Smirnov on the noisy log-odds, false alarm 1e-6."""
    row, sensitivity, count = np.array([6.0, 0.0, 1.0]), 0.02, 40_000
    answers = SelectedNeuron(3.0, noise).release(np.tile(row, (count, 1)), np.full(count, sensitivity), seeded(6))
    chosen = answers[:, 0] > 0.5
    assert chosen.mean() > 0.9999
    odds = np.log(answers[chosen, 0]) - np.log(answers[chosen, 1] * 2)
    exact = 6 - math.log(1 + math.e)
    scale = math.sqrt(2) * sensitivity / 0.3
    ideal = stats.norm(exact, scale) if isinstance(noise, GaussianLoss) else stats.laplace(exact, scale)
    scale_in_steps, per_sensitivity = selected_neuron.noise_scale(noise)
    assert scale <= scale_in_steps * float(per_sensitivity) * sensitivity <= 1.0102 * scale
    spread = (odds - exact) * scale / (scale_in_steps * float(per_sensitivity) * sensitivity) + exact
    assert stats.kstest(spread, ideal.cdf).pvalue > 1e-6


def test_the_cost_is_the_sum_of_both_releases():
    cost = SelectedNeuron(0.4, GaussianLoss(0.2)).cost
    assert float(cost.rho) == pytest.approx(0.4**2 / 8 + 0.2**2 / 2)
    assert SelectedNeuron(0.4, LaplaceLoss(0.2)).cost.pure_epsilon == pytest.approx(0.6)


def test_noise_too_large_for_its_grid_is_refused_by_name():
    with pytest.raises(ValueError, match=r"must be at least 3\.437e-05"):
        SelectedNeuron(1.0, GaussianLoss(3e-5))
