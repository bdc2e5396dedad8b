"""Lower bounds on what a mechanism tells, from scores with the record in and without it.

Scores are numbers, one for each observation, that are larger the more an observation looks as if the record was in.
`scores_in` (n,) were observed with the record in, `scores_out` (m,) without it; within each the order says nothing.
An attack says "in" from a threshold on. The threshold is the caller's, fixed without looking at these scores, or is
chosen on a share of the scores that is then left out (`choose_threshold`).

The bounds go by Clopper and Pearson's limits on the error rates. They are exact for any number of observations and
never hold less often than they say.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from dpserve.accounting import conversions, domains
from dpserve.accounting.arrays import Floats
from dpserve.accounting.crossings import crossing
from dpserve.audit.families import Family

Guarantee = Literal["exact", "asymptotic", "credible", "none"]

SELECTION_SHARE = 0.25
"""Share of the scores that chooses a threshold; errors are counted on the other scores."""
MOST_CANDIDATES = 100
"""Thresholds to choose from: so many of the scores at most, evenly spread."""
_DOWN = 1 - 2.0**-30
"""More than the searches of `dpserve.accounting.conversions` are rounded up by."""
_ERROR = 2.0**-40
_LEAST_MU, _LARGEST_MU = 1e-9, 70.0
_LEAST_CONFIDENCE_OF_POOLED = 0.75


@dataclass(frozen=True)
class Errors:
    """The errors of an attack: `false_positives` of `negatives` without the record, `false_negatives` of `positives`.

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
        doubt = 1 - confidence
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


def check_scores(scores: ArrayLike) -> Floats:
    """Return scores as float64 (n,). Infinities are scores like others. Raises ValueError for none, or for NaN."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"scores must be a list of at least one number, not have shape {values.shape}")
    if np.isnan(values).any():
        raise ValueError("a score is not a number (NaN)")
    return values


def errors_at(scores_in: ArrayLike, scores_out: ArrayLike, threshold: float) -> Errors:
    """Return the errors of saying "in" for scores of at least `threshold`."""
    inside, outside = check_scores(scores_in), check_scores(scores_out)
    return Errors(
        float(np.count_nonzero(outside >= threshold)),
        float(len(outside)),
        float(np.count_nonzero(inside < threshold)),
        float(len(inside)),
    )


def choose_threshold(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    threshold: float | None,
    worth: Callable[[Errors], float],
) -> tuple[float, Errors]:
    """Return the threshold and its errors. Without a threshold, the first SELECTION_SHARE of the scores chooses one.

    The chosen one is worth most if its error rates there, each moved half an observation towards 1/2, were those of
    as many observations as remain; errors are counted on what remains only. The threshold is then independent of
    what is counted, so that a bound for one fixed threshold holds. A stated threshold must not come from the scores.
    """
    inside, outside = check_scores(scores_in), check_scores(scores_out)
    if threshold is not None:
        return threshold, errors_at(inside, outside, threshold)
    cuts = [round(len(scores) * SELECTION_SHARE) for scores in (inside, outside)]
    if min(cuts) < 1 or cuts[0] == len(inside) or cuts[1] == len(outside):
        raise ValueError(
            f"{len(inside)} and {len(outside)} scores are too few to choose a threshold on some and count errors on "
            "others; state the threshold"
        )
    (some_in, inside), (some_out, outside) = np.split(inside, cuts[:1]), np.split(outside, cuts[1:])
    n, m = len(inside), len(outside)
    thresholds = np.unique(np.concatenate([some_in, some_out]))
    if len(thresholds) > MOST_CANDIDATES:
        # Evenly spaced among the sorted ones, so that many scores do not make the choice slow.
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, MOST_CANDIDATES).astype(np.int64)]
    alarms = len(some_out) - np.searchsorted(np.sort(some_out), thresholds, side="left")
    misses = np.searchsorted(np.sort(some_in), thresholds, side="left")
    # Towards 1/2: a rate of 0 among few would promise more than the rest can show.
    false_positives = (alarms + 0.5) / (len(some_out) + 1) * m
    false_negatives = (misses + 0.5) / (len(some_in) + 1) * n
    worths = [
        worth(Errors(float(wrong), m, float(missed), n))
        for wrong, missed in zip(false_positives, false_negatives, strict=True)
    ]
    best = float(thresholds[int(np.argmax(worths))])
    return best, errors_at(inside, outside, best)


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
    threshold_found, errors = choose_threshold(*scores, threshold, worth or of_errors)
    return LowerBound(parameter, of_errors(errors), confidence, guarantee, threshold_found, errors)


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
    limit = upper_limit(errors.false_positives + errors.false_negatives, m + n, 1 - confidence)

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
