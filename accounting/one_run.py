"""Lower bounds on mu from one run with canaries: made records, each in the run or left out of it by a fair coin.

A canary's score is larger the more the release looks as if the canary was in. Two bounds are exact for any number of
canaries, and they assume different things:

- `mu_of_guesses` takes any release and any scores: Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235.
- `mu_of_means` needs that the scores of all canaries are independent, and those of canaries that were left out normal
  with one mean and one variance, whatever these are. It comes much closer: see there.

Both refute that the run is mu-GDP for smaller mu. A mechanism that is exactly as private as it claims has a bound above
its claim in one run of 20 at a confidence of 0.95: that is what such a confidence means where the claim is tight, and
so a run is convicted at a confidence of its own, near 1.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from dpserve.accounting import domains
from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.crossings import crossing

LEAST_MU, LARGEST_MU = 1e-9, 50.0
_GRID = 2**-30
"""More than the quadratures' and searches' relative errors."""
_DEVIATIONS = 40.0
_POINTS = 2001
_LEAST_LEFT_OUT = 3
_LARGEST_SEEN = 1e6


def mu_of_means(included: Floats, left_out: Floats, doubt: float, step: float = 0.0) -> float:
    """Return a lower bound of mu from the means of both scores, 0 where nothing is refuted.

    included: scores (n,) of canaries in the run; left_out: (m,). doubt: the probability that the bound is wrong, at
    most. step: of the grid that noise was rounded to, in the unit of the scores; 0 for none.

    Assumptions. Scores of canaries are independent of each other, given the coins; those left out are N(b, s^2) before
    rounding, b and s unknown. Nothing is assumed of those included but the claim.

    Proof. Say the run is mu-GDP, and let X be a canary's score. Its law Q when included and P = N(b, s^2) when left out
    have T(P, Q) >= G_mu (Dong, Roth and Su 2022, Definition 2.5, and Lemma 2.9 for a function of the release). The test
    that says "included" for X > b + s t has the errors 1 - Phi(t) and Q(X <= b + s t), so that Q(X <= b + s t) >=
    G_mu(1 - Phi(t)) = Phi(t - mu) for every t: X is stochastically at most N(b + mu s, s^2) when included. Sums of
    independent numbers keep that order. So with A and B the means of both, and S^2 the sample variance of those left
    out, which is independent of A and B,

        T = (A - B) / (S sqrt(1/n + 1/m))

    is at most a noncentral t of m - 1 degrees of freedom and noncentrality mu / sqrt(1/n + 1/m), in law. The bound is
    the largest mu at which that has P(T >= what was seen) <= doubt, as this probability grows with mu. A mu that holds
    is refuted with probability doubt at most, and with exactly that where included scores are normal and mu is tight.

    Rounding to a grid moves each score by at most step/2, hence A - B by at most step, and S by at most step/2
    sqrt(m/(m - 1)) <= step: T is computed with both against the bound.

    Raises ValueError for fewer than 1 included or 3 left out, and for a doubt outside (0, 1).
    """
    domains.require_between("the doubt", doubt, 0, 1)
    seen, freedom, spread = _studentised(included, left_out, step)
    if seen <= 0:
        return 0.0
    return _largest_refuted(lambda mu: noncentral_t_tail(seen, freedom, mu / spread), doubt)


def p_value_of_means(included: Floats, left_out: Floats, mu: float, step: float = 0.0) -> float:
    """Return the largest probability that means are as far apart under a claim of mu-GDP: see `mu_of_means`.

    1 where there are too few canaries of either kind.
    """
    if len(included) < 1 or len(left_out) < _LEAST_LEFT_OUT:
        return 1.0
    seen, freedom, spread = _studentised(included, left_out, step)
    return noncentral_t_tail(seen, freedom, mu / spread)


def _studentised(included: Floats, left_out: Floats, step: float) -> tuple[float, int, float]:
    """Return T, its degrees of freedom, and sqrt(1/n + 1/m)."""
    n, m = len(included), len(left_out)
    if n < 1 or m < _LEAST_LEFT_OUT:
        raise ValueError(
            f"a bound needs 1 canary in the run and {_LEAST_LEFT_OUT} left out of it at least, not {n} and {m}"
        )
    spread = math.sqrt(1 / n + 1 / m)
    deviation = float(np.std(left_out, ddof=1)) + step
    difference = float(included.mean() - left_out.mean()) - step
    # Without any noise T is as large as a computation can have it.
    return difference / max(deviation * spread, abs(difference) / _LARGEST_SEEN, 1e-300), m - 1, spread


def noncentral_t_tail(seen: float, freedom: int, noncentrality: float) -> float:
    """Return P(T >= seen) of a noncentral t, raised by more than its computation's error.

    T = (Z + noncentrality)/sqrt(V/freedom), Z standard normal and V chi-square: the mean over V of Phi(noncentrality -
    seen sqrt(V/freedom)). With u = ln(V/freedom) the integrand is smooth and falls off at both ends like a normal
    density, for which the trapezoidal rule's error is far below rounding (Trefethen and Weideman 2014). SciPy's own has
    no relative accuracy in the tail.
    """
    width = min(_DEVIATIONS * math.sqrt(2 / freedom), 60.0)
    u = np.linspace(-width, width, _POINTS)
    half = freedom / 2
    logarithm = half * (u - np.expm1(u) - 1) + half * math.log(half) - float(scipy.special.gammaln(half))
    above = scipy.special.log_ndtr(noncentrality - seen * np.exp(u / 2))
    return min(1.0, float(np.exp(logarithm + above).sum()) * float(u[1] - u[0]) * (1 + _GRID) + 1e-300)


def mu_of_guesses(canaries: int, guesses: int, right: int, doubt: float) -> float:
    """Return the largest mu under which at least `right` right guesses have a probability of at most doubt; 0 for none.

    canaries: all. guesses: how many of them are guessed, fixed without their coins; which ones may depend on the run.

    Raises ValueError for numbers that cannot be.
    """
    domains.require_between("the doubt", doubt, 0, 1)
    if not 0 <= right <= guesses <= canaries or guesses == 0:
        raise ValueError(f"{right} right of {guesses} guesses about {canaries} canaries cannot be")
    if 2 * right <= guesses:
        return 0.0
    least, largest = 0.0, LARGEST_MU
    while largest - least > 1e-7 * max(largest, 1e-3):
        mus = np.linspace(least, largest, 66)[1:-1]
        refuted = cannot_be(canaries, guesses, right, mus, doubt)
        # Where one is not refuted, larger ones are not either.
        first = int(np.argmin(refuted)) if not refuted.all() else len(mus)
        ends = np.concatenate([[least], mus, [largest]])
        least, largest = float(ends[first]), float(ends[first + 1])
    return least if least >= LEAST_MU else 0.0


def cannot_be(canaries: int, guesses: int, right: int, mus: Floats, probability: float) -> Mask:
    """Tell for which mus (k,) at least `right` right guesses must be less likely than a probability.

    Theorem (Mahloujifar, Melis and Chaudhuri 2024, Theorem 3.2, here for coins). Let N canaries be in by fair coins, g
    of them be guessed, and p_j be the probability that j guesses are right. With F(x) = 1 - G_mu(x) = Phi(Phi^-1(x) +
    mu), for every set J of numbers

        sum over j in J of (j/N) p_j  <=  F( sum over j in J of ((g - j + 1)/N) p_(j-1) ).

    Proof. Fix a canary and the others' coins. The event E that its guess is "in", and that j - 1 of the other guesses
    are right for some j in J, is an event of the release; the same with "out" is E'. By mu-GDP P(E | in) <= F(P(E |
    out)) and P(E' | out) <= F(P(E' | in)). On the left the guess is right, and j are; on the right it is wrong, and j -
    1 are. F is concave, so that the mean over the fair coin, over the others' coins, and over the N canaries goes into
    it. Of the canaries j are guessed rightly on the left, and g - (j - 1) wrongly on the right: that is the theorem.

    Let R_i = sum over j >= i of (j/N) p_j and H_i = sum over j >= i of ((g - j)/N) p_j. For J = {i + 1, ..., g} the
    theorem is R_(i+1) <= F(H_i), so H_i >= F^-1(R_(i+1)); and R_i + H_i = (g/N) P(at least i right), which is g/N for i
    = 0. Suppose P(at least c right) >= tau, c being `right`. Let r_c = tau c/N and h_c = tau (g - c)/N, and downwards

        h_i = F^-1(r_(i+1)),   r_i = r_(i+1) + k_i (h_i - h_(i+1)),   k_i = i/(g - i).

    Claim: R_i >= r_i for i <= c and H_i >= h_i for i < c. So if r_0 + h_0 > g/N, the supposition is false. Proof. We
    may take P(at least c right) = tau: with more, all the sums that follow are larger. R_c >= r_c, as each j is at
    least c; and H_c = g tau/N - R_c <= h_c. Let U_i = R_(i+1) - k_i H_(i+1), and u_i likewise. Then U_(c-1) >= u_(c-1).
    From U_i >= u_i and R_(i+1) >= r_(i+1) follow H_i >= h_i, since F^-1 grows; R_i = U_i + k_i H_i >= r_i, since R_i -
    R_(i+1) = (i/N) p_i = k_i (H_i - H_(i+1)); and U_(i-1) = R_i - k_(i-1) H_i = U_i + (k_i - k_(i-1)) H_i >= u_(i-1),
    since k grows with i.

    What is computed is lowered by more than its rounding before it is compared.
    """
    r = np.full(len(mus), probability * right / canaries)
    h = np.full(len(mus), probability * (guesses - right) / canaries)
    for i in range(right - 1, -1, -1):
        before, h = h, scipy.special.ndtr(scipy.special.ndtri(np.minimum(r, 1.0)) - mus)
        r = r + i / (guesses - i) * (h - before)
        h = np.where(r >= 1, 1.0, h)
    impossible: Mask = (r + h) * (1 - 1e-9) > guesses / canaries
    return impossible


def _largest_refuted(probability: Callable[[float], float], doubt: float) -> float:
    """Return the largest mu seen to have at most this probability, which grows with mu; 0 where the least has not."""
    if probability(LEAST_MU) > doubt:
        return 0.0
    if probability(LARGEST_MU) <= doubt:
        return LARGEST_MU
    return crossing(lambda mu: probability(mu) - doubt, LEAST_MU, LARGEST_MU, tolerance=1e-10).met
