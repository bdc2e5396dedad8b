"""The literature's rule of taking the best threshold on the very scores that the bound is computed from. Not valid.

Kept to compare with published figures, which were mostly made this way. Nasr et al. (2023, Section 5.2) say of it that
"the bound is technically not valid": it exceeds the truth more often than its confidence says.
"""

from collections.abc import Callable

from numpy.typing import ArrayLike

from audit.estimators.attack import LowerBound, candidates, checked


def uncorrected_best_threshold(
    estimator: Callable[[float], LowerBound], scores_in: ArrayLike, scores_out: ArrayLike
) -> LowerBound:
    """Return the largest of `estimator(threshold)` over thresholds taken from the scores themselves.

    The result's guarantee is "none". estimator: as `lambda t: gdp(scores_in, scores_out, 0.95, threshold=t)`.
    """
    best = max(
        (estimator(float(threshold)) for threshold in candidates(checked(scores_in), checked(scores_out))),
        key=lambda bound: bound.value,
    )
    return LowerBound(best.parameter, best.value, best.confidence, "none", best.threshold, best.errors)
