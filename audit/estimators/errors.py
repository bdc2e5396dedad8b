"""What a threshold attack did to two sets of scores, and the bound that an estimator draws from it.

Scores are numbers, one for each observation, that are larger the more an observation looks as if the record was in.
`scores_in` (n,) were observed with the record in, `scores_out` (m,) without it; within each the order says nothing.
An attack says "in" from a threshold on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray

from accounting import conversions, domains
from accounting.crossings import crossing

Floats = NDArray[np.float64]
Guarantee = Literal["exact", "asymptotic", "credible", "none"]

SELECTION_SHARE = 0.25
"""Of the scores: what chooses a threshold, and is left out of what is counted at it."""
MOST_CANDIDATES = 100
_DOWN = 1 - 2.0**-30
"""More than the searches of `accounting.conversions` are rounded up by."""


@dataclass(frozen=True)
class Errors:
    """What an attack got wrong: `false_positives` of `negatives` without the record, `false_negatives` of `positives`.

    Counts may be fractions where they stand for expected counts.
    """

    false_positives: float
    negatives: float
    false_negatives: float
    positives: float

    def __post_init__(self) -> None:
        """Refuse counts of nothing."""
        if not (0 <= self.false_positives <= self.negatives and 0 <= self.false_negatives <= self.positives):
            raise ValueError(f"errors are counted from 0 to the number of observations, unlike {self}")
        if min(self.negatives, self.positives) <= 0:
            raise ValueError("an audit needs observations with the record and without it")

    def upper_limits(self, confidence: float) -> tuple[float, float]:
        """Return (alpha, beta), both at least the true rates with probability `confidence` (Clopper and Pearson 1934).

        Each limit fails with probability at most (1 - confidence)/2, hence one of them with at most 1 - confidence.
        These are the upper ends of the two-sided intervals that Nasr et al. (2023) use.
        """
        domains.require_between("the confidence", confidence, 0, 1)
        return self.limits_beyond(1 - confidence)

    def limits_beyond(self, doubt: float) -> tuple[float, float]:
        """Return the same (alpha, beta) for the probability `doubt` that one fails, which may be too small for 1 - it.

        Raises ValueError for a doubt outside (0, 1).
        """
        return (
            upper_limit(self.false_positives, self.negatives, doubt / 2),
            upper_limit(self.false_negatives, self.positives, doubt / 2),
        )


@dataclass(frozen=True)
class LowerBound:
    """The largest parameter that the scores refute: 0 where they refute none.

    value: an epsilon, or the parameter of a family of trade-off functions, as mu. confidence: with which it holds,
    in the sense of `guarantee`: "exact" for every number of observations, "asymptotic" for many, "credible" under a
    prior, "none" for rules that do not hold. threshold, errors: of the attack, where a single one was made.
    """

    parameter: str
    value: float
    confidence: float
    guarantee: Guarantee
    threshold: float | None = None
    errors: Errors | None = None

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at delta that the bound implies, rounded down. Raises ValueError for other families.

        For an epsilon it is the value, at the delta that the estimator took.
        """
        if self.parameter == "epsilon":
            return self.value
        if self.parameter != "mu":
            raise ValueError(f"{self.parameter!r} has no epsilon of its own: ask its family")
        return epsilon_of_mu(self.value, delta)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the epsilon that no mu-GDP mechanism as leaky as the Gaussian can be below at delta, rounded down."""
    return conversions.gaussian_epsilon(min(mu, conversions.LARGEST_MU), delta) * _DOWN


def confidence_of_each(confidence: float, parts: int) -> float:
    """Return the confidence of each of `parts` findings that hold together with `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / parts


def clopper_pearson(successes: float, trials: float, confidence: float) -> float:
    """Return an upper limit of a probability that holds with `confidence` (Clopper and Pearson 1934), rounded up.

    A confidence is rounded to 1 where the doubt is below 1e-16: `upper_limit` takes any doubt.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    return upper_limit(successes, trials, 1 - confidence)


def upper_limit(successes: float, trials: float, doubt: float) -> float:
    """Return an upper limit of a probability that fails with at most `doubt` (Clopper and Pearson 1934), rounded up.

    The largest p with P(Binomial(trials, p) <= successes) >= doubt, which is a quantile of a Beta law.
    """
    domains.require_between("the doubt", doubt, 0, 1)
    if successes >= trials:
        return 1.0
    # The complement keeps the digits of small doubts.
    limit = float(scipy.special.betainccinv(successes + 1, trials - successes, doubt))
    return min(1.0, limit * (1 + 2.0**-30))


def largest_met(excess: Callable[[float], float], least: float, largest: float, tolerance: float) -> float:
    """Return the largest x from `least` to `largest` that was seen to have excess(x) <= 0, or 0 where `least` has not.

    excess grows with x and is never 0 where that must not count as met.
    """
    if excess(least) > 0:
        return 0.0
    if excess(largest) <= 0:
        return largest
    return crossing(excess, least, largest, tolerance=tolerance).met


def checked(scores: ArrayLike) -> Floats:
    """Return scores as float64 (n,). Infinities are scores like others. Raises ValueError for none, or for NaN."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"scores must be a list of at least one number, not have shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError("a score is not a number (NaN)")
    return values


def errors_at(scores_in: ArrayLike, scores_out: ArrayLike, threshold: float) -> Errors:
    """Return the errors of saying "in" for scores of at least `threshold`."""
    inside, outside = checked(scores_in), checked(scores_out)
    return Errors(
        float(np.count_nonzero(outside >= threshold)),
        float(len(outside)),
        float(np.count_nonzero(inside < threshold)),
        float(len(inside)),
    )


def candidates(scores_in: Floats, scores_out: Floats) -> Floats:
    """Return thresholds to choose from: at most MOST_CANDIDATES of the scores, evenly spread, in ascending order."""
    values = np.unique(np.concatenate([scores_in, scores_out]))
    if len(values) <= MOST_CANDIDATES:
        return values
    return values[np.linspace(0, len(values) - 1, MOST_CANDIDATES).astype(np.int64)]


def held_out(scores: Floats) -> tuple[Floats, Floats]:
    """Return the first SELECTION_SHARE of the scores, to choose a threshold by, and the rest, to count errors on.

    Raises ValueError where either would be empty.
    """
    cut = round(len(scores) * SELECTION_SHARE)
    if not 0 < cut < len(scores):
        raise ValueError(
            f"{len(scores)} scores are too few to choose a threshold on some and count errors on others; "
            "state the threshold"
        )
    return scores[:cut], scores[cut:]


def thresholded(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    threshold: float | None,
    worth: Callable[[Errors], float],
) -> tuple[float, Errors]:
    """Return the threshold and its errors. Without a threshold, the first SELECTION_SHARE of the scores chooses one.

    The chosen one is worth most if its error rates there, each drawn half an observation towards 1/2, were those of
    as many observations as remain; errors are counted on what remains only. The threshold is then independent of
    what is counted, so that a bound for one fixed threshold holds. A stated threshold must not come from the scores.
    """
    inside, outside = checked(scores_in), checked(scores_out)
    if threshold is not None:
        return threshold, errors_at(inside, outside, threshold)
    some_in, inside = held_out(inside)
    some_out, outside = held_out(outside)
    n, m = len(inside), len(outside)

    thresholds = candidates(some_in, some_out)
    alarms = len(some_out) - np.searchsorted(np.sort(some_out), thresholds, side="left")
    misses = np.searchsorted(np.sort(some_in), thresholds, side="left")
    false_positives = (alarms + 0.5) / (len(some_out) + 1) * m
    false_negatives = (misses + 0.5) / (len(some_in) + 1) * n
    worths = [
        worth(Errors(float(wrong), m, float(missed), n))
        for wrong, missed in zip(false_positives, false_negatives, strict=True)
    ]
    best = float(thresholds[int(np.argmax(worths))])
    return best, errors_at(inside, outside, best)
