"""Shadow models of a certified head: k regularised softmax regressions minimised together, full batch.

The objective is the target's own, sum of cross-entropies + (Lambda/2) ||W||_F^2 (`training.objective`), on public
features. It is strongly convex, so that accelerated gradient descent with its constants reaches the minimum at a known
rate, and all k models can take the same steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, or a PyTorch tensor on whatever device: what is done below is written alike for both."""

_TINY = 1e-30
_TOLERANCE = 1e-3
"""Stop when no model's gradient, relative to its number of records, is longer than this."""

_MOST_STEPS = 2000


@dataclass(frozen=True)
class HeadRecipe:
    """Shadow models that are linear heads on given features. strong_convexity: Lambda."""

    classes: int
    strong_convexity: float

    def __post_init__(self) -> None:
        """Refuse what is no such head."""
        if self.classes < 2 or not (math.isfinite(self.strong_convexity) and self.strong_convexity > 0):
            raise ValueError(
                f"a head has two classes or more and a positive Lambda, not {self.classes}, {self.strong_convexity}"
            )


def train_heads(
    X: Array, y: Array, rows: Array, recipe: HeadRecipe, *, on_share: Callable[[float], None] = lambda _: None
) -> Array:
    """Train one head on each model's rows (k, n) of the pool X (N, D), y (N,); result: (k, D, C), on X's device.

    All are arrays of NumPy, or all are tensors of PyTorch.
    """
    xp = _module_of(X)
    n = rows.shape[1]
    phi, labels = X[rows], y[rows][:, :, None] == xp.arange(recipe.classes, device=X.device)
    strength = recipe.strong_convexity
    smoothness = 0.5 * _largest_eigenvalues(xp, phi) * 1.05 + strength
    root = (strength / smoothness) ** 0.5
    momentum = (1 - root) / (1 + root)
    W = ahead = xp.zeros((len(rows), X.shape[1], recipe.classes), dtype=X.dtype, device=X.device)
    for done in range(_MOST_STEPS):
        answers = _softmax(xp, phi @ ahead)
        gradient = strength * ahead + phi.mT @ xp.where(labels, answers - 1, answers)
        following = ahead - gradient / smoothness
        ahead, W = following + momentum * (following - W), following
        if done % 20 == 0:
            longest = float((gradient**2).sum((1, 2)).max()) ** 0.5 / n
            on_share(min(1.0, (1 + done) / _MOST_STEPS))
            if longest <= _TOLERANCE * min(1.0, strength):
                break
    on_share(1.0)
    return W


def head_logits(W: Array, X: Array) -> Array:
    """The logits of every head (k, D, C) on every row X (N, D): (k, N, C)."""
    return X @ W


def _module_of(X: Array) -> Any:
    return np if isinstance(X, np.ndarray) else import_module("torch")


def _softmax(xp: Any, z: Array) -> Array:
    grown = xp.exp(z - xp.amax(z, axis=2, keepdims=True))
    return grown / grown.sum(2)[:, :, None]


def _largest_eigenvalues(xp: Any, phi: Array, iterations: int = 30) -> Array:
    """Of phi^T phi, by power iteration, for each model: (k, 1, 1). The Hessian is at most half of it, plus Lambda."""
    start = np.random.default_rng(0).random((1, phi.shape[2], 1))
    vector = xp.asarray(start, dtype=phi.dtype, device=phi.device)
    for _ in range(iterations):
        vector = phi.mT @ (phi @ vector)
        length = (vector**2).sum((1, 2))[:, None, None] ** 0.5
        vector = vector / (length + _TINY)
    return length
