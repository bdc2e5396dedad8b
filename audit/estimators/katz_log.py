"""The Katz log interval: a lower bound of a pure epsilon from the ratio of two proportions. Asymptotic."""

import math

import scipy.special
from numpy.typing import ArrayLike

from accounting import domains
from audit.estimators.attack import Errors, LowerBound, attack


def katz(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    *,
    threshold: float | None = None,
) -> LowerBound:
    """Return a lower bound of the epsilon at delta = 0 that holds with `confidence` where all four counts are large.

    Katz et al. 1978, for audits by Lu et al. 2022; see `katz_of_errors`. It says nothing about a delta above 0.
    """

    def bound(errors: Errors) -> float:
        return katz_of_errors(errors, confidence)

    found, errors = attack(scores_in, scores_out, threshold, bound)
    return LowerBound("epsilon", bound(errors), confidence, "asymptotic", found, errors)


def katz_of_errors(errors: Errors, confidence: float) -> float:
    """Return the larger of the log ratios TPR/FPR and TNR/FNR, each less its error, or 0.

    epsilon-DP bounds both ratios by e^epsilon. ln(p/q) of proportions x/n and y/m has about the variance
    1/x - 1/n + 1/y - 1/m. Two ratios are looked at, so each is allowed (1 - confidence)/2. Half an observation is added
    to every count, so that no count is 0.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    deviations = float(-scipy.special.ndtri((1 - confidence) / 2))
    n, m = errors.positives, errors.negatives
    hits, false_alarms = n - errors.false_negatives, errors.false_positives
    rejected, missed = m - errors.false_positives, errors.false_negatives
    return max(0.0, _log_ratio(hits, n, false_alarms, m, deviations), _log_ratio(rejected, m, missed, n, deviations))


def _log_ratio(x: float, n: float, y: float, m: float, deviations: float) -> float:
    x, n, y, m = x + 0.5, n + 0.5, y + 0.5, m + 0.5
    return math.log(x / n) - math.log(y / m) - deviations * math.sqrt(1 / x - 1 / n + 1 / y - 1 / m)
