"""Shadow models: k models of the target's kind, trained on draws of which the attacker knows the members.

How an attacker builds them follows from the public part of the target's certificate and from nothing else
(`shadow_setup_of`). They answer through its mechanism at its price, so that what is learnt from them is what the
target's noise leaves to be learnt.

A pay-once model's shadows are trained by its own kind's code from its public certificate, one after another, with
noise, clipping and sampling of their own (`dpserve.training.kinds.kind.Kind.trainer_alike`). The other k are one
batched program. Networks are trained by `dpserve.training.kinds.published.train`, which needs PyTorch (Shokri et
al. 2017; Lu et al. 2022, Section 3.3). Certified heads are regularised softmax regressions minimised together, full
batch, with NumPy on the processor and with PyTorch on CUDA: their objective is the target's own, sum of cross-entropies
+ (Lambda/2) ||W||_F^2 (`dpserve.training.fitting.objective`) or the convexified one
(`dpserve.training.fitting.log_mean_exp`), on public features. It is strongly convex, so that accelerated gradient
descent with its constants reaches the minimum at a known rate, and all k models can take the same steps.

Where one machine is too small, every worker of a Ray cluster trains a share of the same draws. A model's records and
first weights follow from the seed and the model's number, so that the cluster's models are those that one machine would
train, up to the rounding of sums.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Labels, Mask
from dpserve.accounting.messages import Message
from dpserve.audit.endpoint import served_mechanism
from dpserve.audit.membership.scoring import average_answers, log_of
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.seeded import SeededRandomness, derived_seed
from dpserve.training.devices import Device, training_device
from dpserve.training.errors import extra
from dpserve.training.features.maps import map_as_shown
from dpserve.training.fitting.sensitivity import Convexity
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.kinds.kind import TrainAlike
from dpserve.training.kinds.likeness import Likeness
from dpserve.training.kinds.published.bounds import PublishedRecipe, Topology
from dpserve.training.kinds.registry import kind_shown

OnShare = Callable[[float], None]
"""Told which share of the work is done."""

Array = Any
"""A NumPy array, or a PyTorch tensor on whatever device: what is done below is written alike for both."""

_TINY = 1e-30
_TOLERANCE = 1e-3
"""Stop when no model's gradient, relative to its number of records, is longer than this."""

_MOST_STEPS = 2000


@dataclass(frozen=True)
class HeadRecipe:
    """Shadow models that are linear heads on given features. strong_convexity: Lambda.

    convexity: of the convexified objective; None for the sum of losses.
    """

    classes: int
    strong_convexity: float
    convexity: Convexity | None = None


def train_heads(
    X: Array,
    y: Array,
    rows: Array,
    recipe: HeadRecipe,
    *,
    weights: Array | None = None,
    on_share: Callable[[float], None] = lambda _: None,
) -> Array:
    """Train one head on each model's rows (k, n) of the pool X (N, D), y (N,); result: (k, D, C), on X's device.

    weights: (k, n), of each row's loss, as of a record of a privacy unit; None for 1 each. All are arrays of NumPy, or
    all are tensors of PyTorch.
    """
    xp = _module_of(X)
    n = rows.shape[1] if weights is None else float(weights[0].sum())
    weight = 1.0 if weights is None else weights[:, :, None]
    phi, labels = X[rows], y[rows][:, :, None] == xp.arange(recipe.classes, device=X.device)
    strength = recipe.strong_convexity
    convexity = recipe.convexity
    if convexity is None:
        smoothness = 0.5 * _largest_eigenvalues(xp, phi if weights is None else phi * weight**0.5) * 1.05 + strength
    else:
        n = convexity.least_records
        # A mean of the losses' Hessians, and alpha times the covariance of their gradients.
        longest_row = (phi**2).sum(2).max()
        smoothness = n * (0.5 + 2 * convexity.alpha) * longest_row + strength
    root = (strength / smoothness) ** 0.5
    momentum = (1 - root) / (1 + root)
    W = ahead = xp.zeros((len(rows), X.shape[1], recipe.classes), dtype=X.dtype, device=X.device)
    for done in range(_MOST_STEPS):
        answers = _softmax(xp, phi @ ahead)
        if convexity is not None:
            weight = n * _shares(xp, convexity.alpha, answers, labels)
        gradient = strength * ahead + phi.mT @ (weight * xp.where(labels, answers - 1, answers))
        following = ahead - gradient / smoothness
        ahead, W = following + momentum * (following - W), following
        if done % 20 == 0:
            longest = float((gradient**2).sum((1, 2)).max()) ** 0.5 / n
            on_share(min(1.0, (1 + done) / _MOST_STEPS))
            if longest <= _TOLERANCE * min(1.0, strength):
                break
    on_share(1.0)
    return W


