"""A stack of small networks, one for each teacher, trained together with NumPy and answered from together.

What a network becomes is a function of its own records, in their order, and of public numbers: every product of the
stack is one product for each network, of a shape that does not depend on any records. How many records a part has
decides which of its rows a step draws, and nothing else. No step looks at another network.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Singles

Layers = tuple[tuple[Singles, Singles], ...]
"""Weights (m, in, out) and biases (m, out) of every layer, m networks in a stack."""

Activation = Literal["tanh", "relu"]

_MOMENTS = (0.9, 0.999)
_SMALL = 1e-7


@dataclass(frozen=True)
class Schedule:
    """The schedule of every network, in public numbers: Adam, and cross-entropy on `batch` rows drawn at each step.

    Rows are drawn with replacement, so that a part of any size, one record included, is trained alike.
    """

    steps: int = 400
    batch: int = 32
    learning_rate: float = 0.003
    weight_decay: float = 1e-3
    activation: Activation = "tanh"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        if not (self.steps >= 1 and self.batch >= 1):
            raise ValueError(f"steps and batch must be at least 1, not {self.steps} and {self.batch}")
        if not (0 < self.learning_rate <= 1 and 0 <= self.weight_decay <= 1):
            raise ValueError("the learning rate must be above 0 and at most 1, and the weight decay between 0 and 1")
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"the activation is tanh or relu, not {self.activation!r}")


def train_stack(
    inputs: Singles,
    labels: NDArray[np.int64],
    parts: tuple[NDArray[np.int64], ...],
    widths: tuple[int, ...],
    schedule: Schedule,
    progress: Callable[[int], None] = lambda _: None,
) -> Layers:
    """Train a network of these widths on each part; a network whose part is empty learns from zeros.

    inputs: (n, widths[0]); labels: (n,) below widths[-1]; progress is told how many steps are done.
    """
    generators = [np.random.RandomState([schedule.seed, teacher]) for teacher in range(len(parts))]
    layers = _initial(widths, generators)
    flat = [tensor for layer in layers for tensor in layer]
    first = [np.zeros_like(tensor) for tensor in flat]
    second = [np.zeros_like(tensor) for tensor in flat]
    taught = [teacher for teacher, rows in enumerate(parts) if len(rows)]
    for step in range(1, schedule.steps + 1):
        batch_inputs = np.zeros((len(parts), schedule.batch, widths[0]), dtype=np.float32)
        batch_labels = np.zeros((len(parts), schedule.batch), dtype=np.int64)
        for teacher in taught:
            rows = parts[teacher][generators[teacher].randint(0, len(parts[teacher]), schedule.batch)]
            batch_inputs[teacher], batch_labels[teacher] = inputs[rows], labels[rows]
        gradients = _gradients(layers, batch_inputs, batch_labels, schedule)
        rate = schedule.learning_rate * math.sqrt(1 - _MOMENTS[1] ** step) / (1 - _MOMENTS[0] ** step)
        for tensor, gradient, mean, square in zip(flat, gradients, first, second, strict=True):
            mean += (1 - _MOMENTS[0]) * (gradient - mean)
            square += (1 - _MOMENTS[1]) * (gradient * gradient - square)
            tensor -= rate * mean / (np.sqrt(square) + _SMALL)
        progress(step)
    return layers


def _initial(widths: tuple[int, ...], generators: list[np.random.RandomState]) -> Layers:
    """Glorot-uniform weights from each teacher's own public generator, and zero biases."""
    layers = []
    for fan_in, fan_out in pairwise(widths):
        limit = math.sqrt(6 / (fan_in + fan_out))
        weights = [generator.uniform(-limit, limit, (fan_in, fan_out)) for generator in generators]
        layers.append((np.stack(weights).astype(np.float32), np.zeros((len(weights), fan_out), dtype=np.float32)))
    return tuple(layers)


def _gradients(layers: Layers, inputs: Singles, labels: NDArray[np.int64], schedule: Schedule) -> list[Singles]:
    """Return the gradients of each network's mean cross-entropy and weight decay, as `layers` lists its tensors."""
    outputs = [inputs]
    for index, (weights, biases) in enumerate(layers):
        total = outputs[-1] @ weights + biases[:, None, :]
        outputs.append(_apply(total, schedule.activation) if index < len(layers) - 1 else total)
    logits = outputs[-1]
    with np.errstate(invalid="ignore", over="ignore"):
        residual = np.exp(logits - logits.max(axis=2, keepdims=True))
        residual /= residual.sum(axis=2, keepdims=True)
    np.put_along_axis(residual, labels[:, :, None], np.take_along_axis(residual, labels[:, :, None], 2) - 1, 2)
    residual /= schedule.batch
    gradients: list[Singles] = []
    for index in range(len(layers) - 1, -1, -1):
        weights = layers[index][0]
        gradients = [
            outputs[index].swapaxes(1, 2) @ residual + np.float32(schedule.weight_decay) * weights,
            residual.sum(axis=1),
            *gradients,
        ]
        if index:
            slope = 1 - outputs[index] ** 2 if schedule.activation == "tanh" else (outputs[index] > 0)
            residual = (residual @ weights.swapaxes(1, 2)) * slope
    return gradients


def _apply(values: Singles, activation: Activation) -> Singles:
    applied: Singles = np.tanh(values) if activation == "tanh" else np.maximum(values, 0)
    return applied
