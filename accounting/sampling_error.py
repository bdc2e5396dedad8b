"""The delta that imperfect samplers and coins add, and the share of every delta that is kept for them.

The laws of `mechanisms` are proved private for ideal noise; a drawn value follows a law within total variation
`DISTANCE_PER_DRAW` of the ideal one, given all that was drawn before. This module turns that into one number
for everything a budget can ever buy, and a budget (`dpserve.accounting.budgets`) is granted only where the number fits
into the share `RESERVED_SHARE` of its delta.

The argument. Fix two neighbouring data sets and an adaptive client. Let P, Q be the laws of the whole
transcript under ideal noise, P~, Q~ under the sampler's, and rho_i the zCDP price of the i-th release. The release
of a row is made of at most `DRAWS_PER_ROW` draws and costs at least `LEAST_ROW_RHO`; one that is paid for once
(weights, class sums) of at most `DRAWS_PER_RELEASE`, at no less than `LEAST_RELEASE_RHO`. t_i, the draws times
DISTANCE_PER_DRAW, bounds the total variation distance of release i given its past. What is paid for once may be
several of these, one after the other (a centre and class sums): each then has
draws of its own, and must have a price in range of its own (`ReleaseCertificate.verify`). Nothing rests on the slack
between the tables' own distance, 2^-106, and DISTANCE_PER_DRAW, though 64 times the draws would fit into it.

1. P~(S) <= P(S) + sum of t_i for every S: replace one release after another.
2. Write Q_i for the law of release i given its past and f_i in [0, 1] for the fraction of it that exceeds
   Q~_i: f_i = max(0, 1 - dQ~_i/dQ_i), so that (1 - f_i) Q_i <= Q~_i and E_(Q_i)[f_i] <= t_i. Put w = product of
   (1 - f_i) along a transcript. Then w Q <= Q~ as measures.
3. E_P[1 - w] <= E_P[sum of f_i]. Given the past, f_i is a randomised test of level at most t_i between P_i and
   Q_i, which are rho_i-zCDP; by Hoelder E_(P_i)[f] <= (e^(D_alpha) E_(Q_i)[f])^((alpha-1)/alpha) with D_alpha
   <= alpha rho_i, and the best alpha, sqrt(ln(1/t_i) / rho_i), gives g_i(rho_i) = exp(-(sqrt(ln(1/t_i)) -
   sqrt(rho_i))^2).
4. For every epsilon, w P(S) - e^epsilon w Q(S) = integral over S of w (dP - e^epsilon dQ) <= delta_ideal(epsilon).

Together: P~(S) <= e^epsilon Q~(S) + delta_ideal(epsilon) + r with r = sum of t_i + sum of g_i(rho_i). No factor
e^epsilon appears, so the reserve works for every epsilon. (The naive argument gives (1 + e^epsilon) times the
first sum.) The same w P, w Q give: for every randomised test, power under P~ <= r + ideal power at its level under Q~.

r is bounded for every split of a budget rho into prices of both kinds: each release of a kind with draws d and
prices from l to h adds t + g(s) for a price s of the budget, so that r <= rho max (t/s + g(s)/s) over both kinds and
their prices. t/s is greatest at l. ln g(s) - ln s has, with v = sqrt s and L = sqrt(ln(1/t)), the derivative 2(L - v)
- 2/v in v, negative, then positive, then negative; it is positive between its two zeros v (L - v) = 1, so on an
interval that ends before the second zero (v <= L - 1/L: a price of 60 rho for a row, of 50 for what is paid for
once) the greatest value is at an end.

Coins. An `ApproximateGaussianLoss` shows everything with a probability of at most c = `LARGEST_COIN`, and else is
Gaussian. In a transcript let w also have the factors 1 - c_i, and P_i, Q_i the laws given that no coin fell: then
w P <= P and w Q <= Q as before, step 4 stands, and E[1 - w] grows by at most the sum of the c_i, again without
e^epsilon. Nothing is asked of their prices: an account counts its coins as it counts picorho, and never pays for more
of them, whoever chose which on the way, than fit into the share `COIN_SHARE` of its delta (`coins_allowed`), half of
the reserve. It may have any only where the other half holds r.

Pure epsilon. An account of pure epsilon pays for rows alone, each of a pure epsilon e_i of at most
`LARGEST_PURE_EPSILON`, and the sum of them is at most its limit E in every course of events. Steps 1, 2 and 4 stand,
with delta_ideal(E) = 0. In step 3, P_i <= e^(e_i) Q_i, so that E_(P_i)[f_i] <= e^(e_i) t_i. Hence P~(S) <= e^E Q~(S) +
r with r = sum of t_i (1 + e^(e_i)) <= E max t (1 + e^e)/e over the prices e of a row. (1 + e^e)/e is convex over
linear, so quasi-convex: the greatest value is at an end. The least price is sqrt(2 LEAST_ROW_RHO): a loss of pure
epsilon e_j has rho_j <= e_j^2/2 (Bun and Steinke 2016, Proposition 3), so that a release of several has an epsilon of
sum e_j >= sqrt(sum e_j^2) >= sqrt(2 rho). For every limit up to `LARGEST_PURE_BUDGET`, r is within RESERVED_SHARE of
`PURE_DELTA` = 2^-60. So what is called pure is (E, 0)-DP for ideal noise, and (E, 2^-60)-DP for the noise as drawn;
what is said of beliefs and of attacks keeps the same reserve.
"""