def _module_of(X: Array) -> Any:
    return np if isinstance(X, np.ndarray) else import_module("torch")


def _shares(xp: Any, alpha: float, answers: Array, labels: Array) -> Array:
    """Return records' shares in the convexified gradient, (k, n, 1): softmax(alpha l), l = -ln(the answer)."""
    right = (answers * labels).sum(2)
    exponents = -alpha * xp.log(xp.clip(right, _TINY, None))
    grown = xp.exp(exponents - xp.amax(exponents, axis=1, keepdims=True))
    return (grown / grown.sum(1)[:, None])[:, :, None]


def _softmax(xp: Any, z: Array) -> Array:
    grown = xp.exp(z - xp.amax(z, axis=2, keepdims=True))
    return grown / grown.sum(2)[:, :, None]


def _largest_eigenvalues(xp: Any, phi: Array, iterations: int = 30) -> Array:
    """Return those of phi^T phi, iterated: (k, 1, 1). A model's Hessian is at most half of it, plus Lambda."""
    start = np.random.default_rng(0).random((1, phi.shape[2], 1))
    vector = xp.asarray(start, dtype=phi.dtype, device=phi.device)
    for _ in range(iterations):
        vector = phi.mT @ (phi @ vector)
        length = (vector**2).sum((1, 2))[:, None, None] ** 0.5
        vector = vector / (length + _TINY)
    return length


@dataclass(frozen=True, eq=False)
class Pool:
    """The records an attacker draws shadow models' records from. X: (N, d) inputs as the model sees them.

    of: (N,), the number of each record's privacy unit, from 0; None where every record is one by itself.
    """

    X: NDArray[np.float32] | Floats
    y: Labels
    of: Labels | None = None


@dataclass(frozen=True)
class NetworkRecipe:
    """Shadow models that are networks, trained as published ones are. alpha: of a convexified loss."""

    network: PublishedRecipe
    alpha: float = 1.0


@dataclass(frozen=True, eq=False)
class OwnRecipe:
    """Shadow models that the target's own kind trains, from its public certificate, with noise of their own."""

    model: Mapping[str, Any]

    @property
    def trainer(self) -> TrainAlike | None:
        """The training; None where nobody outside can tell how the target was trained."""
        kind, shown = kind_shown(self.model), self.model.get("feature_map")
        if kind is None or kind.answers == "metered" or shown is None:
            return None
        return kind.trainer_alike(self.model, map_as_shown(shown))

    @property
    def declaration(self) -> Declaration:
        """The declaration of the target's records, as the endpoint shows it."""
        lower, upper = (tuple(self.model["feature_map"][end]) for end in ("lower", "upper"))
        return Declaration(tuple(self.model["feature_names"]), lower, upper, tuple(self.model["classes"]))


ShadowRecipe = NetworkRecipe | HeadRecipe | OwnRecipe


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Trained shadow models, as what they say of the pool's records.

    members: (k, N), who was trained on. logits: (k, N, C).
    device: where they were trained, which decides their logits' last digits.
    """

    members: Mask
    logits: Floats
    device: Device

    def __add__(self, other: "ShadowModels") -> "ShadowModels":
        """Return both, of the same pool. Raises ValueError for models of different devices."""
        if self.device != other.device:
            raise ValueError(f"some shadow models were trained on {self.device!r} and others on {other.device!r}")
        return ShadowModels(
            np.concatenate([self.members, other.members]),
            np.concatenate([self.logits, other.logits]),
            self.device,
        )


@dataclass(frozen=True)
class Draws:
    """Which records each shadow model gets: `records` of the pool for each of `count` models, all from `seed`.

    Of privacy units: so many units, each with all of its records.

    Model i's draw depends on the seed and on i alone, so that any share of the models can be trained elsewhere.
    """

    count: int
    records: int
    seed: int
    first: int = 0

    def shares(self, parts: int) -> tuple["Draws", ...]:
        """Return the same draws in at most `parts` parts of nearly equal size."""
        ends = np.linspace(0, self.count, min(parts, self.count) + 1).astype(int)
        return tuple(
            replace(self, first=self.first + int(start), count=int(end - start)) for start, end in pairwise(ends)
        )

    def seeds(self) -> tuple[int, ...]:
        """Return each model's seed."""
        return tuple(derived_seed(self.seed, "shadow", str(self.first + model)) for model in range(self.count))

    def rows(self, pool: int) -> Integers:
        """Return the members of each model, (count, records), out of 0..pool-1.

        Raises ValueError where the pool is too small for as many others, whom a model never saw.
        """
        if 2 * self.records > pool:
            raise ValueError(
                Message(
                    "{} members and as many others for each shadow model need {}, and there are {}: give "
                    "more of the same distribution, or fewer to each with {shadow_records}",
                    self.records,
                    2 * self.records,
                    pool,
                )
            )
        orders = [np.random.default_rng(seed).permutation(pool)[: self.records] for seed in self.seeds()]
        return np.stack(orders).astype(np.int64)


