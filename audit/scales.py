"""The amount of noise that each part of the product draws, beside what its price promises.

`dpserve.audit.sampler` tests the laws that all noise is made of. Here every function that draws from them is called as
training and serving call it, with nothing private, and its noise is held against the deviation that the price and the
sensitivity promise, computed here from these two alone. A function that draws less, for whatever reason, is convicted:

- noise added to vectors (`GaussianVector`: class sums, weights, quantiles, calibration, prediction sets, choices,
  evaluations);
- the noise of a step of DP-SGD, and who takes part in it;
- the answers of each mechanism, about logits that are known;
- the coins of canaries, and of records held back for prediction sets.

Too little noise. The noise before it is rounded has the promised deviation s or more, and is within half a step g of
what is shown, so that for n numbers x its length is at most ||x|| + sqrt(n) g/2. P(||N(0, s^2 I)||^2 <= q) is the
chi-square law's; larger noise makes it smaller. A count of coins is compared with the binomial law on both sides.
What a function is *asked* to draw is not seen here: canaries of a run show that (`dpserve.audit.release`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.stats

from dpserve.accounting.arrays import Floats
from dpserve.audit.noise import judge_known_logits
from dpserve.mechanisms.answer_noise import HiddenNoise
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.registry import all_mechanisms, priced
from dpserve.training.holding_back import hold_back
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, grid_step, poisson_sample, with_noise
from dpserve.training.pay_once.canaries import MOST, Coins

_CLASSES, _ROWS = 10, 2000
_VECTOR = 10_000
_MU, _SENSITIVITY = 0.5, 3.0
_RATE, _ONE_IN = 0.01, 10


@dataclass(frozen=True)
class ScaleTest:
    """A test of how much a function draws. numbers: drawn. ratio: of what was drawn to what is promised, if a number.

    p: at least the probability that a right function draws so little, or departs so far.
    """

    what: str
    numbers: int
    ratio: float | None
    p: float


def scale_tests(draws: int, randomness: Randomness) -> Iterator[ScaleTest]:
    """Test everything that draws, by about so many numbers each."""
    zeros = np.zeros(draws)
    # A longer vector has a little more noise than is promised, for its rounding, in which a fault could hide.
    vector = GaussianVector(_MU, _VECTOR, _SENSITIVITY)
    drawn = [vector.release(np.zeros(_VECTOR), randomness) for _ in range(-(-draws // _VECTOR))]
    yield _deviation_test("noise on a vector", np.concatenate(drawn), _SENSITIVITY / _MU, vector.step)
    step = StepRelease(noise_multiplier=1 / _MU, sampling_rate=_RATE, clip_norm=_SENSITIVITY)
    size = grid_step(step, draws)
    yield _deviation_test("noise on a step of DP-SGD", with_noise(zeros, size, randomness), _SENSITIVITY / _MU, size)
    yield _coin_test("records that take part in a step", poisson_sample(draws, _RATE, randomness).sum(), draws, _RATE)
    yield _coin_test("canaries that are in a run", Coins.drawn(MOST, randomness).included.sum(), MOST, 0.5)
    declared = Declaration(("x",), (0.0,), (1.0,), ("a", "b"))
    records = Records(zeros[:, None], np.zeros(draws, dtype=np.int64), declared, ())
    held = len(hold_back(records, _ONE_IN, randomness)[1])
    yield _coin_test("records held back for prediction sets", held, draws, 1 / _ONE_IN)
    yield from _answers(randomness)


def _answers(randomness: Randomness) -> Iterator[ScaleTest]:
    """Test the mechanisms' answers about known logits."""
    ones = np.ones(_ROWS)
    for name, mechanism in all_mechanisms().items():
        for price in mechanism.prices.audited:
            chosen, classes = priced(name, price, _CLASSES), _CLASSES
            if isinstance(chosen.answer_noise(ones, classes), HiddenNoise):  # of two classes nothing is hidden
                chosen, classes = priced(name, price, 2), 2
            logits = np.tile(np.linspace(-1, 1, classes), (_ROWS, 1))
            finding = judge_known_logits(chosen, chosen.release(logits, ones, randomness), logits, ones)
            yield ScaleTest(f"answers of {name} at {price}", _ROWS, finding.ratio, finding.p_value)


def _deviation_test(what: str, shown: Floats, deviation: float, step: float) -> ScaleTest:
    """Test that numbers have noise of at least this deviation, rounded to multiples of `step`."""
    length = float(np.linalg.norm(shown)) + math.sqrt(shown.size) * step / 2
    p = float(scipy.stats.chi2.cdf((length / deviation) ** 2 * (1 + 2.0**-40), shown.size))
    return ScaleTest(what, shown.size, float(np.linalg.norm(shown)) / math.sqrt(shown.size) / deviation, p)


def _coin_test(what: str, count: int, coins: int, rate: float) -> ScaleTest:
    p = float(scipy.stats.binomtest(int(count), coins, rate).pvalue)
    return ScaleTest(what, coins, count / coins / rate, p)
