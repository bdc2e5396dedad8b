"""The adversary's game on DP-SGD with full batches: Algorithm 1 of Bernau et al. 2021.

Neighbours differ by one record added or removed everywhere in this project ("unbounded" in the paper). "bounded"
neighbours, one record replaced, are offered to compare with the paper. Noise scaled to the *local* sensitivity, the
distance of these two data sets at these parameters, is offered for the same reason: it protects no other pair, and its
scale itself tells of the records, so that no differential privacy follows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dpserve.accounting.arrays import Floats, Labels
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, grid_step, with_noise
from research.bernau2021.beliefs import Games, gaussian_log_ratio
from research.bernau2021.dissimilarity import Measure, most_unlike_member, most_unlike_pair

Neighbours = Literal["unbounded", "bounded"]
Sensitivity = Literal["global", "local"]

_LEAST_SENSITIVITY = 1e-6
"""In clipping norms: with less noise than for this, local sensitivity would leave none."""


class Gradients(Protocol):
    """A network as `dpserve.training.fitting.network.Network` is one: parameters are one vector (size,)."""

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    def initial(self, seed: int) -> Floats:
        """Return first parameters."""
        ...

    def clipped_sum(self, parameters: Floats, inputs: Floats, labels: Labels, clip_norm: float) -> Floats:
        """Return the sum (size,) of the records' gradients, each clipped."""
        ...

    def logits(self, parameters: Floats, inputs: Floats) -> Floats:
        """Return the logits (n, classes)."""
        ...


@dataclass(frozen=True, eq=False)
class Pair:
    """Two neighbouring data sets: what both have, inputs (n, width), labels (n,), and the rest.

    The first has `own` besides; the second `other`, empty unless neighbours are bounded. Each is (1, width), (1,).
    """

    inputs: Floats
    labels: Labels
    own: tuple[Floats, Labels]
    other: tuple[Floats, Labels]

    @property
    def neighbours(self) -> Neighbours:
        """Which kind of neighbours they are."""
        return "bounded" if len(self.other[1]) else "unbounded"


@dataclass(frozen=True)
class Play:
    """The public choices of a run. mu: of the whole run at the sensitivity that the noise is scaled to."""

    mu: float
    steps: int = 30
    clip_norm: float = 3.0
    learning_rate: float = 0.005
    sensitivity: Sensitivity = "global"

    @property
    def noise_multiplier(self) -> float:
        """The noise of a step in units of the sensitivity: mu^2 is the sum over steps of noise_multiplier^-2."""
        return math.sqrt(self.steps) / self.mu


def farthest_pair(
    measure: Measure, neighbours: Neighbours, data: tuple[Floats, Labels], holdout: tuple[Floats, Labels]
) -> Pair:
    """Return the pair of greatest dataset sensitivity: data (n, width), (n,) and its most unlike neighbour.

    unbounded: without the record most unlike the others (Equation 18). bounded: with a record replaced by the one of
    the holdout most unlike it (Equation 20).
    """
    inputs, labels = data
    if neighbours == "unbounded":
        row = most_unlike_member(measure, inputs)
        other = (inputs[:0], labels[:0])
    else:
        row, column = most_unlike_pair(measure, inputs, holdout[0])
        other = (holdout[0][column : column + 1], holdout[1][column : column + 1])
    kept = np.arange(len(labels)) != row
    return Pair(inputs[kept], labels[kept], (inputs[row : row + 1], labels[row : row + 1]), other)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One run. log_odds: of the first data set, at the end. sensitivities: the local one of each step (steps,).

    parameters: the final ones.
    """

    log_odds: float
    first: bool
    mu: float
    sensitivities: Floats
    parameters: Floats


def play(network: Gradients, pair: Pair, choices: Play, seed: int) -> Outcome:
    """Train on one of the two data sets, drawn evenly, and follow what the adversary comes to believe."""
    first = bool(np.random.default_rng([seed, 3]).integers(2))
    randomness = SeededRandomness(seed, ("game",))
    parameters = network.initial(seed)
    clip_norm = choices.clip_norm
    largest = clip_norm * (2 if pair.neighbours == "bounded" else 1)
    log_odds, square, local = 0.0, 0.0, np.empty(choices.steps)
    for i in range(choices.steps):
        common = network.clipped_sum(parameters, pair.inputs, pair.labels, clip_norm)
        sums = [common + network.clipped_sum(parameters, *part, clip_norm) for part in (pair.own, pair.other)]
        local[i] = np.linalg.norm(sums[0] - sums[1])
        scaled_to = largest if choices.sensitivity == "global" else max(local[i], _LEAST_SENSITIVITY * clip_norm)
        deviation = choices.noise_multiplier * scaled_to
        step = grid_step(StepRelease(choices.noise_multiplier, 1.0, scaled_to), network.size)
        released = with_noise(sums[0] if first else sums[1], step, randomness)
        log_odds += gaussian_log_ratio(released, sums[0], sums[1], deviation)
        square += (local[i] / deviation) ** 2
        parameters = parameters - choices.learning_rate * released
    return Outcome(log_odds, first, math.sqrt(square), local, parameters)


def together(outcomes: Sequence[Outcome]) -> Games:
    """Return the outcomes as arrays."""
    return Games(
        np.array([one.log_odds for one in outcomes]),
        np.array([one.first for one in outcomes]),
        np.array([one.mu for one in outcomes]),
    )
