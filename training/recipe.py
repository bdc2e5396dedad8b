"""The public choices of a training run."""

from dataclasses import dataclass

from training.certificate import NAME, derive
from training.errors import TrainingError
from training.feature_maps import FeatureMap

DEFAULT_TOLERANCE = 1e-3
"""Reached, rounding included, for millions of records, and 0.14 % of the sensitivity."""


@dataclass(frozen=True)
class Recipe:
    """The public choices of a training run. strong_convexity: Lambda; tolerance: tau."""

    name: str
    feature_map: FeatureMap
    strong_convexity: float
    tolerance: float = DEFAULT_TOLERANCE

    def __post_init__(self) -> None:
        """Refuse what no certificate could be made for."""
        if not NAME.fullmatch(self.name):
            raise TrainingError(
                f"a model is named with letters, digits, '.', '_' and '-', at most 64, not {self.name!r}; see --name"
            )
        try:
            derive(self.strong_convexity, self.tolerance, self.feature_map.dimension)
        except ValueError as error:
            raise TrainingError(str(error)) from error
