"""Lower bounds from the errors of one attack at one threshold, exact for any number of observations.

The threshold is the caller's, fixed without looking at these scores, or is chosen on a share of the scores that is
then left out (`audit.estimators.errors.thresholded`).

They go by Clopper and Pearson's limits on the error rates, and never hold less often than they say.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from accounting import domains
from audit.estimators.errors import Errors, Guarantee, LowerBound, clopper_pearson, largest_met, thresholded
from audit.estimators.families import Family

_ERROR = 2.0**-40
_LEAST_MU, _LARGEST_MU = 1e-9, 70.0
_LEAST_CONFIDENCE_OF_POOLED = 0.75


def epsilon_delta(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, delta: float, threshold: float | None = None
) -> LowerBound:
    """Return a lower bound of the epsilon at delta, 0 <= delta < 1, that holds with `confidence`.

    Nasr et al. 2023, Equation 9; see `epsilon_delta_of_errors`.
    """
    return lower_bound(
        "epsilon",
        (scores_in, scores_out),
        confidence,
        threshold,
        lambda errors: epsilon_delta_of_errors(errors, confidence, delta),
    )


def gdp(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, threshold: float | None = None
) -> LowerBound:
    """Return a lower bound of mu that holds with `confidence`, of a mechanism that is mu-GDP for some mu.

    Nasr et al. 2023, Equation 12; see `gdp_of_errors`.
    """
    return lower_bound(
        "mu", (scores_in, scores_out), confidence, threshold, lambda errors: gdp_of_errors(errors, confidence)
    )


def pooled_gdp(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, *, threshold: float | None = None
) -> LowerBound:
    """Return a lower bound of mu that holds with `confidence`, from both kinds of errors in one count.

    Closer than `gdp`, whose two limits must hold together; see `gdp_of_pooled_errors`. A stated threshold should be
    the one at which both kinds are alike frequent.
    """
    return lower_bound(
        "mu", (scores_in, scores_out), confidence, threshold, lambda errors: gdp_of_pooled_errors(errors, confidence)
    )


def tradeoff(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float, family: Family, *, threshold: float | None = None
) -> LowerBound:
    """Return a lower bound of the family's parameter that holds with `confidence`.

    Nasr et al. 2023, Section 4.1 and Appendix A; see `tradeoff_of_errors`. A threshold is chosen by what it is worth
    for mu-GDP, as a member of the family may take a numerical composition to evaluate.
    """
    return lower_bound(
        family.parameter,
        (scores_in, scores_out),
        confidence,
        threshold,
        lambda errors: tradeoff_of_errors(errors, confidence, family),
        worth=lambda errors: gdp_of_errors(errors, confidence),
    )


def lower_bound(
    parameter: str,
    scores: tuple[ArrayLike, ArrayLike],
    confidence: float,
    threshold: float | None,
    of_errors: Callable[[Errors], float],
    *,
    worth: Callable[[Errors], float] | None = None,
    guarantee: Guarantee = "exact",
) -> LowerBound:
    """Return the bound `of_errors` of the errors at a threshold, chosen by what it is worth where none is stated."""
    found, errors = thresholded(*scores, threshold, worth or of_errors)
    return LowerBound(parameter, of_errors(errors), confidence, guarantee, found, errors)


def epsilon_delta_of_errors(errors: Errors, confidence: float, delta: float) -> float:
    """Return max(0, ln((1 - a - delta)/b), ln((1 - b - delta)/a)), a and b the upper limits of the error rates.

    Proof. (epsilon, delta)-DP means alpha + e^epsilon beta >= 1 - delta and the same with alpha and beta exchanged,
    for every test (Kairouz, Oh and Viswanath 2015). If alpha <= a and beta <= b, which fails with probability at most
    1 - confidence, then a + e^epsilon b >= 1 - delta too: epsilon >= ln((1 - delta - a)/b), and likewise the other.
    Both follow from the one pair of limits, so taking the larger costs nothing. (Nasr et al. 2023, Equation 9, which
    prints one of the limits as a lower one.)
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, not {delta}")
    a, b = errors.upper_limits(confidence)
    return max(0.0, _log_ratio(1 - a - delta, b), _log_ratio(1 - b - delta, a))


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) - _ERROR if above > 0 else 0.0


