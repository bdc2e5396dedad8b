"""Lower bounds on what a mechanism tells, from scores with the record in and without it.

`gdp(scores_in, scores_out, confidence)` takes arrays and returns a `LowerBound`; so do its neighbours. What each
promises stands in its bound's `guarantee` and in its module.
"""

from audit.estimators.attack import (
    Errors,
    Guarantee,
    LowerBound,
    clopper_pearson,
    confidence_of_each,
    epsilon_of_mu,
    errors_at,
    upper_limit,
)
from audit.estimators.credible import credible_epsilon_delta, credible_gdp, credible_of_errors, credible_tradeoff
from audit.estimators.error_rates import (
    epsilon_delta,
    epsilon_delta_of_errors,
    gdp,
    gdp_of_errors,
    gdp_of_pooled_errors,
    largest_refuted,
    pooled_gdp,
    refuted_by_limits,
    refutes,
    tradeoff,
    tradeoff_of_errors,
)
from audit.estimators.families import BOUNDED_RANGE, GAUSSIAN, LAPLACE, Family, of_composition
from audit.estimators.katz_log import katz, katz_of_errors
from audit.estimators.many_thresholds import Design, gdp_of_many_thresholds
from audit.estimators.single_run import one_run, one_run_of_guesses, one_run_p_value
from audit.estimators.uncorrected import uncorrected_best_threshold

__all__ = [
    "BOUNDED_RANGE",
    "GAUSSIAN",
    "LAPLACE",
    "Design",
    "Errors",
    "Family",
    "Guarantee",
    "LowerBound",
    "clopper_pearson",
    "confidence_of_each",
    "credible_epsilon_delta",
    "credible_gdp",
    "credible_of_errors",
    "credible_tradeoff",
    "epsilon_delta",
    "epsilon_delta_of_errors",
    "epsilon_of_mu",
    "errors_at",
    "gdp",
    "gdp_of_errors",
    "gdp_of_many_thresholds",
    "gdp_of_pooled_errors",
    "katz",
    "katz_of_errors",
    "largest_refuted",
    "of_composition",
    "one_run",
    "one_run_of_guesses",
    "one_run_p_value",
    "pooled_gdp",
    "refuted_by_limits",
    "refutes",
    "tradeoff",
    "tradeoff_of_errors",
    "uncorrected_best_threshold",
    "upper_limit",
]
