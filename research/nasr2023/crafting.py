"""Inputs crafted so that their gradient is unlike the others' (Nasr et al. 2023, Algorithm 3).

The second derivatives that this takes come from torch, the extra `torch`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpserve.accounting.arrays import Floats, Labels
from dpserve.training.fitting.network import Network
from research.white_box.observations import Example


@dataclass(frozen=True, eq=False)
class CraftedCanary:
    """A canary made anew for the parameters of every step.

    From one of the records inputs (n, width), labels (n,), which the auditor holds and training does not, x descends
    on the absolute cosine between its gradient and the mean gradient of them all. Inputs stay in [0, 1]. Of the inputs
    passed through, the one with the smallest cosine is taken.
    """

    network: Network
    inputs: Floats
    labels: Labels
    start: int = 0
    crafting_steps: int = 10
    step_size: float = 0.5

    def __call__(self, parameters: Floats) -> Example:
        """Return the example crafted for these parameters."""
        typical = self.network.clipped_sum(parameters, self.inputs, self.labels, 2.0**60) / len(self.labels)
        towards = torch.from_numpy(typical / max(float(np.linalg.norm(typical)), 1e-300))
        label = int(self.labels[self.start])
        x = best = torch.from_numpy(self.inputs[self.start])
        least = np.inf
        for _ in range(self.crafting_steps + 1):
            x = x.detach().requires_grad_(True)
            own = _gradient(self.network, torch.from_numpy(parameters), x, label)
            cosine = (own @ towards).abs() / own.norm().clamp_min(1e-300)
            if float(cosine.detach()) < least:
                least, best = float(cosine.detach()), x.detach()
            (slope,) = torch.autograd.grad(cosine, x)
            x = (x - self.step_size * slope / slope.norm().clamp_min(1e-300)).clamp(0, 1)
        return Example(best.numpy().copy(), label)


def _gradient(network: Network, parameters: Tensor, x: Tensor, label: int) -> Tensor:
    """Return the gradient (size,) of the loss of one record, itself differentiable with respect to x."""
    flat = parameters.requires_grad_(True)
    values, start = x, 0
    for depth, (width, following) in enumerate(zip(network.widths, network.widths[1:], strict=False)):
        weights = flat[start : start + width * following].view(width, following)
        biases = flat[start + width * following : start + (width + 1) * following]
        values = values @ weights + biases
        if depth < len(network.widths) - 2:
            values = torch.tanh(values) if network.activation == "tanh" else torch.relu(values)
        start += (width + 1) * following
    loss = cross_entropy(values[None], torch.tensor([label]))
    (gradient,) = torch.autograd.grad(loss, flat, create_graph=True)
    return gradient
