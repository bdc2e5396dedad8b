"""Beside Opacus on real digits: the same network, sampling rate, clipping norm, noise and optimiser learn as much."""

import warnings

import numpy as np
import pytest

from dpserve.accounting.arrays import Floats
from dpserve.training.fitting.network import Network
from dpserve.training.inputs.digits import load_digits
from dpserve.training.kinds.dpsgd.descent import Descent, descend
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, private_step
from tests.seeded import Seeded

torch = pytest.importorskip("torch")
optimizers = pytest.importorskip("opacus.optimizers")
grad_sample = pytest.importorskip("opacus.grad_sample")

NETWORK = Network((64, 32, 10))
RELEASE = StepRelease(noise_multiplier=2.0, sampling_rate=0.2, clip_norm=1.0)
STEPS, RATE = 80, 0.5


def unit(X: Floats) -> Floats:
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def module_of(parameters: Floats) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for weights, biases in NETWORK.layers(parameters):
        linear = torch.nn.Linear(*weights.shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T.copy()))
            linear.bias.copy_(torch.from_numpy(biases.copy()))
        layers += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def opacus_logits(X: Floats, y, rows: Floats, seed: int) -> Floats:
    """Opacus' own hooks, clipping, noise and momentum on Poisson samples; the last iterate's logits."""
    generator = torch.Generator().manual_seed(seed)
    module = grad_sample.GradSampleModule(module_of(NETWORK.initial(0)))
    optimiser = optimizers.DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9),
        noise_multiplier=RELEASE.noise_multiplier,
        max_grad_norm=RELEASE.clip_norm,
        expected_batch_size=RELEASE.sampling_rate * len(y),
        loss_reduction="sum",
        generator=generator,
    )
    scale = RELEASE.sampling_rate * len(y)
    for _ in range(STEPS):
        taken = torch.rand(len(y), generator=generator) < RELEASE.sampling_rate
        optimiser.zero_grad()
        losses = torch.nn.functional.cross_entropy(
            module(torch.from_numpy(X)[taken]), torch.from_numpy(y)[taken], reduction="sum"
        )
        losses.backward()
        optimiser.pre_step()
        for parameter in module.parameters():
            parameter.grad /= scale
        optimiser.original_optimizer.step()
    return module(torch.from_numpy(rows)).detach().numpy()


def test_accuracy_is_opacus_s():
    """On average over three fixed seeds each, within 0.05."""
    digits = load_digits()
    X, y, rows = unit(digits.train.X) * 4, digits.train.y, unit(digits.held_out_rows) * 4
    descent = Descent(STEPS, RATE, RELEASE.sampling_rate * len(y), momentum=0.9, averaged=0.0)
    ours, theirs = [], []
    for seed in range(3):
        step = private_step(NETWORK, RELEASE, Seeded(seed))
        found = NETWORK.logits(descend(lambda p, step=step: step.noisy_sum(p, X, y), NETWORK.initial(0), descent), rows)
        ours.append((found.argmax(axis=1) == digits.held_out_labels).mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = opacus_logits(X, y, rows, seed)
        theirs.append((found.argmax(axis=1) == digits.held_out_labels).mean())
    assert np.mean(ours) > 0.85
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.05, (ours, theirs)
