"""Figures of noisy counts, with intervals that hold the true ones with a stated confidence."""

import math
from statistics import NormalDist
from typing import Annotated

from pydantic import ConfigDict

from dpserve.accounting.disclosure import DisclosedModel, Released

CONFIDENCE = 0.95


class Interval(DisclosedModel):
    """An estimate, its standard error and the ends of an interval that holds the true value with CONFIDENCE.

    The true value is that of the held-out records; what other records would have given is not in the interval.
    """

    model_config = ConfigDict(extra="forbid")

    estimate: Annotated[float, Released("evaluation")]
    standard_error: Annotated[float, Released("evaluation")]
    lower: Annotated[float, Released("evaluation")]
    upper: Annotated[float, Released("evaluation")]


def normal_quantile(error: float) -> float:
    """Return z with P(|N(0, 1)| > z) = error."""
    return -NormalDist().inv_cdf(error / 2)


def count_interval(count: float, noise: float) -> Interval:
    """Return a noisy count with its interval. noise: its standard deviation."""
    z = normal_quantile(1 - CONFIDENCE)
    return Interval(estimate=count, standard_error=noise, lower=count - z * noise, upper=count + z * noise)


def share_interval(right: float, wrong: float, noise: float) -> Interval:
    """Return right / (right + wrong), each with independent noise."""
    return ratio_interval(right, right + wrong, noise**2, 2 * noise**2, noise**2, (0.0, 1.0))


def ratio_interval(
    above: float,
    below: float,
    variance: float,
    variance_below: float,
    covariance: float,
    ends: tuple[float, float],
    error: float = 1 - CONFIDENCE,
) -> Interval:
    """Return what above / below is without Gaussian noise of these variances, as Fieller (1954) has it.

    above - t below has mean 0 at the true ratio t, and the variance v(t) = variance - 2 t covariance + t^2
    variance_below: the t with (above - t below)^2 <= z^2 v(t) hold the true one except with probability `error`,
    exactly. Where these are not an interval, the number below being lost in noise, both ends are those of what is
    possible: `ends`, within which the true ratio lies. The standard error is that to first order.
    """
    low, high = ends
    squared = normal_quantile(error) ** 2
    a = below**2 - squared * variance_below
    b = above * below - squared * covariance
    c = above**2 - squared * variance
    if below <= 0 or a <= 0:
        return Interval(estimate=(low + high) / 2, standard_error=(high - low) / 2, lower=low, upper=high)
    estimate = min(max(above / below, low), high)
    error = math.sqrt(max(variance - 2 * estimate * covariance + estimate**2 * variance_below, 0.0)) / below
    root = math.sqrt(max(b * b - a * c, 0.0))
    first, last = (b - root) / a, (b + root) / a
    return Interval(
        estimate=estimate,
        standard_error=min(error, (high - low) / 2),
        lower=min(max(first, low), estimate),
        upper=max(min(last, high), estimate),
    )
