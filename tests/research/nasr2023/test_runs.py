"""Whole runs as observations, and canaries crafted anew for every step."""

import numpy as np
import pytest
import scipy.stats

from dpserve.mechanisms.elementary import softmax
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease
from research.nasr2023.runs import (
    MeasuredRuns,
    log_likelihood_ratios,
    log_odds_of_label,
    run_bound,
    runs_report,
    sampled_run,
    score_run,
    watch_run,
)
from research.white_box.bounds import ClaimedRun
from research.white_box.gradients import record_gradients
from research.white_box.observations import Descent, Example, sound

torch = pytest.importorskip("torch")
LEVELS = np.linspace(0.001, 0.999, 97)


def crafted(network, records):
    from research.nasr2023.crafting import CraftedCanary

    return CraftedCanary(network, records.inputs[:20], records.labels[:20], start=3, crafting_steps=15, step_size=0.2)


def cosine(network, parameters, example, records):
    own = record_gradients(network, parameters, example.x[None], np.array([example.label]))[0]
    typical = record_gradients(network, parameters, records.inputs[:20], records.labels[:20]).mean(axis=0)
    return abs(own @ typical) / np.linalg.norm(own) / np.linalg.norm(typical)


def test_a_crafted_canary_points_away_from_the_others(network, records):
    canary, parameters = crafted(network, records), network.initial(1) + 0.1
    start = Example(records.inputs[3], int(records.labels[3]))
    example = canary(parameters)
    before, after = (cosine(network, parameters, one, records) for one in (start, example))
    assert after < 0.5 * before
    assert example.label == start.label
    assert np.all((example.x >= 0) & (example.x <= 1))


def test_crafting_differentiates_the_network_that_is_trained(network, records):
    from research.nasr2023.crafting import _gradient

    parameters = network.initial(1) + 0.05
    own = _gradient(network, torch.from_numpy(parameters), torch.from_numpy(records.inputs[0]), int(records.labels[0]))
    expected = record_gradients(network, parameters, records.inputs[:1], records.labels[:1])[0]
    # Gradients are those at inputs and weights on grids.
    assert np.allclose(own.detach().numpy(), expected, atol=1e-6)


def test_log_odds_of_a_label(network, records):
    audited = sound(network, StepRelease(1.0, 0.5), 1)
    parameters = network.initial(0) + np.linspace(-1, 1, network.size)
    p = softmax(network.logits(parameters, records.inputs[:1]))[0, 2]
    assert log_odds_of_label(audited, parameters, Example(records.inputs[0], 2)) == pytest.approx(np.log(p / (1 - p)))


@pytest.mark.parametrize(("rate", "shift"), [(1.0, 1.0), (0.3, 1.0), (0.3, 0.6)])
def test_log_ratios_are_those_of_the_densities(rate, shift):
    observed = np.linspace(-3, 3, 13)

    def density(mean):
        return np.exp(-((observed - mean) ** 2) / (2 * 0.8**2))

    expected = np.log(((1 - rate) * density(0) + rate * density(shift)) / density(0))
    assert np.allclose(log_likelihood_ratios(observed, 0.8, rate, shift), expected)


def test_whole_runs_are_scored_by_those_who_see_all_and_by_those_who_see_the_model(network, records):
    """The same seed trains alike until the canary is first sampled."""
    canary = Example(np.zeros(6), 0)
    descent = Descent(5, 0.1, seed=4)
    watched = watch_run(sound(network, StepRelease(1.0, 0.5), 9), records, descent, canary, member=False)
    scores = score_run(sound(network, StepRelease(1.0, 0.5), 9), records, descent, canary, member=False)
    audited = sound(network, StepRelease(1.0, 0.5), 9)
    assert scores.final_model == log_odds_of_label(audited, watched.parameters, canary)
    assert scores.every_step == log_likelihood_ratios(watched.observed, 1.0, 0.5, watched.shifts).sum()
    assert np.all((watched.shifts > 0) & (watched.shifts <= 1))


def test_a_bound_of_whole_runs_stays_below_the_claim_and_finds_something():
    """Exact expected scores of one step seen 2,000 times: no luck."""
    claim = ClaimedRun(0.8, 1.0, 1, 1e-5)
    quantiles = (np.arange(2000) + 0.5) / 2000
    from scipy.stats import norm

    outside = norm.ppf(quantiles) * 0.8
    mixed = np.random.default_rng(0).permutation(2000)
    bound, epsilon = run_bound((outside + 1)[mixed], outside[mixed], claim, 0.95, threshold=0.5)
    assert 1 < bound.value < 1 / 0.8
    assert 0.5 * claim.epsilon < epsilon < claim.epsilon


def test_a_whole_run_is_told_apart_less_the_less_mu_is():
    family = sampled_run(ClaimedRun(0.8, 0.1, 20, 1e-5))
    low, high = (family.tradeoff(mu, LEVELS) for mu in (0.5, 1.0))
    assert np.all(high <= low + 1e-9)
    assert np.all(low <= 1 - LEVELS)


def test_runs_are_reported_for_each_adversary():
    """Scores of the run's own law at q = 1: its log-likelihood ratio is normal with variance T/s^2."""
    claim = ClaimedRun(2.0, 1.0, 4, 1e-5)
    quantiles = scipy.stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    told = (quantiles + 0.5, quantiles - 0.5)
    nothing = (quantiles, quantiles)
    shown = runs_report(MeasuredRuns(claim, told, nothing), 0.95, 1 - 1e-9, "Runs", {})
    every, final = (float(row[2]) for row in shown.tables[0].rows)
    assert 0.5 * claim.epsilon < every < claim.epsilon
    assert final == 0
    assert not shown.convicted
