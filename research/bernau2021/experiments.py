"""Table 2 of Bernau et al. 2021 on data that is here: games of every kind, in pieces that resume."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audit.pieces import ResultStore
from mechanisms.seeded import derived_seed
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
    together,
)
from research.bernau2021.printed import EPSILON, TABLE_2
from research.data import adult, benchmarks, mnist
from research.data.labelled import LabelledSet
from training.errors import extra
from training.releases.dpsgd.network import Network

Progress = Callable[[str, float], None]

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
    """The games of one kind, and the local sensitivities (games, steps) in clipping norms."""

    games: Games
    sensitivities: np.ndarray[Any, Any]


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
    widths = {"adult": (104, 6, 6, 2), "retail-100": (600, 128, 100), "digits": (64, 16, 10)}
    return Network(widths[name], "relu")


def pair_of(setting: Setting, data: LabelledSet, neighbours: Neighbours, seed: int) -> Pair:
    """Return the training set that `seed` draws, and the neighbour of greatest dataset sensitivity."""
    order = np.random.default_rng(seed).permutation(len(data.y))[: setting.records + setting.holdout]
    inputs, labels = data.X[order].astype(np.float64), data.y[order]
    n = setting.records
    return farthest_pair(setting.measure, neighbours, (inputs[:n], labels[:n]), (inputs[n:], labels[n:]))


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
    progress: Progress,
) -> Found:
    """Play `games` games of one kind."""
    sensitivity, neighbours = kind
    pair = pair_of(setting, data, neighbours, seed)
    network, choices = network_for(setting.dataset), choices_of(setting, sensitivity)
    what = f"{setting.dataset}, {sensitivity} sensitivity, {neighbours}"
    outcomes: list[Outcome] = []
    for start in range(0, games, _GAMES_A_PIECE):
        numbers = range(start, min(start + _GAMES_A_PIECE, games))

        def compute(numbers: range = numbers) -> dict[str, Any]:
            done = []
            for number in numbers:
                done.append(_plain(play(network, pair, choices, derived_seed(seed, what, f"game {number}"))))
                progress(what, (number + 1) / games)
            return {"outcomes": done}

        piece = _piece(setting, choices, neighbours, seed, numbers)
        outcomes += [_outcome(plain) for plain in store.result(piece, compute)["outcomes"]]
        progress(what, len(outcomes) / games)
    return Found(together(outcomes), np.stack([one.sensitivities for one in outcomes]) / choices.clip_norm)


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


def _outcome(plain: dict[str, Any]) -> Outcome:
    return Outcome(plain["log_odds"], plain["first"], plain["mu"], np.array(plain["sensitivities"]))


def printed(setting: Setting, kind: tuple[Sensitivity, Neighbours]) -> tuple[float, float] | None:
    """Return the paper's advantage and delta' for a kind of game, where there are any."""
    return None if setting.printed_as is None else TABLE_2[setting.printed_as].games[kind]
