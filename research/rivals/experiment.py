"""Measuring: dpserve's planner here, every rival by its own interpreter, on the same records and rows."""

import csv
import json
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from accounting.arrays import Floats, Labels
from accounting.budgets import Budget
from research.data.tables import read
from research.rivals import trainers
from training.errors import DataError
from training.inputs.columns import LevelsColumn, blocks_of
from training.inputs.records import Records
from training.kinds.cases import MOST_ASKED, Case, Heads, quality
from training.kinds.planned import UNLIMITED, Trial
from training.planning.options import DELTA, option_named
from training.planning.recommendation import by_rule, numbers_to_cut

MEASURED = Path(__file__).with_name("measured.csv")
HEADER = ("set", "n", "trained", "choice", "epsilon", "seed", "accuracy", "log_loss", "cpu_seconds")
_KEY = ("set", "trained", "choice", "epsilon", "seed")

OURS = "dpserve"
TRAINED = (OURS, *trainers.RIVALS)
CHOICES: Mapping[str, Sequence[float]] = {"dp-ebm": (0.0,), "diffprivlib": (0.01, 0.1, 1.0), "opacus": (0.05, 0.5, 5.0)}
"""Values of C of diffprivlib, and learning rates of Opacus, which have no rules for them: the table shows the best,
chosen on the rows asked, which nobody could do. DP-EBM has its defaults."""
SETS = (
    "wdbc",
    "credit_data",
    "compas",
    "letter",
    "magic",
    "ccdefault",
    "adult-table",
    "diamonds",
    "flights",
)
EPSILONS = (1.0, 4.0)
MOST_RECORDS = 4_000
FEW, SEEDS_OF_FEW, SEEDS = 6_000, 5, 3


@dataclass(frozen=True)
class Line:
    """A model's figures. trained: of `TRAINED`; choice: the planner's option, or what a rival has no rule for."""

    table: str
    n: int
    trained: str
    choice: str
    epsilon: float
    seed: int
    accuracy: float
    log_loss: float


def read_lines(path: Path) -> tuple[Line, ...]:
    """Read what was measured."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Line(
                row["set"],
                int(row["n"]),
                row["trained"],
                row["choice"],
                float(row["epsilon"]),
                int(row["seed"]),
                float(row["accuracy"]),
                float(row["log_loss"]),
            )
            for row in csv.DictReader(file)
        )


def measure(sets: Sequence[str], folder: Path, python: Path, out: Path, seeds: int | None = None) -> None:
    """Train what is not measured yet, and write a line for each model as soon as it is known. Raises DataError."""
    done = _done_already(out)
    for name in sets:
        table = read(name, folder)
        few = len(table.y) < FEW
        for seed in range(seeds or (SEEDS_OF_FEW if few else SEEDS)):
            records, X, y = table.split(0, held_back=False)
            case = _case(name, seed, records, X, y)
            for trained, choices in _asked(case.classes).items():
                wanted = [
                    (choice, epsilon)
                    for choice, epsilon in product(choices, EPSILONS)
                    if (name, trained, choice, f"{epsilon:g}", str(seed)) not in done
                ]
                if not wanted:
                    continue
                found = _ours(case, wanted) if trained == OURS else theirs(case, trained, wanted, python)
                with out.open("a", newline="", encoding="utf-8") as file:
                    lines = csv.writer(file, lineterminator="\n")
                    for (choice, epsilon), (option, *figures) in zip(wanted, found, strict=True):
                        words = (name, len(case.y), trained, option or choice, f"{epsilon:g}", seed)
                        lines.writerow((*words, *figures))


def _done_already(path: Path) -> set[tuple[str, ...]]:
    if not path.exists():
        path.write_text(",".join(HEADER) + "\n", "utf-8")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple("" if name == "choice" and row["trained"] == OURS else row[name] for name in _KEY) for row in rows}


def _asked(classes: int) -> Mapping[str, Sequence[str]]:
    """Return what is trained for so many classes, and each one's choices."""
    offered = {rival: choices for rival, choices in CHOICES.items() if classes == 2 or rival != "dp-ebm"}
    return {OURS: ("",)} | {rival: [f"{choice:g}" for choice in choices] for rival, choices in offered.items()}


def _case(name: str, seed: int, records: Records, X: Floats, y: Labels) -> Case:
    """Return a seed's case: a draw of at most MOST_RECORDS of the records; all seeds ask about the same rows."""
    order = np.sort(np.random.default_rng(seed).permutation(len(records))[:MOST_RECORDS])
    declared, asked = records.declaration, slice(0, MOST_ASKED)
    split = f"{name}-{seed}"
    return Case(
        name, seed, records.X[order], records.y[order], X[asked], y[asked], len(declared.classes), split, declared
    )


