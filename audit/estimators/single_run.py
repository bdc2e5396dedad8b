"""Auditing in one run (Steinke, Nasr and Jagielski 2023): many canaries, each in or out by a fair coin.

The attacker sees one output and says of some canaries whether they are in. Under (epsilon, delta)-DP the number of
right guesses is hardly larger than what guessing with a coin of bias e^epsilon/(1 + e^epsilon) would give.
"""

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from accounting import domains
from accounting.crossings import crossing
from audit.estimators.attack import LowerBound, checked

_LARGEST_EPSILON = 700.0


def one_run(
    scores: ArrayLike,
    included: NDArray[np.bool_],
    confidence: float,
    *,
    delta: float,
    guessed_in: int,
    guessed_out: int,
) -> LowerBound:
    """Return a lower bound of the epsilon at delta that holds with `confidence`.

    scores: (m,), one for each canary; included: (m,), whether it was in, by a fair coin of its own. The `guessed_in`
    largest scores are guessed in and the `guessed_out` smallest out; both numbers must be fixed without looking at
    `included`. Ties are broken by position, which must be independent of `included`. See `one_run_of_guesses`.
    Raises ValueError for more guesses than canaries, and for none.
    """
    values = checked(scores)
    if included.shape != values.shape or included.dtype != np.bool_:
        raise ValueError(f"there are {len(values)} scores; say of each whether it was included, as a boolean")
    if min(guessed_in, guessed_out) < 0 or not 0 < guessed_in + guessed_out <= len(values):
        raise ValueError(f"between 1 and {len(values)} canaries can be guessed, not {guessed_in} and {guessed_out}")
    order = np.argsort(values, kind="stable")
    right = int(included[order[len(values) - guessed_in :]].sum()) + int((~included[order[:guessed_out]]).sum())
    epsilon = one_run_of_guesses(len(values), guessed_in + guessed_out, right, confidence, delta)
    return LowerBound("epsilon", epsilon, confidence, "exact")


def one_run_of_guesses(canaries: int, guesses: int, right: int, confidence: float, delta: float) -> float:
    """Return the largest epsilon, or 0, whose p-value for `right` of `guesses` is at most 1 - confidence."""
    domains.require_between("the confidence", confidence, 0, 1)
    doubt = 1 - confidence

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) - doubt

    if excess(0.0) > 0:
        return 0.0
    if excess(_LARGEST_EPSILON) <= 0:
        return _LARGEST_EPSILON
    return crossing(excess, 0.0, _LARGEST_EPSILON, tolerance=1e-9).met


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return a bound of P(at least `right` of `guesses` are right) under (epsilon, delta)-DP.

    With W ~ Binomial(guesses, q), q = 1/(1 + e^-epsilon), it is P(W >= right) + 2 canaries delta max over i >= 1 of
    P(right - i <= W < right)/i (Steinke, Nasr and Jagielski 2023, Theorem 5.2 and its evaluation in Appendix D). Why,
    for delta = 0: given the output and the coins of the canaries before, each canary's coin falls either way with odds
    within e^epsilon, so each guess is right with probability at most q, and the sum is dominated by W.
    """
    if not 0 <= right <= guesses <= canaries or guesses == 0:
        raise ValueError(f"{right} right of {guesses} guesses about {canaries} canaries cannot be")
    domains.require_up_to("delta", delta, 1)
    q = float(scipy.special.expit(epsilon))
    if right == 0:
        return 1.0
    tail = float(scipy.special.betainc(right, guesses - right + 1, q))
    if delta == 0:
        return min(1.0, tail)
    # P(W <= k) for k = -1, ..., right - 1.
    below = np.concatenate([[0.0], scipy.special.bdtr(np.arange(right), guesses, q)])
    spans = np.arange(1, right + 1)
    share = float(np.max((below[-1] - below[right - spans]) / spans))
    return min(1.0, tail + 2 * canaries * delta * share)
