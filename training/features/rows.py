"""A feature map as sums over records take it."""

from dataclasses import dataclass, field
from typing import Any

from dpserve.accounting.arrays import Floats
from dpserve.training.features.feature_map import FeatureMap


@dataclass(frozen=True, eq=False)
class MappedRows:
    """A feature map as `Rows.make` takes it. Its tensors are made where they are needed.

    compact: whether a map that has compact rows gives these.
    """

    feature_map: FeatureMap
    compact: bool = False
    _tensors: dict[str, Floats] = field(default_factory=dict)

    @property
    def are_compact(self) -> bool:
        """Whether rows come by what they hold."""
        return self.compact and self.feature_map.has_compact_rows

    def __call__(self, X: Floats) -> Any:
        """Return phi (m, D) of rows (m, d)."""
        if self.are_compact:
            return self.feature_map.compact(X)
        if not self._tensors:
            self._tensors.update(self.feature_map.public_tensors())
        return self.feature_map(X, self._tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the tensors out."""
        return MappedRows, (self.feature_map, self.compact)
