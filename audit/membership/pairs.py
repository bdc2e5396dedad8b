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
many coins can be guessed from everything that was answered (`audit.estimators.one_run_of_guesses`), whatever the
answers have to do with each other. What is refuted is therefore a claim about *all* answers together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.estimators import one_run_of_guesses
from audit.estimators.attack import SELECTION_SHARE

Floats = NDArray[np.float64]

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
"""Which shares of the pairs may be guessed, the others being passed over."""

_LARGEST = 1e300


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
        return one_run_of_guesses(rest, guesses, int(rate * guesses), confidence, delta)

    share = max(SHARES, key=expected) if first else 1.0
    guesses = max(1, round(share * rest))
    correct = int(right[first:][_surest(surest[first:], guesses)].sum())
    return PairBound(one_run_of_guesses(rest, guesses, correct, confidence, delta), rest, guesses, correct)


def _surest(values: Floats, count: int) -> NDArray[np.intp]:
    found: NDArray[np.intp] = np.argsort(-values, kind="stable")[:count]
    return found