def train_shadow_models(
    pool: Pool, recipe: ShadowRecipe, draws: Draws, on_share: OnShare = lambda _: None, *, device: str = "auto"
) -> ShadowModels:
    """Train the models of `draws` together and evaluate all of them on the whole pool.

    device: auto, cpu or cuda, as `training_device` takes it. Raises what that raises.
    """
    where: Device = "cpu" if isinstance(recipe, OwnRecipe) else training_device(device)
    of = np.arange(len(pool.y)) if pool.of is None else pool.of
    units = int(of.max()) + 1
    members = draws.rows(units)
    rows, weights = (members, None) if pool.of is None else _rows_of_units(members, of)
    if isinstance(recipe, OwnRecipe):
        logits = _train_own(pool, recipe, draws, _mask(members, units)[:, of], on_share)
    elif isinstance(recipe, HeadRecipe):
        logits = _train_heads(pool, recipe, rows, weights, where, on_share)
    else:
        logits = _train_networks(pool, recipe, draws, rows, where, on_share)
    return ShadowModels(_mask(members, units)[:, of], logits.astype(np.float64), where)


def _rows_of_units(units: Integers, of: Labels) -> tuple[Integers, NDArray[np.float32]]:
    """Return the rows of each model's units (k, u), as (k, n), and their weights: 1/n_u for each of a unit's n_u rows.

    A model with fewer rows than another has some of its own again, with the weight 0.
    """
    counts, order = np.bincount(of), np.argsort(of, kind="stable")
    rows_of_models = [order[np.isin(of[order], some)] for some in units]
    width = max(map(len, rows_of_models))
    rows = np.stack([np.resize(some, width) for some in rows_of_models])
    weights = np.where(np.arange(width) < np.array([[len(some)] for some in rows_of_models]), 1 / counts[of[rows]], 0.0)
    return rows, weights.astype(np.float32)


def check_trainable(recipe: ShadowRecipe) -> None:
    """Raise MissingExtra where networks are to be trained and PyTorch is missing: before anything is asked."""
    if isinstance(recipe, NetworkRecipe):
        with extra("torch", "training shadow models of a network"):
            import_module("torch")


def _train_heads(
    pool: Pool,
    recipe: HeadRecipe,
    rows: Integers,
    weights: NDArray[np.float32] | None,
    device: Device,
    on_share: OnShare,
) -> Floats:
    if device == "cuda":
        torch = import_module("torch")
        X, y, of_each = (torch.from_numpy(array).to("cuda") for array in (pool.X, pool.y, rows))
        on_device = None if weights is None else torch.from_numpy(weights).to("cuda")
        computed: Floats = (X @ train_heads(X, y, of_each, recipe, weights=on_device, on_share=on_share)).cpu().numpy()
        return computed
    logits: Floats = pool.X @ train_heads(pool.X, pool.y, rows, recipe, weights=weights, on_share=on_share)
    return logits


def _train_own(pool: Pool, recipe: OwnRecipe, draws: Draws, members: Mask, on_share: OnShare) -> Floats:
    """Train one after another: each is a training of its own, with its own words of randomness."""
    trainer = recipe.trainer
    if trainer is None:
        raise ValueError("an endpoint does not say how this model was trained, so no shadow can be trained like it")
    units = None if pool.of is None else Units(str(recipe.model["unit"]), pool.of)
    records = Records(pool.X.astype(np.float64), pool.y, recipe.declaration, (b"shadow",), units)
    logits = []
    for done, (seed, mask) in enumerate(zip(draws.seeds(), members, strict=True), start=1):
        model = trainer(records.taken(mask), SeededRandomness(seed, ("shadow",)))
        logits.append(log_of(model.values(records.X)))
        on_share(done / draws.count)
    return np.stack(logits)


