"""Bounds on the noise of an answer: an interval for each probability, and whether noise could have made the winner.

Computed from public numbers and released ones alone, so that it is post-processing and costs nothing. With a
probability of at least COVERAGE over the noise an interval holds the probability that the model gives without
noise. Where nothing is proved an answer says why in words (`UnknownNoise`).

The probability is over draws of the noise, for each question by itself, whatever the weights. It is an average over
models drawn, and none about the one that is served: noise in training is drawn once, and the answers of one model err
together. Of a model of which a share u of all answers errs, E[u] <= 1 - COVERAGE, so that u > s has a probability of at
most (1 - COVERAGE)/s over the draw of the model (Markov's inequality), and no less is proved. Noise on each answer is
independent for distinct questions: there shares of many answers are near their mean. Nor is it a probability given the
answer that was seen: that would take a prior.

Write f(z) = z_k - ln(sum of e^(z_j) over j other than k): the log-odds of class k given the logits z. The answer shows
f at z + n, and n is known noise. f is concave and its gradient, (1, -q) with q a distribution, has an L2 norm of at
most sqrt(2).

- Gaussian noise of standard deviation s on each logit. From above, f(z + n) <= f(z) + gradient . n, so f(z + n) is
  above f(z) by more than t sqrt(2) s with probability at most 1 - Phi(t). From below, f is sqrt(2)-Lipschitz, so it
  falls more than t sqrt(2) s below its median with probability at most 1 - Phi(t) (Gaussian isoperimetry: Borell 1975);
  the median of a concave function of Gaussian noise is at least its mean (Kwapien 1994), and its mean is at least f(z)
  - s^2/2 by Jensen's inequality, or f(z) itself with two classes. With t = 2 both tails together are below 4.6 %; the
  rounding of noise and logits to the grid takes from what is left.
  Where the logits' deviations s_j differ, gradient . n has one of at most sqrt(s_k^2 + m^2), m the largest of the
  others', and the mean is at least f(z) - m^2/2.
- Laplace noise of scale b on each logit: no |n_j| exceeds c = -b ln(1 - COVERAGE^(1/C)) with probability COVERAGE, and
  then f moves by at most 2 c.
- Noise on the log-odds of one class that was drawn: what is shown of this class is its log-odds without noise, and the
  noise, whose quantiles are known (1.97 s and 3 b hold 95.1 % and 95.02 %). With more than two classes the others share
  the rest evenly, whatever the model says of them: each has no more than what this class leaves.
- A class drawn by the exponential mechanism or by permute-and-flip has no interval.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import softmax

Law = Literal["gaussian", "laplace", "exponential", "permute-and-flip"]
Place = Literal["logits", "log-odds", "selection", "answer"]

COVERAGE = 0.95

_DEVIATIONS = 2.0
_QUANTILES = {"gaussian": 1.97, "laplace": 3.0}
_ERROR_SHARE = 1 - COVERAGE - 0.001
"""Probability that `undecided` misses a winner made by noise; the rest is for the rounding to the grid."""
SHOWN_DIGITS = 1e5
"""Ends of intervals are whole numbers over this."""
_LEAST = np.finfo(np.float64).tiny
_LEAST_REST = 2.0**-53
"""A probability shown as 1 leaves at most this to the others."""


@dataclass(frozen=True, eq=False)
class AnswerNoise:
    """The law by which some rows' answers differ from those without noise. Public.

    scale: (n,), one for each row; or, where the law is Gaussian, one for each logit, (n, C), or (1, C) for all rows.
    Gaussian noise has standard deviation `scale`; Laplace noise has density e^(-|x|/scale) / (2 scale). By an
    exponential law a class is drawn in proportion to e^(its logit / scale); by permute-and-flip it is the class whose
    logit is largest with exponential noise of mean `scale` on each.

    logits: (n, C), what has the noise, where that is not what the answer is the softmax of: an answer may be computed
    from the same release in a way that the noise is not known of. An interval then reaches to the answer, too.
    """

    law: Law
    scale: Floats
    on: Place = "logits"
    """Each of the logits; the log-odds of the one class that was drawn; or the draw."""
    logits: Floats | None = None

    digits: ClassVar[float] = SHOWN_DIGITS
    """Ends of intervals are whole numbers over this."""

    @cached_property
    def largest(self) -> Floats:
        """The scale of each row's answer, (n,): the largest of its classes', where they differ."""
        if self.scale.ndim == 1:
            return self.scale
        largest = self.scale.max(axis=1)
        return largest if self.logits is None else np.resize(largest, len(self.logits))

    @property
    def no_interval(self) -> str:
        """Why there is no interval, in words; empty where there is one."""
        return DRAWN if self.on == "selection" else ""

    def reach(self, probabilities: Floats) -> Floats | None:
        """Return how far log-odds shown may lie above, and below, those that intervals hold; None for a draw.

        Of answers (n, C), for each row (n, 2, 1) or for each of its classes (n, 2, C). A probability p then stands for
        one from p/(p + (1 - p) e^above) to p/(p + (1 - p) e^-below).
        """
        reach = self._reach(probabilities.shape[1])
        if reach is None:
            return None
        if self.logits is not None:
            apart = _log_odds(probabilities) - _log_odds(softmax(self.logits))
            reach = np.maximum(reach[0] + apart, 0.0), np.maximum(reach[1] - apart, 0.0)
        return np.stack(reach, axis=1)

    def _reach(self, classes: int) -> tuple[Floats, Floats] | None:
        """Return above and below of what has the noise, (1 or n, 1 or C) each."""
        scale = self.scale if self.scale.ndim == 2 else self.scale[:, None]
        if self.on == "selection":
            return None
        if self.on == "log-odds" or self.law == "laplace":
            either = (_QUANTILES[self.law] if self.on == "log-odds" else _laplace_reach(classes)) * scale
            return either, either
        largest = _largest_other(scale)
        above = _DEVIATIONS * np.sqrt(scale * scale + largest * largest)
        return above, above if classes == 2 else above + largest * largest / 2

    def ends(self, probabilities: Floats) -> Floats | None:
        """Return the least and the largest probability of answers (n, C), (n, 2, C); None for a draw.

        In whole SHOWN_DIGITS-ths, rounded outwards. Of log-odds noise only the drawn class has a lower end above 0.
        """
        reach = self._reach(probabilities.shape[1])
        if reach is None:
            return None
        # Where something else has the noise, it has the interval, which then reaches to what is shown.
        ends = _ends(probabilities if self.logits is None else softmax(self.logits), *reach)
        if self.logits is not None:
            np.minimum(ends[:, 0], probabilities, out=ends[:, 0])
            np.maximum(ends[:, 1], probabilities, out=ends[:, 1])
        ends *= SHOWN_DIGITS
        np.floor(ends[:, 0], out=ends[:, 0])
        np.ceil(ends[:, 1], out=ends[:, 1])
        if self.on == "log-odds" and probabilities.shape[1] > 2:
            return _leaving_the_rest(ends, probabilities)
        return ends

    def intervals(self, probabilities: Floats) -> tuple[Floats, Floats] | None:
        """Return `ends` as probabilities, (n, C) each."""
        return Uncertainty(self, probabilities).intervals

    def undecided(self, probabilities: Floats) -> NDArray[np.bool_] | None:
        """Return of each answer, (n, C), whether noise could have made its likeliest class so: (n,); None for draws.

        Noise on the logits: an answer counts as decided if the logit of its likeliest class a is further above each
        other than g. Let b be the model's own likeliest class. If another class a counts as decided, the noise has put
        z_a - z_b, at most 0, above g.
        - Gaussian: z_a - z_b has noise of standard deviation d = sqrt(s_a^2 + s_b^2), so with g = t d that has a
          probability of at most 1 - Phi(t) for each of the C - 1 classes a: less than 1 - COVERAGE together.
        - Laplace: g = 2 c, which no two noises' difference exceeds with probability COVERAGE.
        Decided and wrong together is what has a bound. Let d be the probability that an answer is decided: among
        decided answers the share that is wrong may be (1 - COVERAGE)/d, and with two classes that are level chance
        makes every decided answer. The other way round a decided answer rejects, at the level 1 - COVERAGE, each model
        whose likeliest class is another.
        Noise on the log-odds of a drawn class: decided if its interval lies above 1/2, for then no other is likelier.
        Of a class that was drawn alone nothing says that it is the likeliest, whatever the row.
        """
        rows, classes = probabilities.shape
        if self.on == "selection":
            return None
        if self.on == "log-odds":
            top = probabilities.max(axis=1)
            return np.asarray(_log_odds(top) <= _QUANTILES[self.law] * self.scale)
        apart = _laplace_reach(classes) if self.law == "laplace" else _gaussian_quantile(classes - 1)
        if self.scale.ndim == 1 and self.logits is None:
            second, first = np.partition(np.maximum(probabilities, _LEAST), -2, axis=1)[:, -2:].T
            within = apart * self.scale * (1.0 if self.law == "laplace" else math.sqrt(2))
            return np.asarray(np.log(first / second) <= within)
        logits = np.log(np.maximum(probabilities, _LEAST)) if self.logits is None else self.logits
        at, winner = np.arange(rows), probabilities.argmax(axis=1)
        scale = self.scale if self.scale.ndim == 2 else self.scale[:, None]
        of_winner = scale[at % len(scale), winner % scale.shape[1]]
        deviations = np.sqrt(scale * scale + (of_winner * of_winner)[:, None])
        near = logits[at, winner][:, None] - logits <= apart * deviations
        near[at, winner] = False
        return np.asarray(near.any(axis=1))


@dataclass(frozen=True)
class NumberNoise:
    """Gaussian noise on a number that is the answer itself. scale: (n,), the standard deviation in each row. Public.

    The number shown is the one without noise, and the noise: it lies further than 1.97 standard deviations away with a
    probability of at most 4.9 %, which leaves 0.1 % for the rounding to a grid.
    """

    scale: Floats
    law: ClassVar[Law] = "gaussian"
    on: ClassVar[Place] = "answer"
    no_interval: ClassVar[str] = ""
    digits: ClassVar[float] = 1.0

    @property
    def largest(self) -> Floats:
        """The scale of each row's answer, (n,)."""
        return self.scale

    def reach(self, numbers: Floats) -> Floats:
        """Return how far numbers (n, k) shown may lie above, and below, those that intervals hold: (n, 2, 1)."""
        either = _QUANTILES[self.law] * np.resize(self.scale, len(numbers))
        return np.stack([either, either], axis=1)[:, :, None]

    def ends(self, numbers: Floats) -> Floats:
        """Return the ends of the intervals of numbers (n, k): (n, 2, k)."""
        above, below = self.reach(numbers).transpose(1, 0, 2)
        return np.stack([numbers - above, numbers + below], axis=1)

    def undecided(self, numbers: Floats) -> None:
        """Return None: numbers (n, k) have no likeliest class that noise could have made so."""
        del numbers


