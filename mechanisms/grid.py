"""Logits as integers, so that everything private after this step is integer arithmetic.

A row of logits z is divided by a public step g, which depends on the row's sensitivity, the price and the
number of classes and never on z, and rounded: k = rint(clip(z / g)). Noise is added to k as integers. Turning
the noisy integers back into numbers and probabilities is post-processing.

What rounding costs. `on_grid` divides in floating point, clips at L = 2^50 and rounds to the nearest integer.
With q = fl(z/g): below L a float64 is within 2^-4 of what it rounds (half of the spacing 2^-3), and clipping
moves no two numbers apart, so |clip(q) - clip(z/g)| <= 2^-4, and rint moves by at most 1/2. Each coordinate of
each of two neighbours is thus at most 1/2 + 2^-4 from clip(z/g), and for any norm

    ||k - k'|| <= ||z - z'|| / g + ROUNDING ||(1, ..., 1)||,   ROUNDING = 2 (1/2 + 2^-4) = 9/8.
"""

import functools
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms import elementary
from dpserve.mechanisms.noise import LARGEST_GAUSSIAN_SCALE, SMALLEST_GAUSSIAN_SCALE

ROUNDING = Fraction(9, 8)
"""The most that rounding to the grid adds to the distance of two neighbours in each coordinate, in steps."""

LARGEST_INTEGER = 2**50
SMALLEST_STEP = 2.0**-40
"""No step is smaller, so that logits up to 1024 are never clipped. Even at the largest noise scale, 2^24, the
noise it stands for is 2^-16: a row without sensitivity gets noise that nobody sees, not no noise."""

LARGEST_CLASSES = 1024
LARGEST_SENSITIVITY = 1e200

_ROUNDING_SHARE = Fraction(1, 100)


def validate(logits: Floats, sensitivity: Floats) -> tuple[Floats, Floats]:
    """Return both as float64, or raise ValueError unless they are (n, C) and (n,) with sensible values.

    C must lie between 2 and LARGEST_CLASSES and a sensitivity between 0 and LARGEST_SENSITIVITY. Logits must
    be finite: an infinite logit has no finite sensitivity, so refusing it tells nothing that the stated
    sensitivity promised to hide.
    """
    logits = np.asarray(logits, dtype=np.float64)
    sensitivity = np.asarray(sensitivity, dtype=np.float64)
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (n, C), not {logits.shape}")
    if not 2 <= logits.shape[1] <= LARGEST_CLASSES:
        raise ValueError(f"there must be between 2 and {LARGEST_CLASSES} classes, not {logits.shape[1]}")
    if sensitivity.shape != logits.shape[:1]:
        raise ValueError(f"sensitivity must have shape {logits.shape[:1]}, not {sensitivity.shape}")
    if not in_range(sensitivity).all():
        raise ValueError(f"every sensitivity must lie between 0 and {LARGEST_SENSITIVITY:g}")
    if not np.isfinite(logits).all():
        raise ValueError("every logit must be finite")
    return logits, sensitivity


def in_range(sensitivity: Floats) -> npt.NDArray[np.bool_]:
    """Return which sensitivities can be answered, of any shape: those from 0 to LARGEST_SENSITIVITY."""
    inside: npt.NDArray[np.bool_] = (sensitivity >= 0) & (sensitivity <= LARGEST_SENSITIVITY)
    return inside


def gaussian_scale(mu: float, rounding: Fraction) -> int:
    """Return the noise scale, in steps, at which rounding is 1 % of what mu allows, or the largest scale.

    rounding: by how much, in L2 and in steps, rounding may move what the noise is added to.
    """
    scale = SMALLEST_GAUSSIAN_SCALE
    while scale < LARGEST_GAUSSIAN_SCALE and rounding > _ROUNDING_SHARE * scale * Fraction(mu):
        scale *= 2
    return scale


def step_per_sensitivity(scale: int, strength: float, movement: Fraction, rounding: Fraction) -> float:
    """Return the grid step per unit of sensitivity at which noise of `scale` steps costs `strength`, rounded up.

    strength: the mu of Gaussian or the epsilon of Laplace noise. For a sensitivity D, in the norm that matters
    to the noise, neighbours are at most movement * D / g + rounding steps apart, and that must not exceed
    scale * strength: g / D = movement / (scale * strength - rounding).

    Raises ValueError where rounding would take more than half of what the strength allows, naming the least.
    """
    allowed = scale * Fraction(strength)
    if allowed < 2 * rounding:
        least = float(2 * rounding / scale) * (1 + 2.0**-10)  # which four digits do not round down again
        raise ValueError(
            f"the price is too low, for so much noise cannot be drawn exactly: mu (or epsilon) must be at least "
            f"{least:.4g}, not {strength:.4g}"
        )
    return round_up(movement / (allowed - rounding))


@functools.lru_cache
def gaussian_noise(mu: float, size: int) -> tuple[int, float]:
    """Return the noise scale of so many values in steps, and the step per unit of sensitivity."""
    rounding = ROUNDING * square_root(size)
    scale = gaussian_scale(mu, rounding)
    return scale, step_per_sensitivity(scale, mu, Fraction(1), rounding)


def steps_of(sensitivity: Floats, per_sensitivity: float, smallest: float = SMALLEST_STEP) -> Floats:
    """Return a grid step for each row: at least sensitivity * per_sensitivity, and at least `smallest`.

    The product of two floats is within 2^-53 of itself, less than the distance to the next float.
    """
    steps: Floats = np.maximum(np.nextafter(sensitivity * per_sensitivity, np.inf), smallest)
    return steps


def on_grid(values: Floats, steps: Floats) -> Integers:
    """Return rint(clip(values / steps)): values of shape (n,) or (n, C), a step for each row, shape (n,)."""
    per_row = steps.reshape(-1, *[1] * (values.ndim - 1))
    with np.errstate(over="ignore"):
        quotients = values / per_row
    integers: Integers = np.rint(np.clip(quotients, -LARGEST_INTEGER, LARGEST_INTEGER)).astype(np.int64)
    return integers


def softmax(integers: Integers, steps: Floats) -> Floats:
    """Return the probabilities, shape (n, C), of noisy logits given in steps of the grid: the same bits everywhere."""
    below_the_largest = integers.max(axis=1, keepdims=True) - integers
    with np.errstate(over="ignore"):
        weights = elementary.exp(-(below_the_largest * steps[:, None]))
    probabilities: Floats = weights / elementary.row_sums(weights)[:, None]
    return probabilities


def square_root(number: int) -> Fraction:
    """Return the square root, rounded up by at most 2^-60."""
    return Fraction(math.isqrt(number << 120) + 1, 1 << 60)


def square_root_down(number: Fraction) -> Fraction:
    """Return the square root, rounded down by at most 2^-160."""
    bits = 160
    return Fraction(math.isqrt((number.numerator << 2 * bits) // number.denominator), 1 << bits)


def round_up(number: Fraction) -> float:
    """Return the smallest float that is at least `number`."""
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def round_down(number: Fraction) -> float:
    """Return the largest float that is at most `number`."""
    nearest = float(number)
    return nearest if Fraction(nearest) <= number else math.nextafter(nearest, -math.inf)
