import numpy as np
import pytest

from audit.white_box.bounds import ClaimedRun, run_bound
from audit.white_box.canaries import Example, FixedCanary, blank, mislabelled, quiet_coordinate
from audit.white_box.observations import (
    Descent,
    log_likelihood_ratios,
    log_odds_of_label,
    observe_steps,
    score_run,
    watch_run,
)
from audit.white_box.steps import sound
from training.objective import softmax
from training.releases.dpsgd.step import StepRelease

torch = pytest.importorskip("torch")


def crafted(network, records):
    from audit.white_box.crafting import CraftedCanary

    return CraftedCanary(network, records.inputs[:20], records.labels[:20], start=3, crafting_steps=15, step_size=0.2)


def cosine(network, parameters, example, records):
    own = network.record_gradients(parameters, example.x[None], np.array([example.label]))[0]
    typical = network.record_gradients(parameters, records.inputs[:20], records.labels[:20]).mean(axis=0)
    return abs(own @ typical) / np.linalg.norm(own) / np.linalg.norm(typical)


def test_a_crafted_canary_points_away_from_the_others(network, records):
    canary, parameters = crafted(network, records), network.initial(1) + 0.1
    start = Example(records.inputs[3], int(records.labels[3]))
    example = canary.at(parameters)
    before, after = (cosine(network, parameters, one, records) for one in (start, example))
    assert after < 0.5 * before
    assert example.label == start.label
    assert np.all((example.x >= 0) & (example.x <= 1))


def test_crafting_differentiates_the_network_that_is_trained(network, records):
    from audit.white_box.crafting import _gradient

    parameters = network.initial(1) + 0.05
    own = _gradient(network, torch.from_numpy(parameters), torch.from_numpy(records.inputs[0]), int(records.labels[0]))
    expected = network.record_gradients(parameters, records.inputs[:1], records.labels[:1])[0]
    # Gradients are those at inputs and weights on grids.
    assert np.allclose(own.detach().numpy(), expected, atol=1e-6)


def test_a_canary_that_is_a_record_passes_through_the_clipping(network, records):
    """Its gradient is far longer than the clipping norm, and moves the observation by 1 and no more (5.5 errors)."""
    audited = sound(network, StepRelease(0.2, 0.5, clip_norm=0.05), 1)
    found = observe_steps(audited, records, Descent(200, 0.01), FixedCanary(Example(np.ones(6), 2)))
    assert abs((found.with_canary - found.without).mean() - 1) < 5.5 * 0.2 * np.sqrt(2 / 200)


def test_the_quiet_coordinate_is_one_that_no_record_uses(network, records):
    inputs = records.inputs.copy()
    inputs[:, 4] = 0
    coordinate = quiet_coordinate(network, network.initial(0) + 0.1, inputs, records.labels)
    assert coordinate in range(4 * 5, 5 * 5)  # the weights that leave input 4


def test_fixed_canaries(records):
    assert np.all(blank(6, 1).example.x == 0)
    example = mislabelled(records.inputs, records.labels, 3, 7).example
    (row,) = np.flatnonzero((records.inputs == example.x).all(axis=1))
    assert records.labels[row] != example.label


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
    canary = blank(6, 0)
    descent = Descent(5, 0.1, seed=4)
    watched = watch_run(sound(network, StepRelease(1.0, 0.5), 9), records, descent, canary, member=False)
    scores = score_run(sound(network, StepRelease(1.0, 0.5), 9), records, descent, canary, member=False)
    audited = sound(network, StepRelease(1.0, 0.5), 9)
    assert scores.final_model == log_odds_of_label(audited, watched.parameters, canary.example)
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
