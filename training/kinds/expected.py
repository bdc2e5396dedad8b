"""About how long a training takes, for a bar of progress: from trainings of a few of its records."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.bundles.drafts import draft_folder
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import BLOCK, COMPACT_BLOCK, ROWS, LocalSums, Shard, Term, of_rows
from dpserve.training.kinds.kind import Job, Kind
from dpserve.training.watchers import SETS, TRAINING, Unwatched

_SHARE = 64
"""A few records are at most one in so many, so that little time goes to them."""


def expected_seconds(kind: Kind, options: Any, job: Job) -> Mapping[str, float]:
    """Return about how many seconds each phase of a training takes that has not begun, in their order.

    A few records are trained on twice, as the first training waits for imports: in as many shards as are summed at a
    time, which share caches and the interpreter. What is summed over the records takes as much longer as there are more
    of them, and by the clock all takes as much longer as sums do now. The models have noise of their own for the job's
    price, and are gone at the end. Nothing is expected of a job that cannot be done with a few records, or of a kind
    that takes no sums.
    """
    lengths = job.records.sums.lengths
    beside = min(len(lengths), os.cpu_count() or 1)
    X, y = _few(job, beside)
    shorter, times = kind.shortened(job, options, beside * len(y) / sum(lengths))
    blocks = sum(lengths) / len(y) / beside**2
    try:
        with draft_folder(job.state) as folder:
            for out in (folder / "first", folder / "second"):
                records = _FewRecords(
                    np.tile(X, (beside, 1)), np.tile(y, beside), job.records.declaration, (), files=(len(y),) * beside
                )
                watch = _Watch(records.sums)
                few = replace(job, records=records, out=out, progress=watch, randomness=SystemRandomness())
                kind.train(few, shorter)
                watch.report("", 0.0)
                if not watch.sums.seconds:
                    return {}
                slowdown = watch.sums.by_clock / watch.sums.seconds
                if job.held:
                    model, began = kind.load(out, None), time.thread_time()
                    model.values(X[:BLOCK])
                    of_sets = (time.thread_time() - began) * job.held / len(X[:BLOCK])
    except (TrainingError, ValueError, ArithmeticError):
        return {}
    expected = {}
    for phase, (all_else, summed) in watch.taken.items():
        of_sums, of_else = times.get(phase, (1.0, 1.0))
        expected[phase] = slowdown * (of_else * all_else + of_sums * blocks * summed)
    return expected | ({SETS: slowdown * of_sets} if job.held else {})


def _few(job: Job, shards: int) -> tuple[Floats, Integers]:
    """Return a shard of a few of the records; random rows where these are elsewhere. shards: how many it is one of."""
    sums, declaration = job.records.sums, job.records.declaration
    count = min(COMPACT_BLOCK, max(sum(sums.lengths) // _SHARE // shards, 1))
    if isinstance(sums, LocalSums):
        X, y, _ = next(max(sums.shards, key=len).blocks(replace(ROWS, at_once=count)))
        return X, y
    generator = np.random.default_rng(0)
    X = generator.uniform(declaration.lower, declaration.upper, (count, len(declaration.lower)))
    return X, generator.integers(len(declaration.classes), size=count)


class _WatchedSums(LocalSums):
    """Records that are here, and the seconds that their terms of all sums took: of a processor, and by the clock.

    here: those of a processor on the thread that asked.
    """

    seconds, here, by_clock = 0.0, 0.0, 0.0

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Take the shards."""
        super().__init__(shards)
        self._adding = threading.Lock()

    def total(self, term: Term, given: Sequence[Any] | None = None) -> Any:
        """See `Sums`."""

        caller = threading.get_ident()

        def watched(shard: Shard, part: Any) -> Any:
            began, clock_began = time.thread_time(), time.perf_counter()
            result = term(shard, part)
            taken, by_clock = time.thread_time() - began, time.perf_counter() - clock_began
            with self._adding:
                self.seconds += taken
                self.here += taken * (threading.get_ident() == caller)
                self.by_clock += by_clock
            return result

        return super().total(watched, given)


class _FewRecords(Records):
    """Records whose sums are watched."""

    @cached_property
    def sums(self) -> _WatchedSums:
        """The sums over them."""
        return _WatchedSums(of_rows(self.X, self.y, files=self.files).shards)


class _Watch(Unwatched):
    """Keeps for each phase the processor seconds of all but sums, and of sums."""

    def __init__(self, sums: _WatchedSums) -> None:
        self.sums, self.taken = sums, dict[str, tuple[float, float]]()
        self._phase, self._last = TRAINING, (time.thread_time(), 0.0)

    def report(self, phase: str, done: float, /) -> None:
        """End the phase before, and begin one."""
        del done
        now, summed = time.thread_time() - self.sums.here, self.sums.seconds
        all_else, before = self.taken.get(self._phase, (0.0, 0.0))
        self.taken[self._phase] = all_else + now - self._last[0], before + summed - self._last[1]
        self._phase, self._last = phase, (now, summed)
