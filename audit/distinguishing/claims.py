"""What a cost claims, as a family of trade-off functions with one member of it, and what finding contradicts it."""

from collections.abc import Callable
from dataclasses import dataclass

from accounting.analyses import side_by_side
from accounting.compositions import Composition, composition_of
from accounting.losses import (
    BoundedRangeLoss,
    Cost,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    SubsampledGaussianLoss,
)
from audit.estimators import BOUNDED_RANGE, GAUSSIAN, LAPLACE, Family, of_composition

_LARGEST_FACTOR = 16.0


@dataclass(frozen=True)
class Claim:
    """What one release is said to cost.

    cost: the claim. delta: where epsilon is stated, 0 where the cost has a pure epsilon and delta was left at 0.
    epsilon: at delta. family, parameter: the trade-off function that the cost states, as a member of a family.
    """

    cost: Cost
    delta: float
    epsilon: float
    family: Family
    parameter: float


def claim_of(cost: Cost, delta: float) -> Claim:
    """Return the claim of `cost`, its epsilon taken at delta. Raises ValueError where none is finite there.

    A cost of one loss has that loss's own family; several losses together have the family of their composition, with
    the factor for parameter by which every loss would have to be larger: the claim is 1.
    """
    composition = composition_of({cost: 1})
    if delta == 0:
        epsilon = cost.pure_epsilon
        if epsilon == float("inf"):
            raise ValueError("Gaussian noise has no epsilon at delta = 0; state a delta above 0")
    else:
        epsilon = min(side_by_side({cost: 1}, delta).epsilon, cost.pure_epsilon)
    if len(composition) == 1 and sum(composition.values()) == 1:
        (loss,) = composition
        match loss:
            case GaussianLoss():
                return Claim(cost, delta, epsilon, GAUSSIAN, loss.mu)
            case LaplaceLoss():
                return Claim(cost, delta, epsilon, LAPLACE, loss.epsilon)
            case BoundedRangeLoss():
                return Claim(cost, delta, epsilon, BOUNDED_RANGE, loss.epsilon)
    family = of_composition("factor", _scaled(composition), delta or 1e-9, largest=_LARGEST_FACTOR)
    return Claim(cost, delta, epsilon, family, 1.0)


def _scaled(composition: Composition) -> Callable[[float], Composition]:
    def losses(factor: float) -> Composition:
        return Composition({_times(loss, factor): count for loss, count in composition.items()})

    return losses


def _times(loss: PrivacyLoss, factor: float) -> PrivacyLoss:
    match loss:
        case GaussianLoss():
            return GaussianLoss(loss.mu * factor)
        case LaplaceLoss():
            return LaplaceLoss(loss.epsilon * factor)
        case BoundedRangeLoss():
            return BoundedRangeLoss(loss.epsilon * factor)
        case SubsampledGaussianLoss():
            return SubsampledGaussianLoss(loss.noise_multiplier / factor, loss.sampling_rate)
    raise ValueError(f"a {loss.kind} loss has no family to audit it by")