def gdp_of_errors(errors: Errors, confidence: float) -> float:
    """Return max(0, Phi^-1(1 - a) - Phi^-1(b)), a and b the upper limits of the error rates.

    Proof. mu-GDP means beta >= Phi(Phi^-1(1 - alpha) - mu), that is mu >= Phi^-1(1 - alpha) - Phi^-1(beta), whose
    right side falls as alpha or beta grows: it is least at the limits. (Nasr et al. 2023, Equation 12.)
    """
    a, b = errors.upper_limits(confidence)
    if a + b >= 1:
        return 0.0
    return max(0.0, float(-scipy.special.ndtri(a) - scipy.special.ndtri(b)) - _ERROR)


def gdp_of_pooled_errors(errors: Errors, confidence: float) -> float:
    """Return the mu at which the fewest errors of either kind together, on average, are as many as the limit of theirs.

    Let m observations be without the record and n with it, and N = m + n. mu-GDP means beta >= f_mu(alpha), so that
    the average error rate q = (m alpha + n beta)/N is at least q_mu = min over alpha of (m alpha + n f_mu(alpha))/N,
    which falls with mu and is at most 1/2. For f_mu the least is where the likelihood ratio is m/n:

        q_mu = (m Phi(-mu/2 - r/mu) + n Phi(-mu/2 + r/mu))/N,   r = ln(m/n);   q_mu = Phi(-mu/2) for m = n.

    Proof that mu is not overstated. The errors S are a sum of N independent trials with two different probabilities.
    Say mu is the truth; were every trial a little less likely to fail, S would be smaller in law, so let their mean be
    q_mu =: q <= 1/2. The mean's limit u(S), Clopper and Pearson's as if all N trials were alike, is too low where
    u(S) < q, which is S <= c for a c with P(Binomial(N, q) <= c) <= 1 - confidence. Hoeffding (1956, Theorem 4) has
    P(S <= c) <= P(Binomial(N, q) <= c) for c <= N q - 1. A larger c, so that c >= floor(N q), has
    P(Binomial(N, q) <= c) > 1/4 for q <= 1/2 (Greenberg and Mohri 2014, Theorem 1, of N - S), and so is none where
    confidence > 3/4.

    Raises ValueError for a confidence of at most 3/4.
    """
    if not _LEAST_CONFIDENCE_OF_POOLED < confidence < 1:
        raise ValueError(
            f"the confidence of pooled errors must lie above {_LEAST_CONFIDENCE_OF_POOLED} and below 1, "
            f"not be {confidence}"
        )
    m, n = errors.negatives, errors.positives
    limit = clopper_pearson(errors.false_positives + errors.false_negatives, m + n, confidence)

    def excess(mu: float) -> float:
        return (limit - _least_pooled_rate(mu, m, n)) or math.ulp(0.0)

    return max(0.0, largest_met(excess, _LEAST_MU, _LARGEST_MU, _ERROR) - _ERROR)


def _least_pooled_rate(mu: float, m: float, n: float) -> float:
    """Return q_mu of `gdp_of_pooled_errors`, rounded down."""
    ratio = math.log(m / n) / mu
    rates = scipy.special.ndtr(np.array([-mu / 2 - ratio, -mu / 2 + ratio]))
    return float(rates @ [m, n]) / (m + n) * (1 - _ERROR)


def tradeoff_of_errors(errors: Errors, confidence: float, family: Family) -> float:
    """Return the largest parameter t, up to `family.largest`, with f_t(a) > b, a and b the limits of the error rates.

    Proof. Under f_t every test has beta >= f_t(alpha) >= f_t(a) for alpha <= a, f_t being non-increasing. If
    f_t(a) > b then f_t fails with the confidence, and so does every smaller parameter, whose f is larger. What is
    returned has itself been seen to fail. `family.tradeoff` is a lower bound of f: the test is on the safe side.
    """
    a, b = errors.upper_limits(confidence)
    return largest_refuted(family, a, b)


def refuted_by_limits(family: Family, parameter: float, a: float, b: float) -> bool:
    """Whether f(a) > b for one member of the family, a and b upper limits of the error rates."""
    domains.require_up_to(family.parameter, parameter, family.largest)
    return bool(family.tradeoff(parameter, np.array([a]))[0] > b)


def largest_refuted(family: Family, alpha: float, beta: float) -> float:
    """Return the largest parameter t with f_t(alpha) > beta, or 0; `family.largest` where even that is refuted."""
    level = np.array([alpha])

    def excess(parameter: float) -> float:
        """Above 0 where the parameter stands; a parameter that is refuted is what the search ends on."""
        refuted = float(family.tradeoff(parameter, level)[0]) - beta
        return -refuted if refuted != 0 else math.ulp(0.0)

    return largest_met(excess, 0.0, family.largest, family.tolerance)
