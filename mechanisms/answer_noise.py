"""What known noise says of an answer: an interval for each probability, and whether noise could have made the winner.

Computed from public numbers and the released answer alone, so that it is post-processing and costs nothing. An interval
holds the probability that the model gives without noise in at least COVERAGE of all answers.

Write f(z) = z_k - ln(sum of e^(z_j) over j other than k): the log-odds of class k given the logits z. The answer shows
f at z + n, and n is known noise. f is concave and its gradient, (1, -q) with q a distribution, has an L2 norm of at
most sqrt(2).

- Gaussian noise of standard deviation s on each logit. From above, f(z + n) <= f(z) + gradient . n, so f(z + n) is
  above f(z) by more than t sqrt(2) s with probability at most 1 - Phi(t). From below, f is sqrt(2)-Lipschitz, so it
  falls more than t sqrt(2) s below its median with probability at most 1 - Phi(t) (Gaussian isoperimetry: Borell 1975);
  the median of a concave function of Gaussian noise is at least its mean (Kwapien 1994), and its mean is at least f(z)
  - s^2/2 by Jensen's inequality, or f(z) itself with two classes. With t = 2 both tails together are below 4.6 %; the
  rounding of noise and logits to the grid takes from what is left.
- Laplace noise of scale b on each logit: no |n_j| exceeds c = -b ln(1 - COVERAGE^(1/C)) with probability COVERAGE, and
  then f moves by at most 2 c.
- Noise on the log-odds of one class that was drawn: what is shown of this class is its log-odds without noise, and the
  noise, whose quantiles are known (1.97 s and 3 b hold 95.1 % and 95.02 %). With more than two classes the others share
  the rest evenly, whatever the model says of them: each has no more than what this class leaves.
- A class v drawn in proportion to e^(z_v / s) has no interval.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Law = Literal["gaussian", "laplace", "exponential"]
Place = Literal["logits", "log-odds", "selection"]

COVERAGE = 0.95

_DEVIATIONS = 2.0
_QUANTILES = {"gaussian": 1.97, "laplace": 3.0}
_MISSED = 1 - COVERAGE - 0.001
"""What the winner may be wrong by; the rest is for the rounding of noise and logits to the grid."""
_SHOWN_DIGITS = 1e6
_LEAST = np.finfo(np.float64).tiny
_LEAST_REST = 2.0**-53
"""A probability shown as 1 leaves at most this to the others."""


@dataclass(frozen=True, eq=False)
class AnswerNoise:
    """The law by which some rows' answers differ from those without noise. Public. scale: (n,), one for each row.

    Gaussian noise has standard deviation `scale`; Laplace noise has density e^(-|x|/scale) / (2 scale). By an
    exponential law a class is drawn in proportion to e^(its logit / scale).
    """

    law: Law
    scale: Floats
    on: Place = "logits"
    """Each of the logits whose softmax is the answer; the log-odds of the one class that was drawn; or the draw."""

    def uncertainty(self, probabilities: Floats) -> "Uncertainty":
        """Return what the noise says of answers, (n, C)."""
        lower, upper = self.intervals(probabilities) or (None, None)
        above, below = self.reach(probabilities.shape[1]) or (None, None)
        undecided = self.undecided(probabilities)
        return Uncertainty(self.law, self.on, self.scale, above, below, lower, upper, undecided)

    def reach(self, classes: int) -> tuple[Floats, Floats] | None:
        """Return how far log-odds shown may lie above, and below, those without noise, (n,) each; None for a draw.

        A probability p then stands for one from p/(p + (1 - p) e^above) to p/(p + (1 - p) e^-below).
        """
        if self.on == "selection":
            return None
        if self.on == "log-odds":
            either = _QUANTILES[self.law] * self.scale
            return either, either
        if self.law == "laplace":
            either = _laplace_reach(classes) * self.scale
            return either, either
        above = _DEVIATIONS * math.sqrt(2) * self.scale
        return above, above if classes == 2 else above + self.scale * self.scale / 2

    def intervals(self, probabilities: Floats) -> tuple[Floats, Floats] | None:
        """Return the least and the largest probability without noise, (n, C) each, for answers (n, C); None for a draw.

        Rounded outwards to six digits. Of log-odds noise only the drawn class has a lower end above 0.
        """
        reached = self.reach(probabilities.shape[1])
        if reached is None:
            return None
        shown = np.maximum(probabilities, _LEAST)
        rest = np.maximum(1 - probabilities, _LEAST_REST)
        with np.errstate(over="ignore"):
            lower = shown / (shown + rest * np.exp(reached[0])[:, None])
            upper = shown / (shown + rest * np.exp(-reached[1])[:, None])
        if self.on == "log-odds" and probabilities.shape[1] > 2:
            lower, upper = _leaving_the_rest(lower, upper, probabilities)
        return np.floor(lower * _SHOWN_DIGITS) / _SHOWN_DIGITS, np.ceil(upper * _SHOWN_DIGITS) / _SHOWN_DIGITS

    def undecided(self, probabilities: Floats) -> NDArray[np.bool_]:
        """Return of each answer, (n, C), whether the noise could have made its likeliest class so: (n,).

        Noise on the logits: an answer counts as decided if the logits of the two likeliest classes are further apart
        than g. Let b be the model's own likeliest class. If another class a wins and counts as decided, the noise has
        put z_a - z_b, at most 0, above g.
        - Gaussian: z_a - z_b has noise of standard deviation sqrt(2) s, so with g = t sqrt(2) s that has a probability
          of at most 1 - Phi(t) for each of the C - 1 classes a: less than 1 - COVERAGE together.
        - Laplace: g = 2 c, which no two noises' difference exceeds with probability COVERAGE.
        Noise on the log-odds of a drawn class: decided if its interval lies above 1/2, for then no other is likelier.
        Of a class that was drawn alone nothing says that it is the likeliest.
        """
        classes = probabilities.shape[1]
        if self.on == "selection":
            return np.ones(len(probabilities), dtype=np.bool_)
        if self.on == "log-odds":
            above, _ = self.reach(classes) or (self.scale, self.scale)
            top = probabilities.max(axis=1)
            undecided: NDArray[np.bool_] = np.log(top) - np.log(np.maximum(1 - top, _LEAST_REST)) <= above
            return undecided
        second, first = np.partition(np.maximum(probabilities, _LEAST), -2, axis=1)[:, -2:].T
        apart = _gaussian_gap(classes) if self.law == "gaussian" else _laplace_reach(classes)
        close: NDArray[np.bool_] = np.log(first / second) <= apart * self.scale
        return close


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """What known noise says of n answers: see `AnswerNoise`, whose methods give each part."""

    law: Law
    on: Place
    scale: Floats
    above: Floats | None
    below: Floats | None
    lower: Floats | None
    upper: Floats | None
    undecided: NDArray[np.bool_]

    def part(self, rows: slice) -> "Uncertainty":
        """Return what it says of some of the answers."""

        def some(values: Floats | None) -> Floats | None:
            return None if values is None else values[rows]

        return Uncertainty(
            self.law,
            self.on,
            self.scale[rows],
            some(self.above),
            some(self.below),
            some(self.lower),
            some(self.upper),
            self.undecided[rows],
        )


def _leaving_the_rest(lower: Floats, upper: Floats, probabilities: Floats) -> tuple[Floats, Floats]:
    """Return the interval of the drawn class, which differs from the others, and for these what that one leaves.

    Where all are alike nothing says which was drawn, and nothing is known of any.
    """
    common = np.sort(probabilities, axis=1)[:, 1:2]  # of three or more values of which all but one are the same
    is_drawn = probabilities != common
    one = is_drawn.sum(axis=1, keepdims=True) == 1
    left = np.where(one, 1 - np.where(is_drawn, lower, 0.0).sum(axis=1, keepdims=True), 1.0)
    return np.where(one & is_drawn, lower, 0.0), np.where(one & is_drawn, upper, left)


@lru_cache
def _gaussian_gap(classes: int) -> float:
    """Return g / s of `AnswerNoise.undecided`."""
    return math.sqrt(2) * NormalDist().inv_cdf(1 - _MISSED / (classes - 1))


@lru_cache
def _laplace_reach(classes: int) -> float:
    """Return 2 c / b."""
    return -2 * math.log(1 - COVERAGE ** (1 / classes))
