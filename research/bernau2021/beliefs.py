"""The adversary's belief after a run, and the results of many (Bernau et al. 2021, Algorithm 1 and Section 5.3).

The adversary knows two neighbouring data sets, holds both for equally likely and sees every release. Belief is held
as log-odds of the first against the second; releases add up their log-likelihood ratios.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.special
from numpy.typing import NDArray

from dpserve.accounting import conversions, domains, identifiability
from dpserve.accounting.arrays import Floats
from dpserve.audit.estimators import Errors, gdp_of_errors, upper_limit


def gaussian_log_ratio(released: Floats, first: Floats, second: Floats, deviation: float) -> float:
    """Return ln of the density of `released` (d,) under N(first, deviation^2 I) over that under N(second, ...).

    <r - (first + second)/2, first - second>/deviation^2: the line of Algorithm 1 that updates the belief, without
    its products of densities, which underflow.
    """
    difference = first - second
    return float((released - (first + second) / 2) @ difference) / deviation**2


def belief(log_odds: Floats) -> Floats:
    """Return 1/(1 + e^-log_odds)."""
    believed: Floats = np.asarray(scipy.special.expit(log_odds), dtype=np.float64)
    return believed


def published_mu(epsilon: float, delta: float) -> float:
    """Return mu of the Gaussian noise that RDP allows (epsilon, delta) in all, by the conversion the paper had.

    For alpha mu^2/2-RDP, epsilon = alpha mu^2/2 + ln(1/delta)/(alpha - 1) (Mironov 2017, Proposition 3) is least at
    mu^2/2 + mu sqrt(2 ln(1/delta)). It asks for a little more noise than `conversions.gaussian_mu`.
    """
    domains.require_above_zero("epsilon", epsilon)
    domains.require_delta(delta)
    tail = math.sqrt(-2 * math.log(delta))
    return math.sqrt(tail * tail + 2 * epsilon) - tail


def published_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon at delta of Gaussian releases of mu together, by the conversion the paper had."""
    return mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))


def published_gaussian_advantage(epsilon: float, delta: float) -> float:
    """Return 2 Phi(epsilon / (2 sqrt(2 ln(1.25/delta)))) - 1 as printed (Bernau et al. 2021, Theorem 2).

    It presumes the classical noise sigma = sqrt(2 ln(1.25/delta))/epsilon, which gives (epsilon, delta)-DP only
    for epsilon < 1; `gaussian_advantage(gaussian_mu(epsilon, delta))` is the exact figure.
    """
    domains.require_above_zero("epsilon", epsilon)
    domains.require_delta(delta)
    return math.erf(epsilon / (2 * math.sqrt(2 * math.log(1.25 / delta))) / math.sqrt(2))


def published_gaussian_epsilon(attack_advantage: float, delta: float) -> float:
    """Return 2 sqrt(2 ln(1.25/delta)) Phi^-1((advantage + 1)/2), the inverse of `published_gaussian_advantage`.

    Bernau et al. 2021, Equation 15, prints it without the leading 2, which does not invert their Theorem 2.
    """
    domains.require_between("the membership advantage", attack_advantage, 0, 1)
    domains.require_delta(delta)
    quantile = math.sqrt(2) * float(scipy.special.erfinv(attack_advantage))
    return 2 * math.sqrt(2 * math.log(1.25 / delta)) * quantile


@dataclass(frozen=True, eq=False)
class Games:
    """Runs whose training data were the first or the second data set, by a fair coin.

    log_odds: (n,), at the end, of the first. first: (n,), whether it was the first. mu: (n,), the distance of the two
    data sets in a run, in noise: sqrt(sum over releases of (sensitivity/deviation)^2).
    """

    log_odds: Floats
    first: NDArray[np.bool_]
    mu: Floats

    @property
    def beliefs_in_truth(self) -> Floats:
        """The final belief (n,) in the data set that was used."""
        return belief(np.where(self.first, self.log_odds, -self.log_odds))


@dataclass(frozen=True)
class Identifiability:
    """Results of games. Each epsilon of Section 5.3 is an estimate, not a bound; `epsilon_bound` is a lower bound.

    advantage: 2 wins/games - 1; advantage_interval: Clopper and Pearson's, at 95 %. excess: delta', how often the
    belief in the truth exceeded the bound asked for. largest_belief: in the truth. epsilon_of_sensitivity: from the
    largest distance of a run; epsilon_of_belief: its log-odds; epsilon_of_advantage: Equation 15, which inverts the
    classical Gaussian mechanism; exact_epsilon_of_sensitivity, exact_epsilon_of_advantage: the same by the exact curve.
    """

    games: int
    advantage: float
    advantage_interval: tuple[float, float]
    excess: float
    largest_belief: float
    epsilon_of_sensitivity: float
    epsilon_of_belief: float
    epsilon_of_advantage: float
    exact_epsilon_of_sensitivity: float
    exact_epsilon_of_advantage: float
    epsilon_bound: float


def identifiability_of(games: Games, delta: float, belief_bound: float, confidence: float = 0.95) -> Identifiability:
    """Return what the games say at this delta, and of beliefs above `belief_bound`. Raises ValueError for no games.

    A game is won where the belief in the truth exceeds one half. The lower bound counts the adversary's two errors
    at even odds, a threshold fixed in advance, and is Clopper and Pearson's through the Gaussian trade-off function.
    """
    n = len(games.log_odds)
    if n == 0 or games.first.all() or not games.first.any():
        raise ValueError("there must be games with each of the two data sets")
    truth = games.beliefs_in_truth
    wins = int(np.count_nonzero(truth > 0.5))
    advantage = 2 * wins / n - 1
    half = (1 - confidence) / 2
    interval = (1 - 2 * upper_limit(n - wins, n, half), 2 * upper_limit(wins, n, half) - 1)
    largest = float(truth.max())
    mu = float(games.mu.max())
    said_first = games.log_odds > 0
    errors = Errors(
        float(np.count_nonzero(said_first & ~games.first)),
        float(np.count_nonzero(~games.first)),
        float(np.count_nonzero(~said_first & games.first)),
        float(np.count_nonzero(games.first)),
    )
    bound = gdp_of_errors(errors, confidence)
    inside = 0 < advantage < 1
    return Identifiability(
        games=n,
        advantage=advantage,
        advantage_interval=interval,
        excess=float(np.mean(truth > belief_bound)),
        largest_belief=largest,
        epsilon_of_sensitivity=published_epsilon(mu, delta),
        epsilon_of_belief=float(scipy.special.logit(largest)),
        epsilon_of_advantage=published_gaussian_epsilon(advantage, delta) if inside else 0.0,
        exact_epsilon_of_sensitivity=conversions.gaussian_epsilon(mu, delta),
        exact_epsilon_of_advantage=_exact(advantage, delta) if inside else 0.0,
        epsilon_bound=conversions.gaussian_epsilon(bound, delta) * (1 - 2.0**-30),
    )


def _exact(advantage: float, delta: float) -> float:
    return conversions.gaussian_epsilon(identifiability.gaussian_mu_of_advantage(advantage), delta)
