"""How large a margin a certified head can reach: known before training, from public numbers alone."""

import math


def largest_margin(records: int, strong_convexity: float, tolerance: float, norm_bound: float, classes: int) -> float:
    """Return M such that no two logits of a row differ by more than M, whatever the `records` records are.

    J(W) = sum of n cross-entropies + (Lambda/2) ||W||_F^2. At the minimiser (Lambda/2) ||W||^2 <= J(W) <= J(0) =
    n ln C, and Lambda W = sum of (e_y - p) phi^T with ||e_y - p||_2 <= sqrt(2), so ||W||_F is at most the lesser of
    sqrt(2 n ln C / Lambda) and sqrt(2) n R / Lambda; the weights returned are within tau / Lambda of it. And (w_a -
    w_b).phi <= (||w_a|| + ||w_b||) ||phi|| <= sqrt(2) ||W||_F R.

    norm_bound: R, with ||phi(x)||_2 <= R. tolerance: tau. Raises ValueError for numbers that mean nothing.
    """
    if records < 1 or classes < 2:
        raise ValueError(f"there must be at least 1 record and 2 classes, not {records} and {classes}")
    for name, value in (("Lambda", strong_convexity), ("R", norm_bound), ("the tolerance", tolerance)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, not {value}")
    by_objective = math.sqrt(2 * records * math.log(classes) / strong_convexity)
    by_gradient = math.sqrt(2) * records * norm_bound / strong_convexity
    weights = min(by_objective, by_gradient) + tolerance / strong_convexity
    return math.sqrt(2) * weights * norm_bound * (1 + 2.0**-40)
