"""The network of Table IV as stacked tensors: M models of one topology, the l-th weights in one (M, in, out) tensor.

Initialised as Keras does, where the paper's figures come from: Glorot-uniform weights, zero biases. A model's first
weights depend on its own seed alone, not on how many others are in the stack or on the device.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from training.published.bounds import Topology
from training.published.setting import Activation


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
