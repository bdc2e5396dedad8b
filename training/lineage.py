"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps a keyed digest of every record that was trained on (HMAC-SHA256 under a secret of the
owner's, cut to 16 bytes), and of every privacy unit, by lineage: it tells nobody without the secret whose records they
were, and says how many of a set that is about to be trained on are in another lineage, in whatever order, columns and
company. Training on them is then refused, unless the owner accepts a second budget.

The set is exact: 16 bytes for each record. A sketch would be smaller and would be wrong about some records, either way.
Two different records have one digest with a probability of n m 2^-128 among n and m of them.

A unit is known by its name alone, whatever its column is called: a person is the same person in a table that calls the
column otherwise. So other units that have the same names are taken for it, as where two tables number theirs from 1.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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
_NOTE = ".note"
"""Of the digests of a training that goes on."""

Digests = NDArray[np.bytes_]
Shared = Mapping[str, tuple[int, ...]]
"""By lineage how many records, and how many units."""


class Known(NamedTuple):
    """Keyed digests of records, and of units: sorted, each once."""

    records: Digests
    units: Digests


class KnownRecords:
    """Which records were trained on in which lineage, as keyed digests in the owner's state folder."""

    def __init__(self, folder: Path) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed."""
        self._key = folder / "lineage.key"
        self.folder = folder / "trained"

    def digests(self, records: Records) -> Known:
        """Return the keyed digests of every row of the source, what is picked from it or not, and of every unit."""
        key = owner_key(self._key)
        names = None if records.units is None else records.units.names
        named = () if names is None else (_OF_UNIT + name.tobytes() for name in names)
        return Known(*(_keyed(key, contents) for contents in (records.source, named)))

    @contextmanager
    def noted(self, lineage: str, digests: Known) -> Iterator[Shared]:
        """Note that records and units are in a lineage, and yield in which others they are, with those that train now.

        The note is there before the others are looked through: of two trainings at once that share a record at least
        one sees the other's. It is taken back where the block raises, and stays where the process is killed. Raises
        OSError.
        """
        folder = self.folder / check_lineage_name(lineage)
        note, both = folder / f"{secrets.token_hex(_DIGEST_BYTES)}{_NOTE}", np.union1d(*digests)
        while not note.exists():
            with suppress(FileNotFoundError):  # another training ended, and took the empty folder away
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_whole(note, both.tobytes())
        try:
            yield {other: count for other, count in self.among(digests).items() if other != lineage}
            new = np.setdiff1d(both, self._of(folder, notes=False), assume_unique=True).tobytes()
            if new:
                write_whole(folder / f"{hashlib.sha256(new).hexdigest()[: 2 * _DIGEST_BYTES]}{_SUFFIX}", new)
        finally:
            note.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                folder.rmdir()
                self.folder.rmdir()

    def among(self, digests: Known) -> Shared:
        """Return how many records, and units, are in each lineage that has any, by its name, those with most first."""
        shared = {}
        for folder in sorted(self.folder.glob("[!.]*")):
            own = self._of(folder)
            shared[folder.name] = tuple(len(np.intersect1d(part, own, assume_unique=True)) for part in digests)
        return dict(sorted(((name, each) for name, each in shared.items() if any(each)), key=lambda one: -sum(one[1])))

    def _of(self, folder: Path, *, notes: bool = True) -> Digests:
        """Return a lineage's digests, sorted, each once. notes: those of trainings that go on, too."""
        while True:
            try:
                parts = [_read(path) for path in folder.glob("[!.]*") if notes or path.suffix != _NOTE]
            except FileNotFoundError:  # a training ended, and its note became one of the others: look again
                continue
            return np.unique(np.concatenate([np.empty(0, dtype=_DIGEST), *parts]))


def _keyed(key: bytes, contents: Iterable[bytes]) -> Digests:
    keyed = bytearray()
    for content in contents:
        keyed += hmac.digest(key, content, "sha256")[:_DIGEST_BYTES]
    return np.unique(np.frombuffer(keyed, dtype=_DIGEST))


def _read(path: Path) -> Digests:
    content = path.read_bytes()
    if path.suffix not in (_SUFFIX, _NOTE):  # written by an earlier version: hexadecimal digits in lines
        content = bytes.fromhex(content.decode("ascii"))
    if len(content) % _DIGEST_BYTES:
        raise TrainingError(f"{path} should hold digests of {_DIGEST_BYTES} bytes, and is damaged")
    return np.frombuffer(content, dtype=_DIGEST)


def overlap(lineage: str, digests: Known, elsewhere: Shared) -> str:
    """Say how many of a lineage's records, and units, are in which others."""

    def counted(*counts: int) -> str:
        kinds = ("record", "unit") if len(digests.units) else ("record",)
        return " and ".join(f"{count:,} {kind}{'s' * (count != 1)}" for count, kind in zip(counts, kinds, strict=False))

    shared = ", ".join(
        f"{counted(*each)} {'is' if sum(each) == 1 else 'are'} in the lineage {other!r}"
        for other, each in elsewhere.items()
    )
    by_name = " Units are known by their names: others that have the same ones count as they do."
    return (
        f"Of the {counted(*map(len, digests))} of the lineage {lineage!r}, {shared} as well. Each lineage has a budget "
        "of its own, and whoever asks models of both learns what both allow together."
        f"{by_name * any(units for _, units in elsewhere.values())}"
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
