"""The meaning of a budget for one person: posterior belief, membership advantage, and the epsilon an attack implies.

The observer of this module knows everything but whether one record is in the data, holds both for equally
likely, sees every answer, and computes without limit.
"""

import math

import scipy

from dpserve.accounting import conversions, domains

_ROUND_UP = 1 + 2.0**-45


def posterior_belief(epsilon: float) -> float:
    """Return 1/(1 + e^-epsilon), the greatest posterior belief that pure epsilon-DP permits (Lee and Clifton 2011).

    Bernau et al. 2021, Theorem 1 (ii), states it for (epsilon, delta)-DP with probability 1 - delta. That does
    not follow: randomised response at epsilon + s is (epsilon, delta)-DP with delta -> 0 as s -> 0, and exceeds
    the bound with certainty. What (epsilon, delta) does give: the answers can be produced by a process that
    tells everything with probability delta and otherwise supports no belief above this (Kairouz, Oh and
    Viswanath 2015, Theorem 2.2). `gaussian_log_odds` and `zcdp_log_odds` bound the belief itself.
    """
    domains.require_up_to("epsilon", epsilon, math.inf)
    return 1 / (1 + math.exp(-epsilon))


def epsilon_of_posterior_belief(belief: float) -> float:
    """Return ln(belief/(1 - belief)) (Bernau et al. 2021, Equation 10), the inverse of `posterior_belief`."""
    domains.require_between("the posterior belief", belief, 0.5, 1)
    return math.log(belief) - math.log1p(-belief)


def gaussian_log_odds(mu: float, delta: float) -> float:
    """Return t such that the posterior log-odds exceed t with probability at most delta, for whatever is mu-GDP.

    Let A be the event that dP/dQ > e^t, p = P(A), so Q(A) < e^-t p. mu-GDP gives p <= Phi(mu + Phi^-1(Q(A))),
    hence e^-t > Phi(Phi^-1(p) - mu)/p. The right side increases with p (the inverse of a concave power
    function through 0 is convex), so p > delta would give e^-t > Phi(Phi^-1(delta) - mu)/delta, which t =
    ln(delta / Phi(Phi^-1(delta) - mu)) excludes. It is attained: reveal only whether A happened. The Gaussian
    mechanism's own tail, mu^2/2 - mu Phi^-1(delta), is smaller, and does not survive post-processing.
    """
    domains.require_up_to("mu", mu, conversions.LARGEST_MU)
    domains.require_delta(delta)
    if mu == 0:
        return 0.0
    quantile = float(scipy.special.ndtri(delta))
    log_odds = math.log(delta) - float(scipy.special.log_ndtr(quantile - mu))
    magnitude = 1 + abs(math.log(delta)) + (abs(quantile) + mu) ** 2
    return max(0.0, log_odds + 2.0**-45 * magnitude)


def zcdp_log_odds(rho: float, delta: float) -> float:
    """Return t such that the posterior log-odds exceed t with probability at most delta, for whatever is rho-zCDP.

    P(dP/dQ > e^t) <= e^(-(alpha-1)t) e^((alpha-1) D_alpha) <= e^((alpha-1)(alpha rho - t)) for every alpha > 1,
    and the best alpha gives t = rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Lemma 3.5's argument).
    """
    domains.require_up_to("rho", rho, conversions.LARGEST_RHO)
    domains.require_delta(delta)
    return (rho + 2 * math.sqrt(rho * -math.log(delta))) * _ROUND_UP


def raised_log_odds(rho: float, settled: float, delta: float) -> float:
    """Return t such that posterior log-odds exceed t with probability at most delta, however the limit grew to rho.

    settled: the limit, as rho, that was in force before the first answer; it may have been raised to rho since, by
    someone who saw all answers. For ideal noise, of which every answer is zCDP of its price given what came before;
    Gaussian noise is.

    Proof. P and Q are the laws of all that is seen with the record and without it, L the logarithm of dP/dQ of it at
    any time that is chosen on the way, S what was spent by then, B >= S the limit by then. For a > 0, E_Q[e^((1 + a) L
    - a (1 + a) S)] <= 1 (`dpserve.accounting.budgets`), prices and times chosen as they may be: so E_P[e^(a (L - S) -
    a^2 S)] <= 1, and likewise with B in place of S. Mix over a with the density 2 sqrt(r/pi) e^(-r a^2) on a > 0, r =
    settled, a number that was known before the first answer. With x = L - B >= 0 the mixture is at least sqrt(r/(r +
    B)) e^(x^2/(4 (r + B))), because the part of a normal law above 0 is at least half where its mean is above 0. Its
    mean is at most 1, so by Markov's inequality x^2 > 4 (r + B) ln(sqrt(1 + B/r)/delta) has a probability of at most
    delta under P, whatever B came to be. (The method of mixtures: Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon
    2021; for odometers Whitehouse, Ramdas, Rogers and Wu 2023.)

    It holds for an observer who sees only a part, the limit among it: with p and q the laws of this part for one B,
    p^(1 + a) q^-a is convex in both, so that the mixture's mean does not grow (Jensen's inequality).

    A limit that was settled and kept has `zcdp_log_odds`, with no r under the root: this is what not knowing costs.
    """
    for each in (rho, settled):
        domains.require_up_to("rho", each, conversions.LARGEST_RHO)
    domains.require_above_zero("the settled limit", settled)
    domains.require_delta(delta)
    surprise = -math.log(delta) + 0.5 * math.log1p(rho / settled)
    return (rho + 2 * math.sqrt((rho + settled) * surprise)) * _ROUND_UP


