"""The choices that the paper leaves, without importing PyTorch."""

from dataclasses import dataclass
from typing import Literal, get_args

from training.published.bounds import Topology

Activation = Literal["tanh", "sigmoid"]
"""Of the hidden layers. Both are bounded by 1, as Corollary 1 needs."""

Objective = Literal["cross-entropy", "per-record", "per-record-and-class"]
"""The training losses: the original one and the two readings of the convexified one (`training.published.batched`)."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True)
class Recipe:
    """How every model of a stack is trained: Table IV's configuration, but for alpha, which each model has itself."""

    topology: Topology
    objective: Objective
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 0.001
    l2_regulariser: float = 0.001
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch size are at least 1, not {self.epochs} and {self.batch_size}")
        if not (self.learning_rate > 0 and self.l2_regulariser >= 0):
            raise ValueError("the learning rate must be positive and the L2 regulariser must not be negative")
