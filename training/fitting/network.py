"""Fully connected networks in NumPy: forward passes, and sums of per-record gradients clipped to a norm.

The gradient of one record's loss with respect to a dense layer is the outer product of its input a and the
gradient d at its output, so its squared norm is |a|^2 |d|^2, and (|a|^2 + 1)|d|^2 with the bias. Norms therefore need
no per-record gradient, and the clipped sum is one product of matrices, A^T (w D) ("ghost clipping", Goodfellow
2015; Li, Tramer, Liang and Hashimoto 2022).

That a record moves the sum by its own contribution alone takes contributions that are functions of their record, bit
for bit. Gradients are therefore those at inputs and weights on grids coarse enough for exact products (`exact`), which
round to about 2^-21 of a row's largest value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from dpserve.accounting.arrays import Floats, Labels
from dpserve.training.errors import TrainingError
from dpserve.training.exact.products import (
    MOST_CLASSES,
    matrix_on_grid,
    on_grid,
    probabilities,
    product,
    squared_lengths,
)
from dpserve.training.fitting.around import Centred
from dpserve.training.inputs.sums import COMPACT_BLOCK, Sums

Activation = Literal["tanh", "relu"]

MOST_SHARDS = 2**11
"""Largest number of shards for which `SUM_ERROR` bounds the rounding."""

SUM_ERROR = 2.0**-13
"""Largest distance, in clipping norms, by which rounding moves two neighbours' sums apart."""

Inputs = Floats | Centred
"""The first layer's inputs: (n, width)."""

_NORM_ERROR = 2.0**-30


def check_shards(records: Sums) -> None:
    """Raise TrainingError for records in more shards than sums of gradients are covered for."""
    if len(records.lengths) > MOST_SHARDS:
        raise TrainingError(
            f"gradients are summed over at most {MOST_SHARDS} files, not {len(records.lengths)}: join some of them"
        )


