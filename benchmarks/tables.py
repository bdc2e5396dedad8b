"""A table read, encoded and trained on, beside pandas with scikit-learn; and the memory that many rows take.

`beside`: one CSV file of numbers. A process of its own for each way, in turns, so that its largest memory is its own;
the ratios within the run are what counts. Both fit a linear classifier of the same classes with two threads at most.
`grown`: Parquet files of ever more rows, of which class sums or DP-SGD are trained. What is printed is the largest
resident memory of each, which should not grow with the rows.
Run: python -m benchmarks.tables beside [--rows 1000000] [--columns 50] [--rounds 3]
     python -m benchmarks.tables grown [--rows 1000000 10000000] [--columns 50]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

_PART = 100_000
Way = Callable[[Path], None]


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["beside", "grown", "one"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=sorted(WAYS), help="one: the way, in this process")
    parser.add_argument("--table", type=Path, help="one: the table")
    given = parser.parse_args()
    if given.what == "one":
        print(json.dumps(measured(WAYS[given.way], given.table)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if given.what == "beside":
            table = Path(folder, "table.csv")
            write_csv(table, given.rows[0], given.columns)
            print_ratios(table, given.rounds)
        else:
            for rows in given.rows:
                table = Path(folder, f"{rows}")
                write_parquet(table, rows, given.columns)
                for way in ("class sums", "DP-SGD"):
                    figures = alone(way, table)
                    print(f"{rows:>12,} rows  {way:<12} {figures['MiB']:8.0f} MiB {figures['s']:8.1f} s", flush=True)


def print_ratios(table: Path, rounds: int) -> None:
    """Print each way's time and memory in units of the rival's."""
    ways = ("pandas + scikit-learn", "head", "class sums")
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(alone(way, table))
    for way in ways:
        ratios = [
            {name: ours[name] / theirs[name] for name in ours}
            for ours, theirs in zip(found[way], found[ways[0]], strict=True)
        ]
        seconds, processor, memory = (
            statistics.median(ratio[name] for ratio in ratios) for name in ("s", "processor s", "MiB")
        )
        first = {name: round(value, 1) for name, value in found[way][-1].items()}
        print(f"{way:<22} {seconds:6.2f} of its time {processor:6.2f} of its processor time "
              f"{memory:6.2f} of its memory  {first}")  # fmt: skip


def alone(way: str, table: Path) -> dict[str, float]:
    """Return a way's time and memory in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tables", "one", "--way", way, "--table", str(table)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    figures: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return figures


def measured(way: Way, table: Path) -> dict[str, float]:
    """Run a way here; return its wall-clock and processor seconds and the process's largest memory."""
    start, busy = time.perf_counter(), time.process_time()
    way(table)
    return {
        "s": time.perf_counter() - start,
        "processor s": time.process_time() - busy,
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _parts(rows: int, columns: int) -> list[pa.Table]:
    """Return the table in parts: numbers between 0 and 100 of four digits, and a label that half of them decide."""
    generator = np.random.default_rng(0)
    weights = np.where(np.arange(columns) % 2, generator.standard_normal(columns), 0.0)
    parts = []
    for start in range(0, rows, _PART):
        X = np.round(generator.random((min(_PART, rows - start), columns)) * 100, 2)
        y = (X - 50) @ weights + generator.standard_normal(len(X)) * 100 > 0
        named = {f"c{index}": column for index, column in enumerate(X.T)}
        parts.append(pa.table(named | {"label": np.where(y, "yes", "no")}))
        yield parts.pop()


def write_csv(path: Path, rows: int, columns: int) -> None:
    """Write one file."""
    writer = None
    for part in _parts(rows, columns):
        writer = writer or pa_csv.CSVWriter(path, part.schema)
        writer.write_table(part)
    if writer:
        writer.close()


def write_parquet(folder: Path, rows: int, columns: int) -> None:
    """Write a folder of files."""
    folder.mkdir()
    for index, part in enumerate(_parts(rows, columns)):
        pa_parquet.write_table(part, folder / f"{index:05}.parquet")


def rival(table: Path) -> None:
    """Fit scikit-learn's logistic regression to pandas' table."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    frame = pd.read_csv(table)
    labels = frame.pop("label")
    make_pipeline(MinMaxScaler(), LogisticRegression()).fit(frame, labels)


def _read_table(table: Path):  # type: ignore[no-untyped-def]
    from dpserve.training.features.rules import feature_map
    from dpserve.training.inputs.table_records import read_numbers

    records = read_numbers(table, label="label", classes=["no", "yes"], bounds=["0:100"])
    return records, feature_map("identity", records.declaration)


def head(table: Path) -> None:
    """Train a certified head, for 10 million records at most."""
    from dpserve.training.kinds.head.recipe import Recipe
    from dpserve.training.kinds.head.train import train_head

    records, phi = _read_table(table)
    train_head(records, Recipe("m", phi, 100.0, 1e-2), "benchmark")


def class_sums(table: Path) -> None:
    """Release class sums."""
    from dpserve.mechanisms.gaussian_vector import whole_picorho
    from dpserve.mechanisms.randomness import SystemRandomness
    from dpserve.training.kinds.class_sums.train import train_class_sums

    records, phi = _read_table(table)
    train_class_sums(records, "m", phi, whole_picorho("epsilon:1@1e-6"), "benchmark", SystemRandomness())


def dpsgd(table: Path) -> None:
    """Run a few steps of DP-SGD: each takes the same memory."""
    from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
    from dpserve.mechanisms.randomness import SystemRandomness
    from dpserve.training.kinds.dpsgd.choices import choices_for
    from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

    records, phi = _read_table(table)
    whole = whole_picorho("epsilon:1@1e-6")
    choices = choices_for(len(records), mu_for(whole), 2 * (phi.dimension + 1), steps=5)
    train_dpsgd(records, DpSgdRecipe("m", phi, choices, whole), "benchmark", SystemRandomness())


WAYS: dict[str, Way] = {
    "pandas + scikit-learn": rival,
    "head": head,
    "class sums": class_sums,
    "DP-SGD": dpsgd,
}

if __name__ == "__main__":
    main()
