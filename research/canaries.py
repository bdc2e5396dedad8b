"""`python -m research.canaries`: the epsilon that is promised, beside the one that canaries of the same run show.

A line for each kind, budget and number of canaries: the range of the lower bounds over seeds, by mean scores and by
guesses, in how many seeds the first is within 15 % of what canaries went through, what canaries cost of training's
processor time, and accuracy and log loss with and without them. Noise and coins are a seed's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from dpserve.accounting.budgets import Budget
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features import rules
from dpserve.training.fitting.network import Network
from dpserve.training.kinds.cases import TOLERANCE, Case, Heads
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.choices import choices_for
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.planning.options import DELTA
from research.commands import program, run
from research.comparison.cases import BENCHMARKS, Drawn

app = program()

_CLOSE = 0.85
"""The share of what canaries went through from which on a bound is called close to it."""

Trainer = Callable[[Case, int, int | None], Any]
"""Trains a model of a case, at a price in picorho, with so many canaries."""


@app.command()
def compare(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(BENCHMARKS)}; repeatable.")] = None,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data sets' files are.")] = Path(),
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "1,4,8",
    canaries: Annotated[str, typer.Option(help="Their numbers, separated by commas.")] = "1000",
    seeds: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Print a line for each set, kind and budget."""
    for name in dataset or ["adult-bins", "mnist-10k-hog", "location"]:
        drawn = Drawn.read(name, data_dir)
        for kind, trainer in TRAINERS.items():
            for epsilon in map(float, epsilons.split(",")):
                whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
                without = [_trained(drawn, trainer, whole, seed, None) for seed in range(seeds)]
                for number in map(int, canaries.split(",")):
                    having = [_trained(drawn, trainer, whole, seed, number) for seed in range(seeds)]
                    typer.echo(f"{name}, {kind}, {line(without, having)}")


def line(without: Sequence[Mapping[str, Any]], having: Sequence[Mapping[str, Any]]) -> str:
    """Return what trainings without and with canaries show, in words."""
    shown = [each["canaries"] for each in having]
    close = sum(each.lower_bound_epsilon >= _CLOSE * each.observed_epsilon for each in shown)
    ratio = median(each["seconds"] for each in having) / median(each["seconds"] for each in without)
    scores = _span([each.lower_bound_epsilon for each in shown])
    guesses = _span([each.guesses_lower_bound_epsilon for each in shown])
    beside = ", ".join(
        f"{figure.replace('_', ' ')} {_span([each[figure] for each in having], digits)}, without "
        f"{_span([each[figure] for each in without], digits)}"
        for figure, digits in (("accuracy", 4), ("log_loss", 3))
    )
    return (
        f"promised {shown[0].promised_epsilon:.2f}, of what {shown[0].number:,} canaries went through "
        f"{shown[0].observed_epsilon:.2f}: by scores {scores}, within 15 % in {close} of {len(shown)}, by guesses "
        f"{guesses}; processor time x {ratio:.2f}; {beside}"
    )


def _trained(drawn: Drawn, trainer: Trainer, whole: int, seed: int, canaries: int | None) -> Mapping[str, Any]:
    case = drawn.case(seed)
    start = time.process_time()
    model = trainer(case, whole, canaries)
    seconds = time.process_time() - start
    quality = case.quality(model.values(case.asked))
    return {
        "canaries": model.certificate.canaries,
        "seconds": seconds,
        "accuracy": quality.accuracy,
        "log_loss": quality.log_loss,
    }


def _span(figures: list[float], digits: int = 2) -> str:
    return f"{min(figures):.{digits}f} to {max(figures):.{digits}f}"


def _words(case: Case, kind: str) -> SeededRandomness:
    return SeededRandomness(case.seed, ("canaries", kind))


def _class_sums(case: Case, whole: int, canaries: int | None) -> Any:
    feature_map, words = Heads(case).feature_map("modality"), _words(case, "class-sums")
    declared = len(case.y)
    return train_class_sums(
        case.records, "shown", feature_map, whole, "shown", words, records_declared=declared, canaries=canaries
    )


def _weights(case: Case, whole: int, canaries: int | None) -> Any:
    lam = rules.strong_convexity(mu_for(whole))
    recipe = Recipe("shown", Heads(case).feature_map("modality"), lam, tolerance=TOLERANCE)
    head = train_head(case.records, recipe, "shown")
    return release_weights(head, whole, "shown", _words(case, "weights"), case.records, canaries)


def _dpsgd(case: Case, whole: int, canaries: int | None) -> Any:
    feature_map = Heads(case).feature_map("modality")
    choices = choices_for(len(case.y), mu_for(whole), Network((feature_map.dimension, case.classes)).size)
    recipe = DpSgdRecipe("shown", feature_map, choices, whole)
    return train_dpsgd(case.records, recipe, "shown", _words(case, "dpsgd"), canaries=canaries)


TRAINERS: Mapping[str, Trainer] = {"class-sums": _class_sums, "weights": _weights, "dpsgd": _dpsgd}

if __name__ == "__main__":
    run(app)
