"""The simplest argument against Theorem 5's use: the objective of a tanh network is not convex in W, at any alpha.

tanh is odd. With one hidden layer and no biases, which the paper's count of weights leaves out, the network is
f(W) = W_2 tanh(W_1 x) = (-W_2) tanh(-W_1 x) = f(-W). So L(-W) = L(W), and so is the penalty's value. Were L convex,
L(0) <= (L(W) + L(-W))/2 = L(W) would hold for every W: no network would fit better than W = 0, whose loss is ln C for
each record, and so (1/alpha) ln mean exp(alpha ln C) = ln C at every alpha. Training finds W with less.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dpserve.audit.reports import ReportTable
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from dpserve.training.kinds.published.train import (
    Assignment,
    Layer,
    Parameters,
    batch_loss,
    logits,
    one_model,
    record_losses,
    train_stack,
)

ALPHAS = (0.1, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Midpoint:
    """Eq. 22 at trained weights, at their negatives, and between the two. penalty: 0.001 ||W||^2 of either end."""

    alpha: float
    loss: float
    loss_of_negative: float
    loss_between: float
    penalty: float

    @property
    def refutes_convexity(self) -> bool:
        """Whether the loss, and the objective with its penalty, are larger between than at both ends."""
        return self.loss_between > max(self.loss, self.loss_of_negative) + self.penalty


def midpoints(
    records: Records,
    alphas: Sequence[float] = ALPHAS,
    *,
    epochs: int = 20,
    seed: int = 0,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> tuple[Midpoint, ...]:
    """Train a network of Table IV for each alpha, by Eq. 22 as printed, and look at both ends and between."""
    declaration = records.declaration
    lower, upper = (torch.tensor(bound) for bound in (declaration.lower, declaration.upper))
    X = ((torch.from_numpy(records.X) - lower) / (upper - lower)).float()
    y = torch.from_numpy(records.y)
    recipe = PublishedRecipe(Topology(X.shape[1], (128,), len(declaration.classes)), "per-record", epochs=epochs)
    assignment = Assignment(torch.arange(len(y)).repeat(len(alphas), 1), (seed,) * len(alphas), tuple(alphas))
    stack = train_stack(X, y, assignment, recipe, on_epoch=on_epoch)
    return tuple(_midpoint(one_model(stack, place), X, y, recipe, alpha) for place, alpha in enumerate(alphas))


def _midpoint(model: Parameters, X: torch.Tensor, y: torch.Tensor, recipe: PublishedRecipe, alpha: float) -> Midpoint:
    def loss(factor: float) -> float:
        scaled = tuple(Layer(factor * layer.weight.double(), 0 * layer.bias.double()) for layer in model)
        losses = record_losses(logits(scaled, X.double()), y)
        return float(batch_loss(losses, recipe.topology.classes, "per-record", torch.tensor(alpha).double()))

    penalty = recipe.l2_regulariser * sum(float(layer.weight.double().square().sum()) for layer in model)
    return Midpoint(alpha, loss(1.0), loss(-1.0), loss(0.0), penalty)


def table(found: Sequence[Midpoint], classes: int) -> ReportTable:
    """Return the table of them."""
    columns = ("alpha", "L(W)", "L(-W)", "L((W + -W)/2)", "penalty of W and -W", "convex there")
    rows = tuple(
        (
            f"{one.alpha:g}",
            *(f"{figure:.4f}" for figure in (one.loss, one.loss_of_negative, one.loss_between, one.penalty)),
            "no" if one.refutes_convexity else "not refuted",
        )
        for one in found
    )
    note = (
        f"A convex function is at most the mean of both ends between them. ln C = {math.log(classes):.4f} is the loss "
        "at W = 0 for every alpha. The sum of the loss and its penalty is no more convex: the penalty is 0 there."
    )
    return ReportTable("Eq. 22 at a network's weights, their negatives and between (digits)", columns, rows, note)