import math
from fractions import Fraction

from dpserve.accounting.losses import LARGEST_COIN

DISTANCE_PER_DRAW = 2.0**-100
"""Largest total variation distance between one draw from a noise table and its ideal law."""

DRAWS_PER_ROW = 1024
"""No release of one row may draw more often than this."""

LEAST_ROW_RHO = 1e-9
"""No release may cost less, or a budget would buy more draws than the reserve covers."""

LARGEST_ROW_RHO = 8.0
"""No release may cost more: mu = 4, a noise multiplier of 1/4."""

DRAWS_PER_RELEASE = 2**24
"""No release that is paid for once may draw more often than this."""

LEAST_RELEASE_RHO = 4e-4
"""No release that is paid for once may cost less: mu = 0.0283."""

LARGEST_RELEASE_RHO = 4.0
"""No release that is paid for once may cost more: mu = 2.83. With so many draws, a larger one needs more reserve."""

RESERVED_SHARE = 2.0**-10
"""The share of every delta that is kept for the sampler, and for coins."""

COIN_SHARE = RESERVED_SHARE / 2
"""The share of delta that coins may take."""

PURE_DELTA = 2.0**-60
"""The delta of every budget of pure epsilon: it holds the sampler's error over all that the budget can ever buy."""

LARGEST_PURE_BUDGET = 20
"""The largest budget in pure epsilon: for it r of the module's argument is within what is kept of PURE_DELTA."""


def pure_delta(epsilon: Fraction) -> float:
    """Return the delta of a sum of pure epsilon that no budget limits, as of accounts that are read together.

    r grows in proportion to the sum: up to k times the largest budget it is within what k times `PURE_DELTA` keeps. k
    is a power of two.
    """
    factor = 1
    while epsilon > LARGEST_PURE_BUDGET * factor:
        factor *= 2
    return PURE_DELTA * factor


def transcript_error(rho: float) -> float:
    """Return r of the module's argument for everything that a budget of rho can buy, rounded up."""
    kinds = (
        (DRAWS_PER_ROW, LEAST_ROW_RHO, LARGEST_ROW_RHO),
        (DRAWS_PER_RELEASE, LEAST_RELEASE_RHO, LARGEST_RELEASE_RHO),
    )
    errors = [_error_per_rho(draws, least, min(rho, largest)) for draws, least, largest in kinds if rho >= least]
    return rho * max(errors, default=0.0) * (1 + 2.0**-20)


def _error_per_rho(draws: int, least: float, largest: float) -> float:
    """Return the maximum of t/s + g(s)/s over the prices s from `least` to `largest`, or more."""
    per_release = draws * DISTANCE_PER_DRAW
    return per_release / least + max(missed_probability(s, per_release) / s for s in (least, largest))


def missed_probability(rho: float, level: float) -> float:
    """Return g: how likely what has probability at most `level` under one law is under a rho-zCDP neighbour.

    exp(-(sqrt(ln(1/level)) - sqrt(rho))^2), for rho below ln(1/level).
    """
    surprise = -math.log(level)
    if rho >= surprise:
        return 1.0
    return math.exp(-((math.sqrt(surprise) - math.sqrt(rho)) ** 2))


def ideal_delta(delta: float) -> float:
    """Return the delta that is left for ideal noise, rounded down."""
    return math.nextafter(delta * (1 - RESERVED_SHARE), 0.0)


def fits(rho: float, delta: float) -> bool:
    """Tell whether the sampler's error over a budget of rho fits into what is kept of delta for it."""
    return transcript_error(rho) <= RESERVED_SHARE * delta


def coins_allowed(rho: float, delta: float) -> int:
    """Return how many coins an account with a limit of rho may pay for: see the argument on coins in this module.

    n LARGEST_COIN is within COIN_SHARE of delta, and there are none unless r of the whole limit is within the rest of
    the reserve. The quotient is exact (LARGEST_COIN and COIN_SHARE are powers of 2), so its floor is right.
    """
    if transcript_error(rho) > (RESERVED_SHARE - COIN_SHARE) * delta:
        return 0
    return math.floor(COIN_SHARE * delta / LARGEST_COIN)


def least_delta(rho: float) -> float:
    """Return the smallest delta at which a budget of rho can be granted, rounded up."""
    return math.nextafter(transcript_error(rho) / RESERVED_SHARE, 1.0)


def check_row_rho(rho: float) -> None:
    """Raise ValueError unless a release of one row may cost rho."""
    if not LEAST_ROW_RHO <= rho <= LARGEST_ROW_RHO:
        raise ValueError(
            f"the price of one row must lie between {LEAST_ROW_RHO:g} and {LARGEST_ROW_RHO:g} rho, not be "
            f"{rho:g}: for others no noise was proved"
        )


def check_release_rho(rho: float | Fraction) -> None:
    """Raise ValueError unless a release that is paid for once may cost rho."""
    if not LEAST_RELEASE_RHO <= rho <= LARGEST_RELEASE_RHO:
        raise ValueError(
            f"the price of a pay-once model must lie between {LEAST_RELEASE_RHO:g} and "
            f"{LARGEST_RELEASE_RHO:g} rho, not be {float(rho):g}: for others no noise was proved"
        )
