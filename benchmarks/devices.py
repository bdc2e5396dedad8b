"""Exact products by PyTorch on a device beside NumPy's: from which size on does a device pay, and does a bit differ?

A head's logits (A phi + B phi, `dpserve.training.exact.quantised`) for one row and for batches, from NumPy's arrays and
to them, as a service computes them: rows travel to the device and back, weights lie there. Both take turns on the same
rows, so that what else the machine does hits both; a figure is the least of the rounds.

On a processor the figure is this process's processor time, in one thread; on CUDA it is time by the clock, as the
processor waits for the device.

Run: python -m benchmarks.devices [--device cuda] [--rounds 7]
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import threadpoolctl
import torch

from dpserve.training.devices import DEVICES, NUMPY, Arithmetic, TorchArithmetic
from dpserve.training.exact.quantised import products, quantised, summands
from dpserve.training.features.whole_steps import STEP, STEP_BITS

SIZES = ((10, 600), (100, 600), (100, 4_000), (1_000, 600), (1_000, 4_000))
"""Classes and features."""

ROWS = (1, 16, 256)
SECONDS = 0.1
"""Approximate seconds of one figure's loop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=DEVICES)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        compare(TorchArithmetic(arguments.device), arguments.device, arguments.rounds)


def compare(there: Arithmetic, device: str, rounds: int) -> None:
    """Print a line for each size: both figures, and how many times NumPy's the device's is."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    generator = np.random.default_rng(0)
    print(f"{'classes':>8} {'features':>9} {'rows':>5} {'NumPy, us':>10} {device + ', us':>10} {'times':>6}")
    for classes, features in SIZES:
        parts = summands(quantised(generator.standard_normal((classes, features))))
        for count in ROWS:
            phi = np.rint(generator.uniform(-1, 1, (count, features)) / np.sqrt(features) * 2**STEP_BITS) * STEP
            ways = [partial(products, phi, arithmetic.matrix(parts)) for arithmetic in (NUMPY, there)]
            if len({way().tobytes() for way in ways}) > 1:
                raise SystemExit("a bit differs")
            figures = [[seconds(way, clock) * 1e6 for way in ways] for _ in range(rounds)]
            ours, theirs = (min(column) for column in zip(*figures, strict=True))
            print(f"{classes:8} {features:9} {count:5} {ours:10.1f} {theirs:10.1f} {theirs / ours:6.2f}", flush=True)


def seconds(compute: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return what one call takes, of as many as take about SECONDS."""
    start = clock()
    compute()
    calls = max(1, int(SECONDS / max(clock() - start, 1e-6)))
    start = clock()
    for _ in range(calls):
        compute()
    return (clock() - start) / calls


if __name__ == "__main__":
    main()
