"""`dpserve train` beside scikit-learn, diffprivlib and Opacus: processor seconds and memory of processes, as ratios.

`records`: made tables of more and more records in 4 classes, of 30 numbers and of 50, in turns with scikit-learn's
LogisticRegression on the same numbers in an .npz file; the ratios within the run are what counts. dpserve reads a table
as Parquet or CSV and takes what its planner chooses, or class sums; the others read the arrays.
`images`: the same for the 60,000 images of MNIST, as histograms and as pixels, from --data-dir.
`lineages`: what a state folder with many digests of other records adds to a training of 10,000.
The rivals get an environment of their own at the first run, with their own versions of scikit-learn and NumPy.
Run: python -m benchmarks.training_time records [--rows 10000 100000 1000000] [--columns 30 50] [--classes 4]
                                                 [--rounds 3] [--write]
     python -m benchmarks.training_time images --data-dir DIR [--rounds 3] [--write]
     python -m benchmarks.training_time lineages [--digests 100000000]
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from benchmarks.serving.environments import make_environment
from benchmarks.serving.report import with_table
from dpserve.accounting.arrays import Floats, Integers, Singles
from research.comparison import trainers
from research.data import mnist

COLUMNS = [30, 50]
"""More than 32 numbers declared by bounds are rows of length 1; up to 32 are cut at quantiles."""
BUDGET = ["--epsilon", "1", "--delta", "1e-5"]
IMAGES = 60_000
RESULTS = Path(__file__).with_name("RESULTS.md")
_REQUIREMENTS = Path(trainers.__file__).with_name("requirements.txt")
_LOGISTIC = """
import sys, numpy
from sklearn.linear_model import LogisticRegression
with numpy.load(sys.argv[1]) as table:
    LogisticRegression().fit(table["X"], table["y"])
"""
_BASE = "scikit-learn"
_CHOICES = {"diffprivlib": 1.0, "opacus": 0.5}
"""The rivals, and what they have no rule for: C and the learning rate."""


@dataclass(frozen=True)
class Used:
    """Processor seconds, and the largest resident memory in MiB."""

    seconds: float
    memory: float


@dataclass(frozen=True)
class Workplace:
    """A folder with one set of records in every form, and the rivals' interpreter. classes, bounds: of the records."""

    folder: Path
    rivals: Path
    records: int
    classes: int
    bounds: str

    def trained(self, file: str, *options: str, home: Path | None = None) -> Used:
        """Return what a training by `dpserve train` takes. home: a state folder to keep; a new one otherwise."""
        out = self.folder / "bundle"
        shutil.rmtree(out, ignore_errors=True)
        if home is None:
            shutil.rmtree(home := self.folder / "home", ignore_errors=True)
        command = [sys.executable, "-m", "dpserve", "train", *options, "--data", str(self.folder / file)]
        command += ["--out", str(out), "--lineage", "own", "--bounds", self.bounds]
        command += ["--classes", ",".join(map(str, range(self.classes)))]
        return measured([*command, *BUDGET], self.folder, {"DPSERVE_HOME": str(home)})

    def planned(self, file: str, *options: str) -> Used:
        """Return what a training by what the planner chooses takes."""
        return self.trained(file, "--n", str(self.records), *options)

    def logistic(self) -> Used:
        """Return what scikit-learn takes."""
        return measured([sys.executable, "-c", _LOGISTIC, str(self.folder / "table.npz")], self.folder)

    def rival(self, name: str) -> Used:
        """Return what a rival takes."""
        task, answers = self.folder / f"{name}.npz", self.folder / "answers.npz"
        return measured([str(self.rivals), trainers.__file__, str(task), str(answers)], self.folder)


