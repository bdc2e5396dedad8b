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

- Noise on each logit: `dpserve.mechanisms.laws` has how far it moves a class's log-odds, with the proof.
- Noise on the log-odds of one class that was drawn: what is shown of this class is its log-odds without noise, and the
  noise, whose quantile is known. With more than two classes the others share the rest evenly, whatever the model says
  of them: each has no more than what this class leaves.
- A class that was drawn has no interval.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from msgspec import field as struct_field
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.laws import GAUSSIAN, Law

Place = Literal["logits", "log-odds", "selection", "answer"]

SHOWN_DIGITS = 1e5
"""Ends of intervals are whole numbers over this."""
_LEAST = np.finfo(np.float64).tiny
_LEAST_REST = 2.0**-53
"""A probability shown as 1 leaves at most this to the others."""


@dataclass(frozen=True, eq=False)
class AnswerNoise:
    """The law by which some rows' answers differ from those without noise. Public.

    scale: (n,), one for each row; or one for each logit, (n, C), or (1, C) for all rows.

    logits: (n, C), what has the noise, where that is not what the answer is the softmax of: an answer may be computed
    from the same release in a way that the noise is not known of. An interval then reaches to the answer, too.
    """

    law: Law
    scale: Floats
    on: Literal["logits", "log-odds"] = "logits"
    """Each of the logits; or the log-odds of the one class that was drawn."""
    logits: Floats | None = None
    rounding: float = 0.0
    """The most by which what is drawn lies off the law, over the scale. Tests of noise allow for it."""

    no_interval: ClassVar[str] = ""
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
    def law_name(self) -> str:
        """The law's name, as a client reads it."""
        return self.law.name

    def reach(self, probabilities: Floats) -> Floats:
        """Return how far log-odds shown may lie above, and below, those that intervals hold.

        Of answers (n, C), for each row (n, 2, 1) or for each of its classes (n, 2, C). A probability p then stands for
        one from p/(p + (1 - p) e^above) to p/(p + (1 - p) e^-below).
        """
        reach = self._reach(probabilities.shape[1])
        if self.logits is not None:
            apart = _log_odds(probabilities) - _log_odds(softmax(self.logits))
            reach = np.maximum(reach[0] + apart, 0.0), np.maximum(reach[1] - apart, 0.0)
        return np.stack(reach, axis=1)

    def _reach(self, classes: int) -> tuple[Floats, Floats]:
        """Return above and below of what has the noise, (1 or n, 1 or C) each."""
        scale = self.scale if self.scale.ndim == 2 else self.scale[:, None]
        if self.on == "log-odds":
            either = self.law.quantile * scale
            return either, either
        return self.law.reach(scale, classes)

    def ends(self, probabilities: Floats) -> Floats:
        """Return the least and the largest probability of answers (n, C), (n, 2, C).

        In whole SHOWN_DIGITS-ths, rounded outwards. Of log-odds noise only the drawn class has a lower end above 0.
        """
        reach = self._reach(probabilities.shape[1])
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

    def undecided(self, probabilities: Floats) -> NDArray[np.bool_]:
        """Return of each answer, (n, C), whether noise could have made its likeliest class so: (n,).

        Noise on the logits: an answer counts as decided if the logit of its likeliest class a is further above each
        other than the margin (`Law.margin`). Let b be the model's own likeliest class. If another class a counts as
        decided, the noise has put z_a - z_b, at most 0, above the margin: with a probability of less than 1 - COVERAGE,
        for all a together.
        Decided and wrong together is what has a bound. Let d be the probability that an answer is decided: among
        decided answers the share that is wrong may be (1 - COVERAGE)/d, and with two classes that are level chance
        makes every decided answer. The other way round a decided answer rejects, at the level 1 - COVERAGE, each model
        whose likeliest class is another.
        Noise on the log-odds of a drawn class: decided if its interval lies above 1/2, for then no other is likelier.
        """
        rows, margin = len(probabilities), _margin(self.law, probabilities.shape[1])
        if self.on == "log-odds":
            top = probabilities.max(axis=1)
            return np.asarray(_log_odds(top) <= self.law.quantile * self.scale)
        if self.scale.ndim == 1 and self.logits is None:
            second, first = np.partition(np.maximum(probabilities, _LEAST), -2, axis=1)[:, -2:].T
            return np.asarray(np.log(first / second) <= margin * self.law.apart(self.scale, self.scale))
        logits = np.log(np.maximum(probabilities, _LEAST)) if self.logits is None else self.logits
        at, winner = np.arange(rows), probabilities.argmax(axis=1)
        scale = self.scale if self.scale.ndim == 2 else self.scale[:, None]
        of_winner = scale[at % len(scale), winner % scale.shape[1]]
        near = logits[at, winner][:, None] - logits <= margin * self.law.apart(scale, of_winner[:, None])
        near[at, winner] = False
        return np.asarray(near.any(axis=1))


