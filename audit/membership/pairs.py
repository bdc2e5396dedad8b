"""A lower bound of epsilon whose confidence is exact, although one model answers about all candidates.

Candidates are paired: a member with another. Given the pairs, which of the two is the member is a fair coin of its
own, independent of the others. Proof: let S be the members, any n of 2n exchangeable records with equal probability,
and let the pairing be drawn uniformly from the n! that put one member into each pair. A set of pairs is consistent with
2^n sets of members, one for each choice of a side, and each of those has the same probability and leads to the pairing
with the same probability 1/n!. So given the pairs all 2^n choices are equally likely.

The premise is about draws that were made: candidates are exchangeable, which the owner's split decides, and the pairing
is uniform given the split. It follows from the order of the scores, whose seed is independent of the plan's and of the
endpoint's noise only as far as seeds derived from one by different words are.

To turn one coin replaces one record of the model by another: two steps. Steinke, Nasr and Jagielski 2023 then bound how
many coins can be guessed from everything that was answered (`epsilon_of_guesses`), whatever the
answers have to do with each other. What is refuted is therefore a claim about *all* answers together.
"""

from dataclasses import dataclass

import numpy as np
import scipy.special
from numpy.typing import NDArray

from accounting import domains
from audit.estimators.errors import SELECTION_SHARE, largest_met

Floats = NDArray[np.float64]

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
"""Which shares of the pairs may be guessed, the others being passed over."""

_LARGEST = 1e300
_LARGEST_EPSILON = 700.0


@dataclass(frozen=True)
class PairBound:
    """The epsilon that guesses refute, for replacing one record, of all answers together. right: of the guesses."""

    epsilon: float
    pairs: int
    guesses: int
    right: int


def bound_of_pairs(members: Floats, others: Floats, confidence: float, *, delta: float, seed: int) -> PairBound:
    """Guess, for pairs of a member and another, which is which: the one with the larger score.

    members, others: scores (n,) and (m,) in random orders, larger for those that look like members. The first pairs
    choose how many of the others are guessed: their coins are taken as known, which leaves the others fair. Pairs with
    the largest differences are guessed, and ties by a coin.
    """
    pairs = min(len(members), len(others))
    difference = np.clip(members[:pairs], -_LARGEST, _LARGEST) - np.clip(others[:pairs], -_LARGEST, _LARGEST)
    coins = np.random.default_rng(seed).random(pairs) < 0.5
    surest = np.abs(difference)
    right = np.where(difference == 0, coins, difference > 0)
    first = round(SELECTION_SHARE * pairs)
    rest = pairs - first
    if rest < 1:
        return PairBound(0.0, rest, 0, 0)

    def expected(share: float) -> float:
        """The epsilon if the others are guessed as well as the first ones, half a guess less sure."""
        some = _surest(surest[:first], max(1, round(share * first)))
        rate = (right[:first][some].sum() + 0.5) / (len(some) + 1)
        guesses = max(1, round(share * rest))
        return epsilon_of_guesses(rest, guesses, int(rate * guesses), confidence, delta)

    share = max(SHARES, key=expected) if first else 1.0
    guesses = max(1, round(share * rest))
    correct = int(right[first:][_surest(surest[first:], guesses)].sum())
    return PairBound(epsilon_of_guesses(rest, guesses, correct, confidence, delta), rest, guesses, correct)


def _surest(values: Floats, count: int) -> NDArray[np.intp]:
    found: NDArray[np.intp] = np.argsort(-values, kind="stable")[:count]
    return found


def epsilon_of_guesses(canaries: int, guesses: int, right: int, confidence: float, delta: float) -> float:
    """Return the largest epsilon, or 0, whose p-value for `right` of `guesses` is at most 1 - confidence.

    Auditing in one run (Steinke, Nasr and Jagielski 2023): many canaries, each in or out by a fair coin. The attacker
    sees one output and says of some canaries whether they are in. Under (epsilon, delta)-DP the number of right guesses
    is hardly larger than what guessing with a coin of bias e^epsilon/(1 + e^epsilon) would give. How many are guessed
    must be fixed without looking at the coins.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    doubt = 1 - confidence

    def excess(epsilon: float) -> float:
        return p_value_of_guesses(canaries, guesses, right, epsilon, delta) - doubt

    return largest_met(excess, 0.0, _LARGEST_EPSILON, 1e-9)


def p_value_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
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
