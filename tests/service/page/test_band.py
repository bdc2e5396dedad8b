"""The error band that the page draws holds the answer without noise as often as it says, for noise as it is drawn."""

import numpy as np
import pytest

from accounting.losses import GaussianLoss, LaplaceLoss
from mechanisms.gaussian import Gaussian
from mechanisms.label import Label
from mechanisms.laplace import Laplace
from mechanisms.selected_neuron import SelectedNeuron
from training.objective import softmax
from training.releases.weights import release_weights

TRIALS = 2000
COVERED = 0.95
FALSE_ALARM = 5.2
"""Standard deviations: a band of exactly 95 % fails one of the comparisons below with a chance under 1e-6."""
LEAST_HELD = COVERED - FALSE_ALARM * np.sqrt(COVERED * (1 - COVERED) / TRIALS)

BANDS = "async ([rows, noise]) => { const { band } = await import('/page/band.js');\
 return rows.map((row) => band(row, noise)); }"
LIKELIER = "async (given) => (await import('/page/band.js')).mostTimesAsLikely(...given)"


class Seeded:
    """Random words from a fixed seed."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(1)

    def words(self, count):
        return self._generator.integers(2**64, size=count, dtype=np.uint64)


@pytest.fixture(scope="module")
def page(browser, start_for_module, head):
    page = browser.new_page()
    page.goto(start_for_module(head).url)
    yield page
    page.close()


@pytest.mark.parametrize("mechanism", [Gaussian(0.5), Gaussian(20.0), Laplace(1.5)])
@pytest.mark.parametrize("logits", [[0.3, -0.3], [2.0, 0.0, 0.0, -1.0], [0.0] * 10, [9.0, 0.0, -9.0]])
def test_the_band_holds_the_answer_without_noise(page, mechanism, logits):
    sensitivity = np.full(TRIALS, 0.1)
    noise = {
        "law": "laplace" if isinstance(mechanism, Laplace) else "gaussian",
        "on": "logits",
        "scale": float(mechanism.noise_scale(sensitivity, len(logits))[0]),
    }
    released = mechanism.release(np.tile(logits, (TRIALS, 1)), sensitivity, Seeded())
    bands = np.array(page.evaluate(BANDS, [released.tolist(), noise]))
    weights = np.exp(logits)
    exact = weights / weights.sum()
    held = ((bands[..., 0] <= exact) & (exact <= bands[..., 1])).mean(axis=0)
    assert held.min() >= LEAST_HELD
    # It is a band, not everything there is: the answer itself is in it, and its ends move with the noise.
    assert (bands[..., 0] <= released).all()
    assert (released <= bands[..., 1]).all()


@pytest.mark.parametrize("loss", [GaussianLoss(0.5), LaplaceLoss(0.7)])
@pytest.mark.parametrize("logits", [[0.3, -0.3], [2.0, 0.0, 0.0, -1.0], [9.0, 0.0, -9.0]])
def test_the_band_around_a_class_that_was_drawn_holds_what_the_model_says_of_it(page, loss, logits):
    mechanism = SelectedNeuron(1.0, loss)
    sensitivity = np.full(TRIALS, 0.1)
    noise = {"law": loss.kind, "on": "log-odds", "scale": float(mechanism.noise_scale(sensitivity)[0])}
    released = mechanism.release(np.tile(logits, (TRIALS, 1)), sensitivity, Seeded())
    bands = np.array(page.evaluate(BANDS, [released.tolist(), noise]))
    exact = np.exp(logits) / np.exp(logits).sum()
    within = (bands[..., 0] <= exact) & (exact <= bands[..., 1])
    assert within.all(axis=1).mean() >= LEAST_HELD
    around = bands[..., 0] > 0
    assert within[around].mean() < 1  # it is exact: a band that is never left is too wide
    if len(logits) > 2:
        assert (around.sum(axis=1) == 1).all()  # nothing is known of the others but what is left to them


def test_of_classes_that_are_all_alike_nobody_knows_which_was_drawn(page):
    noise = {"law": "gaussian", "on": "log-odds", "scale": 1.0}
    assert page.evaluate(BANDS, [[[0.25] * 4], noise]) == [None]
    (of_last,) = page.evaluate(BANDS, [[[0.2, 0.2, 0.6]], noise])
    assert [low > 0 for low, _ in of_last] == [False, False, True]


def test_the_band_of_released_weights_holds_what_the_head_says(page, head):
    row = np.array([[0.1, 0.9, 0.4, 0.2]])
    exact = softmax(head.logits(head.features(row)))[0]
    seeded = Seeded()
    models = [release_weights(head, {"c": 10**11, "f": 4 * 10**11}, "lineage", seeded) for _ in range(TRIALS)]
    for tier in ("c", "f"):
        answering = [model.at(tier) for model in models]
        noise = {"law": "gaussian", "on": "logits", "scale": float(answering[0].logit_noise(row)[0])}
        answers = [model.probabilities(row)[0].tolist() for model in answering]
        bands = np.array(page.evaluate(BANDS, [answers, noise]))
        held = ((bands[..., 0] <= exact) & (exact <= bands[..., 1])).mean(axis=0)
        assert held.min() >= LEAST_HELD
        deviation = np.std([model.weights - head.weights for model in answering])
        assert deviation * np.linalg.norm(head.features(row)) == pytest.approx(noise["scale"], rel=0.05)


@pytest.mark.parametrize("logits", [[0.0, 0.5], [0.0, 3.0, 3.0, 2.9], [0.0] * 9 + [4.0]])
def test_a_class_that_was_drawn_is_nearly_as_likely_as_any(page, logits):
    label = Label(0.5)
    sensitivity = np.full(TRIALS, 0.3)
    released = label.release(np.tile(logits, (TRIALS, 1)), sensitivity, Seeded())
    most = page.evaluate(LIKELIER, [float(label.scale(sensitivity)[0]), len(logits)])
    times = np.exp(max(logits) - np.array(logits)[released.argmax(axis=1)])
    assert (times <= most).mean() >= LEAST_HELD
    assert page.evaluate(BANDS, [[[0, 1]], {"law": "exponential", "on": "selection", "scale": 1.0}]) == [None]
    assert page.evaluate(LIKELIER, [0.0, len(logits)]) == 1


def test_the_band_is_narrow_where_the_noise_is_small(page):
    ((low, high), _) = page.evaluate(BANDS, [[[0.7, 0.3]], {"law": "gaussian", "on": "logits", "scale": 0.01}])[0]
    assert 0.68 < low < 0.7 < high < 0.72


def test_certainty_and_impossibility_have_bands_too(page):
    (certain, impossible) = page.evaluate(BANDS, [[[1.0, 0.0]], {"law": "gaussian", "on": "logits", "scale": 30.0}])[0]
    assert certain[0] < 1e-6
    assert certain[1] == 1
    assert impossible[0] == 0
    assert 0 < impossible[1] < 1e-200
