"""One of a row's classes, by either of two laws, in integers: the exponential mechanism, or permute-and-flip.

Promised of the exponential mechanism: the privacy loss of one selection lies in an interval of length epsilon that
holds 0 (bounded range), for the law that is really drawn from: flooring, rounding and the finite number of random bits
are inside it. It costs epsilon, and epsilon^2/8 in rho.

Promised of permute-and-flip: epsilon-DP, with the noise of `dpserve.mechanisms.noise`. It costs epsilon, epsilon^2/2 in
rho. At the same epsilon it selects a class as high or higher, on average (McKenna and Sheldon 2020, Theorem 2); at the
same rho its epsilon is half of the other's, and it selects worse. So prices in pure epsilon buy it, and prices in rho
the exponential mechanism, unless the owner chooses (`mechanism.SelectingMechanism`).
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpserve.accounting.arrays import Floats, Integers, Words
from dpserve.accounting.losses import BoundedRangeLoss, PrivacyLoss, PureLoss
from dpserve.mechanisms import elementary, grid
from dpserve.mechanisms.grid import ROUNDING, SMALLEST_STEP, on_grid, round_up, square_root
from dpserve.mechanisms.mechanism import Law, Price
from dpserve.mechanisms.noise import LAPLACE_SCALE, floored_exponential
from dpserve.mechanisms.worlds import Worlds, logarithms, two_classes_apart

SMALLEST_EPSILON = 2.0**-16
"""A selection with less would be blunted by the slack reserved for rounding, and is as good as none."""

_BEYOND_SELECTION = 20.0
"""Exponents below the largest at which the exponential mechanism's floor leaves a class next to nothing."""
_SLACK = 2.0**-25
_FLOOR = 2.0**-24
_BEYOND_THE_FLOOR = 17.0  # e^-17 < 2^-24: nothing changes but that exp never meets a number so large that it is slow
_WEIGHT_OF_THE_LARGEST = 2.0**53
_STEPS_PER_SENSITIVITY = 2.0**20
_SQUARE_ROOT_OF_TWO = round_up(square_root(2))
_SPREAD_OF_ROUNDING = float(2 * ROUNDING)
_FLIP_SCALE = 2 * LAPLACE_SCALE
"""Scale of permute-and-flip's noise, in steps: its table is the one that the Laplace mechanism takes."""
_TOWARDS_LARGER = 1 + 2.0**-50
_TOWARDS_SMALLER = 1 - 2.0**-50


def law_at(price: Price) -> Law:
    """Return the law that selects better at a price of this kind."""
    return "permute-and-flip" if price.is_pure else "exponential"


def epsilon_at(law: Law, price: Price, share: Fraction = Fraction(1)) -> float:
    """Return the epsilon of a selection by this law that costs this share of a price, rounded down.

    Raises ValueError for a price that has no such epsilon.
    """
    return price.in_rho().pure_epsilon(per_rho=8 if law == "exponential" else 2, share=share)


def loss_of(law: Law, epsilon: float) -> BoundedRangeLoss | PureLoss:
    """Return the loss of one selection."""
    return BoundedRangeLoss(epsilon) if law == "exponential" else PureLoss(epsilon)


def law_of(loss: PrivacyLoss) -> tuple[float, Law] | None:
    """Return the epsilon and the law of a selection with this loss; None for another's loss."""
    match loss:
        case BoundedRangeLoss(epsilon):
            return epsilon, "exponential"
        case PureLoss(epsilon):
            return epsilon, "permute-and-flip"
    return None


def words_of(law: Law, classes: int) -> int:
    """Return how many words one row takes."""
    return 1 if law == "exponential" else classes * floored_exponential(_FLIP_SCALE).words_per_draw


def select_by(law: Law, logits: Floats, sensitivity: Floats, epsilon: float, words: Words) -> Integers:
    """Select a class for each row, (n,), as `select` and `flip` do. words: (n, words_of(law, C))."""
    if law == "exponential":
        return select(logits, sensitivity, epsilon, words[:, 0])
    return flip(logits, sensitivity, epsilon, words.reshape(*logits.shape, words_of(law, 1)))


