"""mu from many thresholds of the same scores at once: as close as 10,000 observations allow. Asymptotic.

One threshold uses 64 % of what Gaussian observations say about their distance, and Clopper and Pearson's two limits
must hold together. Here the tests at many thresholds enter one sum, and only the sum needs a limit.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from accounting import domains
from accounting.crossings import crossing
from audit.estimators.attack import LowerBound, checked, errors_at, held_out
from audit.estimators.error_rates import SELECTION_SHARE, gdp_of_errors

Floats = NDArray[np.float64]

FEWEST_SCORES = 500
_LEAST_MU, _LARGEST_MU = 1e-3, 20.0
_DEVIATIONS = np.linspace(-2.4, 2.4, 25)
_ROUNDING = 2.0**-36


@dataclass(frozen=True, eq=False)
class Design:
    """Which tests enter the sum: thresholds (k,), the log of each line's slope (k,) and weights (k,), none negative.

    It must not come from the scores that the bound is computed from.
    """

    thresholds: Floats
    epsilons: Floats
    weights: Floats

    @classmethod
    def of_log_ratios(cls, mu: float) -> "Design":
        """Return the design for scores that are log-likelihood ratios, best where the truth is near `mu`.

        The best test of slope e^epsilon says "in" where the log-ratio is at least epsilon.
        """
        domains.require_between("the mu of a design", mu, 0, math.inf)
        mu = min(max(mu, _LEAST_MU), _LARGEST_MU)
        points = _DEVIATIONS + mu / 2
        epsilons = mu * points - mu * mu / 2
        return cls(epsilons, epsilons, _weights(mu, points, epsilons))

    @classmethod
    def of_scores(cls, scores_in: ArrayLike, scores_out: ArrayLike) -> "Design":
        """Return the design for scores of any scale, from other scores of the same kind."""
        inside, outside = checked(scores_in), checked(scores_out)
        middle = (float(np.median(inside)) + float(np.median(outside))) / 2
        mu = min(max(gdp_of_errors(errors_at(inside, outside, middle), 0.01), _LEAST_MU), _LARGEST_MU)
        points = _DEVIATIONS + mu / 2
        thresholds = np.quantile(outside, scipy.special.ndtr(points))
        # Beyond what the scores without the record reach, those with it say where the threshold lies.
        beyond = points > mu / 2
        thresholds[beyond] = np.quantile(inside, scipy.special.ndtr(points[beyond] - mu))
        epsilons = mu * points - mu * mu / 2
        return cls(thresholds, epsilons, _weights(mu, points, epsilons))


def _weights(mu: float, points: Floats, epsilons: Floats) -> Floats:
    """Return the weights that measure mu with the least variance, for normal scores, none of them negative.

    The sum's mean grows with mu at the rate w . d, d = phi(-epsilon/mu + mu/2), and its variance is w V w.
    """
    outside, inside = scipy.special.ndtr(-points), scipy.special.ndtr(mu - points)
    among_out = np.minimum.outer(outside, outside) - np.outer(outside, outside)
    among_in = np.minimum.outer(inside, inside) - np.outer(inside, inside)
    variance = among_in + np.exp(np.add.outer(epsilons, epsilons)) * among_out
    growth = np.exp(-((mu / 2 - epsilons / mu) ** 2) / 2)
    root = np.linalg.cholesky(variance + 1e-12 * np.trace(variance) * np.eye(len(points)))
    weights: Floats = np.asarray(nnls(root.T, np.linalg.solve(root, growth))[0], dtype=np.float64)
    weights /= weights.sum()
    return weights


def gdp_of_many_thresholds(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    *,
    design: Design | None = None,
    selection_share: float = SELECTION_SHARE,
) -> LowerBound:
    """Return a lower bound of mu that holds with about `confidence` for many scores, at least FEWEST_SCORES of each.

    Without a design, the first `selection_share` of the scores makes one and is left out.

    Why. mu-GDP means P_in(S) - e^epsilon P_out(S) <= delta_mu(epsilon) for every test S and every real epsilon. With
    S_k = [score >= threshold_k] and weights w_k >= 0,

        E_in[A] - E_out[B] <= sum_k w_k delta_mu(epsilon_k),   A = sum_k w_k 1[S_k],   B = sum_k w_k e^epsilon_k 1[S_k],

    whatever the scores' laws: the design decides only how close this comes. The right side increases with mu. The
    left side is a difference of two means of independent, bounded terms; its lower limit is the normal one,
    difference - z sqrt(var_in/n + var_out/m), which is where the bound is asymptotic and not exact.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    inside, outside = checked(scores_in), checked(scores_out)
    if design is None:
        some_in, inside = held_out(inside, selection_share)
        some_out, outside = held_out(outside, selection_share)
        design = Design.of_scores(some_in, some_out)
    if min(len(inside), len(outside)) < FEWEST_SCORES:
        raise ValueError(f"many thresholds need at least {FEWEST_SCORES} scores of each kind, for their normal limit")
    in_terms = _steps(inside, design.thresholds, design.weights)
    out_terms = _steps(outside, design.thresholds, design.weights * np.exp(design.epsilons))
    error = math.sqrt(float(in_terms.var(ddof=1)) / len(inside) + float(out_terms.var(ddof=1)) / len(outside))
    limit = float(in_terms.mean() - out_terms.mean()) + float(scipy.special.ndtri(1 - confidence)) * error
    return LowerBound("mu", _largest_below(limit, design), confidence, "asymptotic")


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

    if excess(0.0) > 0:
        return 0.0
    if excess(_LARGEST_MU) <= 0:
        return _LARGEST_MU
    return crossing(excess, 0.0, _LARGEST_MU, tolerance=2.0**-40).met


def _gaussian_deltas(mu: float, epsilons: Floats) -> Floats:
    """Return Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), for epsilons of either sign."""
    if mu == 0:
        return np.maximum(-np.expm1(epsilons), 0.0)
    scaled = epsilons / mu
    deltas: Floats = scipy.special.ndtr(mu / 2 - scaled) - np.exp(epsilons) * scipy.special.ndtr(-mu / 2 - scaled)
    return deltas