@dataclass(frozen=True)
class UnknownNoise:
    """Noise of which nothing is proved that would make an interval. no_interval: a sentence that says why."""

    no_interval: str
    digits: ClassVar[float] = SHOWN_DIGITS
    law: None = None
    on: None = None
    largest: None = None

    def reach(self, probabilities: Floats) -> None:
        """Return that nothing is known of answers, (n, C)."""
        del probabilities

    ends = undecided = reach


AnyNoise = AnswerNoise | NumberNoise | UnknownNoise


class Uncertainty(Struct, eq=False):
    """The noise of answers, in parts: see `AnswerNoise`, whose methods give each. None: not known.

    probabilities: all answers that were computed together, (n, C), or other numbers, (n, k); rows: those that this is
    about. A part is computed when it is first asked for, for all of them; computed: what was, by its name.
    """

    noise: AnyNoise
    probabilities: Floats
    rows: slice = slice(None)
    computed: dict[str, Any] = field(default_factory=dict)

    def part(self, rows: slice) -> "Uncertainty":
        """Return what it says of some of all answers."""
        return Uncertainty(self.noise, self.probabilities, rows, self.computed)

    def for_rows(self, name: str, compute: Callable[[Floats], Any]) -> Any:
        """Return what `compute` makes of all answers, (n, ...), for these; None for None. name: of what it makes."""
        if name not in self.computed:
            self.computed[name] = compute(self.probabilities)
        column = self.computed[name]
        return None if column is None else column[self.rows]

    @property
    def scale(self) -> Floats | None:
        """The scale of each answer, (n,)."""
        largest = self.noise.largest
        return None if largest is None else largest[self.rows]

    @property
    def reach(self) -> Floats | None:
        """The distances by which log-odds may lie above, and below: (n, 2, 1) or (n, 2, C)."""
        reach: Floats | None = self.for_rows("reach", self.noise.reach)
        return reach

    @property
    def intervals(self) -> tuple[Floats, Floats] | None:
        """The least and the largest probability, (n, C) each."""
        ends = self.for_rows("ends", self.noise.ends)
        return None if ends is None else (ends[:, 0] / self.noise.digits, ends[:, 1] / self.noise.digits)

    @property
    def undecided(self) -> NDArray[np.bool_] | None:
        """Whether the noise could have made the likeliest class so, (n,); None where that is not known."""
        undecided: NDArray[np.bool_] | None = self.for_rows("undecided", self.noise.undecided)
        return undecided


