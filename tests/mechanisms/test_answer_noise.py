"""Intervals hold the answer without noise as often as they say, for noise as it is drawn."""

import numpy as np
import pytest

from dpserve.accounting.losses import GaussianLoss, LaplaceLoss
from dpserve.mechanisms.answer_noise import DRAWN, AnswerNoise, Uncertainty, UnknownNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.laws import COVERAGE, GAUSSIAN
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.selected_neuron import SelectedNeuron

TRIALS = 4000
FALSE_ALARM = 5.3
"""Standard deviations: intervals of exactly 95 % fail one of the comparisons below with a chance under 1e-6."""
MARGIN = FALSE_ALARM * np.sqrt(COVERAGE * (1 - COVERAGE) / TRIALS)
LOGITS = ([0.3, -0.3], [0.0, 0.0], [2.0, 0.0, 0.0, -1.0], [0.0] * 10, [9.0, 0.0, -9.0])


class Seeded:
    """Random words from a fixed seed."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(1)

    def words(self, count):
        return self._generator.integers(2**64, size=count, dtype=np.uint64)


def released(mechanism, logits):
    sensitivity = np.full(TRIALS, 0.1)
    return mechanism.release(np.tile(logits, (TRIALS, 1)), sensitivity, Seeded()), sensitivity


@pytest.mark.parametrize("mechanism", [Gaussian(0.5), Gaussian(20.0), Laplace(1.5)])
@pytest.mark.parametrize("logits", LOGITS)
def test_intervals_hold_the_answer_without_noise_and_winners_are_rarely_wrong(mechanism, logits):
    answers, sensitivity = released(mechanism, logits)
    noise = mechanism.answer_noise(sensitivity, len(logits))
    lower, upper = noise.intervals(answers)
    exact = softmax(np.array([logits]))[0]
    held = ((lower <= exact) & (exact <= upper)).mean(axis=0)
    assert held.min() >= COVERAGE - MARGIN
    assert (lower <= answers).all()
    assert (answers <= upper).all()
    wrong = ~noise.undecided(answers) & (exact[answers.argmax(axis=1)] < exact.max())
    assert wrong.mean() <= 1 - COVERAGE + MARGIN


@pytest.mark.parametrize("loss", [GaussianLoss(0.5), LaplaceLoss(0.7)])
@pytest.mark.parametrize("logits", [[0.3, -0.3], [2.0, 0.0, 0.0, -1.0], [9.0, 0.0, -9.0]])
def test_intervals_around_a_class_that_was_drawn_hold_what_the_model_says_of_it(loss, logits):
    mechanism = SelectedNeuron(1.0, loss)
    answers, sensitivity = released(mechanism, logits)
    noise = mechanism.answer_noise(sensitivity, len(logits))
    lower, upper = noise.intervals(answers)
    exact = softmax(np.array([logits]))[0]
    within = (lower <= exact) & (exact <= upper)
    assert within.all(axis=1).mean() >= COVERAGE - MARGIN
    around = lower > 0
    assert within[around].mean() < 1  # one that is never left is too wide
    if len(logits) > 2:
        assert (around.sum(axis=1) <= 1).all()  # nothing is known of the others but what is left to them
    wrong = ~noise.undecided(answers) & (exact[answers.argmax(axis=1)] < exact.max())
    assert wrong.mean() <= 1 - COVERAGE + MARGIN


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_of_two_classes_the_published_noise_is_known(law):
    mechanism = Published(2, 5.0, law)
    answers, sensitivity = released(mechanism, [0.3, -0.3])
    noise, exact = mechanism.answer_noise(sensitivity, 2), softmax(np.array([[0.3, -0.3]]))[0]
    lower, upper = noise.intervals(answers)
    held = ((lower <= exact) & (exact <= upper)).all(axis=1).mean()
    assert COVERAGE - MARGIN <= held <= COVERAGE + MARGIN + 2e-3
    assert isinstance(Published(3, 5.0, law).answer_noise(sensitivity, 3), UnknownNoise)


@pytest.mark.parametrize("scales", [[0.2, 1.5], [0.1, 2.0, 0.5, 0.0], [3.0, 3.0, 0.1]])
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_each_class_may_have_noise_of_its_own(scales, spread):
    """And the answer may be another than the softmax of what has the noise: intervals reach to it."""
    generator, classes = np.random.default_rng(3), len(scales)
    z = spread * generator.standard_normal(classes)
    noisy = z + generator.standard_normal((TRIALS, classes)) * scales
    shown = softmax(0.7 * noisy + 0.1)
    noise = AnswerNoise(GAUSSIAN, np.tile(scales, (TRIALS, 1)), logits=noisy)
    lower, upper = noise.intervals(shown)
    exact = softmax(z[None])[0]
    assert ((lower <= exact) & (exact <= upper)).mean(axis=0).min() >= COVERAGE - MARGIN
    assert (lower <= shown).all()
    assert (shown <= upper).all()
    wrong = ~noise.undecided(shown) & (exact[shown.argmax(axis=1)] < exact.max())
    assert wrong.mean() <= 1 - COVERAGE + MARGIN
    above, below = np.moveaxis(noise.reach(shown).max(axis=2, keepdims=True), 1, 0)
    assert (shown / (shown + (1 - shown) * np.exp(above)) <= lower + 2e-5).all()
    assert (shown / (shown + (1 - shown) * np.exp(-below)) >= upper - 2e-5).all()


def test_of_noise_that_nobody_knows_an_answer_says_so_in_words():
    found = Uncertainty(UnknownNoise("nobody knows"), np.array([[1.0, 0.0], [0.5, 0.5]])).part(slice(1, 2))
    assert (found.noise.law_name, found.intervals, found.noise.no_interval) == (None, None, "nobody knows")
    assert found.undecided is None


def test_of_classes_that_are_all_alike_nobody_knows_which_was_drawn():
    noise = AnswerNoise(GAUSSIAN, np.ones(2), "log-odds")
    lower, upper = noise.intervals(np.array([[0.25] * 4, [0.1, 0.1, 0.1, 0.7]]))
    assert (lower[0].tolist(), upper[0].tolist()) == ([0] * 4, [1] * 4)
    assert (lower[1] > 0).tolist() == [False, False, False, True]
    assert (upper[1, :3] < 1).all()
    assert noise.undecided(np.array([[0.25] * 4, [0.1, 0.1, 0.1, 0.7]])).all()


def test_a_draw_has_no_interval_and_says_nothing_of_what_noise_decided():
    label = Label(0.5)
    answers, sensitivity = released(label, [0.0, 3.0])
    noise = label.answer_noise(sensitivity, 2)
    assert Uncertainty(noise, answers).intervals is None
    assert (noise.law_name, noise.no_interval) == ("exponential", DRAWN)
    assert noise.undecided(answers) is None


def test_intervals_are_narrow_and_winners_decided_where_the_noise_is_small():
    noise = AnswerNoise(GAUSSIAN, np.array([0.01, 3.0]))
    answers = np.array([[0.7, 0.3]] * 2)
    lower, upper = noise.intervals(answers)
    assert 0.68 < lower[0, 0] < 0.7 < upper[0, 0] < 0.72
    assert noise.undecided(answers).tolist() == [False, True]
    part = Uncertainty(noise, answers).part(slice(1, 2))
    assert (part.scale.tolist(), part.undecided.tolist()) == ([3.0], [True])
    assert part.intervals[0].tolist() == lower[1:].tolist()


def test_certainty_and_impossibility_have_intervals_too():
    lower, upper = AnswerNoise(GAUSSIAN, np.array([30.0])).intervals(np.array([[1.0, 0.0]]))
    assert lower.tolist() == [[0, 0]]
    assert upper[0, 0] == 1
    assert upper[0, 1] > 0
