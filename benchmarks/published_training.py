"""Models per second: one batched tensor program against the loop over models it replaces.

Both train the same networks 446-128-30 (Table IV on Location's shape) on the same synthetic 0/1 records with the same
loss, order, optimiser and number of steps, on the same machine in one run, interleaved so that a busy moment hits both.
The loop is measured twice: as PyTorch's own examples write it (`DataLoader`, one `Adam` per model), and stripped down
to tensor slices. Run: python benchmarks/published_training.py [--models 20] [--epochs 5] [--threads 2]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, TensorDataset

from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from dpserve.training.kinds.published.train import Assignment, batch_loss, record_losses, train_stack
from research.lu2022 import printed

RECORDS, N, FEATURES, CLASSES = 5010, 1200, 446, 30


def main() -> None:
    """Print models per second of each way and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    X = (torch.rand(RECORDS, FEATURES, generator=generator) < 0.12).float()
    y = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    members = torch.stack([torch.randperm(RECORDS, generator=generator)[:N] for _ in range(arguments.models)])
    topology = Topology(FEATURES, printed.HIDDEN, CLASSES)
    recipe = PublishedRecipe(topology, "per-record-and-class", epochs=arguments.epochs)
    assignment = Assignment(members, tuple(range(arguments.models)), (1.0,) * arguments.models)
    warm = PublishedRecipe(topology, "per-record-and-class", epochs=1)
    ways: dict[str, Callable[[PublishedRecipe], object]] = {
        "batched": lambda recipe: train_stack(X, y, assignment, recipe),
        "loop, DataLoader": lambda recipe: [loop_with_loader(X[m], y[m], recipe) for m in members],
        "loop, slices": lambda recipe: [loop_with_slices(X[m], y[m], recipe) for m in members],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(warm)
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way(recipe)
            seconds[name].append(time.perf_counter() - start)
    scale = printed.EPOCHS / arguments.epochs
    print(
        f"{arguments.models} networks {FEATURES}-128-{CLASSES}, n = {N}, {arguments.threads} threads, "
        f"{arguments.epochs} epochs measured, best of {arguments.rounds}"
    )
    best = {name: min(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        rate = arguments.models / (best[name] * scale)
        print(
            f"{name:18} {rate:7.2f} models/s of 100 epochs   {best[name] / best['batched']:5.2f} x the batched time"
            f"   (median {statistics.median(times):.2f} s)"
        )


def loop_with_loader(X: torch.Tensor, y: torch.Tensor, recipe: PublishedRecipe) -> torch.nn.Module:
    """One model as PyTorch's examples train it."""
    net, optimiser = module_and_optimiser(recipe)
    loader = DataLoader(TensorDataset(X, y), batch_size=recipe.batch_size, shuffle=True)
    for _ in range(recipe.epochs):
        for rows, labels in loader:
            step(net, optimiser, rows, labels, recipe)
    return net


def loop_with_slices(X: torch.Tensor, y: torch.Tensor, recipe: PublishedRecipe) -> torch.nn.Module:
    """One model without a loader: a permutation, and slices of it."""
    net, optimiser = module_and_optimiser(recipe)
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(y)).split(recipe.batch_size):
            step(net, optimiser, X[batch], y[batch], recipe)
    return net


def module_and_optimiser(recipe: PublishedRecipe) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """The network of Table IV as a module."""
    (width,) = recipe.topology.hidden
    net = torch.nn.Sequential(
        torch.nn.Linear(recipe.topology.features, width),
        torch.nn.Tanh(),
        torch.nn.Linear(width, recipe.topology.classes),
    )
    return net, torch.optim.Adam(net.parameters(), lr=recipe.learning_rate, eps=1e-7)


def step(
    net: torch.nn.Sequential,
    optimiser: torch.optim.Optimizer,
    X: torch.Tensor,
    y: torch.Tensor,
    recipe: PublishedRecipe,
) -> None:
    """One step, with Keras' penalty on the weights in the loss."""
    optimiser.zero_grad()
    loss = batch_loss(record_losses(net(X), y), recipe.topology.classes, recipe.objective, torch.tensor(1.0))
    penalty = net[0].weight.square().sum() + net[2].weight.square().sum()
    (loss + recipe.l2_regulariser * penalty).backward()
    optimiser.step()


if __name__ == "__main__":
    main()
