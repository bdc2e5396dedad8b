"""Shadow models of a certified head: k regularised softmax regressions minimised together, full batch.

The objective is the target's own, sum of cross-entropies + (Lambda/2) ||W||_F^2 (`training.objective`), on public
features. It is strongly convex, so that accelerated gradient descent with its constants reaches the minimum at a known
rate, and all k models can take the same steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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
    X: Tensor, y: Tensor, rows: Tensor, recipe: HeadRecipe, *, on_share: Callable[[float], None] = lambda _: None
) -> Tensor:
    """Train one head on each model's rows (k, n) of the pool X (N, D), y (N,); result: (k, D, C), on X's device."""
    k, n = rows.shape
    phi = X.index_select(0, rows.reshape(-1)).view(k, n, X.shape[1])
    labels = torch.nn.functional.one_hot(y[rows], recipe.classes).to(X.dtype)
    strength = recipe.strong_convexity
    smoothness = 0.5 * _largest_eigenvalues(phi) * 1.05 + strength
    step = (1 / smoothness).view(k, 1, 1)
    root = torch.sqrt(strength / smoothness)
    momentum = ((1 - root) / (1 + root)).view(k, 1, 1)
    W = torch.zeros((k, X.shape[1], recipe.classes), dtype=X.dtype, device=X.device)
    ahead = W
    for done in range(_MOST_STEPS):
        residual = torch.softmax(torch.bmm(phi, ahead), dim=2) - labels
        gradient = torch.baddbmm(strength * ahead, phi.transpose(1, 2), residual)
        following = ahead - step * gradient
        ahead, W = following + momentum * (following - W), following
        if done % 20 == 0:
            longest = float(gradient.flatten(1).norm(dim=1).max()) / n
            on_share(min(1.0, (1 + done) / _MOST_STEPS))
            if longest <= _TOLERANCE * min(1.0, strength):
                break
    on_share(1.0)
    return W


def head_logits(W: Tensor, X: Tensor) -> Tensor:
    """The logits of every head (k, D, C) on every row X (N, D): (k, N, C)."""
    return torch.matmul(X, W)


def _largest_eigenvalues(phi: Tensor, iterations: int = 30) -> Tensor:
    """Of phi^T phi, by power iteration, for each model: (k,). The Hessian is at most half of it, plus Lambda."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.rand((1, phi.shape[2], 1), generator=generator, dtype=phi.dtype).to(phi.device)
    vector = vector.expand(len(phi), -1, -1)
    length = torch.ones(len(phi), dtype=phi.dtype, device=phi.device)
    for _ in range(iterations):
        vector = torch.bmm(phi.transpose(1, 2), torch.bmm(phi, vector))
        length = vector.flatten(1).norm(dim=1)
        vector = vector / length.clamp_min(torch.finfo(phi.dtype).tiny).view(-1, 1, 1)
    return length
