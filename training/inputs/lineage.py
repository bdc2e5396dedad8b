"""Lineages: all models trained on the same records share one, and with it one budget.

The owner names the lineage. Nothing computed from the records could: a set with one record more or fewer is exactly
the neighbouring one, and must not open a budget of its own. So that a second name for the same records is noticed, the
owner's state folder keeps by lineage a keyed digest (16 bytes, encrypted by AES under a secret of the owner's) of every
record that was trained on, whole, and one of every privacy unit's name and every record's key (`--id`).

They tell nobody without the secret whose records they were, and say how many of a set that is about to be trained on
are in another lineage. Training on them is then refused, unless the owner accepts a second budget.

The files are sorted, and are searched where they lie: a training reads of them what its own records need.

While a training goes on, and where it was killed, its digests lie in notes, which count like the others: nobody can
tell what was released before the end. The next training of the lineage that succeeds makes notes of ended ones its own.

The set is exact: a sketch would be smaller and would be wrong about some records, either way. Two different rows have
one digest with a probability of n m 2^-128 among n and m of them.

A row is known as a whole (`dpserve.training.inputs.parsing`): in whatever order, columns' order and company, but not
with other columns, or with values that are written otherwise. A unit, or a record's key, is known by its name alone,
whatever the row says and whatever its column is called: a person is the same person in a table that calls the column
otherwise. So other units that have the same names are taken for it, as where two tables number theirs from 1.
"""

import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.messages import Message
from dpserve.accounting.whole_files import write_whole
from dpserve.training.errors import TrainingError
from dpserve.training.fields import NAME
from dpserve.training.inputs.digest_files import (
    AT_ONCE,
    NOTE,
    Digests,
    Paths,
    files_in,
    in_others,
    is_ended,
    keep,
    mapped,
    sorted_once,
    unchanged,
    write_locked,
)
from dpserve.training.inputs.records import Digests as RowDigests
from dpserve.training.inputs.records import Records

DIGITS = "digits"
"""The lineage of the public digits that examples train on."""

_KEY_BYTES = 32
_DIGEST_BYTES = 16
_DIGEST = np.dtype(f"S{_DIGEST_BYTES}")
"""Compared, sorted and written as 16 bytes each: what NumPy strips of them, zeros at the end, none of that looks at."""
_OF_RECORD = b"dpserve: a row of records\0"
_OF_ALL = b"dpserve: all rows of records\0"
_OF_NAME = b"dpserve: a name of a unit or a record\0"
_ROWS = ".records"
_UNIT = ".unit"
"""Suffix of a hidden file beside a training's note: the name of its column of units."""
_SETTLED = f".lineage{_UNIT}"
"""The name of the column of units that the lineage's models have; not there where they protect records."""


_UNNAMED = "_"
"""The folder of a lineage's block without a name: no name is written like this."""


class RecordDigests(NamedTuple):
    """Keyed digests of records, and of units and records' keys: sorted, each once."""

    records: Digests
    units: Digests