Contenders = Mapping[str, Callable[[Workplace], Used]]
RIVALS: Contenders = {
    "diffprivlib": lambda place: place.rival("diffprivlib"),
    "Opacus": lambda place: place.rival("opacus"),
}
TABLES: Contenders = {
    "dpserve": lambda place: place.planned("table.parquet"),
    "dpserve, CSV": lambda place: place.planned("table.csv"),
    "dpserve, class sums": lambda place: place.trained("table.parquet", "class-sums"),
    **RIVALS,
}
PICTURES: Contenders = {
    "dpserve": lambda place: place.planned("images.npz", "--image-shape", "28,28"),
    "dpserve, pixels": lambda place: place.planned("images.npz", "dpsgd", "--features", "identity"),
    **RIVALS,
}


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["records", "images", "lineages"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=[*TABLES, *PICTURES], help="of all that there are")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DPSERVE_DATA_DIR"), help="of MNIST")
    parser.add_argument("--environments", type=Path, default=Path(".bench"), help="where the rivals' is kept")
    parser.add_argument("--write", action="store_true", help=f"write the table into {RESULTS.name}, too")
    parser.add_argument("--digests", type=int, default=100_000_000)
    given = parser.parse_args()
    asked = PICTURES if given.what == "images" else TABLES
    contenders = {name: each for name, each in asked.items() if name in (given.contenders or asked)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if given.what == "lineages":
            print_added(folder, given.digests, given.rounds)
            return
        python = Path(sys.executable)
        if contenders.keys() & RIVALS.keys():
            lines = (line.partition("#")[0] for line in _REQUIREMENTS.read_text().splitlines())
            python = make_environment(given.environments / "rivals", "".join(f"{line.strip()}\n" for line in lines))
        rows = []
        if given.what == "images":
            if given.data_dir is None:
                parser.error("name the folder of mnist.npz by --data-dir")
            _elsewhere(write_images, folder, given.data_dir)
            place = Workplace(folder, python, IMAGES, 10, "0:255")
            rows.append(table_row(f"{IMAGES:,} x 784", beside(place, contenders, given.rounds)))
        else:
            for records, columns in product(given.rows, given.columns):
                _elsewhere(write_table, folder, records, columns, given.classes)
                place = Workplace(folder, python, records, given.classes, "0:1")
                rows.append(table_row(f"{records:,} x {columns}", beside(place, contenders, given.rounds)))
                print(rows[-1], end="", file=sys.stderr, flush=True)
    table = table_head(contenders) + "".join(rows)
    print(table)
    if given.write:
        RESULTS.write_text(with_table(RESULTS.read_text(), f"training {given.what}", table))


def beside(place: Workplace, contenders: Contenders, rounds: int) -> Mapping[str, Sequence[Used]]:
    """Return what each takes in each round, scikit-learn first, in turns."""
    ways = {_BASE: Workplace.logistic, **contenders}
    used: dict[str, list[Used]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            used[name].append(way(place))
    return used


def table_head(contenders: Contenders) -> str:
    """Return the head of the table in Markdown."""
    names = [f"{_BASE}: CPU s, MiB", *(f"{name}: times its CPU, MiB" for name in contenders)]
    return f"| records | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}\n"


def table_row(what: str, used: Mapping[str, Sequence[Used]]) -> str:
    """Return a line of the table: medians, of the ratios within each round."""
    base = used[_BASE]
    memory = statistics.median(each.memory for each in base)
    cells = [what, f"{statistics.median(each.seconds for each in base):,.2f}, {memory:,.0f}"]
    for name, own in used.items():
        if name != _BASE:
            ratio = statistics.median(one.seconds / other.seconds for one, other in zip(own, base, strict=True))
            cells.append(f"{ratio:,.2f}, {statistics.median(each.memory for each in own):,.0f}")
    return f"| {' | '.join(cells)} |\n"


def print_added(folder: Path, digests: int, rounds: int) -> None:
    """Print what digests of other records add to a training's processor time."""
    _elsewhere(write_table, folder, 10_000, COLUMNS[-1], 2)
    place, home = Workplace(folder, Path(sys.executable), 10_000, 2, "0:1"), folder / "kept"
    alone = [place.trained("table.parquet", "class-sums").seconds for _ in range(rounds)]
    _elsewhere(write_digests, home / "trained" / "others", digests)
    beside = []
    for _ in range(rounds):
        shutil.rmtree(home / "trained" / "own", ignore_errors=True)
        beside.append(place.trained("table.parquet", "class-sums", home=home).seconds)
    found = statistics.median(beside) - statistics.median(alone)
    print(f"{digests:,} digests of other records add {found:+.2f} s to {statistics.median(alone):.2f} s")


def measured(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Used:
    """Run a command on one thread of linear algebra; return what it took. It says nothing unless it fails."""
    added = {"OMP_NUM_THREADS": "1", **(environment or {})}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, env=os.environ | added, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((folder / "said").read_text())
    return Used(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _elsewhere(write: Callable[..., None], *given: Any) -> None:
    """Write in another process: what this one has ever held counts as its children's largest memory."""
    writing = multiprocessing.get_context("spawn").Process(target=write, args=given)
    writing.start()
    writing.join()
    if writing.exitcode:
        raise SystemExit(writing.exitcode)


def write_table(folder: Path, rows: int, columns: int, classes: int) -> None:
    """Write the same table as Parquet, CSV and arrays: numbers from 0 to 1, and a label that all of them decide.

    Each class has a line through the middle of the numbers, and the farthest along its own, noise added, has the row.
    """
    generator = np.random.default_rng(0)
    X = generator.random((rows, columns))
    along = (X - 0.5) @ generator.standard_normal((columns, classes))
    y = (along + generator.standard_normal((rows, classes)) / 2).argmax(axis=1)
    table = pa.table({f"x{index}": X[:, index] for index in range(columns)} | {"label": y})
    pa_parquet.write_table(table, folder / "table.parquet")
    pa_csv.write_csv(table, folder / "table.csv")
    _write_arrays(folder, X, y)


def write_images(folder: Path, data: Path) -> None:
    """Write MNIST's training images as bytes, and as arrays from 0 to 1."""
    images = mnist.read(data)
    X, y = images.X[:IMAGES], images.y[:IMAGES]
    np.savez(folder / "images.npz", X=np.rint(X * 255).astype(np.uint8), y=y)
    _write_arrays(folder, X, y)


def _write_arrays(folder: Path, X: Floats | Singles, y: Integers) -> None:
    """Write the records for who reads arrays: scikit-learn, and each rival with its task, which asks about one row."""
    np.savez(folder / "table.npz", X=X, y=y)
    shared = {"delta": 1e-5, "epsilon": 1.0, "seed": 0, "classes": int(y.max()) + 1, "columns": X.shape[1]}
    for rival, choice in _CHOICES.items():
        tasks = json.dumps([shared | {"rival": rival, "choice": choice}])
        np.savez(folder / f"{rival}.npz", coded_records=X, coded_asked=X[:1], y=y, tasks=tasks)


def write_digests(folder: Path, digests: int) -> None:
    """Write the files of a lineage with so many digests, as a training of a table would leave them."""
    generator = np.random.default_rng(1)
    folder.mkdir(parents=True, mode=0o700)
    rows = np.sort(generator.integers(2**64, size=(digests, 2), dtype=np.uint64).view("S16").ravel())
    (folder / "0.records").write_bytes(rows.tobytes())


if __name__ == "__main__":
    main()