def scale_by(law: Law, sensitivity: Floats, epsilon: float) -> Floats:
    """Return for rows of these sensitivities, (n,), how much higher a logit makes its class e times likelier. Public.

    Or, by permute-and-flip, the mean of the noise on each logit.
    """
    return scale(sensitivity, epsilon) if law == "exponential" else _FLIP_SCALE * flip_steps(sensitivity, epsilon)


def probabilities(law: Law, logits: Floats, sensitivity: Floats, epsilon: float) -> Floats:
    """Return the law of each row's class, (n, C), in floating point and without the grid: for audits.

    Permute-and-flip: with q_j = e^-(the largest logit less z_j, over the scale), class v wins if its noise exceeds a
    threshold that is the largest of the others; P(v) = q_v times the integral of prod (1 - u q_j) over j other than v,
    u from 0 to 1. That is a polynomial of degree C - 1, which Gauss and Legendre's rule with C/2 nodes integrates.
    """
    below = (logits.max(axis=1, keepdims=True) - logits) / scale_by(law, sensitivity, epsilon)[:, None]
    ratios = np.exp(-below)
    if law == "exponential":
        shares: Floats = ratios / ratios.sum(axis=1, keepdims=True)
        return shares
    nodes, weights = np.polynomial.legendre.leggauss(logits.shape[1] // 2 + 1)
    total = np.zeros_like(ratios)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        factors = 1 - node * ratios
        total += weight * factors.prod(axis=1, keepdims=True) / factors
    return np.asarray(ratios * total, dtype=np.float64)


def log_probabilities(law: Law, logits: Floats, sensitivity: Floats, epsilon: float) -> Floats:
    """Return ln of the very law that is drawn from, (n, C), or of permute-and-flip's without its grid: for audits."""
    if law == "permute-and-flip":
        return logarithms(probabilities(law, logits, sensitivity, epsilon))
    cumulative = cumulative_weights(logits, sensitivity, epsilon).astype(np.float64)
    weights = np.diff(cumulative, axis=1, prepend=0.0)
    log_shares: Floats = np.log(weights / cumulative[:, -1:])
    return log_shares


def worst_neighbours(law: Law, epsilon: float, classes: int, *, hidden: bool = False) -> Worlds:
    """Return the worlds that a selection tells apart best. hidden: whether an answer does not show what was selected.

    All classes but two lie too low to be selected, so that the whole of epsilon is in the choice between these. By
    permute-and-flip the lower of two classes tells the whole of it, if it is nowhere the higher: out they are level.
    """
    middle = np.zeros(classes)
    middle[2:] = -_BEYOND_SELECTION * math.sqrt(2) / epsilon
    if law == "permute-and-flip" and not hidden:
        middle[:2] = np.array([1.0, -1.0]) / math.sqrt(8)
    return two_classes_apart(classes, middle)


def flip(logits: Floats, sensitivity: Floats, epsilon: float, words: Words) -> Integers:
    """Select a class for each row by permute-and-flip, which is `epsilon`-DP.

    logits: (n, C), finite; sensitivity: (n,), in L2 over the row; words: (n, C, 6). Returns the classes, (n,). The work
    is the same whatever the logits.

    The law. Let k be the row on a grid of step g, S = 2^25, and G_v independent with P(G_v >= t) = e^(-max(t, 0)/S) for
    whole t (`noise.floored_exponential`). The class is the first with the largest k_v + G_v. Without ties this is
    report-noisy-max with exponential noise, which has the law of permute-and-flip (Ding et al. 2021, Theorem 1).

    The proof. Given the other classes' noise, v is selected if and only if G_v >= T, with T = max(max_(j < v) (k_j +
    G_j) + 1, max_(j > v) (k_j + G_j)) - k_v, a whole number. For a neighbour k' = k + d it is selected if G_v >= T',
    and T' <= T + max_j d_j - d_v <= T + s, s >= 0 being the spread of d. For every whole T, P(G_v >= T + s) >= e^(-s/S)
    P(G_v >= T): for T >= 0 with equality, and for T < 0 the right side is e^(-s/S) and T + s less than s. Averaged over
    the other noise, P'(v) >= e^(-s/S) P(v) for every v, and the same with k and k' exchanged. Ties, and how they are
    broken, are inside. s <= sqrt(2) D/g + 2 ROUNDING as in `cumulative_weights`: clipping moves no coordinate further
    than before, nor in the other direction. g is such that this is at most S epsilon.

    The cost in rho is epsilon^2/2, that of any epsilon-DP mechanism, and no smaller multiple of epsilon^2: for two
    classes G_1 - G_2 is Laplace noise, and of k = (0, 0) and k' = (s, 0) the first class has probability 1/2 under one
    and 1/2 + h, h = (1 - e^-epsilon)/2, under the other. Their Kullback-Leibler divergence is 2 h^2 + O(h^4):
    epsilon^2/2 to the first order, four times what bounded range would allow.

    The sampler: each of C draws is within 2^-114 of its law, so all of them within 2^-104, less than a single draw of
    `dpserve.accounting.sampling_error` may be.
    """
    integers = on_grid(logits, flip_steps(sensitivity, epsilon))
    noisy = integers + floored_exponential(_FLIP_SCALE).draw(words)
    # Counts the classes before the first largest: a search would end the earlier the earlier that one comes.
    largest = noisy == noisy.max(axis=1, keepdims=True)
    classes: Integers = np.sum(np.cumsum(largest, axis=1) == 0, axis=1, dtype=np.int64)
    return classes


def flip_steps(sensitivity: Floats, epsilon: float) -> Floats:
    """Return the step g of `flip` for rows of these sensitivities, (n,). Raises ValueError as `select` does."""
    _check_epsilon(epsilon)
    per_sensitivity = grid.step_per_sensitivity(_FLIP_SCALE, epsilon, square_root(2), 2 * ROUNDING)
    return grid.steps_of(sensitivity, per_sensitivity)


def prepare(law: Law) -> None:
    """Build the noise table ahead of the first selection."""
    if law == "permute-and-flip":
        floored_exponential(_FLIP_SCALE)


def select(logits: Floats, sensitivity: Floats, epsilon: float, words: Words) -> Integers:
    """Select a class for each row, with bounded-range loss `epsilon`.

    logits: (n, C), finite, C <= 1024; sensitivity: (n,), in L2 over the row; words: (n,), one a row.
    Returns the classes, shape (n,). The work is the same whatever the logits.

    Class v of W_v out of T = sum W (see `cumulative_weights`) is drawn by inversion at floor(word T / 2^64).
    """
    cumulative = cumulative_weights(logits, sensitivity, epsilon)
    points = high_product(words, cumulative[:, -1])
    # Compares with every sum, as a search would end the earlier the earlier the class comes.
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
    # Beyond the floor the exponential does not matter; a bounded argument keeps its error bound.
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
    _check_epsilon(epsilon)
    steps = np.maximum(sensitivity / _STEPS_PER_SENSITIVITY, SMALLEST_STEP)
    spread = (_SQUARE_ROOT_OF_TWO * (sensitivity / steps) + _SPREAD_OF_ROUNDING) * _TOWARDS_LARGER
    # Rounded towards a smaller eta, which is the safe side: it spends less than epsilon.
    return steps, (epsilon - _SLACK) / spread * _TOWARDS_SMALLER


def _check_epsilon(epsilon: float) -> None:
    if not SMALLEST_EPSILON <= epsilon < math.inf:
        raise ValueError(f"the epsilon of a selection must be at least {SMALLEST_EPSILON:.3g}, not {epsilon}")


def high_product(a: Words, b: Words) -> Words:
    """Return floor(a b / 2^64) exactly, by halves of 32 bits."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    a_high, a_low = a >> half, a & mask
    b_high, b_low = b >> half, b & mask
    middle, other_middle = a_high * b_low, a_low * b_high
    carry = ((a_low * b_low >> half) + (middle & mask) + (other_middle & mask)) >> half
    product: Words = a_high * b_high + (middle >> half) + (other_middle >> half) + carry
    return product