class Overlap(NamedTuple):
    """Counts of what is in another lineage: records, and units or keys."""

    records: int = 0
    units: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything."""
        return bool(self.records or self.units)


class RecordRegistry:
    """Which records were trained on in which lineage, as keyed digests in the owner's state folder."""

    def __init__(self, folder: Path, *, blocks_of: str | None = None) -> None:
        """folder: where the secret is, and a folder `trained` with a folder for each lineage; made when needed.

        blocks_of: a lineage whose blocks take the place of lineages, in a folder of its own.
        """
        self._key = folder / "lineage.key"
        self._blocks, self._of_blocks = folder / "blocks", blocks_of is not None
        self._whole = blocks_of
        self.folder = folder / "trained" if blocks_of is None else self._blocks / check_lineage_name(blocks_of)

    def digests(self, records: Records) -> RecordDigests:
        """Return the keyed digests of every row of the source, what is picked from it or not, and of every name."""
        key = owner_key(self._key)
        units = None if records.units is None else records.units.names
        names = [names_of_kind for names_of_kind in (units, records.ids) if names_of_kind is not None]
        named = np.concatenate([np.empty((0, _DIGEST_BYTES), np.uint8), *names])
        rows, all_names = _keyed(key, _OF_RECORD, _blocks(records.source)), _keyed(key, _OF_NAME, named)
        return RecordDigests(sorted_once(rows), sorted_once(all_names))

    def digest_of(self, records: Records) -> bytes:
        """Return a keyed digest of the rows of the source, in any order, each as often as it is there."""
        rows = _blocks(records.source)
        halves = np.ascontiguousarray(rows).view(np.uint64)
        ordered = rows[np.lexsort((halves[:, 1], halves[:, 0]))]
        return hmac.digest(owner_key(self._key), _OF_ALL + ordered.tobytes(), "sha256")

    @contextmanager
    def noted(self, lineage: str, digests: RecordDigests, unit: str | None = None) -> Iterator[Mapping[str, Overlap]]:
        """Note that records and units are in a lineage, and yield in which others they are, with those that train now.

        The note is there before the others are looked through: of two trainings at once that share a record at least
        one sees the other's. It is taken back where the block raises. It stays where the process is killed, or where
        the digests cannot be kept after the block: a bundle may be there by then. With its own the block's end keeps
        what the notes of such trainings have.

        unit: what trains protects, the column of units or None for a record. It is noted likewise, and stays the
        lineage's. Raises TrainingError for another than the lineage's, and OSError.
        """
        folder = self._folder_of(lineage)
        token = secrets.token_hex(_DIGEST_BYTES)
        own_rows = _note(folder, token)
        with ExitStack() as stack:
            done = False
            try:
                stack.callback(os.close, _write_notes(folder, token, digests, unit))
                _check_unit(self._whole or lineage, unit, folder, own_rows)
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
        notes = files_in(self._folder_of(lineage)).get(_ROWS + NOTE, ())
        return [path.stem for path in notes if is_ended(path)]

    def has_any(self, digests: RecordDigests, lineage: str) -> bool:
        """Tell whether any of these are in a lineage already, by trainings that are done or were killed."""

        def look(paths: Paths) -> bool:
            ended = tuple(path for path in paths.get(_ROWS + NOTE, ()) if is_ended(path))
            return _shared({**paths, _ROWS + NOTE: ended}, digests).any

        return bool(unchanged(self._folder_of(lineage), look))

    def is_noted(self, lineage: str) -> bool:
        """Tell whether there is anything of a lineage, also of trainings that are under way or were killed."""
        return any(files_in(self._folder_of(lineage)).values())

    @property
    def lineages(self) -> list[str]:
        """The lineages, or the blocks of one, of which there is anything."""
        return [name for name in self._folders() if self.is_noted(name)]

    def check_ended(self, lineage: str) -> None:
        """Raise TrainingError while a model of the lineage is being trained."""
        notes = files_in(self._folder_of(lineage)).get(_ROWS + NOTE, ())
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

    def among(self, digests: RecordDigests, lineage: str | None = None) -> Mapping[str, Overlap]:
        """Return how many records, and units, are in each lineage that has any, by its name, those with most first.

        lineage: the one to leave out.
        """
        shared: dict[str, Overlap] = {}
        for name, folder in self._folders().items():
            if name != lineage:
                shared[name] = unchanged(folder, lambda paths: _shared(paths, digests))
        return dict(sorted(((name, each) for name, each in shared.items() if each.any), key=lambda one: -sum(one[1])))

    def _folder_of(self, lineage: str) -> Path:
        """Return the folder of a lineage, or of a block, which may be the one without a name. Raises TrainingError."""
        return self.folder / (_UNNAMED if self._of_blocks and not lineage else check_lineage_name(lineage))

    def _folders(self) -> dict[str, Path]:
        """Return the folders of lineages, or of blocks, by name."""
        folders = sorted(self.folder.glob("[!.]*"))
        return {"" if folder.name == _UNNAMED else folder.name: folder for folder in folders}


def _shared(paths: Paths, digests: RecordDigests) -> Overlap:
    """Return what is in a lineage's files."""
    shared = [np.zeros(len(kind), dtype=np.bool_) for kind in digests]
    for path in (path for suffix in (_ROWS, _ROWS + NOTE) for path in paths.get(suffix, ())):
        for mask, mine in zip(shared, digests, strict=True):
            mask |= in_others(mine, mapped(path, _DIGEST))
    return Overlap(*(int(mask.sum()) for mask in shared))


def _note(folder: Path, token: str) -> Path:
    return folder / f"{token}{_ROWS}{NOTE}"


def _write_notes(folder: Path, token: str, digests: RecordDigests, unit: str | None) -> int:
    """Write a training's digests; return what locks them. Raises OSError."""
    rows = _note(folder, token)
    both = sorted_once(np.concatenate(digests)).tobytes()
    while True:
        with suppress(FileNotFoundError):  # another training ended, and took the empty folder away
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if unit is not None:  # it is there whenever the note is
                write_whole(_unit_of(rows), unit.encode("utf-8", "surrogatepass"))
            return write_locked(rows, both)


def _keep(folder: Path, token: str) -> None:
    """Make the digests of a training that is done its lineage's."""
    rows = _note(folder, token)
    keep(rows, _DIGEST)
    _unit_of(rows).unlink(missing_ok=True)


