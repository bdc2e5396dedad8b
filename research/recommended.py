"""`python -m research.recommended`: what the recommended options reach on public sets, a line for each seed, as CSV.

Every set is trained on as `dpserve train` trains, by the public rules, and asked the rows that
`research.comparison.cases` holds out. The rules were found within training records, never at the rows asked.
"""

import csv
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from accounting.budgets import Budget
from mechanisms.gaussian_vector import mu_for
from mechanisms.seeded import SeededRandomness
from research.commands import program, run
from research.comparison.cases import BENCHMARKS, Benchmark, Drawn
from research.data import adult, cifar, mnist, newsgroups
from research.data.labelled import LabelledSet
from training.feature_choice import FeatureChoice
from training.features.hog import Shape
from training.features.maps import FeatureMap
from training.fitting.network import Network
from training.inputs.columns import coordinates_of
from training.inputs.records import Declaration, Records
from training.kinds.cases import Case
from training.kinds.class_sums.model import train_class_sums
from training.kinds.dpsgd.choices import by_rule
from training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from training.pay_once.model import ReleasedModel
from training.planning.options import DELTA

app = program()

HEADER = ("set", "option", "epsilon", "seed", "accuracy", "log_loss", "calibration_error", "cpu_seconds")

Train = Callable[[Records, FeatureMap, int, SeededRandomness], ReleasedModel]
"""A function that trains, from records, a map, a price in picorho, and a source of random words."""


def _fashion(directory: Path) -> LabelledSet:
    """Return Fashion-MNIST, whose files are named as MNIST's."""
    return mnist.read(directory / "fashion-mnist")


def _cifar(directory: Path) -> LabelledSet:
    """Return CIFAR-10 row by row, each pixel with its channels."""
    data = cifar.read_10(directory)
    return replace(data, X=data.X.reshape(-1, 3, 1024).transpose(0, 2, 1).reshape(len(data.y), -1))


SETS = {name: BENCHMARKS[name] for name in ("location", "retail", "adult", "mnist-10k", "mnist-60k")} | {
    "cifar-10": Benchmark("CIFAR-10", _cifar, 50_000, 10, 50_000),
    "fashion-mnist": Benchmark("Fashion-MNIST", _fashion, 60_000, 10, 60_000),
    "newsgroups": Benchmark("20 newsgroups", newsgroups.read, newsgroups.TRAINING, 20, newsgroups.TRAINING),
    "newsgroups-encoder": Benchmark(
        "20 newsgroups", newsgroups.read_by_encoder, newsgroups.TRAINING, 20, newsgroups.TRAINING
    ),
}
_DIGITS: Shape = (28, 28, 1)
SHAPES: dict[str, Shape] = {
    "mnist-60k": _DIGITS,
    "mnist-10k": _DIGITS,
    "fashion-mnist": _DIGITS,
    "cifar-10": (32, 32, 3),
}


def declaration(name: str, case: Case) -> Declaration:
    """Return what an owner would declare of a set's records."""
    columns = {"adult": adult.one_hot_columns, "newsgroups": newsgroups.columns}.get(name, tuple)()
    if not columns:
        return case.records.declaration
    return Declaration(*coordinates_of(columns), case.records.declaration.classes, columns)


def _dp_sgd(records: Records, chosen: FeatureMap, whole: int, words: SeededRandomness) -> ReleasedModel:
    size = Network((chosen.dimension, len(records.declaration.classes))).size
    choices = by_rule(len(records), mu_for(whole), size)
    return train_dpsgd(records, DpSgdRecipe("measured", chosen, choices, whole), "measured", words)


def _class_sums(records: Records, chosen: FeatureMap, whole: int, words: SeededRandomness) -> ReleasedModel:
    return train_class_sums(records, "measured", chosen, whole, "measured", words, records_declared=len(records))


OPTIONS: dict[str, Train] = {"dpsgd": _dp_sgd, "dpsgd-hog-fourier": _dp_sgd, "class-sums": _class_sums}
RECOMMENDED = {name: "class-sums" if benchmark.classes >= 20 else "dpsgd" for name, benchmark in SETS.items()}


@app.command()
def measure(
    dataset: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SETS)}; repeatable.")] = None,
    option: Annotated[str | None, typer.Option(help="[default: what is recommended for the set]")] = None,
    epsilons: Annotated[str, typer.Option(help="Separated by commas, at delta = 1e-5.")] = "1",
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    data_dir: Annotated[Path, typer.Option(envvar="DPSERVE_DATA_DIR", help="Where the data sets' files are.")] = Path(),
    out: Annotated[Path, typer.Option(help="The CSV; what it holds already is not measured again.")] = Path(
        "research/recommended.csv"
    ),
) -> None:
    """Train and ask, and write a line for every seed as soon as it is known."""
    done = set()
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[name] for name in HEADER[:4]) for row in csv.DictReader(file)}
    else:
        out.write_text(",".join(HEADER) + "\n", "utf-8")
    for name in dataset or tuple(SETS):
        drawn, chosen = Drawn(name, SETS[name], SETS[name].read(data_dir)), option or RECOMMENDED[name]
        for seed in range(seeds):
            case: Case | None = None
            for epsilon in map(float, epsilons.split(",")):
                key = (name, chosen, f"{epsilon:g}", str(seed))
                if key in done:
                    continue
                case = case or drawn.case(seed)
                line = (*key, *_measured(name, chosen, case, epsilon))
                with out.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerow(line)


def _measured(name: str, option: str, case: Case, epsilon: float) -> tuple[str, ...]:
    declared = declaration(name, case)
    records = Records(case.X, case.y, declared, (b"",))
    features: Literal["auto", "hog-fourier"] = "hog-fourier" if option == "dpsgd-hog-fourier" else "auto"
    chosen = FeatureChoice(features=features, image_shape=SHAPES.get(name)).map_for(declared, head=False)
    whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
    started = time.process_time()
    model = OPTIONS[option](records, chosen, whole, SeededRandomness(case.seed, (name, option, f"{epsilon:g}")))
    seconds = time.process_time() - started
    parts = [case.asked[start : start + 1000] for start in range(0, len(case.asked), 1000)]
    found = case.quality(np.concatenate([model.answers(part)[0] for part in parts]))
    return f"{found.accuracy:.4f}", f"{found.log_loss:.4f}", f"{found.calibration_error:.4f}", f"{seconds:.1f}"


if __name__ == "__main__":
    run(app)
