"""From rounds to figures: medians, ratios, and the goals that they are held against. Nothing here measures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.serving.load import Round
from benchmarks.serving.processes import Use

OURS = "dpserve: private, charged, durable"
IN_MEMORY = "dpserve, its ledger's disk in memory"
OURS_ARRAYS = "dpserve, the same in .npy arrays"
OURS_WORKERS = "dpserve, the same by 2 workers"
OURS_REPLAYED = "dpserve, questions asked before"
UNPROTECTED = "dpserve without privacy and ledger"
UNPROTECTED_WORKERS = "the same without, by 2 workers"
PLAIN = "plain, request by request"
MLSERVER, MLSERVER_WORKERS = "MLServer, in process", "MLServer, as it comes"
BENTOML, LITSERVE = "BentoML", "LitServe"


@dataclass(frozen=True)
class Setting:
    """A kind of load: so many connections, so many rows in a request."""

    connections: int
    rows: int

    def __str__(self) -> str:
        """Return the words that head its table."""
        return f"{self.connections} connection{'s' * (self.connections > 1)}, {self.rows} row{'s' * (self.rows > 1)}"


MANY, ONE, BATCHES = Setting(32, 1), Setting(1, 1), Setting(4, 256)


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
    """How many cores something else took: where that is not nearly 0, only CPU and memory mean anything."""


@dataclass(frozen=True)
class Idle:
    """Medians of a contender's memory before the first request, in MiB.

    total: of all its processes, each shared page counted once; worker: the largest process by itself, with all that it
    maps.
    """

    total: float
    worker: float


Results = Mapping[str, Mapping[str, Figures]]
"""By setting, by contender."""


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
        return f"{self.what:66}{self.value:8.2f}   {sign} {self.bound:<6g} {'met' if self.met else 'missed'}"


def goals(results: Results, idle_by_name: Mapping[str, Idle], name: str = OURS) -> list[Goal]:
    """Return the goals that this run has figures for, of the contender `name`: OURS, IN_MEMORY or OURS_WORKERS.

    Two workers are compared with as many without privacy and ledger, and with whatever others have.
    """
    found: list[Goal] = []
    unprotected = UNPROTECTED_WORKERS if name == OURS_WORKERS else UNPROTECTED

    def add(what: str, setting: Setting, others: Sequence[str], bound: float, *, latency: bool = False) -> None:
        by_name = results.get(str(setting), {})
        there = [by_name[other] for other in others if other in by_name]
        if name not in by_name or not there:
            return
        ours = by_name[name]
        if latency:
            value = max(ratio(ours.p50, other.p50) for other in there)
        else:
            value = min(ratio(ours.per_second, other.per_second) for other in there)
        found.append(Goal(f"{setting}: {what}", value, bound, at_least=not latency))

    add("requests/s over MLServer's faster", MANY, (MLSERVER, MLSERVER_WORKERS), 2.8)
    add("requests/s over BentoML's", MANY, (BENTOML,), 9)
    add("requests/s over LitServe's", MANY, (LITSERVE,), 9)
    add("requests/s over ours without privacy and ledger", MANY, (unprotected,), 0.55)
    add("requests/s over plain", MANY, (PLAIN,), 1)
    many = results.get(str(MANY), {}).get(name)
    if many is not None:
        found.append(Goal(f"{MANY}: p99 over p50", ratio(many.p99, many.p50), 2, at_least=False))
        found.append(Goal(f"{MANY}: CPU milliseconds a request", many.cpu, 0.2, at_least=False))
    replayed = results.get(str(MANY), {}).get(OURS_REPLAYED)
    peers = [results[str(MANY)][peer] for peer in (MLSERVER, MLSERVER_WORKERS) if peer in results.get(str(MANY), {})]
    if name == OURS and replayed is not None and peers:
        value = min(ratio(replayed.per_second, peer.per_second) for peer in peers)
        found.append(Goal(f"{MANY}: questions asked before, over MLServer's faster", value, 3.5))
    add("median latency over MLServer's faster", ONE, (MLSERVER, MLSERVER_WORKERS), 1.2, latency=True)
    add("requests/s over ours without privacy and ledger", BATCHES, (unprotected,), 0.9)
    if name in idle_by_name:
        megabytes = idle_by_name[name].worker * 2**20 / 1e6
        found.append(Goal("MB of an idle worker, certified head", megabytes, 110, at_least=False))
    return found
