"""The choices that the paper leaves, by name, without importing PyTorch."""

from typing import Literal, get_args

Activation = Literal["tanh", "sigmoid"]
"""Of the hidden layers. Both are bounded by 1, as Corollary 1 needs."""

Objective = Literal["cross-entropy", "per-record", "per-record-and-class"]
"""The training losses: the original one and the two readings of the convexified one (`training.published.losses`)."""

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
