"""US Adult (Census Income): 48,842 people, 14 features, income above 50,000 or not (Becker and Kohavi 1996).

Distributed as `adult.data` and `adult.test`: comma-separated lines, `?` where a value is missing, the test file with a
first line of its own and a full stop after each label.

The paper counts 14 features, so a category is one number: its place in the documented list of levels in alphabetical
order. Every feature is scaled to [0, 1] by the documented range, which is public.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Labels
from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import Columns, LevelsColumn, NumberColumn
from research.data.labelled import Features, LabelledSet, first_existing, missing, read_npz

CLASSES = 2
_NPZ = "adult.npz"

_RANGES = {
    "age": (17, 90),
    "fnlwgt": (12285, 1490400),
    "education-num": (1, 16),
    "capital-gain": (0, 99999),
    "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
}
_LEVELS = {
    name: levels.split()
    for name, _, levels in (
        line.partition(": ")
        for line in """
workclass: ? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay
education: 10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters \
Preschool Prof-school Some-college
marital-status: Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated \
Widowed
occupation: ? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners \
Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support \
Transport-moving
relationship: Husband Not-in-family Other-relative Own-child Unmarried Wife
race: Amer-Indian-Eskimo Asian-Pac-Islander Black Other White
sex: Female Male
native-country: ? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France \
Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan \
Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South \
Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia
""".strip().splitlines()
    )
}
"""Every feature that is a category, with its documented levels; `?` where the value is missing."""

_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
_LABELS = {"<=50K": 0, ">50K": 1}


def with_dummy_variables(data: LabelledSet) -> LabelledSet:
    """Return the complete records with 104 features, as Bernau et al. 2021 count them, in [0, 1].

    A category becomes one feature for each of its levels but `?`; records with a missing value, and the sampling
    weight fnlwgt, are left out. data: as `read` returns it.
    """
    complete = np.ones(len(data.y), dtype=np.bool_)
    features: list[Features] = []
    for name, column in zip(_COLUMNS, data.X.T, strict=True):
        if name in _LEVELS:
            levels = _LEVELS[name]
            codes = np.rint(column * (len(levels) - 1)).astype(np.int64)
            known = [code for code, level in enumerate(levels) if level != "?"]
            complete &= np.isin(codes, known)
            features += [(codes == code).astype(np.float32) for code in known]
        elif name != "fnlwgt":
            features.append(column)
    X = np.stack(features, axis=1)[complete]
    return LabelledSet("adult", X, data.y[complete], CLASSES, f"{data.source}, complete records, dummy variables")


def read(directory: Path) -> LabelledSet:
    """Read the publisher's two files, or `adult.npz`. Raises DataError naming file, line and column."""
    for folder in (directory, directory / "adult"):
        train, test = folder / "adult.data", folder / "adult.test"
        if train.exists() and test.exists():
            parts = [_read_file(path) for path in (train, test)]
            X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            return LabelledSet("adult", X, y, CLASSES, str(folder))
    npz = first_existing(directory, _NPZ)
    if npz is None:
        raise missing("adult", directory, "adult.data and adult.test", _NPZ)
    return _read_npz(npz)


def _read_file(path: Path) -> tuple[Features, Labels]:
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from None
    rows: list[list[float]] = []
    labels: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):
            continue
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_COLUMNS) + 1:
            raise DataError(f"{path}, line {number}: {len(values)} values, not {len(_COLUMNS) + 1}; a truncated file?")
        label = values[-1].removesuffix(".")
        if label not in _LABELS:
            raise DataError(f"{path}, line {number}: label {values[-1]!r} is neither <=50K nor >50K")
        labels.append(_LABELS[label])
        rows.append([_scaled(path, number, name, value) for name, value in zip(_COLUMNS, values[:-1], strict=True)])
    if not rows:
        raise DataError(f"{path}: the file is empty")
    return np.array(rows, dtype=np.float32), np.array(labels, dtype=np.int64)


def _scaled(path: Path, number: int, name: str, value: str) -> float:
    if name in _LEVELS:
        levels = _LEVELS[name]
        if value not in levels:
            raise DataError(f"{path}, line {number}, column {name!r}: {value!r} is not a documented level")
        return levels.index(value) / (len(levels) - 1)
    low, high = _RANGES[name]
    if not value.isdigit() or not low <= int(value) <= high:
        raise DataError(f"{path}, line {number}, column {name!r}: {value!r} is not a whole number in {low}..{high}")
    return (int(value) - low) / (high - low)


def _read_npz(path: Path) -> LabelledSet:
    levels_keys = [f"levels_{name}" for name in _LEVELS]
    arrays = read_npz(path, "X_num", "X_cat", "num_names", "cat_names", "y", *levels_keys)
    numbers, names = arrays["X_num"].astype(np.int64), [str(name) for name in arrays["num_names"].tolist()]
    codes, categories = arrays["X_cat"].astype(np.int64), [str(name) for name in arrays["cat_names"].tolist()]
    if set(names) != set(_RANGES) or set(categories) != set(_LEVELS):
        raise DataError(f"{path}: the columns are {names + categories}, not Adult's")
    columns: dict[str, NDArray[np.float64]] = {}
    for name, column in zip(names, numbers.T, strict=True):
        low, high = _RANGES[name]
        columns[name] = (column - low) / (high - low)
    for name, column in zip(categories, codes.T, strict=True):
        theirs, ours = [str(level) for level in arrays[f"levels_{name}"].tolist()], _LEVELS[name]
        if not set(theirs) <= set(ours) or column.min() < 0 or column.max() >= len(theirs):
            raise DataError(f"{path}, column {name!r}: codes or levels that are not the documented ones")
        places = np.array([ours.index(level) for level in theirs])
        columns[name] = places[column] / (len(ours) - 1)
    X = np.stack([columns[name] for name in _COLUMNS], axis=1).astype(np.float32)
    return LabelledSet("adult", X, arrays["y"].astype(np.int64), CLASSES, str(path))


def one_hot(ordinal: LabelledSet) -> LabelledSet:
    """Return Adult with a 0/1 feature for every documented level: 6 numbers and 102 levels, as linear models need."""
    columns = []
    for index, name in enumerate(_COLUMNS):
        column = ordinal.X[:, index]
        if name in _LEVELS:
            levels = len(_LEVELS[name])
            columns.append(np.eye(levels, dtype=np.float32)[np.rint(column * (levels - 1)).astype(np.int64)])
        else:
            columns.append(column[:, None])
    return LabelledSet(ordinal.name, np.hstack(columns), ordinal.y, ordinal.classes, f"{ordinal.source}, one-hot")


def one_hot_columns() -> Columns:
    """Return the columns that the features of `one_hot` encode: numbers scaled to [0, 1], and levels."""
    return tuple(
        LevelsColumn(name=name, levels=tuple(_LEVELS[name]), required=True, missing=())
        if name in _LEVELS
        else NumberColumn(name=name, minimum=0, maximum=1, required=True)
        for name in _COLUMNS
    )