def _train_networks(
    pool: Pool, recipe: NetworkRecipe, draws: Draws, members: Integers, device: Device, on_share: OnShare
) -> Floats:
    import torch

    from dpserve.training.kinds.published.train import Assignment, stacked_logits, train_stack

    X, y = torch.from_numpy(pool.X).to(device), torch.from_numpy(pool.y).to(device)
    assignment = Assignment(torch.from_numpy(members), draws.seeds(), (recipe.alpha,) * draws.count)
    epochs = recipe.network.epochs
    parameters = train_stack(X, y, assignment, recipe.network, on_epoch=lambda done: on_share(done / epochs))
    everyone = torch.arange(len(pool.y)).expand(draws.count, -1)
    logits: Floats = stacked_logits(parameters, X, everyone, recipe.network.activation).cpu().numpy()
    return logits


def _mask(rows: Integers, pool: int) -> Mask:
    mask = np.zeros((len(rows), pool), dtype=np.bool_)
    np.put_along_axis(mask, rows, values=True, axis=1)
    return mask


_DEFAULT_STRENGTH = 1.0
_LARGEST_BLOCK = 200_000
"""Answers that are released at once, for their words of randomness take many times their own memory."""
_MOST_EPOCHS = 200
_WITHOUT_NOISE = "shadow models answer without the target's noise, which the scores take for their spread"


@dataclass(frozen=True, eq=False)
class ShadowSetup:
    """The recipe of the shadow models of one target, their inputs, and the noise of their answers.

    sensitivity: of the logits, of heads for inputs of norm 1; None without a mechanism. departures: in what shadow
    models knowingly differ from the target.
    """

    model: Mapping[str, Any]
    recipe: ShadowRecipe
    mechanism: Mechanism | None
    sensitivity: float | None
    departures: tuple[str, ...] = ()

    @property
    def nearly_normal(self) -> bool:
        """Whether noise, if any, is normal on each logit, so that a confidence is nearly normal over models."""
        if self.mechanism is None:
            return True
        noise = self.mechanism.answer_noise(np.ones(1), len(self.model["classes"]))
        return isinstance(noise, AnswerNoise) and noise.on == "logits" and noise.law.averages

    def inputs(self, X: Floats) -> NDArray[np.float32] | Floats:
        """Return the inputs (n, d') of the shadow models for rows (n, d)."""
        if isinstance(self.recipe, OwnRecipe):
            declared = self.recipe.declaration
            return np.clip(X, declared.lower, declared.upper)
        if isinstance(self.recipe, HeadRecipe):
            feature_map = map_as_shown(self.model["feature_map"])
            return feature_map(X, feature_map.public_tensors()).astype(np.float32)
        lower, upper = (np.asarray(self.model["feature_map"][end]) for end in ("lower", "upper"))
        scaled: NDArray[np.float32] = ((np.clip(X, lower, upper) - lower) / (upper - lower)).astype(np.float32)
        return scaled

    def sensitivities(self, inputs: NDArray[np.float32] | Floats) -> Floats:
        """Return the sensitivity of the logits of rows with these inputs: (n,). There is a mechanism."""
        assert self.sensitivity is not None
        norms = np.ones(len(inputs))
        if isinstance(self.recipe, HeadRecipe):
            norms = np.maximum(np.linalg.norm(inputs.astype(np.float64), axis=1), 1e-12)
        return self.sensitivity * norms

    def answers(self, logits: Floats, inputs: NDArray[np.float32] | Floats, seed: int, copies: int = 1) -> Floats:
        """Return what shadow models with these logits (k, n, C) answer to rows with these inputs: (k, n, C).

        copies: the answer is the average of so many (`average_answers`). Of a law that averages to itself that is one
        answer with less noise; of every other so many are drawn.
        """
        flat = np.ascontiguousarray(logits.reshape(-1, logits.shape[2]))
        if self.mechanism is None or self.sensitivity is None:
            return softmax(flat).reshape(logits.shape)
        sensitivity, drawn = np.tile(self.sensitivities(inputs), len(logits)), copies
        noise = self.mechanism.answer_noise(sensitivity, flat.shape[1])
        if isinstance(noise, AnswerNoise) and noise.on == "logits" and noise.law.averages:
            sensitivity, drawn = sensitivity / np.sqrt(copies), 1
        randomness = SeededRandomness(seed, ("shadow answers",))
        probabilities = np.empty_like(flat)
        for start in range(0, len(flat), _LARGEST_BLOCK):
            block = slice(start, start + _LARGEST_BLOCK)
            answers = [self.mechanism.release(flat[block], sensitivity[block], randomness) for _ in range(drawn)]
            probabilities[block] = average_answers(np.stack(answers))
        return probabilities.reshape(logits.shape)


