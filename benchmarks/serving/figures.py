"""Figures from rounds: medians, ratios, and the goals that they are held against. Nothing here measures."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import Round
from benchmarks.serving.processes import Use

KINDS = ("class-sums", "weights", "dpsgd")
FEATURE_MAPS = ("identity", "fourier")
PAY_ONCE = {f"dpserve: {kind}, {features}": (kind, features) for kind in KINDS for features in FEATURE_MAPS}
"""Our pay-once models, by kind of release and feature map."""
OURS = "dpserve: metered, every answer charged"
OURS_REPLAYED = "dpserve: metered, asked before"
UNPROTECTED = "dpserve without privacy and ledger"
PLAIN = "plain, request by request"
MLSERVER, MLSERVER_WORKERS = "MLServer, in process", "MLServer, as it comes"
MLSERVERS = (MLSERVER, MLSERVER_WORKERS)
METERED = (OURS, OURS_REPLAYED, UNPROTECTED)
BENTOML, LITSERVE, MOSEC = "BentoML", "LitServe", "mosec"


@dataclass(frozen=True)
class Setting:
    """A kind of load: so many connections, so many rows in a request, as JSON or as NumPy files."""

    connections: int
    rows: int
    npy: bool = False

    def __str__(self) -> str:
        """Return the words that head its table."""
        said = f"{self.connections} connection{'s' * (self.connections > 1)}, {self.rows} row{'s' * (self.rows > 1)}"
        return said + " as .npy" * self.npy


MANY, ONE, BATCHES, ARRAYS = Setting(32, 1), Setting(1, 1), Setting(4, 256), Setting(4, 256, npy=True)


@dataclass(frozen=True)
class Measured:
    """One contender in one round of one setting: what the load saw, and what its processes used before and after.

    others: how many cores were taken by what is neither the contender nor the load: what else the machine did.
    """

    round: Round
    before: Sequence[Use]
    after: Sequence[Use]
    others: float = 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU of all its processes."""
        return sum(use.cpu_seconds for use in self.after) - sum(use.cpu_seconds for use in self.before)

    @property
    def cpu(self) -> float:
        """CPU milliseconds a request, of all processes."""
        return self.cpu_seconds / max(self.round.requests, 1) * 1e3


@dataclass(frozen=True)
class Figures:
    """Medians of a contender's rounds in one setting. Latencies in ms, CPU in ms a request, memory in MiB.

    peak_memory: the peaks of all its processes since they started, added up. low, high: the slowest and the fastest
    round, in requests per second.
    """

    per_second: float
    low: float
    high: float
    p50: float
    p99: float
    p999: float
    cpu: float
    peak_memory: float
    wrong: int
    others: float = 0.0
    """Cores that something else took: where that is not nearly 0, only CPU and memory mean anything."""


@dataclass(frozen=True)
class Idle:
    """A contender's memory before the first request, in MiB, when it was started alone.

    total: of all its processes, each shared page counted once; worker: the largest process by itself, with all that it
    maps.
    """

    total: float
    worker: float


Results = Mapping[str, Mapping[str, Figures]]
"""Figures by setting, by contender."""


def medians(rounds: Sequence[Measured]) -> Figures:
    """Return the medians of the rounds of one contender in one setting. Raises StatisticsError for none."""
    seen = [one.round for one in rounds]
    rates = [one.per_second for one in seen]
    return Figures(
        per_second=statistics.median(rates),
        low=min(rates),
        high=max(rates),
        p50=statistics.median(one.p50 for one in seen),
        p99=statistics.median(one.p99 for one in seen),
        p999=statistics.median(one.p999 for one in seen),
        cpu=statistics.median(one.cpu for one in rounds),
        peak_memory=statistics.median(sum(use.peak for use in one.after) for one in rounds),
        wrong=sum(one.wrong for one in seen),
        others=statistics.median(one.others for one in rounds),
    )


def idle(uses: Sequence[Use]) -> Idle:
    """Return what a contender's processes held when it had just started."""
    return Idle(sum(use.share for use in uses), max(use.resident for use in uses))


def ratio(value: float, other: float) -> float:
    """Return value / other; infinite where the other did nothing."""
    return value / other if other else float("inf")


