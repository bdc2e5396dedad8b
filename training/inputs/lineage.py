"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps by lineage, of every record that was trained on,

- a keyed digest of its whole row (16 bytes of it, encrypted by AES under a secret of the owner's), in whatever order,
  columns' order and company, and one of every privacy unit and every record's key (`--id`);
- eight keyed digests, of 8 bytes, of the encoded columns that are used, with the class and without it, which recognise
  a record that is written otherwise (`training.inputs.feature_digests`). AES under a key of their own
  makes them of the digests there.

They tell nobody without the secret whose records they were, and say how many of a set that is about to be trained on
are in another lineage. Training on them is then refused, unless the owner accepts a second budget.

The files are sorted, and are searched where they lie: a training reads of them what its own records need.

While a training goes on, and where it was killed, its digests lie in notes, which count like the others: nobody can
tell what was released before the end. The next training of the lineage that succeeds makes notes of ended ones its own.

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
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Words
from accounting.messages import Message, OptionName, message
from accounting.whole_files import write_whole
from training.errors import TrainingError
from training.fields import NAME
from training.inputs.digest_files import (
    AT_ONCE,
    NOTE,
    Digests,
    Paths,
    files_in,
    in_others,
    is_ended,
    keep,
    mapped,
    repeated,
    sorted_once,
    unchanged,
    write_locked,
)
from training.inputs.feature_digests import KINDS, LABELLED, UNLABELLED
from training.inputs.records import Digests as RowDigests
from training.inputs.records import Records

DIGITS = "digits"
"""The lineage of the public digits that examples train on."""

_KEY_BYTES = 32
_DIGEST_BYTES = 16
_DIGEST = np.dtype(f"S{_DIGEST_BYTES}")
"""Compared, sorted and written as 16 bytes each: what NumPy strips of them, zeros at the end, none of that looks at."""
_FEATURE = np.dtype(np.uint64)
_OF_RECORD = b"dpserve: a row of records\0"
_OF_NAME = b"dpserve: a name of a unit or a record\0"
_ROWS = ".records"
_FORMER = {".digests", ".note", ""}
"""Suffixes of files of earlier versions: HMAC-SHA256 cut to 16 bytes, those without a suffix in hexadecimal digits."""
_OF_FORMER_UNIT = b"dpserve: a unit of records\0"
_ROW_NOTES = (_ROWS + NOTE, ".note")
_UNIT = ".unit"
"""Suffix of a hidden file beside a training's note: the name of its column of units."""
_SETTLED = f".lineage{_UNIT}"
"""The name of the column of units that the lineage's models have; not there where they protect records."""

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
_FEATURE_FILES = tuple(suffix for files in _FILES_BY_NAMES.values() for suffix in files)


class Former(NamedTuple):
    """Digests of the same records and names as earlier versions made them, in the same order."""

    records: Digests
    units: Digests


class Known(NamedTuple):
    """Keyed digests of records, and of units and records' keys: sorted, each once.

    features: those of encoded columns (KINDS, n), each kind sorted. names: which kinds of names each record has.
    former: there where a lineage has files of an earlier version.
    """

    records: Digests
    units: Digests
    features: Words
    names: frozenset[str] = frozenset()
    former: Former | None = None

    @property
    def repeated(self) -> int:
        """Number of records that have the encoded columns of another one among them."""
        return max(repeated(self.features[kind]) for kind in UNLABELLED)


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

    def __init__(self, folder: Path, *, blocks_of: str | None = None) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed.

        blocks_of: a lineage whose blocks take the place of lineages, in a folder of its own.
        """
        self._key = folder / "lineage.key"
        self._blocks = folder / "blocks"
        self.folder = folder / "trained" if blocks_of is None else self._blocks / check_lineage_name(blocks_of)

    def digests(self, records: Records) -> Known:
        """Return the keyed digests of every row of the source, what is picked from it or not, and of every name.

        Of encoded columns there are those of the records that were picked.
        """
        key = owner_key(self._key)
        units = None if records.units is None else records.units.names
        names = {kind: each for kind, each in ((_UNIT_NAMES, units), (_IDS, records.ids)) if each is not None}
        named = np.concatenate([np.empty((0, _DIGEST_BYTES), np.uint8), *names.values()])
        rows = _keyed(_cipher(key, _OF_RECORD), _blocks(records.source))
        all_names = _keyed(_cipher(key, _OF_NAME), named)
        features = _keyed_features(key, records.feature_digests())
        former = None
        if any(path.suffix in _FORMER for folder in self._folders() for path in folder.glob("[!.]*")):
            in_order = [_first_places(each) for each in (rows, all_names)]
            former = Former(
                _formerly_keyed(key, (records.source[place] for place in in_order[0])),
                _formerly_keyed(key, (_OF_FORMER_UNIT + named[place].tobytes() for place in in_order[1])),
            )
        return Known(sorted_once(rows), sorted_once(all_names), features, frozenset(names), former)

    @contextmanager
    def noted(self, lineage: str, digests: Known, unit: str | None = None) -> Iterator[Mapping[str, Shared]]:
        """Note that records and units are in a lineage, and yield in which others they are, with those that train now.

        The note is there before the others are looked through: of two trainings at once that share a record at least
        one sees the other's. It is taken back where the block raises. It stays where the process is killed, or where
        the digests cannot be kept after the block: a bundle may be there by then. With its own the block's end keeps
        what the notes of such trainings have.

        unit: what trains protects, the column of units or None for a record. It is noted likewise, and stays the
        lineage's. Raises TrainingError for another than the lineage's, and OSError.
        """
        folder = self.folder / check_lineage_name(lineage)
        token = secrets.token_hex(_DIGEST_BYTES)
        own_rows = _note(folder, token, _ROWS)
        with ExitStack() as stack:
            done = False
            try:
                stack.callback(os.close, _write_notes(folder, token, digests, unit))
                _check_unit(lineage, unit, folder, own_rows)
                yield self.among(digests, lineage)
                done = True
                if unit is not None:  # before the digests, which are a record's without it
                    write_whole(folder / _SETTLED, unit.encode("utf-8", "surrogatepass"))
                _keep(folder, token)
                for ended in self.ended(lineage):
                    _keep(folder, ended)
            except BaseException:
                if not done:
                    _take_back(folder, token)
                raise

    def ended(self, lineage: str) -> list[str]:
        """Return the trainings of a lineage that were ended before they were done, by what their files' names begin."""
        notes = files_in(self.folder / lineage).get(_ROWS + NOTE, ())
        return [path.stem for path in notes if is_ended(path)]

    def has_any(self, digests: Known, lineage: str) -> bool:
        """Tell whether any of these are in a lineage already, by trainings that are done or were killed."""
        files = [each for names, each in _FILES_BY_NAMES.items() if not names & digests.names]

        def look(paths: Paths) -> bool:
            ended = {path.stem for path in paths.get(_ROWS + NOTE, ()) if is_ended(path)}
            left = {
                suffix: tuple(path for path in each if not suffix.endswith(NOTE) or path.stem in ended)
                for suffix, each in paths.items()
            }
            return _shared(left, digests, files).any

        return bool(unchanged(self.folder / check_lineage_name(lineage), look))

    def is_noted(self, lineage: str) -> bool:
        """Tell whether there is anything of a lineage, also of trainings that are under way or were killed."""
        return any(files_in(self.folder / check_lineage_name(lineage)).values())

    @property
    def lineages(self) -> list[str]:
        """The lineages, or the blocks of one, of which there is anything."""
        return [folder.name for folder in self._folders() if self.is_noted(folder.name)]

    def check_ended(self, lineage: str) -> None:
        """Raise TrainingError while a model of the lineage is being trained."""
        notes = files_in(self.folder / check_lineage_name(lineage)).get(_ROWS + NOTE, ())
        if not all(map(is_ended, notes)):
            raise TrainingError(f"a model of the lineage {lineage!r} is being trained: end that, or wait for it")

    def forget(self, lineage: str) -> None:
        """Take away all digests of a lineage: its records may be trained on elsewhere, as those of no lineage.

        Nothing of the lineage may be charged or answered any more: see `Accounts.forget_lineage`. Raises TrainingError
        while a model of it is being trained, and OSError; then some digests may be left, and it may be said again.
        """
        self.check_ended(lineage)
        folder = self.folder / lineage
        for path in folder.glob("*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # not there, or another training has begun
            folder.rmdir()
        if (blocks := self._blocks / lineage).is_dir():
            shutil.rmtree(blocks)

    def how_to_forget(self, lineages: Iterable[str]) -> str:
        """Say what trainings of lineages that were killed left, and when it can be removed; nothing of none."""
        left = [str(self.folder / lineage / f"{token}.*") for lineage in lineages for token in self.ended(lineage)]
        if not left:
            return ""
        return (
            " Records of trainings that were killed count, too. If such a training wrote no bundle, nothing was "
            f"released, and you can remove what it left: {' '.join(left)}."
        )

    def among(self, digests: Known, lineage: str | None = None) -> Mapping[str, Shared]:
        """Return how many records, and units, are in each lineage that has any, by its name, those with most first.

        lineage: the one to leave out.
        """
        shared: dict[str, Shared] = {}
        files = [each for names, each in _FILES_BY_NAMES.items() if not names & digests.names]
        for folder in self._folders(lineage):
            shared[folder.name] = unchanged(folder, lambda paths: _shared(paths, digests, files))
        return dict(
            sorted(((name, each) for name, each in shared.items() if each.any), key=lambda one: -sum(one[1][:3]))
        )

    def equal_rows_with_other_names(self, digests: Known, lineage: str) -> Mapping[str, Shared]:
        """Return in which other lineages more records with other names are equal than chance explains.

        Names that were given anew, as pseudonyms are for each extract, tell nobody apart.
        """
        names_of = {}
        files = [each for names, each in _FILES_BY_NAMES.items() if names & digests.names]
        for folder in self._folders(lineage) if files else ():
            each = unchanged(folder, lambda paths: Shared(0, 0, *_alike(paths, digests, files)))
            if each.certain:
                names_of[folder.name] = each
        return names_of

    def _folders(self, lineage: str | None = None) -> list[Path]:
        """Return the lineages' folders, but for one's."""
        return [folder for folder in sorted(self.folder.glob("[!.]*")) if folder.name != lineage]


def _shared(paths: Paths, digests: Known, files: Sequence[Sequence[str]]) -> Shared:
    """Return what is in a lineage's files. files: those of encoded columns to look at, by kind."""
    rows = [path for suffix in (_ROWS, _ROWS + NOTE) for path in paths.get(suffix, ())]
    shared = [np.zeros(len(each), dtype=np.bool_) for each in (digests.records, digests.units)]
    for path in rows:
        for mask, mine in zip(shared, digests[:2], strict=True):
            mask |= in_others(mine, mapped(path, _DIGEST))
    for path in (path for suffix in _FORMER for path in paths.get(suffix, ())):
        if digests.former is None:
            raise TrainingError(f"{path} came from an earlier version while this training began: train again")
        for mask, mine in zip(shared, digests.former, strict=True):
            mask |= in_others(mine, _formerly_written(path))
    records, units = (int(mask.sum()) for mask in shared)
    return Shared(records, units, *_alike(paths, digests, files, records))


def _alike(paths: Paths, digests: Known, files: Sequence[Sequence[str]], rows: int = 0) -> tuple[int, int, float]:
    """Return `Shared.features`, `labelled` and `by_chance` of a lineage's files, which are named by kind.

    rows: how many rows are shared as they are. Where nothing is shared there is nothing that can be by chance.
    """
    most, labelled, of_most = -1, 0, 0
    tables: list[list[Path]] = []
    for kind, mine in enumerate(digests.features):
        tables.append([path for each in files for end in ("", NOTE) for path in paths.get(each[kind] + end, ())])
        inside = np.zeros(len(mine), dtype=np.bool_)
        for path in tables[kind]:
            inside |= in_others(mine, mapped(path, _FEATURE))
        count = int(inside.sum())
        if kind in LABELLED:
            labelled = max(labelled, count)
        elif count > most:
            most, of_most = count, kind
    if not (most or rows) or not tables[of_most]:
        return most, labelled, 0.0
    lengths = [path.stat().st_size // _FEATURE.itemsize for path in tables[of_most]]
    largest = mapped(tables[of_most][int(np.argmax(lengths))], _FEATURE)
    mine = digests.features[of_most]
    by_chance = equal_by_chance(len(mine), repeated(mine), len(largest), repeated(largest), sum(lengths))
    return most, labelled, by_chance


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


def _note(folder: Path, token: str, suffix: str) -> Path:
    return folder / f"{token}{suffix}{NOTE}"


def _write_notes(folder: Path, token: str, digests: Known, unit: str | None) -> int:
    """Write a training's digests; return what locks those of rows. Raises OSError."""
    rows = _note(folder, token, _ROWS)
    both = sorted_once(np.concatenate([digests.records, digests.units])).tobytes()
    while True:
        with suppress(FileNotFoundError):  # another training ended, and took the empty folder away
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if unit is not None:  # it is there whenever the note is
                write_whole(_unit_of(rows), unit.encode("utf-8", "surrogatepass"))
            for suffix, each in zip(_FILES_BY_NAMES[digests.names], digests.features, strict=True):
                write_whole(_note(folder, token, suffix), each.tobytes())
            return write_locked(rows, both)


def _keep(folder: Path, token: str) -> None:
    """Make the digests of a training that is done its lineage's, those of rows last."""
    for suffix in _FEATURE_FILES:
        keep(_note(folder, token, suffix), _FEATURE)
    keep(_note(folder, token, _ROWS), _DIGEST)
    _unit_of(_note(folder, token, _ROWS)).unlink(missing_ok=True)


def _take_back(folder: Path, token: str) -> None:
    """Take a training's notes away, and the folders if nothing else is in them."""
    for suffix in (*_FEATURE_FILES, _ROWS):
        _note(folder, token, suffix).unlink(missing_ok=True)
    _unit_of(_note(folder, token, _ROWS)).unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()
        folder.parent.rmdir()


def _unit_of(note: Path) -> Path:
    return note.with_name(f".{note.stem}{_UNIT}")


def _noted_unit(path: Path) -> str | None:
    """Return the column of units of a training, by its note, or of a lineage, by its digests; None for a record."""
    named = _unit_of(path) if path.suffix in _ROW_NOTES else path.with_name(_SETTLED)
    try:
        return named.read_bytes().decode("utf-8", "surrogatepass")
    except FileNotFoundError:
        path.stat()
        return None


def _check_unit(lineage: str, unit: str | None, folder: Path, own: Path) -> None:
    """Raise TrainingError if the models of a lineage, or one that is being trained, protect another unit.

    own: the note of the training that asks.
    """

    def units(paths: Paths) -> dict[Path, str | None]:
        rows = (path for suffix in (_ROWS, *_FORMER, *_ROW_NOTES) for path in paths.get(suffix, ()))
        return {path: _noted_unit(path) for path in rows if path != own}

    others = {path: each for path, each in unchanged(folder, units).items() if each != unit}
    if others:
        # Who trains without a ledger should not wait for it.
        from accounting.ledger import OtherUnit

        refused = str(OtherUnit(lineage, next(iter(others.values())) or "", unit or ""))
        if all(path.suffix in _ROW_NOTES and is_ended(path) for path in others):
            names = " ".join(f"{folder / path.stem}.* {_unit_of(path)}" for path in others)
            refused += (
                ". Only trainings that were killed say so: if they wrote no bundle, nothing was released, and you can "
                f"remove {names}"
            )
        raise TrainingError(refused)


def _cipher(key: bytes, purpose: bytes) -> Any:
    """Return AES under a key of a purpose's own.

    It is a permutation that nobody without the key can tell from a random one. Every block is its own, as ECB has it:
    what is equal shall have equal digests.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    secret = hmac.digest(key, purpose, "sha256")[:_KEY_BYTES]
    return Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305


def _blocks(source: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return 16 bytes of each row of a source (n, 16)."""
    if isinstance(source, RowDigests):
        return source.octets
    digests = (hashlib.blake2b(row, digest_size=_DIGEST_BYTES, person=b"dpserve row").digest() for row in source)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)


def _keyed(cipher: Any, blocks: NDArray[np.uint8]) -> Digests:
    """Return the digests of blocks (n, 16), in order."""
    keyed = np.empty(len(blocks), _DIGEST)
    for start in range(0, len(blocks), AT_ONCE):
        part = np.ascontiguousarray(blocks[start : start + AT_ONCE])
        keyed[start : start + AT_ONCE] = np.frombuffer(cipher.update(part.tobytes()), _DIGEST)
    return keyed


def _first_places(digests: Digests) -> NDArray[np.int64]:
    """Return where each of `sorted_once(digests)` is first."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    return order[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else order


def _formerly_keyed(key: bytes, contents: Iterable[bytes]) -> Digests:
    keyed = b"".join(hmac.digest(key, content, "sha256")[:_DIGEST_BYTES] for content in contents)
    return np.frombuffer(keyed, dtype=_DIGEST)


def _formerly_written(path: Path) -> Digests:
    if path.suffix:
        return mapped(path, _DIGEST)
    digests = np.frombuffer(bytes.fromhex(path.read_text("ascii")), np.uint8)
    return np.sort(digests.view(_DIGEST))


def _keyed_features(key: bytes, features: Words) -> Words:
    """Put digests of encoded columns (KINDS, n) under the owner's secret, in their place, each kind sorted.

    Each is the first half of AES of the digest and its kind.
    """
    cipher = _cipher(key, _OF_FEATURES)
    for kind, each in enumerate(features):
        for start in range(0, len(each), AT_ONCE):
            part = each[start : start + AT_ONCE]
            blocks = np.stack([part, np.full_like(part, kind)], axis=1)
            part[:] = np.frombuffer(cipher.update(blocks.tobytes()), np.uint64)[::2]
        each.sort()
    return features


def overlap(lineage: str, digests: Known, elsewhere: Mapping[str, Shared]) -> Message:
    """Say how many of a lineage's records, and units, are in which others."""

    def counted(*counts: int) -> str:
        kinds = ("record", "unit") if len(digests.units) else ("record",)
        return " and ".join(f"{count:,} {kind}{'s' * (count != 1)}" for count, kind in zip(counts, kinds, strict=False))

    faults = [
        f"{counted(*each[:2])} {'is' if sum(each[:2]) == 1 else 'are'} in the lineage {other!r} as well"
        + equal_columns(each, len(digests.features[0])) * bool(each.features)
        for other, each in elsewhere.items()
    ]
    by_name = " Units are known by their names: others that have the same ones count as they do."
    return (
        f"Of the {counted(len(digests.records), len(digests.units))} of the lineage {lineage!r}, {', '.join(faults)}. "
        + which_of_both(digests, elsewhere.values())
        + "Each lineage has a budget "
        "of its own, and whoever asks models of both learns what both allow together."
        f"{by_name * any(each.units for each in elsewhere.values())}"
    )


def advice(lineage: str, elsewhere: Iterable[str], *, here: bool) -> Message:
    """Say what keeps one budget for records that are in other lineages.

    elsewhere: their names, at least one. here: whether any of the records are in the lineage itself already.
    """
    others = list(elsewhere)
    if len(others) == 1 and not here:
        keep = " To keep one budget, train with " + OptionName("lineage", others[0])
    else:
        # Each of them would refuse for the others.
        lie_in = [*([lineage] if here else []), *others]
        keep = (
            f" They lie in {', '.join(map(repr, lie_in))}, so that no name keeps one budget: leave records out that "
            f"are in other lineages than {lineage!r}, or begin a new lineage and declare in it what these spent, with "
            + OptionName("declare_lost")
            + " of 'dpserve ledger reconcile'"
        )
    undone = f". A lineage that was a mistake and charged nothing can be undone: 'dpserve lineage forget {others[0]}'"
    return keep + undone + ". To open another one all the same, add " + OptionName("overlapping_lineage_is_accepted")


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
    sentences = (
        "Equal rows are the same people's, or other people's with the same values: of these rows "
        f"{digests.repeated:,} have an equal in their own table. "
    )
    sentences += (
        "That is more than chance explains, so they are the same records, perhaps written otherwise. "
        if any(max(each.features, each.records) > each.by_chance for each in alike)
        else "Chance can explain that many. "
    )
    return sentences + (
        OptionName("id", "COLUMN")
        + ", a key of each record or person, tells equal rows apart where both lineages are trained with it. "
    )


def other_names(digests: Known, others: Mapping[str, Shared], what: Literal["lineage", "block"] = "lineage") -> Message:
    """Say which lineages, or blocks, hold the same rows under other names.

    See `KnownRecords.equal_rows_with_other_names`.
    """
    total = len(digests.features[0])
    others_in_words = "; ".join(f"the {what} {other!r}{equal_columns(each, total)}" for other, each in others.items())
    return (
        "No unit and no "
        + OptionName("id")
        + f" of these records is in {others_in_words}. That is more than chance explains: if names were given "
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
    if not path.exists():
        with suppress(FileExistsError):  # another process was first
            write_whole(path, secrets.token_bytes(_KEY_BYTES), is_new=True)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise TrainingError(f"{path} should hold {_KEY_BYTES} secret bytes, and holds {len(key)}")
    return key
