"""The attack network of shadow-model attacks: from an answer to the odds that its row was trained on.

One hidden layer of 64 neurons, trained with learning rate 0.01 and L2 constant 1e-6, otherwise as the shadow models
are (Lu et al. 2022, Table IV). Per class, as Shokri et al. 2017 build it: one network for each true label, which sees
only answers about records of that label. Pooled: one network that takes the label as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from audit.membership.scoring import KnownAnswers
from mechanisms.seeded import derived_seed
from training.published.bounds import Recipe, Topology
from training.published.train import Assignment, Parameters, stacked_logits, train_stack

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]
Kind = Literal["per-class", "pooled"]

KINDS: dict[str, Kind] = {"shadow, per class": "per-class", "shadow, pooled": "pooled"}
"""Those of an attack on an endpoint, by the names of their scores."""

HIDDEN = (64,)
L2_REGULARISER = 1e-6
LEARNING_RATE = 0.01
EPOCHS = 100
BATCH_SIZE = 100

LARGEST_TRAINING_SET = 10_000
"""Answers that the pooled network learns from at most: more of them take longer and tell it nothing new."""


@dataclass(frozen=True, eq=False)
class AttackNetwork:
    """A trained attack. network_of_class: which network decides about which class; 0 where it names none."""

    kind: Kind
    classes: int
    parameters: Parameters
    network_of_class: dict[int, int] = field(default_factory=dict)

    def scores(self, answers: Floats, y: Labels) -> Floats:
        """The log-odds of membership of each record: (n,). answers: (n, C); y: (n,), true labels."""
        inputs = torch.from_numpy(_inputs(self.kind, answers, y, self.classes))
        scores = np.empty(len(y))
        networks = np.array([self.network_of_class.get(int(label), 0) for label in y])
        for network in np.unique(networks):
            rows = np.flatnonzero(networks == network)
            one = tuple(type(layer)(layer.weight[[network]], layer.bias[[network]]) for layer in self.parameters)
            z = stacked_logits(one, inputs, torch.from_numpy(rows)[None])[0]
            scores[rows] = (z[:, 1] - z[:, 0]).double().numpy()
        return scores

    def decide(self, answers: Floats, y: Labels) -> Mask:
        """Whether each record was trained on: (n,), where membership is the likelier."""
        decided: Mask = self.scores(answers, y) > 0
        return decided


def train_attack_network(
    known: KnownAnswers,
    kind: Kind,
    seed: int,
    *,
    epochs: int = EPOCHS,
    on_share: Callable[[float], None] = lambda _: None,
) -> AttackNetwork:
    """Train the attack on shadow models' answers.

    Per class, the networks are one stack. A class with fewer answers than the largest sees its own again within an
    epoch, and a class without members or without others is left to a network that learns from all.
    """
    classes = known.answers.shape[1]
    X = torch.from_numpy(_inputs(kind, known.answers, known.y, classes))
    y = torch.from_numpy(known.member.astype(np.int64))
    generator = np.random.default_rng(derived_seed(seed, "attack network", kind))
    groups, network_of_class = _groups(known, kind, classes, generator)
    width = max(len(group) for group in groups)
    members = np.stack([np.resize(group, width) for group in groups])
    recipe = network_recipe(X.shape[1], epochs)
    seeds = tuple(derived_seed(seed, "attack network", kind, str(index)) for index in range(len(groups)))
    assignment = Assignment(torch.from_numpy(members), seeds, (1.0,) * len(groups))
    parameters = train_stack(X, y, assignment, recipe, on_epoch=lambda done: on_share(done / epochs))
    return AttackNetwork(kind, classes, parameters, network_of_class)


def network_recipe(inputs: int, epochs: int) -> Recipe:
    """Return how an attack network with so many inputs is trained."""
    return Recipe(
        Topology(inputs, HIDDEN, 2),
        "cross-entropy",
        epochs=epochs,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        l2_regulariser=L2_REGULARISER,
    )


def _groups(
    known: KnownAnswers, kind: Kind, classes: int, generator: np.random.Generator
) -> tuple[list[NDArray[np.int64]], dict[int, int]]:
    """Which answers each network learns from, and which network decides about which class; 0 decides about the rest."""
    everyone = generator.permutation(len(known.y))[:LARGEST_TRAINING_SET]
    if kind != "per-class":
        return [everyone], {}
    groups: list[NDArray[np.int64]] = []
    network_of_class: dict[int, int] = {}
    lacking = []
    for label in range(classes):
        own = np.flatnonzero(known.y == label)
        if len(own) and known.member[own].any() and not known.member[own].all():
            network_of_class[label] = len(groups)
            groups.append(generator.permutation(own))
        else:
            lacking.append(label)
    if lacking or not groups:
        network_of_class |= dict.fromkeys(lacking, len(groups))
        groups.append(everyone[: max((len(group) for group in groups), default=len(everyone))])
    return groups, network_of_class


def _inputs(kind: Kind, answers: Floats, y: Labels, classes: int) -> NDArray[np.float32]:
    if kind != "pooled":
        return answers.astype(np.float32)
    return np.concatenate([answers, np.eye(classes)[y]], axis=1).astype(np.float32)
