"""Steps per second of DP-SGD: closed-form norms against the per-record gradients of Opacus' hooks.

Both take the same steps of the same networks on the same batches: forward, clipping, noise and a momentum update, in
one run on the same machine, interleaved. Processor time is counted, so that other work on the machine matters less.
Opacus works in float32, as it is used, and once in float64, as ours does. Ours draws its noise from exact tables and
ChaCha20, Opacus from PyTorch's generator.
Run: python -m benchmarks.dpsgd [--batch 600] [--rounds 5] [--threads 1]
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer

from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, private_step

WIDTHS = ((600, 128, 100), (784, 128, 10))
RELEASE = StepRelease(noise_multiplier=4.0, sampling_rate=1.0, clip_norm=1.0)


def main() -> None:
    """Print processor milliseconds per step of each way and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    for widths in WIDTHS:
        compare(widths, arguments.batch, arguments.rounds)


def compare(widths: tuple[int, ...], batch: int, rounds: int) -> None:
    """Print one network's lines."""
    generator = np.random.default_rng(0)
    X = generator.random((batch, widths[0])) / widths[0] ** 0.5
    y = generator.integers(widths[-1], size=batch)
    ways = {
        "ours": ours(widths, X, y),
        "ours, without noise": ours(widths, X, y, noisy=False),
        "Opacus, float32": opacus(widths, X, y, torch.float32),
        "Opacus, float64": opacus(widths, X, y, torch.float64),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            milliseconds[name].append(1000 * (time.process_time() - start))
    median = {name: statistics.median(times) for name, times in milliseconds.items()}
    print(f"{'-'.join(map(str, widths))}, batches of {batch}, median (best) of {rounds}")
    for name, times in milliseconds.items():
        print(f"  {name:20} {median[name]:8.1f} ms ({min(times):.1f})  {median[name] / median['ours']:6.1f} x ours")


def ours(widths: tuple[int, ...], X: np.ndarray, y: np.ndarray, *, noisy: bool = True) -> Callable[[], None]:
    """One step of this project's."""
    network = Network(widths)
    step = private_step(network, RELEASE, SystemRandomness())
    parameters, velocity = network.initial(0), np.zeros(network.size)

    def take() -> None:
        total = step.noisy_sum(parameters, X, y) if noisy else step.clipped_sum(parameters, X, y)
        velocity[:] = 0.9 * velocity + total / len(y)
        parameters[:] -= 0.1 * velocity

    return take


def opacus(widths: tuple[int, ...], X: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> Callable[[], None]:
    """One step of Opacus' hooks and optimiser."""
    layers: list[torch.nn.Module] = []
    for width, following in itertools.pairwise(widths):
        layers += [torch.nn.Linear(width, following, dtype=dtype), torch.nn.Tanh()]
    module = GradSampleModule(torch.nn.Sequential(*layers[:-1]))
    optimiser = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
        noise_multiplier=RELEASE.noise_multiplier,
        max_grad_norm=RELEASE.clip_norm,
        expected_batch_size=len(y),
    )
    rows, labels = torch.from_numpy(X).to(dtype), torch.from_numpy(y)

    def take() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(rows), labels).backward()
        optimiser.step()

    return take


if __name__ == "__main__":
    main()
