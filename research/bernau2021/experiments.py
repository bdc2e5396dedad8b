"""Table 2 of Bernau et al. 2021 on data that is here: games of every kind, in pieces that resume."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats, Labels
from dpserve.audit.pieces import ResultStore
from dpserve.audit.progress import OnStage
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.seeded import derived_seed
from dpserve.training.errors import extra
from dpserve.training.fitting.network import Network
from research.bernau2021.beliefs import Games, published_mu
from research.bernau2021.dissimilarity import Measure
from research.bernau2021.games import (
    Gradients,
    Neighbours,
    Outcome,
    Pair,
    Play,
    Sensitivity,
    farthest_pair,
    play,
)
from research.bernau2021.printed import EPSILON, TABLE_2
from research.data import adult, benchmarks, mnist
from research.data.labelled import LabelledSet

KINDS: tuple[tuple[Sensitivity, Neighbours], ...] = (
    ("local", "bounded"),
    ("local", "unbounded"),
    ("global", "bounded"),
    ("global", "unbounded"),
)
_GAMES_A_PIECE = 25


@dataclass(frozen=True)
class Setting:
    """records: how many train; holdout: how many are looked at for a bounded neighbour."""

    dataset: str
    measure: Measure
    records: int
    delta: float
    printed_as: str | None
    holdout: int = 2000


SETTINGS: dict[str, Setting] = {
    "digits": Setting("digits", "ssim", 100, 0.01, None, holdout=1000),
    "mnist": Setting("mnist", "ssim", 100, 0.01, "mnist"),
    "adult": Setting("adult", "manhattan", 1000, 0.001, "adult"),
    "retail-100": Setting("retail-100", "hamming", 1000, 0.001, "purchase-100"),
}
"""The paper's sizes and measures, by data set. retail-100 is not Purchase-100, which it stands beside."""


@dataclass(frozen=True, eq=False)
class Found:
    """The games of one kind, and the local sensitivities (games, steps) in clipping norms.

    membership: the advantage (games,) of who sees the final model alone (`membership_advantage`). accuracies: of the
    final model (games,), on the holdout.
    """

    games: Games
    sensitivities: Floats
    membership: Floats
    accuracies: Floats


def read(name: str, directory: Path | None) -> LabelledSet:
    """Read a data set as the experiment uses it; scikit-learn's digits need no directory.

    Raises ValueError for an unknown one, or where no directory is named, and DataError for its files.
    """
    if name not in SETTINGS:
        raise ValueError(f"the adversary plays on {', '.join(SETTINGS)}, not on {name!r}")
    if name != "adult" or directory is None:
        return benchmarks.read(name, directory)
    return adult.with_dummy_variables(adult.read(directory))


def network_for(name: str) -> Gradients:
    """Return the paper's network for a data set, without batch normalisation. Raises MissingExtra for mnist's."""
    if name == "mnist":
        with extra("torch", "the convolutional network"):
            from research.bernau2021.convolutional import ConvolutionalNetwork
        return ConvolutionalNetwork(mnist.SIDE, mnist.CLASSES, filters=(4, 8))
    widths = {
        "adult": (104, 6, 6, 2),
        "retail-100": (600, 128, 100),
        "digits": (64, 16, 10),
    }
    return Network(widths[name], "relu")


def pair_of(setting: Setting, data: LabelledSet, neighbours: Neighbours, seed: int) -> Pair:
    """Return the training set that `seed` draws, and the neighbour of greatest dataset sensitivity."""
    training, holdout = _drawn(setting, data, seed)
    return farthest_pair(setting.measure, neighbours, training, holdout)


def _drawn(setting: Setting, data: LabelledSet, seed: int) -> tuple[tuple[Floats, Labels], tuple[Floats, Labels]]:
    order = np.random.default_rng(seed).permutation(len(data.y))[: setting.records + setting.holdout]
    inputs, labels = data.X[order].astype(np.float64), data.y[order]
    n = setting.records
    return (inputs[:n], labels[:n]), (inputs[n:], labels[n:])


