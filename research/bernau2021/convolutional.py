"""A small convolutional network with gradients of single records, for images. Torch is the extra `torch`.

Two convolutions of 3 x 3 with pooling by 2, as Bernau et al. 2021 use for MNIST, but without batch normalisation: its
statistics depend on the whole batch, so that no record has a gradient of its own.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from dpserve.accounting.arrays import Floats, Labels


class ConvolutionalNetwork:
    """For flat square grey images (n, side^2). Satisfies `research.bernau2021.games.Gradients`."""

    def __init__(self, side: int, classes: int, filters: tuple[int, int] = (8, 16)) -> None:
        """Lay the network out; parameters come from `initial`."""
        self._build = _builder(side, classes, filters)
        self._module = self._build()
        self._shapes = {name: weights.shape for name, weights in self._module.named_parameters()}

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(shape.numel() for shape in self._shapes.values())

    def initial(self, seed: int) -> Floats:
        """Return torch's own first parameters from `seed`; torch's generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build()
        flat = torch.cat([weights.detach().reshape(-1) for weights in module.parameters()])
        return flat.double().numpy()

    def clipped_sum(self, parameters: Floats, inputs: Floats, labels: Labels, clip_norm: float) -> Floats:
        """Return the sum (size,) of the records' gradients, each clipped."""
        gradients = self.record_gradients(parameters, inputs, labels)
        norms = np.linalg.norm(gradients, axis=1)
        total: Floats = (clip_norm / np.maximum(norms, clip_norm)) @ gradients
        return total

    def record_gradients(self, parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
        """Return every record's own gradient (n, size), computed in single precision."""
        if len(labels) == 0:
            return np.zeros((0, self.size))
        images, flat = torch.from_numpy(inputs).float(), torch.from_numpy(parameters).float()
        found = self._gradients(flat, images, torch.from_numpy(labels))
        return found.double().numpy()

    def logits(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the logits (n, classes), computed in single precision."""
        with torch.inference_mode():
            named = self._parameters(torch.from_numpy(parameters).float())
            found: Floats = functional_call(self._module, named, (torch.from_numpy(inputs).float(),)).double().numpy()
        return found

    def _parameters(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    @cached_property
    def _gradients(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(self._module, self._parameters(flat), (x[None],)), y[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))


def _builder(side: int, classes: int, filters: tuple[int, int]) -> Callable[[], nn.Module]:
    first, second = filters
    left = ((side - 2) // 2 - 2) // 2

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            nn.Conv2d(1, first, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * left * left, classes),
        )

    return build
