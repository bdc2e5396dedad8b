"""The margins of a certified head, before it is trained, from public numbers alone: the largest, and a usual one."""

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


def usual_margin(records: int | None, strong_convexity: float, norm_bound: float, classes: int) -> float:
    """Return a margin to expect of a head on rows of which it is halfway between guessing and certain: a guess.

    It is the lesser of two. A calibrated head that is right with probability (C + 1)/(2C) has the margin ln(C + 1).
    And regularisation keeps it from more than n |m - m'|^2 / (2 C Lambda), where m and m' are the means of two of C
    equally common classes: at the minimiser Lambda W = sum of (e_y - p) phi^T, whose row c is no longer than at p =
    1/C, n/C times the distance of m from the mean of all. The means are taken to be R/2 apart.

    records: n, None where it is not known.
    """
    calibrated = math.log(classes + 1)
    if records is None:
        return calibrated
    return min(calibrated, records * (norm_bound / 2) ** 2 / (2 * classes * strong_convexity))
