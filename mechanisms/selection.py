"""The exponential mechanism over a row's classes, in integers.

Promised: the privacy loss of one selection lies in an interval of length epsilon that holds 0 (bounded range),
for the law that is really drawn from: flooring, rounding and the finite number of random bits are inside it.
"""

import math

import numpy as np
import numpy.typing as npt

from mechanisms import elementary
from mechanisms.grid import ROUNDING, SMALLEST_STEP, Floats, on_grid, rounded_up, square_root
from mechanisms.noise import Integers
from mechanisms.randomness import Words

SMALLEST_EPSILON = 2.0**-16
"""A selection with less would be blunted by the slack reserved for rounding, and is as good as none."""

_SLACK = 2.0**-25
_FLOOR = 2.0**-24
_BEYOND_THE_FLOOR = 17.0  # e^-17 < 2^-24: nothing changes but that exp never meets a number so large that it is slow
_WEIGHT_OF_THE_LARGEST = 2.0**53
_STEPS_PER_SENSITIVITY = 2.0**20
_SQUARE_ROOT_OF_TWO = rounded_up(square_root(2))
_SPREAD_OF_ROUNDING = float(2 * ROUNDING)
_UP = 1 + 2.0**-50
_DOWN = 1 - 2.0**-50


def select(logits: Floats, sensitivity: Floats, epsilon: float, words: Words) -> Integers:
    """Select a class for each row, with bounded-range loss `epsilon`.

    logits: (n, C), finite, C <= 1024; sensitivity: (n,), in L2 over the row; words: (n,), one a row.
    Returns the classes, shape (n,). The work is the same whatever the logits.

    Class v of W_v out of T = sum W (see `cumulative_weights`) is drawn by inversion at floor(word T / 2^64).
    """
    cumulative = cumulative_weights(logits, sensitivity, epsilon)
    points = high_product(words, cumulative[:, -1])
    classes: Integers = np.sum(cumulative <= points[:, None], axis=1, dtype=np.int64)
    return classes


def cumulative_weights(logits: Floats, sensitivity: Floats, epsilon: float) -> npt.NDArray[np.uint64]:
    """Return the running sums, shape (n, C), of the integer weights from which `select` draws.

    The ideal law. Let k be the row on a grid of step g (`grid.on_grid`), eta > 0, and

        N_v = max(e^(eta k_v), 2^-24 max_j e^(eta k_j)),   P(v) = N_v / sum N.

    For a neighbour k' = k + d with every d_v in [a, b], each e^(eta k_v) changes by a factor in
    [e^(eta a), e^(eta b)], so does the largest of them, and so does N_v. ln P'(v)/P(v) is then within
    [eta a, eta b] less a constant: an interval of length eta (b - a), and it holds 0 because both laws sum to 1.
    Here b - a <= sqrt(2) D/g + 2 ROUNDING: before rounding b and a are the movements of two coordinates (or of
    one, and b - a = 0), and b - a <= sqrt(2) sqrt(a^2 + b^2); ROUNDING bounds each coordinate's part in
    rounding. (Bounded range: Durfee and Rogers 2019. With an L2 bound on all coordinates together this is
    sqrt(2) D and not the 2 D of a bound on each.)

    The law drawn from. Weights are W_v = rint(2^53 N_v / max N) >= 2^29. d = max k - k_v is exact in float64;
    eta d is within 2^-53 of itself and at most 17 where the floor does not apply; exp errs by less than
    2^-45 of its value (`elementary.exp`); rint moves W by at most 1/2, 2^-30 of it.
    So W_v is within 2^-30 + 2^-44 of its ideal value and W_v / T within 2^-29 + 2^-42. Of 2^64 words,
    floor(word T / 2^64) gives class v to between W_v 2^64/T - 1 and W_v 2^64/T + 1, and T/W_v <= C 2^24 <= 2^34:
    another 2^-30. Each probability is within theta = 2^-28 of its ideal value, the loss therefore within
    4 theta (1 + theta) <= 2^-25 in length: eta is epsilon - 2^-25 over the bound on b - a, rounded down.

    Raises ValueError for an epsilon below SMALLEST_EPSILON.
    """
    steps, eta = _steps_and_eta(sensitivity, epsilon)
    integers = on_grid(logits, steps)
    below_the_largest = integers.max(axis=1, keepdims=True) - integers
    exponents = np.minimum(eta[:, None] * below_the_largest, _BEYOND_THE_FLOOR)
    ratios = np.maximum(elementary.exp(-exponents), _FLOOR)
    weights = np.rint(_WEIGHT_OF_THE_LARGEST * ratios).astype(np.uint64)
    return np.cumsum(weights, axis=1, dtype=np.uint64)


def scale(sensitivity: Floats, epsilon: float) -> Floats:
    """Return the s of rows of these sensitivities, (n,): a class is drawn in proportion to e^(its logit / s). Public.

    But for the grid, and the floor of 2^-24 below which no class falls. Raises ValueError as `select` does.
    """
    steps, eta = _steps_and_eta(sensitivity, epsilon)
    return np.asarray(steps / eta, dtype=np.float64)


def _steps_and_eta(sensitivity: Floats, epsilon: float) -> tuple[Floats, Floats]:
    if not SMALLEST_EPSILON <= epsilon < math.inf:
        raise ValueError(f"the epsilon of a selection must be at least {SMALLEST_EPSILON:.3g}, not {epsilon}")
    steps = np.maximum(sensitivity / _STEPS_PER_SENSITIVITY, SMALLEST_STEP)
    spread = (_SQUARE_ROOT_OF_TWO * (sensitivity / steps) + _SPREAD_OF_ROUNDING) * _UP
    return steps, (epsilon - _SLACK) / spread * _DOWN


def high_product(a: Words, b: Words) -> Words:
    """Return floor(a b / 2^64) exactly, by halves of 32 bits."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    a_high, a_low = a >> half, a & mask
    b_high, b_low = b >> half, b & mask
    middle, other_middle = a_high * b_low, a_low * b_high
    carry = ((a_low * b_low >> half) + (middle & mask) + (other_middle & mask)) >> half
    product: Words = a_high * b_high + (middle >> half) + (other_middle >> half) + carry
    return product