DRAWN = (
    "the answer is one class, drawn by chance, the likelier by the model the likelier drawn: no probability is shown"
)
"""Why a draw has no interval."""


def _ends(probabilities: Floats, above: Floats, below: Floats) -> Floats:
    """Return the ends of the intervals, (n, 2, C)."""
    # A probability that is shown as 0 or 1 has infinite log-odds; the noisy ones were finite, and larger than this.
    shown = np.maximum(probabilities, _LEAST)
    rest = np.maximum(1 - probabilities, _LEAST_REST)
    ends = np.empty((len(shown), 2, shown.shape[1]))
    # e^700 leaves an end of 0, as anything larger does.
    np.multiply(rest, np.exp(np.minimum(above, 700.0)), out=ends[:, 0])
    np.multiply(rest, np.exp(-below), out=ends[:, 1])
    ends += shown[:, None]
    np.divide(shown[:, None], ends, out=ends)
    return ends


def _log_odds(probabilities: Floats) -> Floats:
    odds: Floats = np.log(np.maximum(probabilities, _LEAST) / np.maximum(1 - probabilities, _LEAST_REST))
    return odds


def _largest_other(scale: Floats) -> Floats:
    """Return the largest of the other numbers of its row for each of `scale`, (n, C); of (n, 1) the number itself."""
    if scale.shape[1] == 1:
        return scale
    second, first = np.partition(scale, -2, axis=1)[:, -2:].T
    # Where two are the largest, the second is it, too.
    return np.asarray(np.where(scale == first[:, None], second[:, None], first[:, None]))


def _leaving_the_rest(ends: Floats, probabilities: Floats) -> Floats:
    """Return the interval of the drawn class, which differs from the others, and for these what that one leaves.

    Where all are alike nothing says which was drawn, and nothing is known of any.
    """
    common = np.sort(probabilities, axis=1)[:, 1:2]  # of three or more values of which all but one are the same
    is_drawn = probabilities != common
    is_drawn &= is_drawn.sum(axis=1, keepdims=True) == 1
    lower = np.where(is_drawn, ends[:, 0], 0.0)
    # The others share what the drawn class leaves, so each has at most all of it.
    left = SHOWN_DIGITS - lower.sum(axis=1, keepdims=True)
    return np.stack([lower, np.where(is_drawn, ends[:, 1], left)], axis=1)


@lru_cache
def _gaussian_quantile(comparisons: int) -> float:
    """Return t of `AnswerNoise.undecided`."""
    return NormalDist().inv_cdf(1 - _ERROR_SHARE / comparisons)


@lru_cache
def _laplace_reach(classes: int) -> float:
    """Return 2 c / b."""
    return -2 * math.log(1 - COVERAGE ** (1 / classes))
