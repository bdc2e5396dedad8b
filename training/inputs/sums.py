"""Sums over private records, which are all that training needs of them, wherever the records are.

Class sums, the gradient of an objective, and a step of DP-SGD are each a sum of a function over the records. `Sums`
takes such a function and returns the total; `LocalSums` has the records here,
`dpserve.training.inputs.ray_sums.RaySums` on the workers of a cluster. Randomness is no part of it: sampling and noise
are drawn by the caller, once.

The same bits from both.
1. Shards do not depend on who holds them: each file of a table by itself is cut into shards of SHARD records.
2. A shard's term is a function of the shard and of the numbers sent with it. It is computed on one thread, and so are
   the products of matrices in it (`ONE_THREAD`), in blocks of records whose bounds follow from the shard. So
   processors of one kind with one version of the libraries compute the same bits, whatever else they compute.
3. The caller adds the terms of neighbouring shards in pairs, these sums in pairs, and so on (`Total`). Terms of whole
   numbers have one sum in any order.
On processors of another kind a product of matrices may differ in its last bits. Privacy does not rest on these: a
certified head's tolerance bounds them, DP-SGD counts the rounding of sums, and what a record adds to a sum is computed
by exact or singly rounded operations.
"""

import math
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dpserve.accounting.arrays import Floats, Integers, Mask, Singles
from dpserve.training.errors import TrainingError

MOST_RECORDS = 2**24
"""Largest number of records for which releases of sums are exact, or rounded as little as their proofs say."""

SHARD = 2**17
BLOCK = 1024
"""Records whose terms are computed at once."""

COMPACT_BLOCK = 3584
"""The same, of rows that take little room: as many as `Network.clipped_sum` has room for in its rounding."""

KEPT = 2**29
"""Bytes of records and their features that a machine keeps in memory.

Dense features beyond that are kept in a file; others, by codes or without their zeros, are computed for every sum.
"""

ONE_THREAD = ThreadpoolController()
"""`ONE_THREAD.limit(limits=1)` is a context in which a product of matrices takes one thread."""

Term = Callable[["Shard", Any], Any]
"""Function of a shard, and of what is given for it, that returns its summand: an array, or what adds like one."""

OnCount = Callable[[int], None]
"""Takes how many steps are done."""


@dataclass(frozen=True, eq=False)
class View:
    """The form in which a term gets rows. once: function of a block of them that returns what is kept of each, (m,).

    seen: function of a block and of what was kept of it.
    """

    once: Callable[[Any], Floats]
    seen: Callable[[Any, Floats], Any]
    key: bytes = field(default_factory=lambda: os.urandom(16))


@dataclass(frozen=True, eq=False)
class Rows:
    """A row as a term sees it. make: a function of rows (m, d) that returns (m, k), each row from its row alone.

    A shard keeps what was made last, and what that was made of, as long as it is asked for with the same object, or a
    copy. view: what a term gets of what was made; None for that itself. source: what it is made of; None for the
    records' rows. at_once: records of a block.
    """

    make: Callable[[Floats], Any]
    key: bytes = field(default_factory=lambda: os.urandom(16))
    view: View | None = None
    source: "Rows | None" = None
    at_once: int = BLOCK

    @property
    def keys(self) -> set[bytes]:
        """Its key, and those of what it is made of."""
        return {self.key} | (set() if self.source is None else self.source.keys)


ROWS = Rows(lambda X: X, b"rows")
"""The rows as they are."""


