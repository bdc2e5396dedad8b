"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps by lineage, of every record that was trained on,

- a keyed digest of its whole row (HMAC-SHA256 under a secret of the owner's, cut to 16 bytes), in whatever order,
  columns' order and company, and one of every privacy unit and every record's key (`--id`);
- eight keyed digests, of 8 bytes, of the encoded columns that are used, with the class and without it, which recognise
  a record that is written otherwise (`training.inputs.feature_digests`). AES under a key of their own
  makes them of the digests there.

They tell nobody without the secret whose records they were, and say how many of a set that is about to be trained on
are in another lineage. Training on them is then refused, unless the owner accepts a second budget.

The set is exact: a sketch would be smaller and would be wrong about some records, either way. Two different rows have
one digest with a probability of n m 2^-128 among n and m of them; two different rounded rows have one of the eight with
a probability of at most n m 2^-57 (8 kinds, each 2^-60 before they are keyed and 2^-64 after).

A unit, or a record's key, is known by its name alone, whatever its column is called: a person is the same person in a
table that calls the column otherwise. So other units that have the same names are taken for it, as where two tables
number theirs from 1. Names tell people apart who have equal rows, if both sides have units, or both have keys: their
encoded columns are not compared. A household's name and a person's key are never equal and tell nothing apart. Without
names of one kind on both sides it cannot be told, and the refusal says so.

Equal rows by chance. Let n records and m others be drawn alike, each for itself, t of the n have an equal among the n,
and s of the m one among the m. A record with values of probability p has an equal among k others with probability
f(k) = 1 - (1 - p)^k. f is concave and f(0) = 0, so f(m) <= max(1, m / k) f(k). The mean of t is n E f(n - 1), that of s
is m E f(m - 1), and that of the records among the n with an equal among the m is n E f(m). So the last is at most

    mean(t) max(1, m / (n - 1))   and   mean(s) n / (m - 1),

by k = n - 1 and by k = m - 1. Both are known from one drawing: t + 3 and s + 3 take the place of the means, as one of
none that were seen has a mean of up to 3 with confidence 0.95. Let b be the smaller bound. What is at most 2 b + 3 can
be chance: a Poisson variable of mean b exceeds it with a probability of at most 0.002. If b < n, chance does not make
all n equal. A lineage that was trained on several tables keeps of each later one what is new: s and m in the second
bound are those of its largest table, and the bound is multiplied by all there are over the largest.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from accounting.arrays import Words
from accounting.messages import Message, OptionName, message
from training.errors import TrainingError
from training.fields import NAME
from training.inputs.feature_digests import KINDS, LABELLED, UNLABELLED
from training.inputs.records import Records
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
"""Suffix of the digests of a training that goes on."""
_UNIT = ".unit"
"""Suffix of a hidden file beside a training's note: the name of its column of units."""
_SETTLED = f".lineage{_UNIT}"
"""The name of the column of units that the lineage's models have; not there where they protect records."""

Digests = NDArray[np.bytes_]
_OF_FEATURES = b"dpserve: the encoded columns of a record\0"
_UNIT_NAMES, _IDS = "unit", "id"
_FILES_BY_NAMES = {
    names: tuple(f".{stem}{kind}" for kind in range(KINDS))
    for names, stem in (
        (frozenset[str](), "features"),
        (frozenset({_UNIT_NAMES}), "units"),
        (frozenset({_IDS}), "ids"),
        (frozenset({_UNIT_NAMES, _IDS}), "named"),
    )
}
"""The files of digests of encoded columns, by kind, of records with units, keys, both or neither."""
_FEATURE_FILES = {suffix + end for files in _FILES_BY_NAMES.values() for suffix in files for end in ("", "-note")}
_AT_ONCE = 2**20


class Known(NamedTuple):
    """Keyed digests of records, and of units and records' keys: sorted, each once.

    features: those of encoded columns (KINDS, n), each kind sorted. names: which kinds of names each record has.
    """

    records: Digests
    units: Digests
    features: Words
    names: frozenset[str] = frozenset()

    @property
    def repeated(self) -> int:
        """Number of records that have the encoded columns of another one among them."""
        return max(_repeated(self.features[kind]) for kind in UNLABELLED)


class Shared(NamedTuple):
    """Counts of what is in another lineage: records as they are, units or keys, and records by their encoded columns.

    labelled: of the latter those whose class is the same, too. by_chance: how many can be equal by chance, at most.
    Where both sides have names of one kind, features counts none: see `KnownRecords.equal_rows_with_other_names`.
    """

    records: int = 0
    units: int = 0
    features: int = 0
    labelled: int = 0
    by_chance: float = 0.0

    @property
    def any(self) -> bool:
        """Whether there is anything."""
        return bool(self.records or self.units or self.features)

    @property
    def certain(self) -> bool:
        """Whether this is more than different records that are equal by chance."""
        return bool(self.records or self.units or self.features > self.by_chance)


class KnownRecords:
    """Which records were trained on in which lineage, as keyed digests in the owner's state folder."""

    def __init__(self, folder: Path) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed."""
        self._key = folder / "lineage.key"
        self.folder = folder / "trained"

    def digests(self, records: Records) -> Known:
        """Return the keyed digests of every row of the source, what is picked from it or not, and of every name.

        Of encoded columns there are those of the records that were picked.
        """
        key = owner_key(self._key)
        units = None if records.units is None else records.units.names
        names = {kind: each for kind, each in ((_UNIT_NAMES, units), (_IDS, records.ids)) if each is not None}
        named = (_OF_UNIT + name.tobytes() for each in names.values() for name in each)
        features = _keyed_features(key, records.feature_digests())
        return Known(_keyed(key, records.source), _keyed(key, named), features, frozenset(names))

    @contextmanager
    def noted(self, lineage: str, digests: Known, unit: str | None = None) -> Iterator[Mapping[str, Shared]]:
        """Note that records and units are in a lineage, and yield in which others they are, with those that train now.

        The note is there before the others are looked through: of two trainings at once that share a record at least
        one sees the other's. It is taken back where the block raises. It stays where the process is killed, or where
        the digests cannot be kept after the block: a bundle may be there by then.

        unit: what trains protects, the column of units or None for a record. It is noted likewise, and stays the
        lineage's. Raises TrainingError for another than the lineage's, and OSError.
        """
        folder = self.folder / check_lineage_name(lineage)
        token, both = secrets.token_hex(_DIGEST_BYTES), np.union1d(digests.records, digests.units)
        kinds = list(zip(_FILES_BY_NAMES[digests.names], digests.features, strict=True))
        note_of_rows = folder / f"{token}{_NOTE}"
        notes = [*((folder / f"{token}{suffix}-note", each) for suffix, each in kinds), (note_of_rows, both)]
        done = False
        try:
            while not all(note.exists() for note, _ in notes):
                with suppress(FileNotFoundError):  # another training ended, and took the empty folder away
                    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    if unit is not None:  # it is there whenever the note is
                        write_whole(_unit_of(note_of_rows), unit.encode("utf-8", "surrogatepass"))
                    for note, content in notes:
                        write_whole(note, content.tobytes())
            _check_unit(lineage, unit, folder, note_of_rows)
            yield {other: count for other, count in self.among(digests).items() if other != lineage}
            done = True
            if unit is not None:  # before the digests, which are a record's without it
                write_whole(folder / _SETTLED, unit.encode("utf-8", "surrogatepass"))
            for suffix, each in kinds:
                own = _joined(self._features(folder, (suffix,), notes=False))
                _keep(folder, suffix, np.concatenate([part[~found] for part, found in _membership(each, own)]))
            _keep(folder, _SUFFIX, np.setdiff1d(both, self._of(folder, notes=False), assume_unique=True))
        except BaseException:
            if not done:
                _take_back(folder, notes, note_of_rows)
            raise
        _take_back(folder, notes, note_of_rows)

    def among(self, digests: Known) -> Mapping[str, Shared]:
        """Return how many records, and units, are in each lineage that has any, by its name, those with most first."""
        shared = {}
        for folder in sorted(self.folder.glob("[!.]*")):
            own = self._of(folder)
            records, units = (
                len(np.intersect1d(part, own, assume_unique=True)) for part in (digests.records, digests.units)
            )
            files = [each for names, each in _FILES_BY_NAMES.items() if not names & digests.names]
            shared[folder.name] = Shared(records, units, *self._alike(folder, digests, files))
        return dict(
            sorted(((name, each) for name, each in shared.items() if each.any), key=lambda one: -sum(one[1][:3]))
        )

    def equal_rows_with_other_names(self, digests: Known, lineage: str) -> Mapping[str, Shared]:
        """Return in which other lineages more records with other names are equal than chance explains.

        Names that were given anew, as pseudonyms are for each extract, tell nobody apart.
        """
        found = {}
        files = [each for names, each in _FILES_BY_NAMES.items() if names & digests.names]
        for folder in sorted(self.folder.glob("[!.]*")) if files else ():
            each = Shared(0, 0, *self._alike(folder, digests, files))
            if folder.name != lineage and each.certain:
                found[folder.name] = each
        return found

    def _alike(self, folder: Path, digests: Known, files: Sequence[Sequence[str]]) -> tuple[int, int, float]:
        """Return `Shared.features`, `labelled` and `by_chance` of a lineage's files, which are named by kind."""
        most, labelled, by_chance = -1, 0, 0.0
        for kind, mine in enumerate(digests.features):
            tables = self._features(folder, [each[kind] for each in files])
            own = _joined(tables)
            count = sum(int(found.sum()) for _, found in _membership(mine, own))
            if kind in LABELLED:
                labelled = max(labelled, count)
            elif count > most:
                most, largest = count, max(tables, key=len, default=own)
                by_chance = equal_by_chance(len(mine), _repeated(mine), len(largest), _repeated(largest), len(own))
        return most, labelled, by_chance

    def _features(self, folder: Path, suffixes: Sequence[str], *, notes: bool = True) -> list[Words]:
        """Return a lineage's digests of encoded columns, of some files' names: of each file, sorted."""
        wanted = [suffix + end for suffix in suffixes for end in (("", "-note") if notes else ("",))]
        while True:
            try:
                contents = [path.read_bytes() for path in folder.glob("[!.]*") if path.suffix in wanted]
            except FileNotFoundError:  # as in `_of`
                continue
            if any(len(content) % 8 for content in contents):
                raise TrainingError(f"{folder} should hold digests of 8 bytes in {suffixes[0]}, and is damaged")
            return [np.frombuffer(each, np.uint64) for each in contents]

    def _of(self, folder: Path, *, notes: bool = True) -> Digests:
        """Return a lineage's digests, sorted, each once. notes: those of trainings that go on, too."""
        while True:
            try:
                files = [path for path in folder.glob("[!.]*") if path.suffix not in _FEATURE_FILES]
                parts = [_read(path) for path in files if notes or path.suffix != _NOTE]
            except FileNotFoundError:  # a training ended, and its note became one of the others: look again
                continue
            return np.unique(np.concatenate([np.empty(0, dtype=_DIGEST), *parts]))


def equal_by_chance(n: int, repeated: int, m: int, theirs: int, others: int | None = None) -> float:
    """Return how many of n records can have an equal among others by chance: see the module.

    repeated: how many of the n have one among the n. m, theirs: the same of the others' largest table. others: how many
    there are, in all tables; m by default.
    """
    others = m if others is None else others
    if not others:
        return 0.0
    by_these = (repeated + 3) * max(1.0, others / max(n - 1, 1))
    by_theirs = (theirs + 3) * n / max(m - 1, 1) * max(1.0, others / m)
    bound = min(by_these, by_theirs)
    return 2 * bound + 3 if bound >= n else min(2 * bound + 3, n - 1)


def _take_back(folder: Path, notes: Iterable[tuple[Path, object]], note_of_rows: Path) -> None:
    """Take a training's notes away, and the folders if nothing else is in them."""
    for note, _ in notes:
        note.unlink(missing_ok=True)
    _unit_of(note_of_rows).unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()
        folder.parent.rmdir()


def _joined(tables: Iterable[Words]) -> Words:
    """Return the digests of several files, sorted."""
    found = np.concatenate([np.empty(0, np.uint64), *tables])
    found.sort()
    return found


def _unit_of(note: Path) -> Path:
    return note.with_name(f".{note.stem}{_UNIT}")


def _noted_unit(path: Path) -> str | None:
    """Return the column of units of a training, by its note, or of a lineage, by its digests; None for a record."""
    named = _unit_of(path) if path.suffix == _NOTE else path.with_name(_SETTLED)
    try:
        return named.read_bytes().decode("utf-8", "surrogatepass")
    except FileNotFoundError:
        path.stat()
        return None


def _check_unit(lineage: str, unit: str | None, folder: Path, own: Path) -> None:
    """Raise TrainingError if the models of a lineage, or one that is being trained, protect another unit.

    own: the note of the training that asks.
    """
    others: set[str | None] | None = None
    unfinished = False
    while others is None:
        with suppress(FileNotFoundError):  # a training ended, and its note became one of the others: look again
            files = [path for path in folder.glob("[!.]*") if path.suffix not in _FEATURE_FILES]
            unfinished = all(path.suffix == _NOTE for path in files)
            others = {_noted_unit(path) for path in files if path != own}
    for other in others - {unit}:
        # Who trains without a ledger should not wait for it.
        from accounting.ledger import OtherUnit

        refused = str(OtherUnit(lineage, other or "", unit or ""))
        if unfinished:  # as one that was killed leaves it, for what it may have released
            refused += (
                ". No training of this lineage has ended yet: if the one that says so was killed, and none goes on, "
                f"remove {folder}"
            )
        raise TrainingError(refused)


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


def _keyed_features(key: bytes, features: Words) -> Words:
    """Put digests of encoded columns (KINDS, n) under the owner's secret, in their place, each kind sorted.

    Each is the first half of AES of the digest and its kind: a permutation that nobody without the key can tell from a
    random one. Every block is its own, as ECB has it: equal records shall have equal digests.
    """
    secret = hmac.digest(key, _OF_FEATURES, "sha256")[:_KEY_BYTES]
    cipher = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305
    for kind, each in enumerate(features):
        for start in range(0, len(each), _AT_ONCE):
            part = each[start : start + _AT_ONCE]
            blocks = np.stack([part, np.full_like(part, kind)], axis=1)
            part[:] = np.frombuffer(cipher.update(blocks.tobytes()), np.uint64)[::2]
        each.sort()
    return features


def _membership(mine: Words, own: Words) -> Iterator[tuple[Words, NDArray[np.bool_]]]:
    """Yield parts of sorted digests, and which of them are among others, sorted as well."""
    for start in range(0, len(mine), _AT_ONCE):
        part = mine[start : start + _AT_ONCE]
        if not len(own):
            yield part, np.zeros(len(part), dtype=np.bool_)
            continue
        yield part, own[np.minimum(np.searchsorted(own, part), len(own) - 1)] == part


def _repeated(digests: Words) -> int:
    """Return how many of sorted digests have an equal among them."""
    same = digests[1:] == digests[:-1]
    return int((np.append(same, False) | np.append(False, same)).sum()) if len(digests) else 0


def _keep(folder: Path, suffix: str, new: NDArray[Any]) -> None:
    if len(new):
        content = np.ascontiguousarray(new).tobytes()
        write_whole(folder / f"{hashlib.sha256(content).hexdigest()[: 2 * _DIGEST_BYTES]}{suffix}", content)


def overlap(lineage: str, digests: Known, elsewhere: Mapping[str, Shared]) -> Message:
    """Say how many of a lineage's records, and units, are in which others."""

    def counted(*counts: int) -> str:
        kinds = ("record", "unit") if len(digests.units) else ("record",)
        return " and ".join(f"{count:,} {kind}{'s' * (count != 1)}" for count, kind in zip(counts, kinds, strict=False))

    said = [
        f"{counted(*each[:2])} {'is' if sum(each[:2]) == 1 else 'are'} in the lineage {other!r} as well"
        + equal_columns(each, len(digests.features[0])) * bool(each.features)
        for other, each in elsewhere.items()
    ]
    by_name = " Units are known by their names: others that have the same ones count as they do."
    return (
        f"Of the {counted(len(digests.records), len(digests.units))} of the lineage {lineage!r}, {', '.join(said)}. "
        + which_of_both(digests, elsewhere.values())
        + "Each lineage has a budget "
        "of its own, and whoever asks models of both learns what both allow together."
        f"{by_name * any(each.units for each in elsewhere.values())}"
    )


def equal_columns(shared: Shared, records: int) -> str:
    """Say how many records are equal in the columns that are used."""
    return (
        f", and {shared.features:,} of {records:,} rows are equal to rows there in all columns that are used, "
        f"{shared.labelled:,} of them with the label"
    )


def which_of_both(digests: Known, elsewhere: Iterable[Shared]) -> Message:
    """Say whether rows that are equal are the same people's, or may be others'; nothing where names say it."""
    alike = [each for each in elsewhere if each.features or (each.records and not digests.names)]
    if not alike:
        return message("")
    said = (
        "Equal rows are the same people's, or other people's with the same values: of these rows "
        f"{digests.repeated:,} have an equal in their own table. "
    )
    said += (
        "That is more than chance explains, so they are the same records, perhaps written otherwise. "
        if any(max(each.features, each.records) > each.by_chance for each in alike)
        else "Chance can explain that many. "
    )
    return said + (
        OptionName("id", "COLUMN")
        + ", a key of each record or person, tells equal rows apart where both lineages are trained with it. "
    )


def other_names(digests: Known, others: Mapping[str, Shared]) -> Message:
    """Say which lineages hold the same rows under other names: see `KnownRecords.equal_rows_with_other_names`."""
    total = len(digests.features[0])
    said = "; ".join(f"the lineage {other!r}{equal_columns(each, total)}" for other, each in others.items())
    return (
        "No unit and no "
        + OptionName("id")
        + f" of these records is in {said}. That is more than chance explains: if names were given "
        "anew, these are the same people, and one budget should cover both."
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