def _ours(case: Case, wanted: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str, str, str]]:
    """Give the planner's option, and its accuracy, log loss and seconds, for each epsilon."""
    assert case.declared is not None
    heads = Heads(case)
    for _, epsilon in wanted:
        whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
        option = by_rule(len(case.y), case.classes, whole, None, "table", numbers_to_cut(case.declared))[0].option
        started = time.process_time()
        found = option_named(option).qualities(Trial(heads, whole, f"{epsilon:g}", ()))[UNLIMITED]
        assert found is not None
        yield option, f"{found.accuracy:.4f}", f"{found.log_loss:.4f}", f"{time.process_time() - started:.1f}"


def tasks_of(case: Case, trained: str, wanted: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Return a rival's tasks as arrays: numbers from 0 to 1 by their bounds, levels as codes, and what to train."""
    assert case.declared is not None
    columns = case.declared.columns
    low, high = np.array(case.declared.lower), np.array(case.declared.upper)
    arrays: dict[str, Any] = {"y": case.y}
    for part, X in (("records", case.X), ("asked", case.asked)):
        scaled = (X - low) / (high - low)
        blocks = list(blocks_of(columns, scaled))
        numbers = [block for column, block in blocks if not isinstance(column, LevelsColumn)]
        codes = [block.argmax(axis=1)[:, None] for column, block in blocks if isinstance(column, LevelsColumn)]
        none = np.zeros((len(X), 0))
        arrays |= {
            f"coded_{part}": scaled,
            f"numbers_{part}": np.hstack([none, *numbers]),
            f"codes_{part}": np.hstack([none.astype(np.int64), *codes]),
        }
    common = {"rival": trained, "delta": DELTA, "seed": case.seed, "classes": case.classes, "columns": len(columns)}
    tasks = [common | {"epsilon": epsilon, "choice": float(choice)} for choice, epsilon in wanted]
    return arrays | {"tasks": json.dumps(tasks)}


def theirs(
    case: Case, trained: str, wanted: Sequence[tuple[str, float]], python: Path
) -> Sequence[tuple[str, str, str, str]]:
    """Return a rival's accuracy, log loss and seconds, behind no option of its own, for each choice and epsilon."""
    with tempfile.TemporaryDirectory() as folder:
        tasks, answers = Path(folder) / "tasks.npz", Path(folder) / "answers.npz"
        np.savez(tasks, **tasks_of(case, trained, wanted))
        try:
            command = [python, Path(trainers.__file__), tasks, answers]
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - the owner's own interpreter
        except (subprocess.CalledProcessError, OSError) as error:
            said = getattr(error, "stderr", b"").decode(errors="replace").strip().splitlines()
            reason = said[-1] if said else str(error)
            advice = "install research/rivals/requirements.txt into an environment, and name its interpreter"
            raise DataError(f"{trained} on {case.name}: {reason}; {advice}") from error
        found = []
        with np.load(answers, allow_pickle=False) as file:
            for place in range(len(wanted)):
                reached = quality(file[f"probabilities{place}"], case.answers)
                seconds = float(file[f"seconds{place}"])
                found.append(("", f"{reached.accuracy:.4f}", f"{reached.log_loss:.4f}", f"{seconds:.1f}"))
    return found


@dataclass(frozen=True)
class Reached:
    """The means over seeds. n: records; seeds: how many."""

    accuracy: float
    log_loss: float
    choice: str
    n: int
    seeds: int


def reached(lines: Iterable[Line]) -> Mapping[tuple[str, float], Mapping[str, Reached]]:
    """Return by set and epsilon what each reached; of several choices of a rival the one of the least log loss."""
    cells: dict[tuple[str, float, str, str], list[Line]] = {}
    for line in lines:
        choice = "" if line.trained == OURS else line.choice
        cells.setdefault((line.table, line.epsilon, line.trained, choice), []).append(line)
    found: dict[tuple[str, float], dict[str, Reached]] = {}
    for (table, epsilon, trained, _), each in cells.items():
        mean = Reached(
            fmean(one.accuracy for one in each),
            fmean(one.log_loss for one in each),
            each[0].choice,
            each[0].n,
            len(each),
        )
        here = found.setdefault((table, epsilon), {})
        if trained not in here or mean.log_loss < here[trained].log_loss:
            here[trained] = mean
    return found
