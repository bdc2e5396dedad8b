"""Text files of 0/1 features, one record a line: the form in which Location is distributed.

A line is read as bytes, because it holds many digits: digits stand at even places and commas at
odd ones. Any other line is an error that names file, line and column.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Labels
from dpserve.training.errors import DataError
from research.data.labelled import Features

_COMMA, _ZERO = ord(","), ord("0")


def read_labelled(path: Path, features: int, classes: int) -> tuple[Features, Labels]:
    """Lines `label,0,1,...` with a label in 1..classes, quoted or not. Returns X (N, features) and y from 0."""
    rows: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for number, line in _lines(path):
        label, comma, digits = line.partition(b",")
        if not comma:
            raise DataError(f"{path}, line {number}: a label and {features} features are expected, not {_shown(line)}")
        labels.append(_label(path, number, label.strip(b'" '), classes))
        rows.append(_digits(path, number, digits, features, first_column=2))
    return _stack(path, rows), np.array(labels, dtype=np.int64)


def _lines(path: Path) -> "list[tuple[int, bytes]]":
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return [(number, line.rstrip()) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]


def _label(path: Path, number: int, text: bytes, classes: int) -> int:
    if not text.isdigit() or not 1 <= int(text) <= classes:
        raise DataError(f"{path}, line {number}: label {_shown(text)} is not in 1..{classes}")
    return int(text) - 1


def _digits(path: Path, number: int, line: bytes, features: int, first_column: int) -> NDArray[np.uint8]:
    characters = np.frombuffer(line, dtype=np.uint8)
    if len(characters) != 2 * features - 1:
        found = line.count(b",") + 1
        if found != features:
            raise DataError(f"{path}, line {number}: {found} features, not {features}; a truncated file?")
    digits = characters[::2] - _ZERO
    wrong = np.flatnonzero(digits[:features] > 1)
    if len(characters) != 2 * features - 1 or len(wrong) or (characters[1::2] != _COMMA).any():
        values = line.split(b",")
        column = next((at for at, value in enumerate(values) if value not in (b"0", b"1")), 0)
        raise DataError(
            f"{path}, line {number}, column {column + first_column}: {_shown(values[column])} is neither 0 nor 1"
        )
    return digits


def _stack(path: Path, rows: list[NDArray[np.uint8]]) -> Features:
    if not rows:
        raise DataError(f"{path}: the file is empty")
    return np.stack(rows).astype(np.float32)


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("ascii", "replace"))