class Shard:
    """Records of one file that follow each other. y: (n,); weights: (n,), or None for 1 each.

    X: their rows, (n, d); places: which of more rows are theirs, rising, (n,). units: (n,), the index of each record's
    privacy unit among all; None where every record is one.
    """

    def __init__(
        self,
        X: Floats | Singles,
        y: Integers,
        weights: Floats | None = None,
        units: Integers | None = None,
        places: Integers | None = None,
    ) -> None:
        """Take the records."""
        self._X = X if places is None else X[places[0] : places[-1] + 1]
        self._places = None if places is None else (places - places[0]).astype(np.int32)
        self.y, self.weights, self.units = y, weights, units
        self.room = KEPT
        self.kept: dict[Any, Any] = {}
        """Values that terms keep from one sum to the next."""
        self.made: dict[bytes, Any] = {}
        """Rows by their keys, in memory or, beyond the room, in a file without a name."""
        self._of_view: tuple[bytes, Floats] | None = None

    def __len__(self) -> int:
        """Number of records."""
        return len(self.y)

    def blocks(self, rows: Rows = ROWS, taken: Mask | None = None) -> Iterator[tuple[Any, Integers, Floats | None]]:
        """Yield what is made of a block of records at a time, their classes, and their weights.

        taken: (n,), of which records; None for all.
        """
        whole = self._whole(rows)
        once = None if rows.view is None else self._once(rows, rows.view)
        picked = None if taken is None or taken.all() else np.flatnonzero(taken)
        for start in range(0, len(self) if picked is None else len(picked), rows.at_once):
            block = slice(start, start + rows.at_once)
            some: Any = block if picked is None else picked[block]
            made = self._block(rows, some) if whole is None else whole[some]
            if rows.view is not None and once is not None:
                made = rows.view.seen(made, once[some])
            yield made, self.y[some], None if self.weights is None else self.weights[some]
        for each in (self._X, *self.made.values()):
            if isinstance(each, np.ndarray):
                _forget_pages(each)

    def _block(self, rows: Rows, block: Any) -> Any:
        """Return what is made of some rows."""
        if rows.source is None:
            return rows.make(np.array(self._X[block] if self._places is None else self._X[self._places[block]]))
        source = self._whole(rows.source)
        return rows.make(self._block(rows.source, block) if source is None else source[block])

    def _once(self, rows: Rows, view: View) -> Floats:
        """Return what the view keeps of each row: a number or so, for which there is always room."""
        if self._of_view is None or self._of_view[0] != view.key:
            whole = self._whole(rows)
            starts = range(0, max(len(self), 1), rows.at_once)
            blocks = (slice(start, start + rows.at_once) for start in starts)
            made = (self._block(rows, block) if whole is None else whole[block] for block in blocks)
            self._of_view = view.key, np.concatenate([view.once(each) for each in made])
        return self._of_view[1]

    @property
    def memory(self) -> int:
        """Bytes of memory that the rows take: none where they lie in a file."""
        return 0 if _file_of(self._X) is not None else self._X.nbytes

    def _whole(self, rows: Rows) -> Any:
        """Return what is made of all rows; None where that is not kept, for lack of room."""
        if rows.key == ROWS.key and self._places is None:
            return self._X
        if rows.key == ROWS.key:
            return None
        if rows.key not in self.made and len(self):
            self.made = {key: whole for key, whole in self.made.items() if key in rows.keys}
            first = self._block(rows, slice(0, 1))
            fits = _memory_of(first) * len(self) <= self.room - sum(map(_memory_of, self.made.values()))
            blocks = (
                self._block(rows, slice(start, start + rows.at_once)) for start in range(0, len(self), rows.at_once)
            )
            if isinstance(first, np.ndarray):
                shape = (len(self), *first.shape[1:])
                whole = np.empty(shape, first.dtype) if fits else _in_file(shape, first.dtype)
                if whole is None:
                    return None
                for index, block in enumerate(blocks):
                    whole[index * rows.at_once : (index + 1) * rows.at_once] = block
            elif fits:
                whole = _joined(list(blocks))
            else:
                return None
            self.made[rows.key] = whole
        return self.made.get(rows.key)


def _memory_of(rows: Any) -> int:
    """Return how much memory rows take that lie in none of `_in_file`."""
    if isinstance(rows, np.memmap):
        return 0
    arrays = (rows.data, rows.indices) if hasattr(rows, "indices") else (rows,)
    return sum(array.nbytes for array in arrays)