@dataclass(frozen=True)
class NumberNoise:
    """Gaussian noise on a number that is the answer itself. scale: (n,), the standard deviation in each row. Public.

    The number shown is the one without noise, and the noise, whose quantile is known.
    """

    scale: Floats
    law_name: ClassVar[str] = GAUSSIAN.name
    on: ClassVar[Place] = "answer"
    no_interval: ClassVar[str] = ""
    digits: ClassVar[float] = 1.0

    @property
    def largest(self) -> Floats:
        """The scale of each row's answer, (n,)."""
        return self.scale

    def reach(self, numbers: Floats) -> Floats:
        """Return how far numbers (n, k) shown may lie above, and below, those that intervals hold: (n, 2, 1)."""
        either = GAUSSIAN.quantile * np.resize(self.scale, len(numbers))
        return np.stack([either, either], axis=1)[:, :, None]

    def ends(self, numbers: Floats) -> Floats:
        """Return the ends of the intervals of numbers (n, k): (n, 2, k)."""
        above, below = self.reach(numbers).transpose(1, 0, 2)
        return np.stack([numbers - above, numbers + below], axis=1)

    def undecided(self, numbers: Floats) -> None:
        """Return None: numbers (n, k) have no likeliest class that noise could have made so."""
        del numbers


DRAWN = (
    "the answer is one class, drawn by chance, the likelier by the model the likelier drawn: no probability is shown"
)
"""Why a draw has no interval."""


@dataclass(frozen=True)
class UnknownNoise:
    """Noise of which nothing is proved that would make an interval. no_interval: a sentence that says why."""

    no_interval: str
    digits: ClassVar[float] = SHOWN_DIGITS

    @property
    def law_name(self) -> str | None:
        """The name of the law, where a client is told of one."""
        return None

    @property
    def on(self) -> Place | None:
        """The place of the noise, where a client is told of one."""
        return None

    @property
    def largest(self) -> Floats | None:
        """The scale of each row's answer, (n,), where a client is told of one."""
        return None

    def reach(self, probabilities: Floats) -> None:
        """Return that nothing is known of answers, (n, C)."""
        del probabilities

    ends = undecided = reach


@dataclass(frozen=True, eq=False)
class SelectionNoise(UnknownNoise):
    """The draw of one class, shown alone, of which nothing says that it is the likeliest. law, scale: of the draw.

    By an exponential law a class is drawn in proportion to e^(its logit / scale); by permute-and-flip it is the class
    whose logit is largest with exponential noise of mean `scale` on each. scale: (n,).
    """

    no_interval: str = field(default=DRAWN, init=False)
    law: str = field(kw_only=True)
    scale: Floats = field(kw_only=True)

    @property
    def law_name(self) -> str:
        """The name of the law."""
        return self.law

    @property
    def on(self) -> Place:
        """The selection."""
        return "selection"

    @property
    def largest(self) -> Floats:
        """The scale of each row's draw, (n,)."""
        return self.scale


@dataclass(frozen=True, eq=False)
class HiddenNoise(UnknownNoise):
    """Noise on one of each row's logits, which the answer does not name. For attacks: clients hear that it is unknown.

    law: of that noise; scale: (n,).
    """

    law: Law
    scale: Floats


AnyNoise = AnswerNoise | NumberNoise | UnknownNoise


class Uncertainty(Struct, eq=False):
    """The noise of answers, in parts: see `AnswerNoise`, whose methods give each. None: not known.

    probabilities: all answers that were computed together, (n, C), or other numbers, (n, k); rows: those that this is
    about. A part is computed when it is first asked for, for all of them; computed: what was, by its name.
    """

    noise: AnyNoise
    probabilities: Floats
    rows: slice = slice(None)
    computed: dict[str, Any] = struct_field(default_factory=dict)

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


@lru_cache
def _margin(law: Law, classes: int) -> float:
    return law.margin(classes)


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
