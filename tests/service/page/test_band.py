"""The error band that the page draws holds the answer without noise as often as it says, for noise as it is drawn."""

import numpy as np
import pytest

from mechanisms.gaussian import Gaussian
from mechanisms.laplace import Laplace

TRIALS = 2000
COVERED = 0.95
FALSE_ALARM = 5.2
"""Standard deviations: a band of exactly 95 % fails one of the comparisons below with a chance under 1e-6."""

BANDS = "async ([rows, law, scale]) => { const { band } = await import('/page/band.js');\
 return rows.map((row) => band(row, law, scale)); }"


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
    law = "laplace" if isinstance(mechanism, Laplace) else "gaussian"
    sensitivity = np.full(TRIALS, 0.1)
    scale = float(mechanism.noise_scale(sensitivity, len(logits))[0])
    released = mechanism.release(np.tile(logits, (TRIALS, 1)), sensitivity, Seeded())
    bands = np.array(page.evaluate(BANDS, [released.tolist(), law, scale]))
    weights = np.exp(logits)
    exact = weights / weights.sum()
    held = ((bands[..., 0] <= exact) & (exact <= bands[..., 1])).mean(axis=0)
    assert held.min() >= COVERED - FALSE_ALARM * np.sqrt(COVERED * (1 - COVERED) / TRIALS)
    # It is a band, not everything there is: the answer itself is in it, and its ends move with the noise.
    assert (bands[..., 0] <= released).all()
    assert (released <= bands[..., 1]).all()


def test_the_band_is_narrow_where_the_noise_is_small(page):
    ((low, high), _) = page.evaluate(BANDS, [[[0.7, 0.3]], "gaussian", 0.01])[0]
    assert 0.68 < low < 0.7 < high < 0.72


def test_certainty_and_impossibility_have_bands_too(page):
    (certain, impossible) = page.evaluate(BANDS, [[[1.0, 0.0]], "gaussian", 30.0])[0]
    assert certain[0] < 1e-6
    assert certain[1] == 1
    assert impossible[0] == 0
    assert 0 < impossible[1] < 1e-200
