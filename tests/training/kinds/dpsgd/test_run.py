"""A whole run: that it goes downhill as described, and that who sees all its steps learns no more than is claimed.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpserve.accounting.arrays import Floats
from dpserve.accounting.gaussian_envelope import DELTA, least_mu
from dpserve.training.fitting.network import Network
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.dpsgd.descent import Descent, descend
from dpserve.training.kinds.dpsgd.noisy_step import DpSgdStep, StepRelease, private_step
from research.white_box.gradients import record_gradients
from tests.accounting.curves import gaussian_delta
from tests.seeded import Seeded

FALSE_ALARM = 1e-6
NETWORK = Network((2, 2))


def told(sums: list[Floats]) -> Callable[[Floats], Floats]:
    """Return a function that releases these sums, one after another."""
    remaining = iter(sums)
    return lambda _: next(remaining)


def test_momentum_and_averaging_follow_their_definition():
    descent = Descent(steps=4, learning_rate=0.1, expected_batch=2.0, momentum=0.5, averaged=0.5)
    sums = [np.full(6, value) for value in (2.0, 4.0, 0.0, 6.0)]
    weights, velocity, seen = 1.0, 0.0, []
    for value in (1.0, 2.0, 0.0, 3.0):
        velocity = 0.5 * velocity + value
        weights -= 0.1 * velocity
        seen.append(weights)
    found = descend(told(sums), np.ones(6), descent)
    assert np.allclose(found, np.mean(seen[2:]))
    last = descend(told(sums), np.ones(6), replace(descent, averaged=0.0))
    assert np.allclose(last, seen[-1])


def test_adam_agrees_with_pytorch_s():
    torch = pytest.importorskip("torch")
    sums = list(np.random.default_rng(0).normal(size=(5, 6)))
    descent = Descent(5, 0.1, 1.0, optimiser="adam", averaged=0.0)
    weights = torch.ones(6, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=0.1)
    for gradient in sums:
        weights.grad = torch.from_numpy(gradient)
        optimiser.step()
    found = descend(told(sums), np.ones(6), descent)
    assert np.allclose(found, weights.detach().numpy())


def test_what_is_no_descent_is_refused():
    for changes in (
        {"steps": 0},
        {"learning_rate": 0.0},
        {"expected_batch": np.inf},
        {"momentum": 1.0},
        {"averaged": 2.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            Descent(**({"steps": 1, "learning_rate": 1.0, "expected_batch": 1.0} | changes))


TRIALS, STEPS = 500, 3
CLAIM = StepRelease(noise_multiplier=2.0, sampling_rate=0.9)


def log_odds(step: DpSgdStep, records: int) -> Floats:
    """Return the log-odds of the record's presence, given every noisy sum, in TRIALS runs: (TRIALS,)."""
    inputs, labels = np.array([[30.0, 40.0]]), np.array([1])
    descent = Descent(STEPS, 0.01, 1.0)
    scores = np.zeros(TRIALS)
    for trial in range(TRIALS):
        current = [NETWORK.initial(0)]

        def observe(_: int, released: Floats, parameters: Floats, trial: int = trial, current: list[Floats] = current):
            (gradient,) = record_gradients(NETWORK, current.pop(), inputs, labels)
            along = released @ gradient / np.linalg.norm(gradient)
            scores[trial] += np.log(0.1 + 0.9 * np.exp((along - 0.5) / 4))
            current.append(parameters.copy())

        known = of_rows(inputs[:records], labels[:records])
        descend(
            lambda parameters, known=known: step.noisy_totals(parameters, known, ROWS, None)[0],
            NETWORK.initial(0),
            descent,
            observe,
        )
    return scores


def least_delta(step: DpSgdStep, epsilon: float) -> float:
    """A lower bound on delta at epsilon, wrong with probability 1e-6: the optimal test, at its own threshold."""
    hits, alarms = (int((log_odds(step, records) > epsilon).sum()) for records in (1, 0))
    least_power = stats.beta.ppf(FALSE_ALARM / 2, hits, TRIALS - hits + 1)
    most_alarms = stats.beta.ppf(1 - FALSE_ALARM / 2, alarms + 1, TRIALS - alarms)
    return float(least_power - np.exp(epsilon) * most_alarms)


def test_who_sees_all_steps_learns_no_more_than_the_cover_claims():
    """The sound run is falsely convicted with probability 1e-6; one with a quarter of the noise is convicted."""
    mu = least_mu(CLAIM.noise_multiplier, CLAIM.sampling_rate, STEPS)
    claimed = DELTA + gaussian_delta(mu, 0.0)
    sound = private_step(NETWORK, CLAIM, Seeded(1))
    quieter = private_step(NETWORK, replace(CLAIM, noise_multiplier=0.5), Seeded(2))
    acquitted = least_delta(sound, 0.0)
    assert 0 < acquitted <= claimed
    assert least_delta(replace(sound, add_noise=quieter.add_noise), 0.0) > claimed