def gaussian_mu_of_log_odds(log_odds: float, delta: float) -> float:
    """Return the largest mu whose `gaussian_log_odds` at delta stay within log_odds, rounded down.

    Solving for mu: Phi(Phi^-1(delta) - mu) = delta e^-log_odds.
    """
    domains.require_above_zero("the log-odds", log_odds)
    domains.require_delta(delta)
    quantile = float(scipy.special.ndtri(delta))
    mu = quantile - float(scipy.special.ndtri_exp(math.log(delta) - log_odds))
    while mu > 0 and gaussian_log_odds(mu, delta) > log_odds:
        mu -= 2.0**-46 * (1 + mu + abs(quantile))
    return max(mu, 0.0)


def zcdp_rho_of_log_odds(log_odds: float, delta: float) -> float:
    """Return the largest rho whose `zcdp_log_odds` at delta stay within log_odds, rounded down."""
    domains.require_above_zero("the log-odds", log_odds)
    domains.require_delta(delta)
    tail = math.sqrt(-math.log(delta))
    rho = (log_odds / (tail + math.sqrt(tail * tail + log_odds))) ** 2
    while zcdp_log_odds(rho, delta) > log_odds:
        rho *= 1 - 2.0**-44
    return rho


def gaussian_advantage(mu: float) -> float:
    """Return 2 Phi(mu/2) - 1, rounded up: the greatest TPR - FPR of any attack on what is mu-GDP.

    The total variation distance of N(0, 1) and N(mu, 1) (Bernau et al. 2021, Equation 14; Dong, Roth and Su
    2022), attained by the likelihood-ratio test at mu/2.
    """
    domains.require_up_to("mu", mu, conversions.LARGEST_MU)
    return min(1.0, math.erf(mu / math.sqrt(8)) * _ROUND_UP)


def gaussian_mu_of_advantage(advantage: float) -> float:
    """Return the largest mu whose `gaussian_advantage` is at most advantage, rounded down."""
    domains.require_between("the membership advantage", advantage, 0, 1)
    mu = math.sqrt(8) * float(scipy.special.erfinv(advantage)) * (1 - 2.0**-44)
    while gaussian_advantage(mu) > advantage:
        mu *= 1 - 2.0**-40
    return mu


def zcdp_advantage(rho: float) -> float:
    """Return the least of three bounds on TPR - FPR for what is rho-zCDP, rounded up.

    KL <= rho, so by Pinsker sqrt(rho/2), and by Bretagnolle and Huber sqrt(1 - e^-rho); and the delta of
    `zcdp_delta` at epsilon = 0, which is the total variation distance.
    """
    domains.require_up_to("rho", rho, conversions.LARGEST_RHO)
    bounds = (math.sqrt(rho / 2), math.sqrt(-math.expm1(-rho)))
    return min(1.0, min(bounds) * _ROUND_UP, conversions.zcdp_delta(rho, 0.0))


def zcdp_rho_of_advantage(advantage: float) -> float:
    """Return a rho whose `zcdp_advantage` is at most advantage, rounded down: Pinsker or Bretagnolle and Huber."""
    domains.require_between("the membership advantage", advantage, 0, 1)
    rho = max(2 * advantage * advantage, -math.log1p(-advantage * advantage)) * (1 - 2.0**-44)
    while zcdp_advantage(rho) > advantage:
        rho *= 1 - 2.0**-40
    return rho


def advantage(epsilon: float, delta: float = 0.0) -> float:
    """Return (e^epsilon - 1 + 2 delta)/(e^epsilon + 1): the greatest TPR - FPR that (epsilon, delta) permits.

    Add TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta (the same for the complement
    and the other data set): (1 + e^epsilon)(TPR - FPR) <= e^epsilon - 1 + 2 delta. Attained by randomised
    response that tells all with probability delta (Kairouz, Oh and Viswanath 2015).
    """
    domains.require_up_to("epsilon", epsilon, math.inf)
    domains.require_up_to("delta", delta, 1)
    return math.tanh(epsilon / 2) + delta * (1 - math.tanh(epsilon / 2))


def epsilon_of_attack(attack_advantage: float, delta: float) -> float:
    """Return ln((1 - delta)/(1 - advantage)), or 0: no smaller epsilon can be true (Erlingsson 2019, Proposition 3)."""
    domains.require_up_to("delta", delta, 1)
    if not -1 <= attack_advantage < 1:
        raise ValueError(f"the advantage of an attack must lie in [-1, 1), not be {attack_advantage}")
    if delta >= 1:
        return 0.0
    return max(0.0, math.log1p(-delta) - math.log1p(-attack_advantage))
