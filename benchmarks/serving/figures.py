"""Figures from rounds: medians, ratios, and the goals that they are held against. Nothing here measures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import Round
from benchmarks.serving.processes import Use

KINDS = ("class-sums", "objective", "weights", "dpsgd")
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

    peak_memory: the peaks of all its processes added up. low, high: the slowest and the fastest round, in requests per
    second.
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
    """Medians of a contender's memory before the first request, in MiB.

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


def idle(starts: Sequence[Sequence[Use]]) -> Idle:
    """Return the medians of what a contender's processes held when it had just started."""
    return Idle(
        statistics.median(sum(use.share for use in uses) for uses in starts),
        statistics.median(max(use.resident for use in uses) for uses in starts),
    )


def ratio(value: float, other: float) -> float:
    """Return value / other; infinite where the other did nothing."""
    return value / other if other else float("inf")


@dataclass(frozen=True)
class Goal:
    """A ratio of one run and what it should be."""

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
        return f"{self.what:90}{self.value:8.2f}   {sign} {self.bound:<6g} {'met' if self.met else 'missed'}"


def pay_once_goals(results: Results) -> list[Goal]:
    """Return the goals of the pay-once models, each for the one of them that is furthest from it."""
    return _goals(
        results,
        tuple(PAY_ONCE),
        [
            (MANY, "requests/s over MLServer's faster", (MANY, *MLSERVERS), 3.5),
            (MANY, "requests/s over plain", (MANY, PLAIN), 0.9),
            (ONE, "median latency over MLServer's faster", (ONE, *MLSERVERS), -0.7),
            (BATCHES, "requests/s over MLServer's faster", (BATCHES, *MLSERVERS), 1),
            (ARRAYS, "requests/s over MLServer's faster in JSON", (BATCHES, *MLSERVERS), 2.5),
        ],
    )


def metered_goals(results: Results, idle_by_name: Mapping[str, Idle]) -> list[Goal]:
    """Return the goals of the metered model."""
    found = _goals(
        results,
        (OURS,),
        [
            (MANY, "requests/s over MLServer's faster", (MANY, *MLSERVERS), 2.8),
            (MANY, "requests/s over BentoML's", (MANY, BENTOML), 9),
            (MANY, "requests/s over LitServe's", (MANY, LITSERVE), 9),
            (MANY, "requests/s over ours without privacy and ledger", (MANY, UNPROTECTED), 0.55),
            (MANY, "requests/s over plain", (MANY, PLAIN), 1),
            (ONE, "median latency over MLServer's faster", (ONE, *MLSERVERS), -1.2),
            (BATCHES, "requests/s over ours without privacy and ledger", (BATCHES, UNPROTECTED), 0.9),
        ],
    )
    found += _goals(
        results,
        (OURS_REPLAYED,),
        [(MANY, "questions asked before, over MLServer's faster", (MANY, *MLSERVERS), 3.5)],
    )
    many = results.get(str(MANY), {}).get(OURS)
    if many is not None:
        found.append(Goal(f"{MANY}: p99 over p50", ratio(many.p99, many.p50), 2, at_least=False))
        found.append(Goal(f"{MANY}: CPU milliseconds a request", many.cpu, 0.2, at_least=False))
    if OURS in idle_by_name:
        megabytes = idle_by_name[OURS].worker * 2**20 / 1e6
        found.append(Goal("MB of an idle worker, certified head", megabytes, 110, at_least=False))
    return found


def _goals(
    results: Results, names: Sequence[str], wanted: Sequence[tuple[Setting, str, tuple[Setting | str, ...], float]]
) -> list[Goal]:
    """Return the goals that this run has figures for; of several contenders the one that misses most, by name.

    wanted: the setting, what is asked, in which setting which others are compared with, and the bound: of latency
    where it is negative, and of requests per second otherwise.
    """
    found = []
    for setting, what, (where, *others), bound in wanted:
        ours = {name: one for name, one in results.get(str(setting), {}).items() if name in names}
        there = [one for name, one in results.get(str(where), {}).items() if name in others]
        if not ours or not there:
            continue
        values = {
            name: max(ratio(one.p50, other.p50) for other in there)
            if bound < 0
            else min(ratio(one.per_second, other.per_second) for other in there)
            for name, one in ours.items()
        }
        worst = (max if bound < 0 else min)(values, key=lambda name: values[name])
        said = f"{setting}: {what}" + (f" ({', '.join(PAY_ONCE[worst])})" if worst in PAY_ONCE else "")
        found.append(Goal(said, values[worst], abs(bound), at_least=bound > 0))
    return found