def _take_back(folder: Path, token: str) -> None:
    """Take a training's note away, and the folders if nothing else is in them."""
    rows = _note(folder, token)
    rows.unlink(missing_ok=True)
    _unit_of(rows).unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        folder.rmdir()
        folder.parent.rmdir()


def _unit_of(note: Path) -> Path:
    return note.with_name(f".{note.stem}{_UNIT}")


def _noted_unit(path: Path) -> str | None:
    """Return the column of units of a training, by its note, or of a lineage, by its digests; None for a record."""
    named = _unit_of(path) if path.suffix.endswith(NOTE) else path.with_name(_SETTLED)
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
        rows = (path for suffix in (_ROWS, _ROWS + NOTE) for path in paths.get(suffix, ()))
        return {path: _noted_unit(path) for path in rows if path != own}

    others = {path: each for path, each in unchanged(folder, units).items() if each != unit}
    if others:
        # Who trains without a ledger should not wait for it.
        from dpserve.accounting.ledger import OtherUnit

        refused = str(OtherUnit(lineage, next(iter(others.values())) or "", unit or ""))
        if all(path.suffix.endswith(NOTE) and is_ended(path) for path in others):
            names = " ".join(f"{folder / path.stem}.* {_unit_of(path)}" for path in others)
            refused += (
                ". Only trainings that were killed say so: if they wrote no bundle, nothing was released, and you can "
                f"remove {names}"
            )
        raise TrainingError(refused)


def _blocks(source: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return 16 bytes of each row of a source (n, 16)."""
    if isinstance(source, RowDigests):
        return source.octets
    digests = (hashlib.blake2b(row, digest_size=_DIGEST_BYTES, person=b"dpserve row").digest() for row in source)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)


def _keyed(key: bytes, purpose: bytes, blocks: NDArray[np.uint8]) -> Digests:
    """Return the digests of blocks (n, 16), in order: AES of each under a key of the purpose's own.

    It is a permutation that nobody without the key can tell from a random one. Every block is its own, as ECB has it:
    what is equal shall have equal digests.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    secret = hmac.digest(key, purpose, "sha256")[:_KEY_BYTES]
    cipher = Cipher(algorithms.AES(secret), modes.ECB()).encryptor()  # noqa: S305
    keyed = np.empty(len(blocks), _DIGEST)
    for start in range(0, len(blocks), AT_ONCE):
        part = np.ascontiguousarray(blocks[start : start + AT_ONCE])
        keyed[start : start + AT_ONCE] = np.frombuffer(cipher.update(part.tobytes()), _DIGEST)
    return keyed


def overlap_text(lineage: str, digests: RecordDigests, elsewhere: Mapping[str, Overlap]) -> str:
    """Say how many of a lineage's records, and units, are in which others."""

    def counted(*counts: int) -> str:
        kinds = ("record", "unit") if len(digests.units) else ("record",)
        return " and ".join(f"{count:,} {kind}{'s' * (count != 1)}" for count, kind in zip(counts, kinds, strict=False))

    faults = [
        f"{counted(*shared)} {'is' if sum(shared) == 1 else 'are'} in the lineage {other!r} as well"
        for other, shared in elsewhere.items()
    ]
    by_name = " Units are known by their names: others that have the same ones count as they do."
    by_row = (
        "Rows that are equal in every column are the same people's, or, where no column tells people apart, other "
        "people's with the same values. "
    )
    return (
        f"Of the {counted(len(digests.records), len(digests.units))} of the lineage {lineage!r}, {', '.join(faults)}. "
        + by_row * any(shared.records for shared in elsewhere.values())
        + "Each lineage has a budget "
        "of its own, and whoever asks models of both learns what both allow together."
        f"{by_name * any(shared.units for shared in elsewhere.values())}"
    )


def advice(lineage: str, elsewhere: Iterable[str], *, here: bool) -> Message:
    """Say what keeps one budget for records that are in other lineages.

    elsewhere: their names, at least one. here: whether any of the records are in the lineage itself already.
    """
    others = list(elsewhere)
    if len(others) == 1 and not here:
        keep = Message(" To keep one budget, train with {lineage:{}}", others[0])
    else:
        # Each of them would refuse for the others.
        lie_in = [*([lineage] if here else []), *others]
        keep = Message(
            " They lie in {}, so that no name keeps one budget: leave records out that are in other "
            "lineages than {!r}, or begin a new lineage and declare in it what these spent, with "
            "{declare_lost} of 'dpserve ledger reconcile'",
            ", ".join(map(repr, lie_in)),
            lineage,
        )
    undone = f". A lineage that was a mistake and charged nothing can be undone: 'dpserve lineage forget {others[0]}'"
    return Message("{}{}. To open another one all the same, add {overlapping_lineage_is_accepted}", keep, undone)


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