@dataclass(frozen=True)
class Network:
    """Dense layers of these widths, inputs first and classes last, with biases, `activation` between them.

    Parameters are one vector (size,): for each layer its weights (inputs, outputs) row by row, then its biases.
    """

    widths: tuple[int, ...]
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        """Refuse what is no network."""
        if len(self.widths) < 2 or min(self.widths) < 1 or self.widths[-1] < 2:
            raise ValueError(f"a network needs an input and at least two outputs, not widths {self.widths}")
        if self.widths[-1] > MOST_CLASSES:
            raise ValueError(f"a network may have up to {MOST_CLASSES} outputs, not {self.widths[-1]}")

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum((width + 1) * following for width, following in pairwise(self.widths))

    def layers(self, parameters: Floats) -> list[tuple[Floats, Floats]]:
        """Return views of the weights (inputs, outputs) and biases (outputs,) of each layer."""
        views, start = [], 0
        for width, following in pairwise(self.widths):
            middle, end = start + width * following, start + (width + 1) * following
            views.append((parameters[start:middle].reshape(width, following), parameters[middle:end]))
            start = end
        return views

    def initial(self, seed: int) -> Floats:
        """Return first parameters from a public seed: Glorot-uniform weights, and zeros in the last layer and biases.

        A last layer of zeros gives every class the same probability, so that no budget is spent on unlearning.
        """
        generator = np.random.RandomState(seed)  # NumPy promises never to change this generator's stream.
        parameters = np.zeros(self.size)
        for weights, _ in self.layers(parameters)[:-1]:
            limit = np.sqrt(6 / sum(weights.shape))
            weights[:] = generator.uniform(-limit, limit, weights.shape)
        return parameters

    def logits(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the logits (n, C) of inputs (n, widths[0])."""
        values = inputs
        *hidden, (weights, biases) = self.layers(parameters)
        for hidden_weights, hidden_biases in hidden:
            values = self._activated(values @ hidden_weights + hidden_biases)
        logits: Floats = values @ weights + biases
        return logits

    def clipped_sum(
        self, parameters: Floats, inputs: Inputs, labels: Labels, clip_norm: float, weights: Floats | None = None
    ) -> Floats:
        """Return the sum (size,) of the records' gradients of cross-entropy, each scaled to norm at most clip_norm.

        inputs: (n, widths[0]), as they are or around a mean; labels: (n,). weights: (n,), by which each is
        multiplied after that. Values that are not finite, or beyond 2^200, count as 0, and a record whose gradient has
        no finite norm all the same contributes nothing.

        A record's contribution is a function of the record and the parameters alone, bit for bit: it takes largest
        values, products, squared lengths and sums of probabilities that are exact in any order (`exact`), and
        operations on single numbers, of which all but exp and tanh are rounded as IEEE 754 prescribes.

        It is at most clip_norm long. The computed norm of d and a is within 2^-30 of its own: squares are exact,
        and their least, 2^-452, does not underflow.

        Rounding of the sum. Blocks of at most COMPACT_BLOCK = 3,584 records are summed, where rows are on cuts 32 sums
        of codes, then the blocks of a shard, at most 128 of them and 37 of so many records, and then k shards in pairs
        (`dpserve.training.inputs.sums.Total`; here the blocks of one sum). That moves every coordinate by at most
        (3,584 + 32 + 37 + 2 log2 k + 8) 2^-53 of the sum of its absolute values, so the sum by n times that in units of
        clip_norm, and by SUM_PARTS times as much where rows are sparse around a mean (`SparseCentred.summed`): for
        neighbours together at most 2 (3,683) 8 2^24 2^-53 < 2^-13 = SUM_ERROR, if n <= MOST_RECORDS and
        k <= MOST_SHARDS.
        """
        total = np.zeros(self.size)
        views = self.layers(total)
        for start in range(0, len(inputs), COMPACT_BLOCK):
            block = slice(start, start + COMPACT_BLOCK)
            some = inputs if len(inputs) <= COMPACT_BLOCK else inputs[block]
            factors = self._clipped(parameters, some, labels[block], clip_norm)
            for (layer, biases), (a, d) in zip(views, factors, strict=True):
                if weights is not None:
                    d = d * weights[block, None]
                if isinstance(a, Centred):
                    layer += a.summed(d)
                elif start == 0:
                    np.matmul(a.T, d, out=layer)
                else:
                    layer += a.T @ d
                biases += d.sum(axis=0)
        return total

    def _clipped(
        self, parameters: Floats, inputs: Inputs, labels: Labels, clip_norm: float
    ) -> Iterator[tuple[Inputs, Floats]]:
        """Yield a (n, width) and scaled d (n, following) of each layer."""
        factors = self.gradient_factors(parameters, inputs, labels)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = sum((_squared_lengths(a) + 1) * squared_lengths(d) for a, d in factors)
            norms = np.sqrt(squares) * (1 + _NORM_ERROR)
            scales = np.where(np.isfinite(norms), clip_norm / np.maximum(norms, clip_norm), 0.0)[:, None]
        finite = scales[:, 0] > 0
        for a, d in factors:
            if finite.all():
                yield a, d * scales
            else:
                # A row around a mean is finite, and no longer than `length`, whatever the parameters are.
                kept = a if isinstance(a, Centred) else np.where(finite[:, None], a, 0.0)
                yield kept, np.where(finite[:, None], d, 0.0) * scales

    def gradient_factors(self, parameters: Floats, inputs: Inputs, labels: Labels) -> list[tuple[Inputs, Floats]]:
        """Return the input a and the loss's gradient d at the output, of each layer, first layer first, on grids.

        Rows around a mean are on the grid of their feature map, and stay there.
        """
        layers = [(matrix_on_grid(weights), biases) for weights, biases in self.layers(parameters)]
        with np.errstate(over="ignore", invalid="ignore"):
            first: Inputs = inputs if isinstance(inputs, Centred) else on_grid(inputs)
            hidden: list[Floats] = []
            values = first
            for weights, biases in layers[:-1]:
                values = on_grid(self._activated(_affine(values, weights, biases)))
                hidden.append(values)
            d = probabilities(_affine(values, *layers[-1]))
            d[np.arange(len(labels)), labels] -= 1
            d = on_grid(d)
            before: list[Inputs] = [first, *hidden]
            factors: list[tuple[Inputs, Floats]] = [(before.pop(), d)]
            for a, (weights, _) in zip(hidden[::-1], layers[:0:-1], strict=True):
                d = product(d, weights.T)
                d *= 1 - a * a if self.activation == "tanh" else a > 0
                d = on_grid(d)
                factors.append((before.pop(), d))
        return factors[::-1]

    def _activated(self, z: Floats) -> Floats:
        """Return the activation of z, in its place."""
        activated: Floats = np.tanh(z, out=z) if self.activation == "tanh" else np.maximum(z, 0, out=z)
        return activated


def _squared_lengths(rows: Inputs) -> Floats:
    return rows.squared_lengths if isinstance(rows, Centred) else squared_lengths(rows)


def _affine(rows: Inputs, weights: Floats, biases: Floats) -> Floats:
    z = rows.product(weights) if isinstance(rows, Centred) else product(rows, weights)
    z += biases
    return z
