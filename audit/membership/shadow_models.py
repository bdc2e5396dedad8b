"""Shadow models: k models of the target's kind, trained on draws of which the attacker knows the members.

All k are one batched program: certified heads by `audit.membership.shadow_heads`, with NumPy on the processor and with
PyTorch on CUDA; networks by `training.published.train`, which needs PyTorch. Shokri et al. 2017; Lu et al. 2022,
Section 3.3.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from audit.membership.shadow_heads import HeadRecipe, head_logits, train_heads
from mechanisms.seeded import derived_seed
from training.errors import extra
from training.published.bounds import Recipe

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

OnShare = Callable[[float], None]
"""Told which share of the work is done."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The records an attacker draws shadow models' records from. X: (N, d) float32 inputs as the model sees them."""

    X: NDArray[np.float32]
    y: Labels

    def __post_init__(self) -> None:
        """Refuse parts that do not fit."""
        if self.X.ndim != 2 or self.y.shape != (len(self.X),) or len(self.y) == 0:
            raise ValueError(f"inputs {self.X.shape} do not fit labels {self.y.shape}")


@dataclass(frozen=True)
class NetworkRecipe:
    """Shadow models that are networks, trained as `training.published` trains them. alpha: of a convexified loss."""

    network: Recipe
    alpha: float = 1.0

    @property
    def classes(self) -> int:
        """How many classes it has."""
        return self.network.topology.classes


ShadowRecipe = NetworkRecipe | HeadRecipe


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Trained shadow models, as what they say of the pool.

    members: (k, N), who was trained on. held_out: (k, N), as many others, to learn from. logits: (k, N, C).
    """

    members: Mask
    held_out: Mask
    logits: Floats

    @property
    def count(self) -> int:
        """k."""
        return len(self.members)

    def __add__(self, other: "ShadowModels") -> "ShadowModels":
        """Return both, of the same pool."""
        return ShadowModels(
            np.concatenate([self.members, other.members]),
            np.concatenate([self.held_out, other.held_out]),
            np.concatenate([self.logits, other.logits]),
        )


@dataclass(frozen=True)
class Draws:
    """Which records each shadow model gets: `records` of the pool for each of `count` models, all from `seed`.

    Model i's draw depends on the seed and on i alone, so that any share of the models can be trained elsewhere.
    """

    count: int
    records: int
    seed: int
    first: int = 0

    def __post_init__(self) -> None:
        """Refuse nonsense."""
        if self.count < 1 or self.records < 1:
            raise ValueError(f"there must be at least one shadow model of one record, not {self.count}, {self.records}")

    def shares(self, parts: int) -> tuple["Draws", ...]:
        """Return the same draws in at most `parts` parts of nearly equal size."""
        ends = np.linspace(0, self.count, min(parts, self.count) + 1).astype(int)
        return tuple(
            replace(self, first=self.first + int(start), count=int(end - start)) for start, end in pairwise(ends)
        )

    def seeds(self) -> tuple[int, ...]:
        """Return each model's seed."""
        return tuple(derived_seed(self.seed, "shadow", str(self.first + model)) for model in range(self.count))

    def rows(self, pool: int) -> tuple[Rows, Rows]:
        """Return members and others of each model, (count, records) each, out of 0..pool-1, disjoint.

        Raises ValueError where the pool is too small for both.
        """
        if 2 * self.records > pool:
            raise ValueError(
                f"{self.records} records and as many others for each shadow model need {2 * self.records}, and there "
                f"are {pool}: give more of the same distribution, or fewer records to each with --shadow-records"
            )
        orders = [np.random.default_rng(seed).permutation(pool)[: 2 * self.records] for seed in self.seeds()]
        both = np.stack(orders).astype(np.int64)
        return both[:, : self.records], both[:, self.records :]


def train_shadow_models(
    pool: Pool, recipe: ShadowRecipe, draws: Draws, *, device: str = "auto", on_share: OnShare = lambda _: None
) -> ShadowModels:
    """Train the models of `draws` together and evaluate all of them on the whole pool. device: auto, cpu or cuda."""
    members, others = draws.rows(len(pool.y))
    if isinstance(recipe, HeadRecipe):
        logits = _train_heads(pool, recipe, members, device, on_share)
    else:
        logits = _train_networks(pool, recipe, draws, members, device, on_share)
    return ShadowModels(_mask(members, len(pool.y)), _mask(others, len(pool.y)), logits.astype(np.float64))


def check_trainable(recipe: ShadowRecipe) -> None:
    """Raise MissingExtra where networks are to be trained and PyTorch is missing: before anything is asked."""
    if isinstance(recipe, NetworkRecipe):
        with extra("torch", "training shadow models of a network"):
            import_module("torch")


def _train_heads(pool: Pool, recipe: HeadRecipe, members: Rows, device: str, on_share: OnShare) -> Floats:
    if device == "cuda" or (device == "auto" and _cuda_is_there()):
        import torch

        X, y, rows = (torch.from_numpy(part).to("cuda") for part in (pool.X, pool.y, members))
        found: Floats = head_logits(train_heads(X, y, rows, recipe, on_share=on_share), X).cpu().numpy()
        return found
    logits: Floats = head_logits(train_heads(pool.X, pool.y, members, recipe, on_share=on_share), pool.X)
    return logits


def _cuda_is_there() -> bool:
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def _train_networks(
    pool: Pool, recipe: NetworkRecipe, draws: Draws, members: Rows, device: str, on_share: OnShare
) -> Floats:
    import torch

    from training.published.train import Assignment, device_of, stacked_logits, train_stack

    where = device_of(device)
    X, y = torch.from_numpy(pool.X).to(where), torch.from_numpy(pool.y).to(where)
    assignment = Assignment(torch.from_numpy(members), draws.seeds(), (recipe.alpha,) * draws.count)
    epochs = recipe.network.epochs
    parameters = train_stack(X, y, assignment, recipe.network, on_epoch=lambda done: on_share(done / epochs))
    everyone = torch.arange(len(pool.y)).expand(draws.count, -1)
    logits: Floats = stacked_logits(parameters, X, everyone, recipe.network.activation).cpu().numpy()
    return logits


def _mask(rows: Rows, pool: int) -> Mask:
    mask = np.zeros((len(rows), pool), dtype=np.bool_)
    np.put_along_axis(mask, rows, values=True, axis=1)
    return mask
