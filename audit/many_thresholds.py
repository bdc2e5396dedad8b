"""mu from many thresholds of the same scores at once: as close as 10,000 observations allow. Asymptotic.

One threshold uses 64 % of what Gaussian observations say about their distance. Here the tests at many thresholds enter
one sum, and only the sum needs a limit. The limit is the normal one, corrected for skewness and a little stricter than
its name: of simulated audits it exceeds the truth in fewer than 1 - confidence. It is shown, and convicts nobody.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy.special
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from accounting import domains
from accounting.arrays import Floats
from audit.estimators import LowerBound, check_scores, largest_met

FEWEST_SCORES = 500
_LEAST_MU, _LARGEST_MU = 1e-3, 20.0
_DEVIATIONS = np.linspace(-2.4, 2.4, 25)
_ROUNDING = 2.0**-36
_FEWEST_ERRORS = 20.0
"""Fewest scores of either kind expected on the wrong side of a threshold: rarer errors are not normal."""
_STRICTER = 0.98
"""Share of the doubt 1 - confidence at which the limit is taken; the rest covers what the skewness leaves out."""


@dataclass(frozen=True, eq=False)
class Design:
    """Which tests enter the sum, by the log of each line's slope (k,), and their weights (k,), none negative.

    The test of slope e^epsilon says "in" where a log-likelihood ratio is at least epsilon, which is the best there is.

    It must not come from the scores that the bound is computed from. k is 0 where so many scores of two worlds so far
    apart would hardly err.
    """

    epsilons: Floats
    weights: Floats

    @classmethod
    def for_log_ratios(cls, mu: float, scores: int) -> "Design":
        """Return the design for so many log-likelihood ratios of either kind, best where the truth is near `mu`."""
        domains.require_between("the mu of a design", mu, 0, math.inf)
        mu = min(max(mu, _LEAST_MU), _LARGEST_MU)
        points = _points(mu, scores)
        epsilons = mu * points - mu * mu / 2
        return cls(epsilons, _weights(mu, points, epsilons))


def _points(mu: float, scores: int) -> Floats:
    """Return where to look, in deviations: points (k,) beyond which enough of so many scores of either kind are."""
    points = _DEVIATIONS + mu / 2
    kept: Floats = points[
        scores * np.minimum(scipy.special.ndtr(-points), scipy.special.ndtr(points - mu)) >= _FEWEST_ERRORS
    ]
    return kept


def _weights(mu: float, points: Floats, epsilons: Floats) -> Floats:
    """Return the weights that measure mu with the least variance, for normal scores, none of them negative.

    The sum's mean grows with mu at the rate w . d, d = phi(-epsilon/mu + mu/2), and its variance is w V w.
    """
    if len(points) == 0:
        return points
    outside, inside = scipy.special.ndtr(-points), scipy.special.ndtr(mu - points)
    among_out = np.minimum.outer(outside, outside) - np.outer(outside, outside)
    among_in = np.minimum.outer(inside, inside) - np.outer(inside, inside)
    variance = among_in + np.exp(np.add.outer(epsilons, epsilons)) * among_out
    growth = np.exp(-((mu / 2 - epsilons / mu) ** 2) / 2)
    # In units of each test's own deviation, which differ by orders of magnitude where mu is large.
    units = 1 / np.sqrt(np.diag(variance))
    root = np.linalg.cholesky(variance * np.outer(units, units) + 1e-12 * len(points) * np.eye(len(points)))
    weights: Floats = np.asarray(nnls(root.T, np.linalg.solve(root, growth * units))[0], dtype=np.float64) * units
    weights /= weights.sum()
    return weights


def gdp_of_many_thresholds(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    *,
    design: Design,
) -> LowerBound:
    """Return a lower bound of mu that holds with about `confidence` for many scores, at least FEWEST_SCORES of each.

    Why. mu-GDP means P_in(S) - e^epsilon P_out(S) <= delta_mu(epsilon) for every test S and every real epsilon. With
    S_k = [score >= threshold_k] and weights w_k >= 0,

        E_in[A] - E_out[B] <= sum_k w_k delta_mu(epsilon_k),   A = sum_k w_k 1[S_k],   B = sum_k w_k e^epsilon_k 1[S_k],

    whatever the scores' laws: the design decides only how close this comes. The right side increases with mu. The
    left side is a difference of two means of independent, bounded terms. Its lower limit is difference - t e, with
    e^2 = var_in/n + var_out/m, and this is where the bound is asymptotic: t = z + (2 z^2 + 1)/6 max(0, -g), where g is
    the difference's skewness, removes the first error of the normal limit (Hall 1992, Section 2.6: P(T <= x) =
    Phi(x) + g (2 x^2 + 1) phi(x)/6 + O(1/n) for a mean over its estimated deviation). Skewness to the other side would
    make the limit closer, and is not used. A test on whose wrong side fewer than half of _FEWEST_ERRORS scores of
    either kind were seen is left out: that it erred so seldom speaks for a large mu, and to leave it out errs on the
    safe side.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    inside, outside = check_scores(scores_in), check_scores(scores_out)
    if min(len(inside), len(outside)) < FEWEST_SCORES:
        raise ValueError(
            f"many thresholds need at least {FEWEST_SCORES} scores of members and as many of others: of fewer the "
            "normal approximation does not hold"
        )
    design = _without_the_rare(design, inside, outside)
    if not design.weights.any():
        return LowerBound("mu", 0.0, confidence, "asymptotic")
    terms = (
        _steps(inside, design.epsilons, design.weights),
        -_steps(outside, design.epsilons, design.weights * np.exp(design.epsilons)),
    )
    square = sum(float(each.var(ddof=1)) / len(each) for each in terms)
    skewness = sum(float(((each - each.mean()) ** 3).mean()) / len(each) ** 2 for each in terms) / square**1.5
    normal = -float(scipy.special.ndtri(_STRICTER * (1 - confidence)))
    deviations = normal + max(0.0, -skewness) * (2 * normal**2 + 1) / 6
    limit = sum(float(each.mean()) for each in terms) - deviations * math.sqrt(square)
    return LowerBound("mu", _largest_below(limit, design), confidence, "asymptotic")


