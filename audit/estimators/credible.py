"""Bayesian lower bounds: the lower end of a credible interval (Zanella-Beguelin et al. 2022). No confidence bounds.

The error rates have independent Beta posteriors, from counts and Jeffreys' prior Beta(1/2, 1/2). The bound is the
parameter t below which the posterior probability of "f_t holds" is at most (1 - confidence)/2, the lower end of the
equal-tailed interval (Nasr et al. 2023, Equations 10 to 14).

What is promised: given the prior and the counts, the parameter is below the bound with probability at most
(1 - confidence)/2. Not that the bound fails for a share of audits of at most that: for a given pair of error rates it
may. Here "f_t holds" asks beta >= f_t(alpha) for the attack as it was made. The literature's region also asks that
the attack's complement is no better, and shrinks to the line alpha + beta = 1 as epsilon tends to 0 at delta = 0; a
region without area has no posterior probability, and its bound is above 0 whatever was observed.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.special
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike

from accounting import domains
from accounting.crossings import crossing
from audit.estimators.attack import Errors, Floats, LowerBound, attack
from audit.estimators.error_rates import epsilon_delta_of_errors, gdp_of_errors
from audit.estimators.families import GAUSSIAN, Family
from audit.estimators.families import epsilon_delta as epsilon_delta_family

_QUANTILES, _WEIGHTS = leggauss(256)
_QUANTILES, _WEIGHTS = (_QUANTILES + 1) / 2, _WEIGHTS / 2


def credible_epsilon_delta(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    *,
    delta: float,
    threshold: float | None = None,
) -> LowerBound:
    """Return the lower end of the credible interval of epsilon at delta."""
    return _credible(
        (scores_in, scores_out),
        confidence,
        epsilon_delta_family(delta),
        threshold,
        lambda errors: epsilon_delta_of_errors(errors, confidence, delta),
    )


def credible_gdp(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    *,
    threshold: float | None = None,
) -> LowerBound:
    """Return the lower end of the credible interval of mu."""
    return credible_tradeoff(scores_in, scores_out, confidence, GAUSSIAN, threshold=threshold)


def credible_tradeoff(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float,
    family: Family,
    *,
    threshold: float | None = None,
) -> LowerBound:
    """Return the lower end of the credible interval of the family's parameter."""
    return _credible(
        (scores_in, scores_out),
        confidence,
        family,
        threshold,
        lambda errors: gdp_of_errors(errors, confidence),
    )


def credible_of_errors(errors: Errors, confidence: float, family: Family) -> float:
    """Return the largest parameter whose posterior probability of standing is at most (1 - confidence)/2, or 0."""
    domains.require_between("the confidence", confidence, 0, 1)
    doubt = (1 - confidence) / 2
    # Nodes in the posterior's own quantiles: its mass lies where it is integrated, however narrow it is.
    levels: Floats = np.asarray(
        scipy.special.betaincinv(
            errors.false_positives + 0.5, errors.negatives - errors.false_positives + 0.5, _QUANTILES
        )
    )
    missed, found = errors.false_negatives + 0.5, errors.positives - errors.false_negatives + 0.5

    def excess(parameter: float) -> float:
        above = scipy.special.betaincc(missed, found, family.tradeoff(parameter, levels))
        return (float(_WEIGHTS @ above) - doubt) or -math.ulp(0.0)

    if excess(0.0) > 0:
        return 0.0
    if excess(family.largest) <= 0:
        return family.largest
    return crossing(excess, 0.0, family.largest, tolerance=max(family.tolerance, 1e-9)).met


def _credible(
    scores: tuple[ArrayLike, ArrayLike],
    confidence: float,
    family: Family,
    threshold: float | None,
    worth: Callable[[Errors], float],
) -> LowerBound:
    found, errors = attack(*scores, threshold, worth)
    value = credible_of_errors(errors, confidence, family)
    return LowerBound(family.parameter, value, confidence, "credible", found, errors)
