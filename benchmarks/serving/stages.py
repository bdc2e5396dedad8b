"""Where a request's time goes, by stage: a sampling profile of the service under load, and what its store uses.

The service interrupts itself every few milliseconds of its own CPU time and counts the stage that the innermost known
frame belongs to, of the thread that computes for the event loop, if one does, or else of the loop's own. Time in the
kernel counts for the stage that called it. Sampling takes about 1 % of the service.
"""

import json
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import contenders, figures
from benchmarks.serving.comparison import measure_undisturbed, warm

STAGES = (
    ("parse and check the rows", ("service/http/requests.py", "service/http/schemas.py", "service/http/npy.py")),
    ("parse and check the rows", ("service/predictor.py", "/pydantic")),
    ("authenticate", ("service/http/authentication.py",)),
    ("decode requests and encode answers", ("service/http/codec.py", "service/http/predictions.py")),
    ("features and forward pass", ("training/",)),
    ("noise", ("mechanisms/",)),
    ("journal", ("accounting/ledger/journal.py",)),
    ("the ledger's calls", ("accounting/ledger/", "/redis/", "/hiredis/")),
    ("account report", ("accounting/",)),
    ("HTTP and event loop", ("service/http/", "/uvicorn/", "/starlette/", "/fastapi/", "/uvloop", "/asyncio/")),
    ("batches", ("service/",)),
)
"""A stage and parts of the paths of its code, the first that fits counts."""

OTHER = "other"
STORE = "the store (Valkey)"


@dataclass(frozen=True)
class Stage:
    """The time that one stage of a request takes. microseconds: of CPU; share: of all CPU."""

    name: str
    microseconds: float
    share: float


def stage_of(path: str) -> str | None:
    """Return the stage that code in this file belongs to, None for code that says nothing of it."""
    return next((name for name, parts in STAGES if any(part in path for part in parts)), None)


def divide(samples: Counter[str], service_cpu: float, store_cpu: float, requests: int) -> list[Stage]:
    """Return the stages, the dearest first. Samples divide the service's CPU seconds; the store's are its own."""
    counted = samples.total()
    seconds = {name: service_cpu * count / counted for name, count in samples.items()} | {STORE: store_cpu}
    total = sum(seconds.values())
    return [
        Stage(name, used / requests * 1e6, used / total)
        for name, used in sorted(seconds.items(), key=lambda item: -item[1])
        if used
    ]


def profile(bundle: Path, folder: Path, setting: figures.Setting, seconds: float) -> list[Stage]:
    """Return the stages of our service in one setting. Raises RuntimeError."""
    folder.mkdir()
    written = folder / "samples.json"
    sampled = contenders.ours(bundle, program=("-m", "benchmarks.serving.profiled", str(written)))
    with sampled.start(folder) as endpoint:
        endpoint.check()
        warm(endpoint)
        endpoint.server.process.send_signal(signal.SIGUSR1)  # what start-up took is not a request's
        seen = measure_undisturbed(endpoint, setting, seconds)
    samples = Counter(json.loads(written.read_text()))
    store = _cpu_seconds(seen, store=True)
    return divide(samples, _cpu_seconds(seen, store=False), store, seen.round.requests)


def _cpu_seconds(seen: figures.Measured, *, store: bool) -> float:
    """Return the CPU seconds of the store's processes, or of all others."""
    before, after = (
        sum(use.cpu_seconds for use in uses if use.name.startswith("valkey") == store)
        for uses in (seen.before, seen.after)
    )
    return after - before
