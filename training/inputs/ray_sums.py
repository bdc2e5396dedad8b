"""Sums over records on the workers of a Ray cluster: `dpserve.training.inputs.sums` says why the bits are those of one
machine.

Each worker reads some of the table's files and keeps their records. The driver sees what their owner's lineage keeps
of them, a digest of each, and sums. It draws all randomness and writes the bundle. A worker that is lost ends the
training: nothing was written then, and nothing is charged, as a model costs when it is served.
"""

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.training.errors import DataError, TrainingError, extra
from dpserve.training.inputs.records import Declaration, Digests, NoRecords, Records, SummedRecords, Units
from dpserve.training.inputs.sums import ONE_THREAD, Shard, Term, Total, of_rows, share_room

Reader = Callable[[str], Records]
"""Reads one file."""


class Worker:
    """Holds the records of some files."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._files: dict[int, Records] = {}
        self._shards: dict[int, list[Shard]] = {}

    def read(self, index: int, file: str, reader: Reader) -> Any:
        """Read a file; return what the driver needs of it, None of an empty one, or what is wrong with it in words."""
        try:
            records = reader(file)
        except NoRecords:
            return None
        except TrainingError as error:
            return str(error)
        self._files[index] = records
        whose = records.units
        counts = None if whose is None else np.bincount(whose.of)
        source = np.frombuffer(b"".join(records.source), dtype=np.uint8).reshape(-1, 16)
        named = None if whose is None else whose.names
        # NumPy's own arrays: a worker's files are not here.
        ids = None if records.ids is None else np.array(records.ids)
        return records.declaration, source, named, counts, records.unit, ids

    def share(self, index: int, numbers: NDArray[np.int64] | None, counts: NDArray[np.int64] | None) -> list[int]:
        """Cut a file's records into shards; return their lengths.

        numbers, counts: of each unit of the file, its number among all and how many records it has in all files.
        """
        records = self._files.pop(index)
        weights = of = None
        if records.units is not None and numbers is not None and counts is not None:
            of = numbers[records.units.of]
            weights = Units.shares(counts)[records.units.of]
        sums = of_rows(records.X, records.y, weights, of)
        self._shards[index] = list(sums.shards)
        share_room([shard for shards in self._shards.values() for shard in shards])
        return list(sums.lengths)

    def term(self, index: int, place: int, term: Term, given: Any) -> Any:
        """Return a shard's term."""
        with ONE_THREAD.limit(limits=1):
            return term(self._shards[index][place], given)


class RaySums:
    """Records on workers. shards: for each its worker, its file and its place in the file."""

    def __init__(self, shards: Sequence[tuple[Any, int, int]], lengths: Sequence[int], units: int | None) -> None:
        """Take where the shards are, how long they are, and how many units there are."""
        self.shards = shards
        self.lengths = tuple(lengths)
        self.units = units

    def total(self, term: Term, given: Sequence[Any] | None = None) -> Any:
        """See `Sums`. Raises TrainingError for a worker that is lost."""
        import ray

        sent, total = ray.put(term), Total()
        waiting: deque[Any] = deque()
        each = iter(zip(self.shards, given or [None] * len(self.shards), strict=True))
        ahead = 2 * len({id(worker) for worker, _, _ in self.shards})
        try:
            for _ in self.lengths:
                while len(waiting) < ahead and (following := next(each, None)) is not None:
                    (worker, index, place), own = following
                    waiting.append(worker.term.remote(index, place, sent, own))
                total.add(ray.get(waiting.popleft()))
        except ray.exceptions.RayError as error:
            raise worker_error(error) from error
        return total.value


