"""The three parts of a step, and that a distinguisher who sees a step learns no more than is claimed.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpserve.accounting.analyses import Composition, numerical_curve
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import SubsampledGaussianLoss
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.mechanisms.wide_gaussian import SCALE
from dpserve.training.fitting.network import SUM_ERROR, Network
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.dpsgd.noisy_step import (
    DpSgdStep,
    StepRelease,
    grid_step,
    poisson_sample,
    private_step,
    with_noise,
)
from research.white_box.gradients import record_gradients
from tests.seeded import Seeded

FALSE_ALARM = 1e-6


def test_records_join_independently_at_the_rate():
    """Counts over records and over steps are binomial; false alarms 1e-6 each."""
    randomness = Seeded(0)
    masks = np.stack([poisson_sample(50, 0.3, randomness) for _ in range(4000)])
    assert stats.binomtest(int(masks.sum()), masks.size, 0.3).pvalue > FALSE_ALARM
    assert stats.chi2.sf(((masks.sum(0) - 1200) ** 2 / (4000 * 0.21)).sum(), 50) > FALSE_ALARM
    sizes = masks.sum(1)
    assert abs(sizes.var() / (50 * 0.21) - 1) < 4.9 * np.sqrt(2 / 4000)
    assert poisson_sample(5, 1.0, Seeded(1)).all()
    assert not poisson_sample(5, 1e-30, Seeded(1)).any()


def test_noise_is_that_of_the_multiplier_and_fresh():
    """The variance over coordinates is chi-square; false alarms 1e-6."""
    network = Network((20, 30, 5))
    release = StepRelease(3.0, 0.5, clip_norm=0.25)
    randomness = SystemRandomness()
    step = private_step(network, release, Seeded(2))
    total = np.linspace(-50, 50, network.size)
    noise = np.concatenate([step.add_noise(total) - total for _ in range(40)]) / (3.0 * 0.25)
    low, high = stats.chi2.interval(1 - FALSE_ALARM, noise.size)
    assert low < np.square(noise).sum() < high * (1 + 1e-3)
    fresh = private_step(network, release, randomness)
    assert not np.array_equal(fresh.add_noise(total), fresh.add_noise(total))


@pytest.mark.parametrize(("noise", "size"), [(0.3, 10), (5.0, 100_000), (50.0, 100_000), (400.0, 10**6)])
def test_the_grid_step_covers_the_worst_neighbours(noise, size):
    release = StepRelease(noise, 0.1, clip_norm=2.0)
    step = grid_step(release, size)
    generator = np.random.default_rng(0)
    total = generator.normal(size=size) * 100
    moved = generator.choice([-1, 1], size=size) / np.sqrt(size) * 2.0 * (1 + SUM_ERROR)
    apart = np.linalg.norm(np.rint((total + moved) / step) - np.rint(total / step))
    assert apart <= SCALE / noise
    assert SCALE * step <= 2.0 * noise * 1.15, "and the noise is hardly more than its name"


def test_what_is_released_lies_on_the_grid():
    step = 2.0**-10
    released = with_noise(np.array([0.3, -0.7, 1e6]), step, Seeded(0)) / step
    assert np.array_equal(released, np.rint(released))


def test_an_empty_sample_releases_noise_alone():
    network = Network((3, 2))
    step = private_step(network, StepRelease(1.0, 1e-30), Seeded(3))
    released = step.noisy_sum(network.initial(0), np.ones((4, 3)), np.zeros(4, dtype=np.int64))
    assert released.shape == (network.size,)
    assert released.any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 1.5), "Poisson sampling"),
        ((1.0, 0.0), "Poisson sampling"),
        ((0.0, 0.5), "noise multiplier"),
        ((1.0, 0.5, float("nan")), "clipping norm"),
    ],
)
def test_what_is_no_step_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepRelease(*arguments)


def test_noise_that_does_not_fit_the_grid_is_refused():
    with pytest.raises(ValueError, match="does not fit the grid"):
        private_step(Network((1000, 1000, 2)), StepRelease(1e5, 0.5), Seeded(0))


TRIALS = 2000
CLAIM = StepRelease(noise_multiplier=1.0, sampling_rate=0.5)


def scores(step: DpSgdStep) -> tuple[Floats, Floats]:
    """Return the releases of TRIALS steps on one record, and on none, in the direction of its gradient."""
    network = Network((2, 2))
    parameters, inputs, labels = network.initial(0), np.array([[30.0, 40.0]]), np.array([1])
    (gradient,) = record_gradients(network, parameters, inputs, labels)
    direction = gradient / np.linalg.norm(gradient)

    def of(records: int) -> Floats:
        steps = (step.noisy_sum(parameters, inputs[:records], labels[:records]) for _ in range(TRIALS))
        return np.array([released @ direction for released in steps])

    return of(1), of(0)


def least_delta(with_it: Floats, without: Floats, epsilon: float) -> float:
    """A lower bound on delta at epsilon, wrong with probability 1e-6, by a threshold fixed in advance."""
    hits, alarms = (int((found > 0.5 + epsilon).sum()) for found in (with_it, without))
    least_power = stats.beta.ppf(FALSE_ALARM / 2, hits, TRIALS - hits + 1)
    most_alarms = stats.beta.ppf(1 - FALSE_ALARM / 2, alarms + 1, TRIALS - alarms)
    return float(least_power - np.exp(epsilon) * most_alarms)


def claimed_delta(epsilon: float) -> float:
    losses = Composition({SubsampledGaussianLoss(CLAIM.noise_multiplier, CLAIM.sampling_rate): 1})
    curve = numerical_curve(losses, 1e-6)
    assert not isinstance(curve, str)
    return float(curve.delta_at(np.array([epsilon]))[0])


def test_a_distinguisher_stays_below_the_claim_and_convicts_planted_faults():
    """The sound step is falsely convicted with probability 1e-6; each fault exceeds the claim."""
    sound = private_step(Network((2, 2)), CLAIM, Seeded(7))
    quieter = private_step(Network((2, 2)), replace(CLAIM, noise_multiplier=0.25), Seeded(8))
    longer = private_step(Network((2, 2)), replace(CLAIM, clip_norm=4.0), Seeded(9))
    too_quiet = replace(sound, add_noise=quieter.add_noise)
    unclipped = replace(sound, clipped_sum=longer.clipped_sum)
    always = replace(sound, sample=lambda records: np.ones(records, dtype=np.bool_))
    seen = [scores(step) for step in (sound, too_quiet, unclipped, always)]
    for epsilon in (0.0, 0.3):
        claimed = claimed_delta(epsilon)
        acquitted, *convicted = (least_delta(*pair, epsilon) for pair in seen)
        assert acquitted <= claimed
        assert min(convicted) > claimed


@pytest.mark.parametrize("files", [None, (2, 3)])
def test_a_unit_takes_part_with_all_of_its_records_or_with_none(files):
    network = Network((2, 2))
    X, y, units = np.eye(5, 2) + 1, np.array([0, 1, 0, 1, 1]), np.array([2, 0, 2, 1, 0])
    weights = np.array([0.5, 0.5, 0.5, 1.0, 0.5])
    step = private_step(network, CLAIM, Seeded(0))
    for unit in range(3):
        taken = np.arange(3) == unit
        alone = replace(step, sample=lambda _, taken=taken: taken, add_noise=lambda total: total)
        total, _ = alone.noisy_totals(network.initial(0), of_rows(X, y, weights, units, files), ROWS, None)
        own = units == unit
        expected = network.clipped_sum(network.initial(0), X[own], y[own], CLAIM.clip_norm, weights[own])
        assert np.allclose(total, expected, rtol=1e-12)
