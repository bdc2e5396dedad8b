"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps a keyed digest of every record that was trained on (HMAC-SHA256 under a secret of the
owner's, cut to 16 bytes), and of every privacy unit, by lineage: it tells nobody without the secret whose records they
were, and says how many of a set that is about to be trained on are in another lineage, in whatever order, columns and
company. Training on them is then refused, unless the owner accepts a second budget.

The set is exact: 16 bytes for each record. A sketch would be smaller and would be wrong about some records, either way.
Two different records have one digest with a probability of n m 2^-128 among n and m of them.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.certificate import NAME
from training.data.records import Records
from training.errors import TrainingError
from training.private_files import write_whole

DIGITS = "digits"
"""The lineage of the public digits that examples train on."""

_KEY_BYTES = 32
_DIGEST_BYTES = 16
_DIGEST = np.dtype(f"S{_DIGEST_BYTES}")
"""Compared, sorted and written as 16 bytes each: what NumPy strips of them, zeros at the end, none of that looks at."""
_OF_UNIT = b"dpserve: a unit of records\0"
_SUFFIX = ".digests"

Digests = NDArray[np.bytes_]


class KnownRecords:
    """Which records were trained on in which lineage, as keyed digests in the owner's state folder."""

    def __init__(self, folder: Path) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed."""
        self._key = folder / "lineage.key"
        self._trained = folder / "trained"

    def digests(self, records: Records) -> Digests:
        """Return the keyed digests of every row of the source, what is picked from it or not, and of every unit.

        They are sorted, each once.
        """
        key = owner_key(self._key)
        names = None if records.units is None else records.units.names
        named = () if names is None else (name.tobytes() for name in names)
        keyed = bytearray()
        for content in chain(records.source, (_OF_UNIT + name for name in named)):
            keyed += hmac.digest(key, content, "sha256")[:_DIGEST_BYTES]
        return np.unique(np.frombuffer(keyed, dtype=_DIGEST))

    def remember(self, lineage: str, digests: Digests) -> None:
        """Note that these records are in the lineage. Raises OSError."""
        folder = self._trained / check_lineage_name(lineage)
        digests = np.setdiff1d(digests, self._of(folder), assume_unique=True)
        if len(digests):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = digests.tobytes()
            write_whole(folder / f"{hashlib.sha256(content).hexdigest()[: 2 * _DIGEST_BYTES]}{_SUFFIX}", content)

    def among(self, digests: Digests) -> Mapping[str, int]:
        """Return how many of these records are in each lineage that has any, by its name, those with most first."""
        folders = sorted(self._trained.glob("[!.]*"))
        shared = {folder.name: len(np.intersect1d(digests, self._of(folder), assume_unique=True)) for folder in folders}
        return dict(sorted(((name, count) for name, count in shared.items() if count), key=lambda entry: -entry[1]))

    def check(self, lineage: str, digests: Digests) -> None:
        """Raise TrainingError if any of these records, or units, is in another lineage than this one."""
        elsewhere = {other: count for other, count in self.among(digests).items() if other != lineage}
        if elsewhere:
            raise TrainingError(
                f"{overlap(lineage, len(digests), elsewhere)} To keep one budget, train with --lineage "
                f"{next(iter(elsewhere))}. To open a second one all the same, add --overlapping-lineage-is-accepted"
            )

    def _of(self, folder: Path) -> Digests:
        """Return a lineage's digests, sorted, each once."""
        parts = [np.empty(0, dtype=_DIGEST)]
        for path in folder.glob("[!.]*"):
            content = path.read_bytes()
            if path.suffix != _SUFFIX:  # written by an earlier version: hexadecimal digits in lines
                content = bytes.fromhex(content.decode("ascii"))
            if len(content) % _DIGEST_BYTES:
                raise TrainingError(f"{path} should hold digests of {_DIGEST_BYTES} bytes, and is damaged")
            parts.append(np.frombuffer(content, dtype=_DIGEST))
        return np.unique(np.concatenate(parts))


def overlap(lineage: str, records: int, elsewhere: Mapping[str, int]) -> str:
    """Say how many of a lineage's records, and units, are in which others."""
    counted = " and ".join(f"{count:,} are in the lineage {other!r}" for other, count in elsewhere.items())
    return (
        f"Of the {records:,} records of the lineage {lineage!r}, {counted} as well. Each lineage has a "
        "budget of its own, and whoever asks models of both learns what both allow together."
    )


def check_lineage_name(name: str) -> str:
    """Return the owner's own name for a lineage, or raise TrainingError."""
    if not NAME.fullmatch(name):
        raise TrainingError(f"a lineage is named with letters, digits, '.', '_' and '-', at most 64, not {name!r}")
    return name


def owner_key(path: Path) -> bytes:
    """Return the owner's secret for lineages, made on first use and kept in `path`, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise TrainingError(f"{path} should hold {_KEY_BYTES} secret bytes, and holds {len(key)}") from None
        return key
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(_KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
