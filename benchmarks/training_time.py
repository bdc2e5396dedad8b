"""`dpserve train` beside scikit-learn's LogisticRegression: processor seconds and memory of whole processes, as ratios.

`records`: class sums, or with `--budget` what the planner takes, of tables of more and more records, a Parquet file
each, of 30 columns and of 50, beside LogisticRegression on the same numbers in an .npz file. In turns; the ratios
within the run are what counts.
`lineages`: what a state folder with many digests of other records adds to a training of 10,000.
Run: python -m benchmarks.training_time records [--budget] [--rows 10000 100000 1000000] [--columns 30 50] [--rounds 3]
     python -m benchmarks.training_time lineages [--digests 100000000]
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

COLUMNS = [30, 50]
"""More than 32 numbers declared by bounds are rows of length 1; up to 32 are cut at quantiles."""
CLASS_SUMS = ["class-sums", "--epsilon", "1", "--delta", "1e-5"]
BUDGET = ["--epsilon", "1", "--delta", "1e-5"]
_RIVAL = """
import sys, numpy
from sklearn.linear_model import LogisticRegression
with numpy.load(sys.argv[1]) as table:
    LogisticRegression().fit(table["X"], table["y"])
"""
_Figures = tuple[float, float]


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["records", "lineages"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--columns", type=int, nargs="+", default=COLUMNS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", action="store_true")
    parser.add_argument("--digests", type=int, default=100_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.what == "records":
            for rows, columns in product(given.rows, given.columns):
                print_beside(Path(folder), rows, columns, given.rounds, planned=given.budget)
        else:
            print_added(Path(folder), given.digests, given.rounds)


def print_beside(folder: Path, rows: int, columns: int, rounds: int, *, planned: bool) -> None:
    """Print a training's processor time in units of the rival's, and both memories. planned: by the planner."""
    _elsewhere(write_table, folder, rows, columns)
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(measured([sys.executable, "-c", _RIVAL, str(folder / "table.npz")], folder))
        ours.append(trained(folder, [*BUDGET, "--n", str(rows)] if planned else CLASS_SUMS))
    ratio = statistics.median(own[0] / other[0] for own, other in zip(ours, theirs, strict=True))
    seconds, memory = (statistics.median(each[place] for each in ours) for place in range(2))
    beside, beside_memory = (statistics.median(each[place] for each in theirs) for place in range(2))
    print(
        f"{rows:>9,} records of {columns}: {ratio:5.2f} of scikit-learn's processor time "
        f"({seconds:.2f} s, {beside:.2f} s), {memory - beside_memory:+,.0f} MiB beside its {beside_memory:,.0f}",
        flush=True,
    )


def print_added(folder: Path, digests: int, rounds: int) -> None:
    """Print what digests of other records add to a training's processor time."""
    _elsewhere(write_table, folder, 10_000, COLUMNS[-1])
    alone = [trained(folder)[0] for _ in range(rounds)]
    others = folder / "home" / "trained" / "others"
    _elsewhere(write_digests, others, digests)
    beside = [trained(folder, keep=others)[0] for _ in range(rounds)]
    found = statistics.median(beside) - statistics.median(alone)
    print(f"{digests:,} digests of other records add {found:+.2f} s to {statistics.median(alone):.2f} s")


def trained(folder: Path, what: Sequence[str] = CLASS_SUMS, keep: Path | None = None) -> _Figures:
    """Return the figures of a training. keep: a lineage's folder to leave where it is; nothing else is left."""
    home, out = folder / "home", folder / "bundle"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(home if keep is None else keep.parent / "own", ignore_errors=True)
    command = [sys.executable, "-m", "dpserve", "train", "--data", str(folder / "table.parquet"), "--out", str(out)]
    command += ["--lineage", "own", "--classes", "0,1", "--bounds", "0:1"]
    return measured([*command, *what], folder)


def measured(command: Sequence[str], folder: Path) -> _Figures:
    """Run a command; return its processor seconds and its largest resident memory in MiB."""
    environment = os.environ | {"DPSERVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((folder / "said").read_text())
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _elsewhere(write: Callable[..., None], *given: Any) -> None:
    """Write in another process: what this one has ever held counts as its children's largest memory."""
    writing = multiprocessing.get_context("spawn").Process(target=write, args=given)
    writing.start()
    writing.join()
    if writing.exitcode:
        raise SystemExit(writing.exitcode)


def write_table(folder: Path, rows: int, columns: int) -> None:
    """Write the same table as Parquet and as arrays: numbers from 0 to 1, and a label that all of them decide."""
    generator = np.random.default_rng(0)
    X = generator.random((rows, columns))
    y = (((X - 0.5) @ generator.standard_normal(columns) + generator.standard_normal(rows) / 2) > 0).astype(np.int64)
    named = {f"x{index}": X[:, index] for index in range(columns)}
    pa_parquet.write_table(pa.table(named | {"label": y}), folder / "table.parquet")
    np.savez(folder / "table.npz", X=X, y=y)


def write_digests(folder: Path, digests: int) -> None:
    """Write the files of a lineage with so many digests, as a training of a table would leave them."""
    generator = np.random.default_rng(1)
    folder.mkdir(parents=True, mode=0o700)
    rows = np.sort(generator.integers(2**64, size=(digests, 2), dtype=np.uint64).view("S16").ravel())
    (folder / "0.records").write_bytes(rows.tobytes())


if __name__ == "__main__":
    main()
