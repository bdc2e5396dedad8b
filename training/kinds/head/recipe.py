"""The public choices of a training run."""

from dataclasses import dataclass

from dpserve.training.errors import TrainingError
from dpserve.training.features.feature_map import NORM_BOUND
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fields import NAME
from dpserve.training.fitting.sensitivity import Convexity, weight_sensitivity

DEFAULT_TOLERANCE = 1e-3
"""Reached, rounding included, for millions of records, and 0.14 % of the sensitivity."""


@dataclass(frozen=True)
class Recipe:
    """The public choices of a training run. strong_convexity: Lambda; tolerance: tau.

    convexity: the choices of the convexified objective; None for the sum of losses.
    """

    name: str
    feature_map: FeatureMap
    strong_convexity: float
    tolerance: float = DEFAULT_TOLERANCE
    convexity: Convexity | None = None

    def __post_init__(self) -> None:
        """Refuse what no certificate could be made for."""
        if not NAME.fullmatch(self.name):
            raise TrainingError(
                f"a model is named with letters, digits, '.', '_' and '-', at most 64, not {self.name!r}"
            )
        try:
            weight_sensitivity(self.strong_convexity, self.tolerance, NORM_BOUND)
        except ValueError as error:
            raise TrainingError(str(error)) from error
