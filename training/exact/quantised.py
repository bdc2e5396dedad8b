"""Logits that are a function of the weights and the question alone, to the bit.

W is rounded at training to whole multiples of a public step (`weight_step`), phi is in steps of its own
(`dpserve.training.features`), and W phi is computed from two summands of W, each so coarse that no sum is ever
rounded."""

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.training.devices import Matrix, product
from dpserve.training.features.whole_steps import STEP_BITS

LARGEST_WEIGHT_NORM = 2.0**16
"""Weights are projected onto the ball of this Frobenius norm: public, so that what is computed has public bounds."""

_COARSE_STEP = 2.0**-12


def weight_step(dimension: int) -> float:
    """Return the step of W's entries for features of this dimension: 2^-42 times the least 2^c >= sqrt(dimension)."""
    return 2.0 ** (_root_bits(dimension) - 42)


def quantised(weights: Floats) -> Floats:
    """Return W (C, D) with each entry rounded to the nearest multiple of `weight_step(D)`.

    Each moves by at most half a step: ||W_q - W||_F <= sqrt(C D) step / 2. A double holds every result, because
    multiples of the step that are larger than 2^53 steps are multiples of their own last place.
    """
    step = weight_step(weights.shape[1])
    rounded: Floats = np.rint(weights / step) * step
    return rounded


def is_quantised(weights: Floats) -> bool:
    """Whether every entry of W is a multiple of its step."""
    return bool(np.array_equal(quantised(weights), weights))


def summands(weights: Floats) -> Floats:
    """Return A over B, (2C, D), with A + B = W exactly: A in steps of 2^-12, B in steps of `weight_step`.

    weights: (C, D), from `quantised`. |B| <= 2^-13 in every entry. W - A is exact: it is at most half a coarse step
    and a multiple of W's last place, or of the fine step.
    """
    coarse = np.rint(weights / _COARSE_STEP) * _COARSE_STEP
    return np.concatenate([coarse, weights - coarse])


def products(phi: Floats, parts: Matrix) -> Floats:
    """Return the logits (n, C) of questions phi (n, D): A phi + B phi, for `summands` of W, on any device.

    ||W||_F <= LARGEST_WEIGHT_NORM; phi is from a feature map: multiples of its step, ||phi|| <= 1.

    Exact except for the last addition, which is rounded once; so the same bits in every order of summation, beside
    whatever other rows, on every processor and with every library that adds products in double precision.

    Proof. phi is s times whole numbers, s = 2^-24, of norm at most 2^24. Let c be the least whole number with 2^c >=
    sqrt(D).
    - A is 2^-12 times whole numbers. Its rows have norms of at most ||W||_F + sqrt(D) 2^-13 <= 2^16 + 2^(c-13) < 2^17,
      as c <= 12: less than 2^29 steps.
    - B is t = 2^(c-42) times whole numbers. Its rows have norms of at most sqrt(D) 2^-13 <= 2^(c-13): 2^29 steps.
    So, by Cauchy and Schwarz, the absolute values of the products of a row of A, or of B, with phi add up to at most
    2^29 2^24 = 2^53 in units of s 2^-12, or s t. Every product and every sum of some of them, in any order and with
    or without fused multiplication, is a whole number of such units of at most 2^53: a double holds it. A phi and
    B phi are thus the exact numbers, and their sum is rounded by IEEE 754 in one way.
    """
    both = product(phi, parts.T)
    classes = both.shape[1] // 2
    logits: Floats = both[:, :classes] + both[:, classes:]
    return logits


def norms(phi: Floats) -> Floats:
    """Return at least ||phi||_2 of each row, (n,), and less than 2^-50 of it more: the same bits everywhere.

    In units of 2^-48 the squares are whole numbers that add up to at most 2^48: exact in any order. Their square root
    is rounded once, by at most 2^-53 of itself, and so is the product that makes up for it.
    """
    squares = np.vecdot(phi, phi)
    longest: Floats = np.sqrt(squares) * (1 + 2.0**-51)
    return longest


def norms_of(squares: Floats) -> Floats:
    """Return what `norms` does, of the exact squared lengths of rows, (n,)."""
    longest: Floats = np.sqrt(squares) * (1 + 2.0**-51)
    return longest


def question_bytes(phi: Floats, sensitivity: Floats) -> list[bytes]:
    """Return each question as bytes, in one way: phi (n, D) as whole numbers of 4 bytes, and the row's sensitivity.

    The sensitivity (n,) is a function of phi; with it in the question no noise can ever be scaled in two ways.
    """
    questions = np.empty(len(phi), dtype=[("phi", "<i4", phi.shape[1:]), ("sensitivity", "<f8")])
    questions["phi"] = phi * 2.0**STEP_BITS  # of both zeros the same one
    questions["sensitivity"] = sensitivity
    whole, width = questions.tobytes(), questions.itemsize
    return [whole[start : start + width] for start in range(0, len(whole), width)]


def _root_bits(number: int) -> int:
    """Return the least c with 4^c >= number."""
    return ((number - 1).bit_length() + 1) // 2