def membership_advantage(members: Floats, others: Floats) -> float:
    """Return TPR - FPR of the attack that calls records with less than the members' mean loss members (n,), (m,).

    Yeom et al. 2018, whose attack the paper's membership adversary is. It sees the final model alone.
    """
    threshold = members.mean()
    return float(np.mean(members < threshold) - np.mean(others < threshold))


def choices_of(setting: Setting, sensitivity: Sensitivity, epsilon: float = EPSILON) -> Play:
    """Return the paper's choices, its noise calibrated as it does (`published_mu`)."""
    return Play(published_mu(epsilon, setting.delta), sensitivity=sensitivity)


def run(
    setting: Setting,
    kind: tuple[Sensitivity, Neighbours],
    data: LabelledSet,
    games: int,
    store: ResultStore,
    seed: int,
    progress: OnStage,
    epsilon: float = EPSILON,
) -> Found:
    """Play `games` games of one kind, with the noise that epsilon asks for."""
    sensitivity, neighbours = kind
    pair = pair_of(setting, data, neighbours, seed)
    _, holdout = _drawn(setting, data, seed)
    network, choices = network_for(setting.dataset), choices_of(setting, sensitivity, epsilon)
    what = f"{setting.dataset}, {sensitivity} sensitivity, {neighbours}"
    outcomes: list[dict[str, Any]] = []
    for start in range(0, games, _GAMES_A_PIECE):
        numbers = range(start, min(start + _GAMES_A_PIECE, games))

        def compute(numbers: range = numbers) -> dict[str, Any]:
            done = []
            for number in numbers:
                outcome = play(network, pair, choices, derived_seed(seed, what, f"game {number}"))
                done.append(_plain(outcome) | _final_model_wins(network, outcome, pair, holdout))
                progress(what, (number + 1) / games)
            return {"outcomes": done}

        piece = _piece(setting, choices, neighbours, seed, numbers)
        outcomes += store.result(piece, compute)["outcomes"]
        progress(what, len(outcomes) / games)
    return Found(
        Games(*(np.array([one[key] for one in outcomes]) for key in ("log_odds", "first", "mu"))),
        np.array([one["sensitivities"] for one in outcomes]) / choices.clip_norm,
        *(np.array([one[key] for one in outcomes]) for key in ("membership", "accuracy")),
    )


def _final_model_wins(
    network: Gradients, outcome: Outcome, pair: Pair, holdout: tuple[Floats, Labels]
) -> dict[str, float]:
    own = pair.own if outcome.first else pair.other
    members = np.concatenate([pair.inputs, own[0]]), np.concatenate([pair.labels, own[1]])
    losses = [_losses(network, outcome.parameters, *part) for part in (members, holdout)]
    right = network.logits(outcome.parameters, holdout[0]).argmax(axis=1) == holdout[1]
    return {"membership": membership_advantage(*losses), "accuracy": float(right.mean())}


def _losses(network: Gradients, parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
    true: Floats = softmax(network.logits(parameters, inputs))[np.arange(len(labels)), labels]
    return -np.log(np.maximum(true, 1e-300))


def _piece(setting: Setting, choices: Play, neighbours: Neighbours, seed: int, numbers: range) -> dict[str, Any]:
    return {
        "name": f"games-{setting.dataset}",
        "measure": setting.measure,
        "records": setting.records,
        "holdout": setting.holdout,
        "delta": setting.delta,
        "mu": choices.mu,
        "steps": choices.steps,
        "clip_norm": choices.clip_norm,
        "learning_rate": choices.learning_rate,
        "sensitivity": choices.sensitivity,
        "neighbours": neighbours,
        "seed": seed,
        "games": [numbers.start, numbers.stop],
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "log_odds": outcome.log_odds,
        "first": outcome.first,
        "mu": outcome.mu,
        "sensitivities": outcome.sensitivities.tolist(),
    }


def printed(setting: Setting, kind: tuple[Sensitivity, Neighbours]) -> tuple[float, float] | None:
    """Return the paper's advantage and delta' for a kind of game, where there are any."""
    return None if setting.printed_as is None else TABLE_2[setting.printed_as].games[kind]
