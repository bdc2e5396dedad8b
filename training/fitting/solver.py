"""Minimising the certified head's objective to a measured gradient norm, or failing.

SciPy does the optimising. What counts is only what is measured at the end: a bound on the gradient norm of the
exact objective, rounding included. Without it there is no certificate.
"""

from typing import Protocol

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.training.errors import NotConverged
from dpserve.training.fitting.sensitivity import projected

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

_NEWTON_STEPS = 20


class Objective(Protocol):
    """A strongly convex function of W (C, D), C `classes` and D `dimension`."""

    @property
    def classes(self) -> int:
        """C."""

    @property
    def dimension(self) -> int:
        """D."""

    def gradient(self, W: Floats, /) -> Floats:
        """The gradient (C, D)."""

    def value_and_gradient(self, W: Floats, /) -> tuple[float, Floats]:
        """Return both."""

    def hessian_vector_product(self, W: Floats, V: Floats, /) -> Floats:
        """The Hessian at W times V (C, D)."""

    def gradient_rounding(self, W: Floats, /) -> float:
        """A bound on the Frobenius norm of the gradient's rounding."""


def minimise(
    objective: Objective,
    tolerance: float,
) -> Floats:
    """Return W (C, D) with ||gradient of J at W||_F <= tolerance, projected onto the public ball.

    Raises NotConverged if the gradient norm plus a
    bound on its rounding stays above the tolerance.
    """
    shape = (objective.classes, objective.dimension)
    W = _trust_region(objective, shape, tolerance)
    best, bound = W, gradient_bound(objective, W)
    for _ in range(_NEWTON_STEPS):
        # Function values stop improving at 1e-16 of their size, before the gradient is as small as it can be:
        # these steps look at the gradient alone.
        if bound <= tolerance:
            break
        W = best - _newton_direction(objective, best)
        reached = gradient_bound(objective, W)
        if not reached < bound:
            break
        best, bound = W, reached
    if not bound <= tolerance:
        raise NotConverged(
            Message(
                "the gradient norm could only be shown to be below {:.3g}, and the tolerance is {:.3g}. "
                "Start again with a {tolerance} for the largest number of records there might have been, "
                "about 1e-9 for each (it adds 2 tolerance / Lambda to the sensitivity): fitting it to these "
                "records would tell about them",
                bound,
                tolerance,
            )
        )
    return projected(best)


def gradient_bound(objective: Objective, W: Floats) -> float:
    """Return a bound on the norm of the exact gradient at W: the computed norm plus its rounding."""
    computed = float(np.linalg.norm(objective.gradient(W)))
    return computed * (1 + 1e-9) + objective.gradient_rounding(W)


def _trust_region(objective: Objective, shape: tuple[int, int], tolerance: float) -> Floats:
    from scipy.optimize import minimize  # not before: other trainings should not wait for it

    def product(w: Vector, v: Vector) -> Vector:
        return objective.hessian_vector_product(w.reshape(shape), v.reshape(shape)).ravel()

    def value_and_gradient(w: Vector) -> tuple[float, Vector]:
        value, gradient = objective.value_and_gradient(w.reshape(shape))
        return value, gradient.ravel()

    result = minimize(
        value_and_gradient,
        np.zeros(shape[0] * shape[1]),
        jac=True,
        hessp=product,
        method="trust-ncg",
        options={"gtol": tolerance / 4, "maxiter": 1000, "initial_trust_radius": 1.0, "max_trust_radius": 1e4},
    )
    return np.asarray(result.x, dtype=np.float64).reshape(shape)


def _newton_direction(objective: Objective, W: Floats) -> Floats:
    from scipy.sparse.linalg import LinearOperator, cg

    operator = LinearOperator(
        (W.size, W.size),
        matvec=lambda v: objective.hessian_vector_product(W, v.reshape(W.shape)).ravel(),
        dtype=np.float64,
    )
    direction, _ = cg(operator, objective.gradient(W).ravel(), rtol=1e-8, maxiter=1000)
    step: Floats = direction.reshape(W.shape)
    return step
