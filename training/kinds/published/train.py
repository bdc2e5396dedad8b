"""Training a stack of networks as one batched tensor program: `torch.func.vmap` over models, not a loop.

Every model has its own records, order of records, first weights and alpha; all take their steps together. What a
model becomes depends on its own assignment alone: in a stack of one it is the same up to the rounding of sums.

The training losses are cross-entropy and two readings of the paper's convexified loss. Both readings are (1/alpha) ln
mean exp(alpha l) over a mini-batch (Eq. 22), computed as log-sum-exp so that no power overflows:

- `per-record`, as printed: the mean is over the records of the batch, of exp(alpha l_i).
- `per-record-and-class`: the mean is over the records and the classes, of exp(-alpha y_c ln p_c), y being one-hot. The
  C - 1 other classes contribute exp(0) = 1, so that a record's term is ((C - 1) + exp(alpha l_i)) / C. It is what the
  formula becomes where the elementwise product y ln p is not summed over the classes before the exponential, as in
  the authors' published code. It limits how much a record that is already fitted can be forgotten: the constant term
  keeps the weight of a batch's worst record below what the first reading gives it.

As alpha tends to 0 the first tends to the mean cross-entropy and the second to that divided by C.

The network of Table IV is held as stacked tensors: M models of one topology, the l-th weights in one (M, in, out)
tensor. Initialised as Keras does, where the paper's figures come from: Glorot-uniform weights, zero biases. A model's
first weights depend on its own seed alone, not on how many others are in the stack or on the device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import log_softmax

from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.devices import training_device
from dpserve.training.exact.network import Activation, exact_layers
from dpserve.training.inputs.records import Records
from dpserve.training.kinds.published.bounds import Objective, PublishedRecipe, Topology
from dpserve.training.kinds.published.bundle import PublishedNetwork, ScaledInputs, UnprovenCertificate, claims


class Layer(NamedTuple):
    """weight: ([M,] in, out); bias: ([M,] out)."""

    weight: Tensor
    bias: Tensor


Parameters = tuple[Layer, ...]


def initial_parameters(topology: Topology, seeds: Sequence[int], device: torch.device | str = "cpu") -> Parameters:
    """Untrained stacked parameters, one model for each seed."""
    models = [_one_model(topology, seed) for seed in seeds]
    return tuple(
        Layer(
            torch.stack([m[layer].weight for m in models]).to(device),
            torch.stack([m[layer].bias for m in models]).to(device),
        )
        for layer in range(len(topology.widths) - 1)
    )


def _one_model(topology: Topology, seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for fan_in, fan_out in pairwise(topology.widths):
        limit = (6 / (fan_in + fan_out)) ** 0.5
        weight = (2 * torch.rand((fan_in, fan_out), generator=generator) - 1) * limit
        layers.append(Layer(weight, torch.zeros(fan_out)))
    return tuple(layers)


def logits(parameters: Parameters, X: Tensor, activation: Activation = "tanh") -> Tensor:
    """The logits of one model. X: (n, features); result: (n, classes)."""
    apply = torch.tanh if activation == "tanh" else torch.sigmoid
    hidden = X
    for layer in parameters[:-1]:
        hidden = apply(torch.addmm(layer.bias, hidden, layer.weight))
    return torch.addmm(parameters[-1].bias, hidden, parameters[-1].weight)


def one_model(parameters: Parameters, index: int) -> Parameters:
    """The parameters of one model of a stack."""
    return tuple(Layer(layer.weight[index], layer.bias[index]) for layer in parameters)


_ADAM_EPSILON = 1e-7
"""Keras' default, where the paper's figures come from; PyTorch's is 1e-8."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """The training data of M models. members: (M, n) rows of the pool; seeds, alphas: (M,)."""

    members: Tensor
    seeds: tuple[int, ...]
    alphas: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit each other."""
        if self.members.ndim != 2 or not len(self.members) == len(self.seeds) == len(self.alphas) > 0:
            raise ValueError("an assignment needs one row of members, one seed and one alpha for each model")
        if min(self.alphas) <= 0:
            raise ValueError("alpha must be positive")


def train_stack(
    X: Tensor,
    y: Tensor,
    assignment: Assignment,
    recipe: PublishedRecipe,
    *,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> Parameters:
    """Train M models and return their stacked parameters, on the device of `X`.

    X: (N, features) float32, the pool of all records; y: (N,) int64. on_epoch: called with how many epochs are done.
    """
    device = X.device
    parameters = initial_parameters(recipe.topology, assignment.seeds, device)
    leaves = [tensor.requires_grad_() for layer in parameters for tensor in layer]
    optimiser = _adam(parameters, recipe)
    alphas = torch.tensor(assignment.alphas, device=device)
    members = assignment.members.to(device)
    orders = [torch.Generator().manual_seed(seed + 1) for seed in assignment.seeds]
    stacked_loss = vmap(_loss_of(recipe))
    for epoch in range(recipe.epochs):
        shuffled = torch.stack([torch.randperm(members.shape[1], generator=order) for order in orders]).to(device)
        rows = members.gather(1, shuffled)
        for start in range(0, rows.shape[1], recipe.batch_size):
            batch = rows[:, start : start + recipe.batch_size]
            losses = stacked_loss(parameters, gather_rows(X, batch), y[batch], alphas)
            gradients = torch.autograd.grad(losses.sum(), leaves)
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            optimiser.step()
        on_epoch(epoch + 1)
    return tuple(Layer(layer.weight.detach(), layer.bias.detach()) for layer in parameters)


def stacked_logits(
    parameters: Parameters, X: Tensor, rows: Tensor, activation: Activation = "tanh", *, block: int = 1000
) -> Tensor:
    """The logits of each model on rows of its own: rows (M, k) of the pool X; result (M, k, C)."""
    forward = vmap(lambda model, own: logits(model, own, activation))
    with torch.inference_mode():
        parts = [forward(parameters, gather_rows(X, part)) for part in torch.split(rows.to(X.device), block, dim=1)]
    return torch.cat(parts, dim=1)


def gather_rows(X: Tensor, rows: Tensor) -> Tensor:
    """X[rows] for rows (M, k), as (M, k, features): one `index_select`, which is twice as fast as indexing."""
    return X.index_select(0, rows.reshape(-1)).view(*rows.shape, X.shape[1])


def _loss_of(recipe: PublishedRecipe) -> Callable[[Parameters, Tensor, Tensor, Tensor], Tensor]:
    def loss(model: Parameters, X: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        losses = record_losses(logits(model, X, recipe.activation), y)
        return batch_loss(losses, recipe.topology.classes, recipe.objective, alpha)

    return loss


def _adam(parameters: Parameters, recipe: PublishedRecipe) -> torch.optim.Adam:
    """One Adam over stacked tensors is M independent ones, because it is elementwise.

    Keras' L2 regulariser l adds l ||W||^2 to the loss, without a half, for weights and not for biases: its gradient
    2 l W joins the loss's before Adam's moments, which is what PyTorch calls a weight decay of 2 l in `Adam`.
    """
    weights = [layer.weight for layer in parameters]
    biases = [layer.bias for layer in parameters]
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": 2 * recipe.l2_regulariser},
        {"params": biases},
    ]
    return torch.optim.Adam(
        groups,
        lr=recipe.learning_rate,
        eps=_ADAM_EPSILON,
        fused=True,
    )


def record_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy l_i = -ln p_{y_i} of each record. logits: (n, C); y: (n,); result: (n,)."""
    return -log_softmax(logits, dim=-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def batch_loss(losses: Tensor, classes: int, objective: Objective, alpha: Tensor) -> Tensor:
    """The loss of one mini-batch. losses: (n,), of its records; alpha: a positive scalar, unused by cross-entropy."""
    if objective == "cross-entropy":
        return losses.mean()
    exponents = alpha * losses
    if objective == "per-record-and-class":
        others = torch.full_like(exponents, math.log(classes - 1))
        exponents = torch.logaddexp(exponents, others) - math.log(classes)
    return (torch.logsumexp(exponents, dim=-1) - math.log(losses.shape[-1])) / alpha


def train_published(
    records: Records,
    name: str,
    lineage: str,
    *,
    hidden: tuple[int, ...] = (128,),
    objective: Objective = "per-record-and-class",
    alpha: float = 1.0,
    epochs: int = 100,
    l2_regulariser: float = 0.001,
    activation: Activation = "tanh",
    seed: int = 0,
    device: str = "cpu",
) -> PublishedNetwork:
    """Train Table IV's network on the records. The digest in its certificate is zero until it was saved.

    device: as `training_device` takes it, which decides the weights' last digits. Raises what that raises.
    """
    where = training_device(device)
    declaration = records.declaration
    inputs = ScaledInputs(lower=declaration.lower, upper=declaration.upper)
    lower, upper = np.asarray(inputs.lower), np.asarray(inputs.upper)
    topology = Topology(declaration.features, hidden, len(declaration.classes))
    certificate = UnprovenCertificate.fresh(
        name,
        declaration,
        inputs,
        lineage,
        objective=objective,
        alpha=alpha,
        hidden=hidden,
        activation=activation,
        records=len(records),
        l2_regulariser=l2_regulariser,
        **claims(topology, len(records), l2_regulariser),
    )
    X = torch.from_numpy(((records.X - lower) / (upper - lower)).astype(np.float32)).to(where)
    recipe = PublishedRecipe(topology, objective, epochs=epochs, l2_regulariser=l2_regulariser, activation=activation)
    assignment = Assignment(torch.arange(len(records))[None], (seed,), (alpha,))
    model = one_model(train_stack(X, torch.from_numpy(records.y).to(where), assignment, recipe), 0)
    layers = tuple((layer.weight.double().cpu().numpy(), layer.bias.double().cpu().numpy()) for layer in model)
    return PublishedNetwork(certificate, exact_layers(layers), NoiseKey.fresh())
