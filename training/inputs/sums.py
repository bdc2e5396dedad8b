"""Sums over private records, which are all that training needs of them, wherever the records are.

Class sums, the gradient of an objective, and a step of DP-SGD are each a sum of a function over the records. `Sums`
takes such a function and returns the total; `LocalSums` has the records here,
`dpserve.training.inputs.ray_sums.RaySums` on the workers of a cluster. Randomness is no part of it: sampling and noise
are drawn by the caller, once.

The same bits from both.
1. Shards do not depend on who holds them: each file of a table by itself is cut into shards of SHARD records.
2. A shard's term is a function of the shard and of the numbers sent with it. It is computed on one thread, and so are
   the products of matrices in it (`ONE_THREAD`), in blocks of BLOCK records whose bounds follow from the shard. So
   processors of one kind with one version of the libraries compute the same bits, whatever else they compute.
3. The caller adds the terms from the first shard to the last. Terms of whole numbers have one sum in any order.
On processors of another kind a product of matrices may differ in its last bits. Privacy does not rest on these: a
certified head's tolerance bounds them, DP-SGD counts the rounding of sums, and what a record adds to a sum is computed
by exact or singly rounded operations.
"""

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import scipy
from threadpoolctl import ThreadpoolController

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.training.errors import TrainingError

MOST_RECORDS = 2**24
"""Largest number of records for which releases of sums are exact, or rounded as little as their proofs say."""

SHARD = 2**17
BLOCK = 1024
"""Records whose terms are computed at once."""

KEPT = 2**29
"""Bytes of records and their features that a machine keeps; features beyond that are computed for every sum."""

ONE_THREAD = ThreadpoolController()
"""`ONE_THREAD.limit(limits=1)` is a context in which a product of matrices takes one thread."""

Term = Callable[["Shard", Any], Any]
"""Function of a shard, and of what is given for it, that returns its summand: an array, or what adds like one."""

OnCount = Callable[[int], None]
"""Takes how many are done, of records or steps."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A row as a term sees it. make: a function of rows (m, d) that returns (m, k), each row from its row alone.

    A shard keeps what was made last, if there is room, as long as it is asked for with the same object, or a copy.
    view: what a term gets of a block of what was made; None for the block itself. It is not kept.
    """

    make: Callable[[Floats], Any]
    key: bytes = field(default_factory=lambda: os.urandom(16))
    view: Callable[[Any], Any] | None = None


ROWS = Rows(lambda X: X, b"rows")
"""The rows as they are."""


class Shard:
    """Records of one file that follow each other. X: (n, d); y: (n,); weights: (n,), or None for 1 each.

    units: (n,), the index of each record's privacy unit among all; None where every record is one.
    """

    def __init__(self, X: Floats, y: Integers, weights: Floats | None = None, units: Integers | None = None) -> None:
        """Take the records."""
        self.X, self.y, self.weights, self.units = X, y, weights, units
        self.room = KEPT
        self.kept: dict[Any, Any] = {}
        """Values that terms keep from one sum to the next."""

    def __len__(self) -> int:
        """Number of records."""
        return len(self.y)

    def blocks(self, rows: Rows = ROWS, taken: Mask | None = None) -> Iterator[tuple[Any, Integers, Floats | None]]:
        """Yield what is made of BLOCK records at a time, their classes, and their weights. taken: (n,), of which."""
        whole = self.X if rows is ROWS or rows.key == ROWS.key else self._whole(rows)
        picked = None if taken is None or taken.all() else np.flatnonzero(taken)
        for start in range(0, len(self) if picked is None else len(picked), BLOCK):
            block = slice(start, start + BLOCK) if picked is None else picked[start : start + BLOCK]
            made = rows.make(np.array(self.X[block])) if whole is None else whole[block]
            if rows.view is not None:
                made = rows.view(made)
            yield made, self.y[block], None if self.weights is None else self.weights[block]
        _forget_pages(self.X)

    def _whole(self, rows: Rows) -> Any:
        """Return what is made of all rows, if there is room for it."""
        if not len(self):
            return None
        if self.kept.get("rows") != rows.key:
            first = rows.make(self.X[:1])
            sparse = scipy.sparse.issparse(first)
            bytes_of_row = first.data.nbytes + first.indices.nbytes if sparse else first.nbytes
            if bytes_of_row * len(self) > self.room:
                return None
            parts = [rows.make(self.X[start : start + BLOCK]) for start in range(0, len(self), BLOCK)]
            self.kept |= {"rows": rows.key, "whole": _joined(parts)}
        return self.kept["whole"]


def _joined(parts: Sequence[Any]) -> Any:
    """Return rows one behind the other: dense, sparse, or of a class that joins its own."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return scipy.sparse.vstack(parts, format="csr") if scipy.sparse.issparse(parts[0]) else parts[0].joined(parts)


def _forget_pages(X: Floats) -> None:
    """Give back the memory of rows that lie in a file: they are read again when they are looked at."""
    base = X
    while isinstance(base.base, np.ndarray):
        base = base.base
    if isinstance(base.base, mmap.mmap):
        start = X.ctypes.data - base.ctypes.data
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        base.base.madvise(mmap.MADV_DONTNEED, first, start + X.nbytes - first)


def share_room(shards: Sequence[Shard]) -> None:
    """Give each shard of a machine room for its features: what the records leave of KEPT."""
    records, room = sum(map(len, shards)), max(KEPT - sum(shard.X.nbytes for shard in shards), 0)
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

    def total(self, term: Term, given: Sequence[Any] | None = None, progress: OnCount = lambda _: None) -> Any:
        """Return the sum of the shards' terms. given: for each shard what its term gets besides."""
        ...


class LocalSums:
    """Records that are here."""

    def __init__(self, shards: Sequence[Shard], units: int | None = None) -> None:
        """Take the shards."""
        self.shards = shards
        self.units = units
        self.lengths = tuple(len(shard) for shard in shards)
        share_room(shards)

    def total(self, term: Term, given: Sequence[Any] | None = None, progress: OnCount = lambda _: None) -> Any:
        """See `Sums`."""
        total, done = None, 0
        with ONE_THREAD.limit(limits=1):
            each = zip(self.shards, given or [None] * len(self.shards), strict=True)
            for shard, part in zip(self.shards, _in_order(lambda pair: term(*pair), each), strict=True):
                total = part if total is None else total + part
                done += len(shard)
                progress(done)
        return total


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
    X: Floats,
    y: Integers,
    weights: Floats | None = None,
    units: Integers | None = None,
    files: Sequence[int] | None = None,
) -> LocalSums:
    """Return the sums over records that are here. files: how many records each file has; None for one file."""
    shards, start = [], 0
    for length in (len(y),) if files is None else files:
        for first in range(start, max(start + length, start + 1), SHARD):
            part = slice(first, min(first + SHARD, start + length))
            shards.append(
                Shard(
                    X[part],
                    y[part],
                    None if weights is None else weights[part],
                    None if units is None else units[part],
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
