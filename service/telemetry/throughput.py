"""The service's throughput in each of the last seconds, read from its counters."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import chain, pairwise

from prometheus_client import CollectorRegistry

from dpserve.service.telemetry.logs import kinds, log

SECONDS = 120
"""Seconds that it remembers."""

COUNTED = ("answered", "refused", "rows_charged", "rows_free")
"""The first two are requests for rows; the others are rows."""

_ASKED_FOR_ROWS = ("/predict", "/invocations", "/infer", "/ModelInfer")


class Throughput:
    """Looks at the counters once a second while `watch` runs."""

    def __init__(
        self, counts: Callable[[], Iterable[CollectorRegistry]], clock: Callable[[], float] = time.time
    ) -> None:
        """Read what `counts` returns. clock: seconds since the epoch."""
        self._counts = counts
        self._clock = clock
        self._seen = deque([self._look()], maxlen=SECONDS + 1)

    async def watch(self) -> None:
        """Look once a second until cancelled, in a thread: adding up what many processes counted takes a while.

        A look that fails is left out: the file of a worker that begins just now cannot be read yet.
        """
        while True:
            await asyncio.sleep(1)
            try:
                self._seen.append(await asyncio.to_thread(self._look))
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                log.warning("the counts could not be read: %s", kinds(error))

    def by_model(self) -> dict[str, dict[str, float]]:
        """Return the counts as they are now, by model; those of requests that named none that is served under ""."""
        counts: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0.0))
        for metric in chain.from_iterable(registry.collect() for registry in self._counts()):
            for sample in metric.samples:
                if sample.name == "dpserve_rows_total":
                    counts[sample.labels["model"]][f"rows_{sample.labels['outcome']}"] += sample.value
                elif sample.name == "dpserve_requests_total" and sample.labels["route"].endswith(_ASKED_FOR_ROWS):
                    kind = "answered" if sample.labels["status"].startswith("2") else "refused"
                    counts[sample.labels["model"]][kind] += sample.value
        return dict(counts)

    def _look(self) -> tuple[float, dict[str, float]]:
        each = self.by_model().values()
        return self._clock(), {name: sum(counts[name] for counts in each) for name in COUNTED}

    def report(self) -> dict[str, object]:
        """Return the totals, and for each second looked at how many more there were than before it."""
        seen = list(self._seen)
        return {
            "totals": seen[-1][1],
            "seconds": [
                {"time": now, "length": now - then} | {name: totals[name] - before[name] for name in COUNTED}
                for (then, before), (now, totals) in pairwise(seen)
            ],
        }
