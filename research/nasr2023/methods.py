"""The methods of Table 1 (Nasr et al. 2023) that an audit does not need: credible bounds, and the Katz log interval.

Credible bounds are Bayesian, the lower end of a credible interval (Zanella-Beguelin et al. 2022), and no confidence
bounds. The error rates have independent Beta posteriors, from counts and Jeffreys' prior Beta(1/2, 1/2). The bound is
the parameter t below which the posterior probability of "f_t holds" is at most (1 - confidence)/2, the lower end of the
equal-tailed interval (Nasr et al. 2023, Equations 10 to 14). What is promised: given the prior and the counts, the
parameter is below the bound with probability at most (1 - confidence)/2. Not that the bound fails for a share of audits
of at most that: for a given pair of error rates it may. Here "f_t holds" asks beta >= f_t(alpha) for the attack as it
was made. The literature's region also asks that the attack's complement is no better, and shrinks to the line
alpha + beta = 1 as epsilon tends to 0 at delta = 0; a region without area has no posterior probability, and its bound
is above 0 whatever was observed.

Katz's is asymptotic: it holds where all four counts are large.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal, get_args

import numpy as np
import scipy.special
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike

from dpserve.accounting import domains
from dpserve.accounting.arrays import Floats
from dpserve.audit import estimators
from dpserve.audit.estimators import (
    Errors,
    LowerBound,
    epsilon_delta_of_errors,
    gdp_of_errors,
    largest_met,
    lower_bound,
)
from dpserve.audit.families import GAUSSIAN, Family
from dpserve.audit.families import epsilon_delta as epsilon_delta_family
from research.white_box import bounds as step_bounds
from research.white_box.bounds import ClaimedRun, Measured, Row, StepFinding, run_epsilon

Method = Literal["f-DP (CP)", "f-DP (ZB)", "(eps, delta)-DP (CP)", "(eps, delta)-DP (ZB)", "eps-DP (Katz)"]
METHODS: tuple[Method, ...] = get_args(Method)
NOTE = "f-DP (ZB) and (eps, delta)-DP (ZB) are Bayesian credible bounds; eps-DP (Katz) is at delta = 0 and asymptotic."

_QUANTILES, _WEIGHTS = leggauss(256)
_QUANTILES, _WEIGHTS = (_QUANTILES + 1) / 2, _WEIGHTS / 2


def judge(measured: Measured, confidence: float, conviction_confidence: float) -> StepFinding:
    """Return the audit's finding with a row for each of the table's methods."""
    found = step_bounds.judge(measured, confidence, conviction_confidence)
    claim, scores = measured.claim, (measured.with_canary, measured.without)
    bounds = {method: step_bound(*scores, method, confidence, claim) for method in METHODS}
    rows = (Row(method, one, one.epsilon(claim.delta), run_epsilon(one, claim)) for method, one in bounds.items())
    return replace(found, rows=(*found.rows, *rows))


def step_bound(inside: Floats, outside: Floats, method: Method, confidence: float, claim: ClaimedRun) -> LowerBound:
    """Return the bound of one step by one of Table 1's methods.

    inside, outside: observations with a canary that joined for certain, and without it. The threshold is fixed before
    they are seen (`designed_threshold`), so that all of them count.
    """
    bound: Mapping[Method, Callable[..., LowerBound]] = {
        "f-DP (CP)": estimators.gdp,
        "f-DP (ZB)": credible_gdp,
        "(eps, delta)-DP (CP)": partial(estimators.epsilon_delta, delta=claim.delta),
        "(eps, delta)-DP (ZB)": partial(credible_epsilon_delta, delta=claim.delta),
        "eps-DP (Katz)": katz,
    }
    threshold = designed_threshold(method, confidence, claim, len(inside))
    return bound[method](inside, outside, confidence, threshold=threshold)


def bound_as_published(
    inside: Floats, outside: Floats, method: Method, confidence: float, claim: ClaimedRun
) -> LowerBound:
    """Return the largest bound of any threshold of the very observations that it is judged by: no bound at all.

    The literature's rule. Its confidence is that of one threshold fixed in advance, and the best of many exceeds it.
    Credible bounds take the threshold at which their exact counterpart is largest. 400 quantiles of the observations,
    the fifty least and largest of them, and the threshold fixed in advance stand for all.
    """
    of_errors: Mapping[str, Callable[[Errors], float]] = {
        "f-DP": lambda errors: gdp_of_errors(errors, confidence),
        "(eps": lambda errors: epsilon_delta_of_errors(errors, confidence, claim.delta),
        "eps-": lambda errors: katz_of_errors(errors, confidence),
    }
    worth = of_errors[method[:4]]
    ordered = np.sort(np.concatenate([inside, outside]))
    designed = [designed_threshold(method, confidence, claim, len(inside))]
    quantiles = np.quantile(ordered, np.linspace(0, 1, 400))
    thresholds = np.unique(np.concatenate([quantiles, ordered[:50], ordered[-50:], designed]))
    best = max(
        (
            Errors(float((outside > cut).sum()), len(outside), float((inside <= cut).sum()), len(inside))
            for cut in map(float, thresholds)
        ),
        key=worth,
    )
    value = worth(best)
    if method.endswith("(ZB)"):
        family = GAUSSIAN if method.startswith("f-DP") else epsilon_delta_family(claim.delta)
        value = credible_of_errors(best, confidence, family)
    parameter = "mu" if method.startswith("f-DP") else "epsilon"
    return LowerBound(parameter, value, confidence, "none", errors=best)


@lru_cache(maxsize=256)
def designed_threshold(method: Method, confidence: float, claim: ClaimedRun, count: int) -> float:
    """Return the threshold at which `count` observations each, as the claim has them, are expected to say most.

    Of N(0, s^2) and N(1, s^2); credible bounds take the threshold of their exact counterpart. For the Gaussian family
    it is 1/2, or little else; for (epsilon, delta) it lies where false positives are few (Nasr et al. 2023, Appendix
    C.1).
    """

    def expected(threshold: float) -> float:
        false_positives, false_negatives = scipy.special.ndtr(
            np.array([-threshold, threshold - 1]) / claim.noise_multiplier
        )
        errors = Errors(count * false_positives, count, count * false_negatives, count)
        if method.startswith("f-DP"):
            return estimators.gdp_of_errors(errors, confidence)
        if method.startswith("(eps"):
            return estimators.epsilon_delta_of_errors(errors, confidence, claim.delta)
        return katz_of_errors(errors, confidence)

    return max(map(float, 0.5 + claim.noise_multiplier * np.linspace(0, 5, 101)), key=expected)


def credible_epsilon_delta(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, delta: float, threshold: float | None = None
) -> LowerBound:
    """Return the lower end of the credible interval of epsilon at delta."""
    return lower_bound(
        "epsilon",
        (scores_in, scores_out),
        confidence,
        threshold,
        lambda errors: credible_of_errors(errors, confidence, epsilon_delta_family(delta)),
        worth=lambda errors: epsilon_delta_of_errors(errors, confidence, delta),
        guarantee="credible",
    )


def credible_gdp(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, threshold: float | None = None
) -> LowerBound:
    """Return the lower end of the credible interval of mu."""
    return lower_bound(
        "mu",
        (scores_in, scores_out),
        confidence,
        threshold,
        lambda errors: credible_of_errors(errors, confidence, GAUSSIAN),
        worth=lambda errors: gdp_of_errors(errors, confidence),
        guarantee="credible",
    )


def katz(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, threshold: float | None = None
) -> LowerBound:
    """Return a lower bound of the epsilon at delta = 0 that holds with `confidence` where all four counts are large.

    Katz et al. 1978, for audits by Lu et al. 2022; see `katz_of_errors`. It says nothing about a delta above 0.
    """
    return lower_bound(
        "epsilon",
        (scores_in, scores_out),
        confidence,
        threshold,
        lambda errors: katz_of_errors(errors, confidence),
        guarantee="asymptotic",
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

    return largest_met(excess, 0.0, family.largest, max(family.tolerance, 1e-9))


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
    return max(
        0.0,
        _log_ratio_of_proportions(hits, n, false_alarms, m, deviations),
        _log_ratio_of_proportions(rejected, m, missed, n, deviations),
    )


def _log_ratio_of_proportions(x: float, n: float, y: float, m: float, deviations: float) -> float:
    x, n, y, m = x + 0.5, n + 0.5, y + 0.5, m + 0.5
    return math.log(x / n) - math.log(y / m) - deviations * math.sqrt(1 / x - 1 / n + 1 / y - 1 / m)