def worker_error(error: Exception) -> TrainingError:
    """Say that a worker did not do its part."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return TrainingError(f"a Ray worker was lost or failed: {reason}. Nothing was written and nothing charged")


def _connect(address: str) -> None:
    """Join the cluster, or start one here. Raises TrainingError that says what to do."""
    import ray

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the refusal below says what Ray's warnings say
            ray.init(address=None if address == "ray" else address, log_to_driver=False)
    except Exception as error:  # Ray raises errors of many kinds here, and nothing but its start is tried
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        advice = f"a Ray cluster cannot be started here ({reason})"
        if address != "ray":
            advice = (
                f"no Ray cluster can be used at {address} ({reason}): see that its client server's address and port "
                "are right and open to this machine, that Python and Ray have the same versions there, and, if it asks "
                "for a token, that RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH are set here"
            )
        raise TrainingError(f"{advice}. Nothing was written and nothing charged") from error


def read_on_ray(
    address: str, files: Sequence[str], reader: Reader, progress: Callable[[int, float], None] = lambda _, __: None
) -> SummedRecords:
    """Read a table's files on the workers of a cluster, each file on one, by turns.

    address: ray://HOST:PORT, or "ray" for one that is started here. Raises DataError for files that do not fit,
    TrainingError for a cluster that cannot be had.
    """
    with extra("ray", "training on Ray"):
        import ray
    try:
        if not ray.is_initialized():
            _connect(address)
        free: Callable[[], dict[str, float]] = ray.available_resources
        count = min(int(free().get("CPU", 0)), len(files))
        if not count:
            raise TrainingError("the Ray cluster has no free processor: wait for what else it computes, or add workers")
        workers: list[Any] = [ray.remote(Worker).options(num_cpus=1).remote() for _ in range(count)]
        reads = [workers[index % count].read.remote(index, file, reader) for index, file in enumerate(files)]
        parts = []
        for index, read in enumerate(reads):
            parts.append(ray.get(read))
            progress(sum(len(part[1]) for part in parts if isinstance(part, tuple)), (index + 1) / len(files))
        if problems := [part for part in parts if isinstance(part, str)]:
            raise DataError("\n".join(problems))
        kept = {index: each for index, each in enumerate(parts) if each is not None}
        if not kept:
            raise NoRecords("the table has no records")
        units, numbers, counts = _numbered([file[2:4] for file in kept.values()])
        shards: list[tuple[Any, int, int]] = []
        lengths: list[int] = []
        for place, index in enumerate(kept):
            worker = workers[index % count]
            own = (None, None) if numbers is None or counts is None else (numbers[place], counts[numbers[place]])
            for at, length in enumerate(ray.get(worker.share.remote(index, *own))):
                shards.append((worker, index, at))
                lengths.append(length)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise worker_error(error) from error
    declaration: Declaration = next(iter(kept.values()))[0]
    source = Digests(np.concatenate([file[1] for file in kept.values()]))
    column: str | None = next(iter(kept.values()))[4]
    whose = None if units is None or column is None else Units(column, np.empty(0, dtype=np.int64), units)
    sums = RaySums(shards, lengths, None if units is None else len(units))
    keys = [file[5] for file in kept.values()]
    ids = None if keys[0] is None else np.concatenate(keys)
    return SummedRecords(declaration, sums, source, whose, ids)


def _numbered(
    files: Sequence[tuple[NDArray[np.uint8] | None, NDArray[np.int64] | None]],
) -> tuple[NDArray[np.uint8] | None, list[NDArray[np.int64]] | None, NDArray[np.int64] | None]:
    """Number the units of all files as they first occur: return their names, each file's numbers, and all counts."""
    numbering: dict[bytes, int] = {}
    numbers: list[NDArray[np.int64]] = []
    for names, _ in files:
        if names is None:
            return None, None, None
        numbers.append(
            np.array([numbering.setdefault(name.tobytes(), len(numbering)) for name in names], dtype=np.int64).reshape(
                -1
            )
        )
    counts = np.zeros(len(numbering), dtype=np.int64)
    for own, (_, each) in zip(numbers, files, strict=True):
        counts[own] += 0 if each is None else each
    return np.frombuffer(b"".join(numbering), dtype=np.uint8).reshape(-1, 16), numbers, counts