@dataclass(frozen=True)
class Goal:
    """A figure of one run, most often a ratio, and what it should be."""

    what: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the value keeps the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        """Return one line for people."""
        sign = ">=" if self.at_least else "<="
        return f"{self.what:90}{self.value:>9.3g}   {sign} {self.bound:<6g} {'met' if self.met else 'missed'}"


@dataclass(frozen=True)
class _Wanted:
    """A ratio of figures in a setting and its bound; of requests per second unless it says otherwise.

    others: contenders that ours is divided by, the one that is hardest to beat, in the setting `where`.
    """

    setting: Setting
    what: str
    bound: float
    others: tuple[str, ...]
    where: Setting | None = None
    value: Callable[[Figures, Figures], float] = lambda ours, other: ratio(ours.per_second, other.per_second)
    at_least: bool = True


def _latencies(ours: Figures, other: Figures) -> float:
    return ratio(ours.p50, other.p50)


def _per_cpu_second(ours: Figures, other: Figures) -> float:
    """Return the ratio of the requests that a second of CPU answers."""
    return ratio(other.cpu, ours.cpu)


_FASTER = "requests/s over MLServer's faster"
_SLOWER = "median latency over MLServer's faster"
_LARGEST_WORKER = 100.0
"""MB."""


def pay_once_goals(results: Results, idle_by_name: Mapping[str, Idle]) -> list[Goal]:
    """Return the goals of the pay-once models, each for the one of them that is furthest from it."""
    return [
        *_goals(
            results,
            tuple(PAY_ONCE),
            _Wanted(MANY, "requests/s over plain", 1.05, (PLAIN,)),
            _Wanted(MANY, _FASTER, 4.0, MLSERVERS),
            _Wanted(ONE, _SLOWER, 0.5, MLSERVERS, value=_latencies, at_least=False),
            _Wanted(BATCHES, _FASTER, 1.5, MLSERVERS),
            _Wanted(ARRAYS, "requests/s over MLServer's faster in JSON", 3.5, MLSERVERS, BATCHES),
            _Wanted(MANY, "requests per CPU second beside mosec's", 0.8, (MOSEC,), value=_per_cpu_second),
        ),
        *_worker_goals(idle_by_name, tuple(PAY_ONCE)),
    ]


def metered_goals(results: Results, idle_by_name: Mapping[str, Idle]) -> list[Goal]:
    """Return the goals of the metered model."""
    return [
        *_goals(
            results,
            (OURS,),
            _Wanted(MANY, _FASTER, 2.4, MLSERVERS),
        ),
        *_goals(
            results,
            (OURS_REPLAYED,),
            _Wanted(MANY, "questions asked before, over MLServer's faster", 3.0, MLSERVERS),
        ),
        *_goals(
            results,
            (OURS,),
            _Wanted(ONE, _SLOWER, 1.8, MLSERVERS, value=_latencies, at_least=False),
            _Wanted(BATCHES, _FASTER, 1.0, MLSERVERS),
        ),
        *_worker_goals(idle_by_name, (OURS,)),
    ]


def _goals(results: Results, names: Sequence[str], *wanted: _Wanted) -> list[Goal]:
    """Return the goals that this run has figures for; of several contenders the one that misses most, by name."""
    found = []
    for each in wanted:
        ours = {name: one for name, one in results.get(str(each.setting), {}).items() if name in names}
        there = results.get(str(each.where or each.setting), {})
        others = [one for name, one in there.items() if name in each.others]
        if not ours or not others:
            continue
        hardest = min if each.at_least else max
        values = {name: hardest(each.value(one, other) for other in others) for name, one in ours.items()}
        worst = hardest(values, key=lambda name: values[name])
        found.append(Goal(f"{each.setting}: {each.what}{_kind(worst)}", values[worst], each.bound, each.at_least))
    return found


def _worker_goals(idle_by_name: Mapping[str, Idle], names: Sequence[str]) -> list[Goal]:
    workers = {name: one.worker * 2**20 / 1e6 for name, one in idle_by_name.items() if name in names}
    if not workers:
        return []
    largest = max(workers, key=lambda name: workers[name])
    return [Goal(f"MB of an idle worker{_kind(largest)}", workers[largest], _LARGEST_WORKER, at_least=False)]


def _kind(name: str) -> str:
    """Return which of the pay-once models a goal is about, in brackets; nothing for another contender."""
    return f" ({', '.join(PAY_ONCE[name])})" if name in PAY_ONCE else ""
