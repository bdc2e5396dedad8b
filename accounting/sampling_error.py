"""What a sampler that is not quite ideal adds to delta, and how much of every delta is kept for it.

The laws of `mechanisms` are proved private for ideal noise; a drawn value follows a law within total variation
`DISTANCE_PER_DRAW` of the ideal one, given all that was drawn before. This module turns that into one number
for everything a budget can ever buy, and a budget (`accounting.budgets`) is granted only where the number fits
into the share `RESERVED_SHARE` of its delta.

The argument. Fix two neighbouring data sets and an adaptive client. Let P, Q be the laws of the whole
transcript under ideal noise, P~, Q~ under the sampler's, and rho_i the zCDP price of the i-th release, made of
at most `DRAWS_PER_ROW` draws; t = DRAWS_PER_ROW * DISTANCE_PER_DRAW bounds the total variation distance of
every release given its past, and N the number of releases.

1. P~(S) <= P(S) + N t for every S: replace one release after another.
2. Write Q_i for the law of release i given its past and f_i in [0, 1] for the fraction of it that exceeds
   Q~_i: f_i = max(0, 1 - dQ~_i/dQ_i), so that (1 - f_i) Q_i <= Q~_i and E_(Q_i)[f_i] <= t. Put w = product of
   (1 - f_i) along a transcript. Then w Q <= Q~ as measures.
3. E_P[1 - w] <= E_P[sum of f_i]. Given the past, f_i is a randomised test of level at most t between P_i and
   Q_i, which are rho_i-zCDP; by Hoelder E_(P_i)[f] <= (e^(D_alpha) E_(Q_i)[f])^((alpha-1)/alpha) with D_alpha
   <= alpha rho_i, and the best alpha, sqrt(ln(1/t) / rho_i), gives g(rho_i) = exp(-(sqrt(ln(1/t)) -
   sqrt(rho_i))^2).
4. For every epsilon, w P(S) - e^epsilon w Q(S) = integral over S of w (dP - e^epsilon dQ) <= delta_ideal(epsilon).

Together: P~(S) <= e^epsilon Q~(S) + delta_ideal(epsilon) + r with r = N t + sum of g(rho_i). No factor
e^epsilon appears, so the reserve works for every epsilon. (The naive argument gives (1 + e^epsilon) N t.)
The same w P, w Q give: for every randomised test, power under P~ <= r + ideal power at its level under Q~.

r is bounded for every split of a budget rho into prices between `LEAST_ROW_RHO` and `LARGEST_ROW_RHO`: N <= rho
/ LEAST_ROW_RHO, and sum of g(rho_i) <= rho max over the prices of g(s)/s. ln g(s) - ln s has, with v = sqrt s
and L = sqrt(ln(1/t)), the derivative 2(L - v) - 2/v in v, negative, then positive, then negative; it is positive
between its two zeros v (L - v) = 1, so on an interval that ends before the second zero (v <= L - 1/L, a price
of 60 rho) the greatest value is at an end.
"""

import math

DISTANCE_PER_DRAW = 2.0**-100
"""What every noise table must meet: total variation distance between one draw and its ideal law."""

DRAWS_PER_ROW = 1024
"""No release of one row may draw more often than this."""

LEAST_ROW_RHO = 1e-9
"""No release may cost less, or a budget would buy more draws than the reserve covers."""

LARGEST_ROW_RHO = 8.0
"""No release may cost more: mu = 4, a noise multiplier of 1/4."""

RESERVED_SHARE = 2.0**-10
"""The share of every delta that is kept for the sampler."""


def transcript_error(rho: float) -> float:
    """Return r of the module's argument for everything that a budget of rho can buy, rounded up."""
    if rho < LEAST_ROW_RHO:
        return 0.0
    largest = min(rho, LARGEST_ROW_RHO)
    per_release = DRAWS_PER_ROW * DISTANCE_PER_DRAW
    shifted = max(missed(s, per_release) / s for s in (LEAST_ROW_RHO, largest))
    return (rho / LEAST_ROW_RHO * per_release + rho * shifted) * (1 + 2.0**-20)


def missed(rho: float, level: float) -> float:
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


def least_delta(rho: float) -> float:
    """Return the smallest delta at which a budget of rho can be granted, rounded up."""
    return math.nextafter(transcript_error(rho) / RESERVED_SHARE, 1.0)


def check_row_rho(rho: float) -> None:
    """Raise ValueError unless a release of one row may cost rho."""
    if not LEAST_ROW_RHO <= rho <= LARGEST_ROW_RHO:
        raise ValueError(
            f"the price of one row must lie between {LEAST_ROW_RHO:g} and {LARGEST_ROW_RHO:g} rho, not be {rho:g}"
        )
