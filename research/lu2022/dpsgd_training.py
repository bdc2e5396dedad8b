"""DP-SGD on the published network: the rival that spends its budget on training, once, for any number of answers.

Training is Opacus' (the extra `dpsgd`); this module sets its noise for a given (epsilon, delta) under four analyses of
the same steps, as the paper's comparison does. Neighbouring data sets differ by one record added or removed.

Each record joins a step with probability q = batch/n, independently; its gradient is clipped to norm c; the sum gets
N(0, (noise multiplier c)^2). The record's own loss is used, because a convexified mini-batch is no sum over records;
with one record the first reading of the convexified loss is the cross-entropy itself.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dpserve.accounting import analyses
from dpserve.accounting.losses import Cost, SubsampledGaussianLoss, composition_of
from dpserve.training.errors import extra
from dpserve.training.kinds.published.bounds import Topology
from dpserve.training.kinds.published.train import Layer, Parameters, initial_parameters, one_model
from research import dpsgd_theorems

Composition = Literal["naive", "advanced", "zcdp", "rdp"]
COMPOSITIONS: tuple[Composition, ...] = get_args(Composition)

_LEAST_NOISE, _LARGEST_NOISE = 0.02, 1e8
_BISECTIONS = 50


@dataclass(frozen=True)
class DpSgd:
    """The public choices. noise_multiplier: in units of clip_norm; learning rate and penalty as in Table IV."""

    topology: Topology
    noise_multiplier: float
    clip_norm: float = 1.0
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 0.001
    l2_regulariser: float = 0.001


def noise_multiplier(
    epsilon: float, delta: float, composition: Composition, *, sampling_rate: float, steps: int
) -> float:
    """The least noise multiplier for which the analysis gives at most epsilon at delta, to 1e-4 relative, rounded up.

    naive, advanced: the theorems as published (`research.dpsgd_theorems`), whose premise is a step of epsilon below 1;
    zcdp: rho adds up over the steps and sampling is ignored; rdp: the moments of the sampled Gaussian.
    Raises ValueError where no multiplier in 0.02..1e8 does.
    """
    spent = _spent(composition, sampling_rate, steps, delta)
    low, high = _LEAST_NOISE, _LARGEST_NOISE
    if not spent(high) <= epsilon:
        raise ValueError(f"no noise multiplier up to {_LARGEST_NOISE:g} gives epsilon {epsilon:g} under {composition}")
    if spent(low) <= epsilon:
        return low
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        if spent(middle) <= epsilon:
            high = middle
        else:
            low = middle
        if high <= low * (1 + 1e-4):
            break
    return high


def _spent(composition: Composition, sampling_rate: float, steps: int, delta: float) -> Callable[[float], float]:
    if composition == "naive":
        return lambda noise: dpsgd_theorems.composed_epsilon(noise, sampling_rate, steps, delta)
    if composition == "advanced":
        return lambda noise: dpsgd_theorems.advanced_epsilon(noise, sampling_rate, steps, delta)
    if composition not in COMPOSITIONS:
        raise ValueError(f"the compositions are {', '.join(COMPOSITIONS)}, not {composition!r}")
    analyse = analyses.zcdp if composition == "zcdp" else analyses.rdp

    def spent(noise: float) -> float:
        losses = composition_of({Cost((SubsampledGaussianLoss(noise, sampling_rate),)): steps})
        found = analyse(losses, delta).epsilon
        return math.inf if found is None else found

    return spent


def train_private(X: Tensor, y: Tensor, choices: DpSgd, seed: int) -> Parameters:
    """Train one network with Opacus on records X (n, features), y (n,); its parameters, as one model of a stack.

    The noise is drawn from a seeded generator, so that a reproduction repeats: never release a model trained so. Raises
    MissingExtra without Opacus.
    """
    with extra("dpsgd", "DP-SGD"):
        from opacus import PrivacyEngine  # type: ignore[import-untyped,import-not-found,unused-ignore]
    module = _module(choices.topology, seed)
    weights = [layer.weight for layer in module if isinstance(layer, torch.nn.Linear)]
    biases = [layer.bias for layer in module if isinstance(layer, torch.nn.Linear)]
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": 2 * choices.l2_regulariser},
        {"params": biases},
    ]
    optimiser = torch.optim.Adam(groups, lr=choices.learning_rate, eps=1e-7)
    order, noise = torch.Generator().manual_seed(seed + 1), torch.Generator().manual_seed(seed + 2)
    loader = DataLoader(TensorDataset(X, y), batch_size=choices.batch_size, generator=order)
    with warnings.catch_warnings():
        # Opacus warns that seeded noise is not secure, which this module says too, and of hooks that it needs.
        warnings.simplefilter("ignore", UserWarning)
        private, private_optimiser, private_loader = PrivacyEngine(accountant="rdp").make_private(
            module=module,
            optimizer=optimiser,
            data_loader=loader,
            noise_multiplier=choices.noise_multiplier,
            max_grad_norm=choices.clip_norm,
            noise_generator=noise,
        )
        for _ in range(choices.epochs):
            for rows, labels in private_loader:
                private_optimiser.zero_grad()
                torch.autograd.backward(cross_entropy(private(rows), labels))
                private_optimiser.step()
    linear = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    return tuple(Layer(layer.weight.detach().T.clone(), layer.bias.detach().clone()) for layer in linear)


def _module(topology: Topology, seed: int) -> torch.nn.Sequential:
    """The network of Table IV with the same first weights as the stack gives this seed."""
    layers: list[torch.nn.Module] = []
    for first in one_model(initial_parameters(topology, (seed,)), 0):
        linear = torch.nn.Linear(first.weight.shape[0], first.weight.shape[1])
        with torch.no_grad():
            linear.weight.copy_(first.weight.T)
            linear.bias.copy_(first.bias)
        layers += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])
