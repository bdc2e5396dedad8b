"""The bounds that Lu et al. 2022 hold theirs against in Table I, each with its source."""

import math

from dpserve.training.kinds.published import bounds


def chaudhuri_binary_normalised(rho: float, lam: float, n: int) -> float:
    """Table I: 2 rho / (lambda n) of Chaudhuri et al. 2011; convex loss, two classes, ||x|| <= 1."""
    return bounds.weights_l2(rho, lam, n)


def chaudhuri_multiclass(rho: float, lam: float, n: int, classes: int, largest_norm: float) -> float:
    """Table I: C ||x|| rho / (lambda n) of Chaudhuri et al. 2011; convex loss, C classes, inputs of any norm."""
    return classes * largest_norm * bounds.weights_l2(rho, lam, n) / 2


def wu_decreasing_steps(rho: float, lam: float, n: int) -> float:
    """Table I: 2 rho / (lambda n) of Wu et al. 2017; convex and smooth loss, SGD with decreasing steps."""
    return bounds.weights_l2(rho, lam, n)


def wu_constant_step(rho: float, lam: float, n: int, step: float) -> float:
    """Table I: 2 eta rho / (1 - (1 - eta lambda)^n) of Wu et al. 2017; convex and smooth loss, SGD with step eta.

    Raises ValueError unless 0 < eta lambda < 1, where the formula has a meaning.
    """
    if not 0 < step * lam < 1:
        raise ValueError(f"eta lambda must lie between 0 and 1, not {step * lam}")
    return 2 * step * rho / -math.expm1(n * math.log1p(-step * lam))