def _in_file(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array in a file without a name, as the records of a table are in; None where the disk has no room."""
    with tempfile.TemporaryFile() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, math.prod(shape) * dtype.itemsize)
        except OSError:
            return None
        return np.memmap(file, dtype, "r+", shape=shape)


def _joined(parts: Sequence[Any]) -> Any:
    """Return rows one behind the other: sparse, or of a class that joins its own."""
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else parts[0].joined(parts)


def _file_of(X: NDArray[Any]) -> NDArray[Any] | None:
    """Return the array of all rows of a file, where they lie in one."""
    base: Any = X
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base if isinstance(base.base, mmap.mmap) else None


def _forget_pages(X: NDArray[Any]) -> None:
    """Give back the memory of rows that lie in a file: they are read again when they are looked at."""
    base = _file_of(X)
    if base is not None and isinstance(base.base, mmap.mmap):
        start = X.ctypes.data - base.ctypes.data
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        base.base.madvise(mmap.MADV_DONTNEED, first, start + X.nbytes - first)


def share_room(shards: Sequence[Shard]) -> None:
    """Give each shard of a machine room for its features: what the records leave of KEPT."""
    records, room = sum(map(len, shards)), max(KEPT - sum(shard.memory for shard in shards), 0)
    for shard in shards:
        shard.room = room * len(shard) // max(records, 1)


class Sums(Protocol):
    """Records in shards."""

    @property
    def lengths(self) -> Sequence[int]:
        """Number of records of each shard."""
        ...

    @property
    def units(self) -> int | None:
        """Number of privacy units; None where every record is one."""
        ...

    def total(self, term: Term, given: Sequence[Any] | None = None) -> Any:
        """Return the sum of the shards' terms. given: for each shard what its term gets besides."""
        ...


class Total:
    """A sum that terms are added to in order: in pairs, these in pairs, and so on: k terms are rounded 2 log2 k times.

    A term is in at most log2 k sums of pairs, and these, at most one of each size, are added up last, the smallest
    first.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[tuple[int, Any]] = []
        """Sums of so many terms, powers of two, falling."""

    def add(self, term: Any) -> None:
        """Add a term."""
        count = 1
        while self._parts and self._parts[-1][0] == count:
            term, count = self._parts.pop()[1] + term, 2 * count
        self._parts.append((count, term))

    @property
    def value(self) -> Any:
        """The sum; None of nothing."""
        total = None
        for _, part in reversed(self._parts):
            total = part if total is None else part + total
        return total


class LocalSums:
    """Records that are here."""

    def __init__(self, shards: Sequence[Shard], units: int | None = None) -> None:
        """Take the shards."""
        self.shards = shards
        self.units = units
        self.lengths = tuple(len(shard) for shard in shards)
        share_room(shards)

    def total(self, term: Term, given: Sequence[Any] | None = None) -> Any:
        """See `Sums`."""
        total = Total()
        with ONE_THREAD.limit(limits=1):
            each = zip(self.shards, given or [None] * len(self.shards), strict=True)
            for part in _in_order(lambda pair: term(*pair), each):
                total.add(part)
        return total.value


def _in_order(compute: Callable[[Any], Any], each: Iterator[Any]) -> Iterator[Any]:
    """Yield what is computed of each, in order, on as many threads as there are processors."""
    each = iter(each)
    first = list(islice(each, 2))
    if len(first) < 2:
        yield from map(compute, first)
        return
    workers = os.cpu_count() or 1
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for pair in chain(first, each):
            waiting.append(pool.submit(compute, pair))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def of_rows(
    X: Floats | Singles,
    y: Integers,
    weights: Floats | None = None,
    units: Integers | None = None,
    files: Sequence[int] | None = None,
    places: Integers | None = None,
) -> LocalSums:
    """Return the sums over records that are here. files: how many records each file has; None for one file.

    places: of the records' rows in X, rising, (n,); None where they are all of X.
    """
    shards, start = [], 0
    for length in (len(y),) if files is None else files:
        for first in range(start, max(start + length, start + 1), SHARD):
            part = slice(first, min(first + SHARD, start + length))
            shards.append(
                Shard(
                    X[part] if places is None else X,
                    y[part],
                    None if weights is None else weights[part],
                    None if units is None else units[part],
                    None if places is None else places[part],
                )
            )
        start += length
    return LocalSums(shards, None if units is None else int(units.max()) + 1)


def check_count(records: int) -> None:
    """Raise TrainingError for more records than the proofs of releases are for, before anything is computed."""
    if records > MOST_RECORDS:
        raise TrainingError(
            f"releases are exact for at most {MOST_RECORDS:,} records, not {records:,}: train on a sample of them, "
            "chosen at random"
        )
