"""Twenty shadow models 446-128-30 on 1,200 records each, trained and evaluated: together, and one after another.

Together is what `dpserve attack` does (`dpserve.audit.membership.shadow_models`): one batched tensor program, whose
models then answer about their members and as many others. One after another is the same work model by model, in three
ways: as PyTorch's examples write it (`DataLoader`, one `Adam` per model), stripped to tensor slices, and with the
batched program itself on one model at a time. All are measured in one run on one machine, in turn, so that a busy
moment hits all of them; processor time stands beside the clock's for machines that are shared.
Run: python benchmarks/shadow_models.py [--models 20] [--epochs 5] [--threads 2] [--device cpu]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from published_training import loop_with_loader, loop_with_slices

from dpserve.audit.membership.shadow_models import Draws, NetworkRecipe, Pool, train_shadow_models
from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from research.lu2022 import printed

RECORDS, N, FEATURES, CLASSES = 2400, 1200, 446, 30
"""Every record of the pool is a member or held out, so that each way evaluates 2,400 rows of every model."""


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = np.random.default_rng(0)
    pool = Pool(
        (generator.random((RECORDS, FEATURES)) < 0.12).astype(np.float32), generator.integers(CLASSES, size=RECORDS)
    )
    network = PublishedRecipe(
        Topology(FEATURES, printed.HIDDEN, CLASSES), "per-record-and-class", epochs=arguments.epochs
    )
    draws = Draws(arguments.models, N, seed=0)
    device = torch.device(arguments.device)
    X, y = torch.from_numpy(pool.X).to(device), torch.from_numpy(pool.y).to(device)
    members = [torch.from_numpy(rows).to(device) for rows in draws.rows(RECORDS)[0]]

    def together(draws: Draws) -> None:
        train_shadow_models(pool, NetworkRecipe(network), draws, device=arguments.device)

    def looped(train: Callable[..., torch.nn.Module]) -> None:
        for rows in members:
            net = train(X[rows], y[rows], network).to(device)
            with torch.inference_mode():
                net(X).cpu()

    ways: dict[str, Callable[[], None]] = {
        "together": lambda: together(draws),
        "loop: DataLoader": lambda: looped(loop_with_loader),
        "loop: slices": lambda: looped(loop_with_slices),
        "loop: our program, one model": lambda: [together(one) for one in draws.shares(arguments.models)] and None,
    }
    if device.type != "cpu":
        ways = {name: way for name, way in ways.items() if "our program" in name or name == "together"}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    together(Draws(2, N, seed=1))
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            start, started = time.perf_counter(), time.process_time()
            way()
            seconds[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - started)
    print(
        f"{arguments.models} shadow models {FEATURES}-128-{CLASSES} on {N} records, {arguments.epochs} epochs, "
        f"evaluated on {RECORDS}; {arguments.device}, {arguments.threads} threads, {arguments.rounds} rounds"
    )
    best = {name: min(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        print(
            f"{name:30} best {best[name]:7.2f} s, median {statistics.median(times):7.2f} s, "
            f"{best[name] / best['together']:5.2f} x together; processor {min(processor[name]):7.2f} s, "
            f"{min(processor[name]) / min(processor['together']):5.2f} x"
        )


if __name__ == "__main__":
    main()
