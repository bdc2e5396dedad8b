"""What the service did in each of the last seconds, read from its counters."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain, pairwise

from prometheus_client import CollectorRegistry

from service.telemetry.logs import kinds, log

SECONDS = 120
"""How far back it remembers."""


@dataclass(frozen=True)
class Totals:
    """Counts since the start. answered and refused are requests for rows; the others are rows."""

    answered: float = 0.0
    refused: float = 0.0
    rows_charged: float = 0.0
    rows_free: float = 0.0

    def since(self, earlier: "Totals") -> dict[str, float]:
        """Return how much more each is than it was."""
        before = asdict(earlier)
        return {name: value - before[name] for name, value in asdict(self).items()}


def totals_by_model(registries: Iterable[CollectorRegistry]) -> dict[str, Totals]:
    """Return the counts as they are now, by model; those of requests that named none that is served under ""."""
    found: defaultdict[str, dict[str, float]] = defaultdict(lambda: asdict(Totals()))
    for metric in chain.from_iterable(registry.collect() for registry in registries):
        for sample in metric.samples:
            if sample.name == "dpserve_rows_total":
                found[sample.labels["model"]][f"rows_{sample.labels['outcome']}"] += sample.value
            elif sample.name == "dpserve_requests_total" and _asks_for_rows(sample.labels["route"]):
                kind = "answered" if sample.labels["status"].startswith("2") else "refused"
                found[sample.labels["model"]][kind] += sample.value
    return {model: Totals(**counts) for model, counts in found.items()}


def totals_of(registries: Iterable[CollectorRegistry]) -> Totals:
    """Return the counts as they are now, of all models."""
    each = [asdict(totals) for totals in totals_by_model(registries).values()]
    return Totals(**{name: sum(counts[name] for counts in each) for name in asdict(Totals())})


class Throughput:
    """Looks at the counters once a second while `watch` runs."""

    def __init__(
        self, counts: Callable[[], Iterable[CollectorRegistry]], clock: Callable[[], float] = time.time
    ) -> None:
        """Read what `counts` returns. clock: seconds since the epoch."""
        self._counts = counts
        self._clock = clock
        self._seen: deque[tuple[float, Totals]] = deque(maxlen=SECONDS + 1)
        self.look()

    def look(self) -> None:
        """Remember the counts of now."""
        self._seen.append(self._now())

    async def watch(self) -> None:
        """Look once a second until cancelled, in a thread: adding up what many processes counted takes a while.

        A look that fails is left out: the file of a worker that begins just now cannot be read yet.
        """
        while True:
            await asyncio.sleep(1)
            try:
                self._seen.append(await asyncio.to_thread(self._now))
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the counts could not be read: %s", kinds(error))

    def _now(self) -> tuple[float, Totals]:
        return self._clock(), totals_of(self._counts())

    def report(self) -> dict[str, object]:
        """Return the totals, and for each second looked at how many more there were than before it."""
        seen = list(self._seen)
        return {
            "totals": asdict(seen[-1][1]),
            "seconds": [
                {"time": now, "length": now - then} | totals.since(before)
                for (then, before), (now, totals) in pairwise(seen)
            ],
        }


def _asks_for_rows(route: str) -> bool:
    return route.endswith(("/predict", "/invocations", "/infer", "/ModelInfer"))
