"""Records from a CSV file of the owner's own: one header line, one record a line, one column of labels."""

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.data.bounds import parse_bounds
from training.data.records import BOOLEANS, Declaration, Floats, Records, check_records
from training.errors import DataError

_MOST_SHOWN = 8
_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity)", re.IGNORECASE)


def read_csv(
    path: Path,
    *,
    label: str,
    classes: Sequence[str],
    bounds: Sequence[str],
    ignore: Sequence[str] = (),
    clip: bool = False,
    values: Sequence[str] | None = None,
) -> Records:
    """Read comma-separated records with a header line.

    label: the column of class names, or of `values`, what each class is called in this file. ignore: columns to leave
    out. Every other column is a feature and must hold numbers within its bounds (`parse_bounds`); true and false are
    the numbers 1 and 0. clip: draw values back to their bounds instead of refusing them. Raises DataError naming the
    line and the column, and of bad columns all.
    """
    header, rows, line_of = _table(path)
    missing = [repr(name) for name in (label, *ignore) if name not in header]
    if missing:
        raise DataError(f"{path.name} has no column {' or '.join(missing)}; its columns are {', '.join(header)}")
    features = [name for name in header if name != label and name not in ignore]
    lower, upper = parse_bounds(bounds, features)
    X = _numbers(path, rows, [header.index(name) for name in features], header, line_of)
    return check_records(
        X,
        [row[header.index(label)] for row in rows],
        Declaration(tuple(features), lower, upper, tuple(classes)),
        source=[_canonical(header, row) for row in rows],
        clip=clip,
        values=values,
        file_name=path.name,
        row_name=lambda index: f"line {line_of[index]}",
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
    if len(header) == 1:
        for delimiter, name in _OTHER_DELIMITERS.items():
            if delimiter in row[0]:
                raise DataError(
                    f"{path.name}, line 1: the columns seem to be separated by {name}; write the file with commas"
                )
    twice = {name for name in header if header.count(name) > 1}
    if twice or "" in header:
        raise DataError(f"{path.name}, line 1: every column needs a name of its own; look at {sorted(twice) or '``'}")
    if all(_NUMBER.fullmatch(name) for name in header):
        raise DataError(f"{path.name}, line 1 holds numbers; the first line must name the columns")
    return header


def _canonical(header: list[str], row: list[str]) -> bytes:
    """Return the row's bytes whatever the order of its columns and however its numbers are written."""
    texts = (BOOLEANS.get(text.strip().lower(), text.strip()) for text in row)
    values = (repr(float(text) + 0.0) if _NUMBER.fullmatch(text) else text for text in texts)
    return json.dumps(sorted(zip(header, values, strict=True))).encode()


def _numbers(path: Path, rows: list[list[str]], columns: list[int], header: list[str], line_of: list[int]) -> Floats:
    try:
        return _loaded([[row[column] for column in columns] for row in rows])
    except ValueError:
        pass
    picked = [[BOOLEANS.get(row[column].strip().lower(), row[column]) for column in columns] for row in rows]
    try:
        return _loaded(picked)
    except ValueError:
        names = [header[column] for column in columns]
        raise DataError(f"{path.name}, {_bad_numbers(picked, names, line_of)}") from None


def _loaded(rows: list[list[str]]) -> Floats:
    X: Floats = np.loadtxt(
        io.StringIO("\n".join(map(",".join, rows))), delimiter=",", ndmin=2, dtype=np.float64, comments=None
    )
    if X.shape != (len(rows), len(rows[0])):
        raise ValueError("a value holds a comma or a line's end")
    return X


def _bad_numbers(rows: list[list[str]], names: list[str], line_of: list[int]) -> str:
    """Say of every column that holds something else than numbers where it does so first."""
    found: dict[str, str] = {}
    for number, row in zip(line_of, rows, strict=True):
        for name, text in zip(names, row, strict=True):
            if name not in found and not _NUMBER.fullmatch(text.strip()):
                said = f"{text!r} is not a number" if text.strip() else "is empty"
                found[name] = f"line {number}, column {name!r}: {said}"
    if not found:
        return "could not be read as numbers"
    what = "encode it as a number, or leave the column out with --ignore"
    if len(found) > 1:
        what = "encode them as numbers, or leave the columns out with --ignore"
    more = f"; and {len(found) - _MOST_SHOWN} more columns" if len(found) > _MOST_SHOWN else ""
    return f"{'; '.join(list(found.values())[:_MOST_SHOWN])}{more}; {what}"
