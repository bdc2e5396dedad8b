"""Lower bounds on what a mechanism tells, from scores with the record in and without it.

`gdp(scores_in, scores_out, confidence)` takes arrays and returns a `LowerBound`; so do its neighbours. What each
promises stands in its bound's `guarantee` and in its module.
"""

from audit.estimators.bounds import (
    epsilon_delta,
    epsilon_delta_of_errors,
    gdp,
    gdp_of_errors,
    gdp_of_pooled_errors,
    largest_refuted,
    pooled_gdp,
    refuted_by_limits,
    tradeoff,
    tradeoff_of_errors,
)
from audit.estimators.errors import (
    SELECTION_SHARE,
    Errors,
    LowerBound,
    clopper_pearson,
    confidence_of_each,
    epsilon_of_mu,
    errors_at,
    thresholded,
    upper_limit,
)
from audit.estimators.families import BOUNDED_RANGE, GAUSSIAN, LAPLACE, Family, of_composition
from audit.estimators.many_thresholds import FEWEST_SCORES, Design, gdp_of_many_thresholds

__all__ = [
    "BOUNDED_RANGE",
    "FEWEST_SCORES",
    "GAUSSIAN",
    "LAPLACE",
    "SELECTION_SHARE",
    "Design",
    "Errors",
    "Family",
    "LowerBound",
    "clopper_pearson",
    "confidence_of_each",
    "epsilon_delta",
    "epsilon_delta_of_errors",
    "epsilon_of_mu",
    "errors_at",
    "gdp",
    "gdp_of_errors",
    "gdp_of_many_thresholds",
    "gdp_of_pooled_errors",
    "largest_refuted",
    "of_composition",
    "pooled_gdp",
    "refuted_by_limits",
    "thresholded",
    "tradeoff",
    "tradeoff_of_errors",
    "upper_limit",
]
