"""A feature map as sums over records take it."""

from dataclasses import dataclass, field
from typing import Any

from dpserve.accounting.arrays import Floats
from dpserve.training.features.maps import Bins, FeatureMap


@dataclass(frozen=True, eq=False)
class MappedRows:
    """A feature map as `Rows.make` takes it. Its tensors are made where they are needed.

    sparse: whether a map whose rows are mostly zeros gives them as a sparse matrix.
    """

    feature_map: FeatureMap
    sparse: bool = False
    _tensors: dict[str, Floats] = field(default_factory=dict)

    @property
    def are_sparse(self) -> bool:
        """Whether rows come as a sparse matrix."""
        return self.sparse and isinstance(self.feature_map, Bins)

    def __call__(self, X: Floats) -> Any:
        """Return phi (m, D) of rows (m, d)."""
        if self.sparse and isinstance(self.feature_map, Bins):  # which type checkers see through
            return self.feature_map.sparse(X)
        if not self._tensors:
            self._tensors.update(self.feature_map.public_tensors())
        return self.feature_map(X, self._tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the tensors out."""
        return MappedRows, (self.feature_map, self.sparse)
