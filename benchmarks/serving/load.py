"""Load from `wrk` with rows that were never asked before, and what came of it."""

import itertools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.network import FEATURES

_SCRIPT = Path(__file__).with_name("rows.lua")
_first_rows = itertools.count(1, 10_000_000)


@dataclass(frozen=True)
class Body:
    """How a contender wants its rows: what surrounds them, and whether each has brackets of its own."""

    prefix: str
    suffix: str
    nested: bool = True


@dataclass(frozen=True)
class Round:
    """What one round of load saw. Latencies in milliseconds; `wrong`: answers that were no answers."""

    requests: int
    seconds: float
    wrong: int
    p50: float
    p99: float
    p999: float

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


def load(url: str, body: Body, *, connections: int, seconds: float, rows: int = 1, key: str | None = None) -> Round:
    """Ask `url` from so many connections for so long, each request with `rows` new rows. Raises RuntimeError."""
    environment = {
        "BENCH_PREFIX": body.prefix,
        "BENCH_SUFFIX": body.suffix,
        "BENCH_NESTED": "1" if body.nested else "0",
        "BENCH_ROWS": str(rows),
        "BENCH_FEATURES": str(FEATURES),
        "BENCH_FIRST_ROW": str(next(_first_rows)),
    }
    if key:
        environment["BENCH_KEY"] = key
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "20s", "-s", str(_SCRIPT), url]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"wrk failed: {done.stderr or done.stdout}")
    seen = json.loads(lines[-1])
    return Round(
        requests=seen["requests"],
        seconds=seen["seconds"],
        wrong=seen["wrong"],
        p50=seen["p50"] / 1e3,
        p99=seen["p99"] / 1e3,
        p999=seen["p999"] / 1e3,
    )