def shadow_setup_of(model: Mapping[str, Any], records: int, *, epochs: int | None = None) -> ShadowSetup:
    """Return how to build shadow models with so many records each. model: as `GET /models/NAME` returns it.

    A network is mimicked by networks of its own topology and loss, anything else with public features by linear heads.
    A released model, whose answers carry no noise of their own, is mimicked without noise; a released network by
    networks that train for as long. epochs: of networks, if not the published ones. Raises ValueError for a model whose
    features the endpoint does not show.
    """
    if model.get("feature_map", {}).get("kind") == "encoder":
        raise ValueError(
            "the model's features come from a deep network, whose weights the endpoint does not show: shadow models on "
            "other features would tell nothing of it"
        )
    kind, departures = kind_shown(model), []
    alike = Likeness() if kind is None else kind.likeness(model, records)
    classes, sensitivity = len(model["classes"]), alike.sensitivity
    recipe: ShadowRecipe
    if not epochs and (trained_alike := OwnRecipe(model)).trainer is not None:
        return ShadowSetup(model, trained_alike, None, None)
    if alike.hidden:
        topology = Topology(len(model["feature_names"]), alike.hidden, classes)
        network = PublishedRecipe(topology, alike.objective, activation=alike.activation)
        if alike.l2_regulariser is not None:
            network = replace(network, l2_regulariser=alike.l2_regulariser)
        if (chosen := epochs or alike.epochs) is not None:
            network = replace(network, epochs=chosen if epochs else min(chosen, _MOST_EPOCHS))
        recipe = NetworkRecipe(network, alike.alpha)
        if model.get("unit") is not None:
            departures.append("shadow networks count every record alike, and the target every unit")
    else:
        recipe = HeadRecipe(classes, alike.strong_convexity or _DEFAULT_STRENGTH, alike.convexity)
        if alike.strong_convexity is None:
            departures.append(
                f"shadow models are linear heads, Lambda = {_DEFAULT_STRENGTH:g}, and the target is another kind of "
                "model"
            )
    mechanism = None
    if sensitivity is not None and (model.get("price_per_row") or {}).get("losses"):
        with suppress(ValueError):
            mechanism = served_mechanism(model)
    if mechanism is None:
        departures.append(_WITHOUT_NOISE)
    return ShadowSetup(model, recipe, mechanism, sensitivity if mechanism else None, tuple(departures))


TrainShadows = Callable[[Pool, ShadowRecipe, Draws, OnShare], ShadowModels]
"""`train_shadow_models` on this machine, or what `train_on_ray` returns."""

_PATIENCE = 5.0
"""Seconds to wait for a connection; a cluster may take twice as long to say that it is well."""


def train_on_ray(address: str) -> TrainShadows:
    """Return a trainer on the cluster at this address, one share of the models for each of its processors, and no GPU.

    Connects before it returns, so that a cluster that does not answer is known before anything is paid for.

    address: as Ray takes it, "auto" or host:port; "local" starts one on this machine. Raises MissingExtra without Ray
    and ConnectionError, within seconds, where no cluster answers.
    """
    with extra("ray", "a Ray cluster"):
        import ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is trained on whose data is nobody else's business
    if not ray.is_initialized():
        _check(address)
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)

    def train(pool: Pool, recipe: ShadowRecipe, draws: Draws, on_share: OnShare) -> ShadowModels:
        shared = ray.put((pool.X, pool.y, pool.of))
        remote = ray.remote(num_cpus=1)(_share)
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        shares = draws.shares(max(1, int(resources.get("CPU", 1))))
        waiting = [remote.remote(shared, recipe, share) for share in shares]
        place = {reference: index for index, reference in enumerate(waiting)}
        done: list[Any] = [None] * len(shares)
        while waiting:
            (ready, *_), waiting = ray.wait(waiting)
            done[place[ready]] = ray.get(ready)
            on_share(sum(models is not None for models in done) / len(shares))
        return reduce(add, (ShadowModels(*models) for models in done))

    return train


def _check(address: str) -> None:
    """Raise ConnectionError where nothing at host:port says that it is a cluster: `ray.init` would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    advice = Message(
        "no Ray cluster answers at {}: start one with 'ray start --head', or give its address to {ray}", address
    )
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
        if not address.startswith("ray://"):
            health = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
            subprocess.run(health, check=True, capture_output=True, timeout=2 * _PATIENCE)  # noqa: S603
    except (OSError, ValueError, OverflowError, subprocess.SubprocessError) as error:
        raise ConnectionError(advice) from error


def _share(shared: Any, recipe: ShadowRecipe, draws: Draws) -> tuple[Any, Any, Device]:
    """Train a share on the processor, whatever else the worker's machine has: shares of one attack must be alike."""
    trained = train_shadow_models(Pool(*shared), recipe, draws, device="cpu")
    return trained.members, trained.logits, trained.device
