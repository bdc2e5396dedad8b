"""Records from a CSV file of the owner's own: one header line, one record a line, one column of labels."""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.data.bounds import parse_bounds
from training.data.records import Declaration, Floats, Records, check_records
from training.errors import DataError

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity)", re.IGNORECASE)


def read_csv(
    path: Path,
    *,
    label: str,
    classes: Sequence[str],
    bounds: Sequence[str],
    ignore: Sequence[str] = (),
    clip: bool = False,
) -> Records:
    """Read comma-separated records with a header line.

    label: the column of class names. ignore: columns to leave out. Every other column is a feature and must
    hold numbers within its bounds (`parse_bounds`). clip: draw values back to their bounds instead of refusing
    them. Raises DataError naming the line and the column.
    """
    header, rows, line_of = _table(path)
    for name in (label, *ignore):
        if name not in header:
            raise DataError(f"{path.name} has no column {name!r}; its columns are {', '.join(header)}")
    features = [name for name in header if name != label and name not in ignore]
    lower, upper = parse_bounds(bounds, features)
    X = _numbers(path, rows, [header.index(name) for name in features], header, line_of)
    return check_records(
        X,
        [row[header.index(label)] for row in rows],
        Declaration(tuple(features), lower, upper, tuple(classes)),
        source=[_canonical(header, row) for row in rows],
        clip=clip,
        row_name=lambda index: f"{path.name}, line {line_of[index]}",
    )


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names in the header line of a file that `read_csv` reads. Raises DataError."""
    return tuple(_table(path)[0])


def _table(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the column names, the rows that are not blank, and the line on which each of them ends."""
    rows: list[list[str]] = []
    line_of: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = _header(path, next(reader, []))
            for row in reader:
                if len(row) not in (0, len(header)):
                    raise DataError(
                        f"{path.name}, line {reader.line_num}: {len(row)} values, and the header has {len(header)} "
                        "columns"
                    )
                if row:
                    rows.append(row)
                    line_of.append(reader.line_num)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text (byte {error.start})") from error
    except csv.Error as error:
        raise DataError(f"{path.name}, line {reader.line_num}: {error}") from error
    if not rows:
        raise DataError(f"{path.name} has a header and no records")
    return header, rows, line_of


def _header(path: Path, row: list[str]) -> list[str]:
    header = [name.strip() for name in row]
    if not header:
        raise DataError(f"{path.name} is empty; its first line must name the columns")
    twice = {name for name in header if header.count(name) > 1}
    if twice or "" in header:
        raise DataError(f"{path.name}, line 1: every column needs a name of its own; look at {sorted(twice) or '``'}")
    if all(_NUMBER.fullmatch(name) for name in header):
        raise DataError(f"{path.name}, line 1 holds numbers; the first line must name the columns")
    return header


def _canonical(header: list[str], row: list[str]) -> bytes:
    """Return the row's bytes whatever the order of its columns and however its numbers are written."""
    values = (repr(float(text) + 0.0) if _NUMBER.fullmatch(text.strip()) else text.strip() for text in row)
    return json.dumps(sorted(zip(header, values, strict=True))).encode()


def _numbers(path: Path, rows: list[list[str]], columns: list[int], header: list[str], line_of: list[int]) -> Floats:
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
            if not _NUMBER.fullmatch(row[column].strip()):
                where = f"{path.name}, line {number}, column {header[column]!r}"
                said = "is empty" if not row[column].strip() else f"{row[column]!r} is not a number"
                return DataError(f"{where}: {said}; encode it as a number, or leave the column out with --ignore")
    return DataError(f"{path.name} could not be read as numbers")