def _without_the_rare(design: Design, inside: Floats, outside: Floats) -> Design:
    """Return the design with no weight on tests that too few scores of either kind fail."""
    alarms = len(outside) - np.searchsorted(np.sort(outside), design.epsilons, side="left")
    misses = np.searchsorted(np.sort(inside), design.epsilons, side="left")
    weights = np.where(np.minimum(alarms, misses) >= _FEWEST_ERRORS / 2, design.weights, 0.0)
    return replace(design, weights=weights)


def _steps(scores: Floats, thresholds: Floats, heights: Floats) -> Floats:
    """Return the sum of the heights of the thresholds that each score reaches."""
    order = np.argsort(thresholds)
    totals = np.concatenate([[0.0], np.cumsum(heights[order])])
    reached: Floats = totals[np.searchsorted(thresholds[order], scores, side="right")]
    return reached


def _largest_below(limit: float, design: Design) -> float:
    """Return the largest mu with sum_k w_k delta_mu(epsilon_k) < limit, or 0."""

    def excess(mu: float) -> float:
        total = float(design.weights @ _gaussian_deltas(mu, design.epsilons)) + _ROUNDING - limit
        return total or math.ulp(0.0)

    return largest_met(excess, 0.0, _LARGEST_MU, 2.0**-40)


def _gaussian_deltas(mu: float, epsilons: Floats) -> Floats:
    """Return Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), for epsilons of either sign."""
    if mu == 0:
        return np.maximum(-np.expm1(epsilons), 0.0)
    scaled = epsilons / mu
    deltas: Floats = scipy.special.ndtr(mu / 2 - scaled) - np.exp(epsilons) * scipy.special.ndtr(-mu / 2 - scaled)
    return deltas
