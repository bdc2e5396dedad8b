"""What an audit of steps could see: the power of its conviction against noise that is too small, in closed form.

The conviction is by pooled errors at the threshold 1/2 (`audit.estimators.pooled_gdp`). Noise that is `ratio` times the
claimed makes 2 n observations err with probability Phi(-mu/(2 ratio)) each, independently, and the claim falls where at
most `most_errors` of them did: the power is one value of a binomial law.
"""

from collections.abc import Callable

import scipy.special
import scipy.stats

from accounting import domains

POWER = 0.99
"""With what probability an audit that was sized for a fault convicts it."""
_MOST_OBSERVATIONS = 2**30
_LEAST_RATIO = 1e-3


def most_errors(mu: float, observations: int, confidence: float) -> int:
    """Return of how many errors, in `observations` each way, a step that claims mu is convicted; -1 for none."""
    claimed = float(scipy.special.ndtr(-mu / 2))
    most = int(scipy.stats.binom.ppf(1 - confidence, 2 * observations, claimed))
    while most >= 0 and scipy.stats.binom.cdf(most, 2 * observations, claimed) > (1 - confidence) * (1 - 1e-9):
        most -= 1
    return most


def power(mu: float, ratio: float, observations: int, confidence: float) -> float:
    """Return the probability that noise `ratio` times what mu claims is convicted, wrongly with 1 - confidence at most.

    Raises ValueError for a ratio that is none: it lies above 0 and is at most 1.
    """
    domains.require_above_zero("the ratio of noises", ratio)
    domains.require_up_to("the ratio of noises", ratio, 1)
    most = most_errors(mu, observations, confidence)
    if most < 0:
        return 0.0
    return float(scipy.stats.binom.cdf(most, 2 * observations, scipy.special.ndtr(-mu / (2 * ratio))))


def observations_for(mu: float, ratio: float, confidence: float, asked: float = POWER) -> int:
    """Return how many observations each way convict noise `ratio` times the claimed with the power asked for.

    Raises ValueError where 2^30 do not.
    """
    enough = _least(lambda count: power(mu, ratio, count, confidence) >= asked)
    if enough is None:
        raise ValueError(
            f"{_MOST_OBSERVATIONS} observations cannot distinguish {ratio:g} times the claimed noise from it"
        )
    return enough


def largest_ratio(mu: float, observations: int, confidence: float, asked: float = POWER) -> float | None:
    """Return the largest ratio of noises that so many observations convict with the power asked for; None for none."""
    if power(mu, _LEAST_RATIO, observations, confidence) < asked:
        return None
    low, high = _LEAST_RATIO, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if power(mu, middle, observations, confidence) >= asked:
            low = middle
        else:
            high = middle
    return low


def _least(enough: Callable[[int], bool]) -> int | None:
    """Return a number that is enough, where half of it, to a hundredth, is not: power is not quite monotone in it."""
    high = 1
    while not enough(high):
        if high >= _MOST_OBSERVATIONS:
            return None
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
