"""Records from a CSV file of the owner's own: one header line, one record a line, one column of labels."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.data.bounds import parse_bounds
from training.data.records import Declaration, Floats, Records, check_records
from training.errors import DataError


def read_csv(
    path: Path, *, label: str, classes: Sequence[str], bounds: Sequence[str], ignore: Sequence[str] = ()
) -> Records:
    """Read comma-separated records with a header line.

    label: the column of class names. ignore: columns to leave out. Every other column is a feature and must
    hold numbers within its bounds (`parse_bounds`). Raises DataError naming the line and the column.
    """
    lines = _lines(path)
    header = _header(path, lines)
    for name in (label, *ignore):
        if name not in header:
            raise DataError(f"{path.name} has no column {name!r}; its columns are {', '.join(header)}")
    features = [name for name in header if name != label and name not in ignore]
    lower, upper = parse_bounds(bounds, features)
    rows = list(csv.reader(lines[1:]))
    line_of = [number for number, row in enumerate(rows, start=2) if row]
    rows = [row for row in rows if row]
    for number, row in zip(line_of, rows, strict=True):
        if len(row) != len(header):
            raise DataError(f"{path.name}, line {number}: {len(row)} values, and the header has {len(header)} columns")
    X = _numbers(path, rows, [header.index(name) for name in features], header, line_of)
    labels = [row[header.index(label)] for row in rows]
    return check_records(
        X,
        labels,
        Declaration(tuple(features), lower, upper, tuple(classes)),
        row_name=lambda index: f"{path.name}, line {line_of[index]}",
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text (byte {error.start})") from error


def _header(path: Path, lines: list[str]) -> list[str]:
    header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
    if not header:
        raise DataError(f"{path.name} is empty; its first line must name the columns")
    twice = {name for name in header if header.count(name) > 1}
    if twice or "" in header:
        raise DataError(f"{path.name}, line 1: every column needs a name of its own; look at {sorted(twice) or '``'}")
    if all(re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", name) for name in header):
        raise DataError(f"{path.name}, line 1 holds numbers; the first line must name the columns")
    return header


def _numbers(path: Path, rows: list[list[str]], columns: list[int], header: list[str], line_of: list[int]) -> Floats:
    if not rows:
        raise DataError(f"{path.name} has a header and no records")
    picked = "\n".join(",".join(row[column] for column in columns) for row in rows)
    try:
        X: Floats = np.loadtxt(io.StringIO(picked), delimiter=",", ndmin=2, dtype=np.float64, comments=None)
    except ValueError:
        raise _first_bad_number(path, rows, columns, header, line_of) from None
    if X.shape != (len(rows), len(columns)):
        raise _first_bad_number(path, rows, columns, header, line_of)
    return X


def _first_bad_number(
    path: Path, rows: list[list[str]], columns: list[int], header: list[str], line_of: list[int]
) -> DataError:
    for number, row in zip(line_of, rows, strict=True):
        for column in columns:
            try:
                float(row[column])
            except ValueError:
                where = f"{path.name}, line {number}, column {header[column]!r}"
                said = "is empty" if not row[column].strip() else f"{row[column]!r} is not a number"
                return DataError(f"{where}: {said}; encode it as a number, or leave the column out with --ignore")
    return DataError(f"{path.name} could not be read as numbers")
