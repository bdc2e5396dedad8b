"""Load with rows that were never asked before, and what came of it: from `wrk` if it is there, or from our own.

A generator in a process of its own asks in a closed loop: each connection sends its next request when it has the
answer to the last. `wrk` takes less of the machine; which one it was stands in the results.
"""

import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.serving.network import FEATURES

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_first_rows = itertools.count(1, 10_000_000)

Generator = Literal["wrk", "own"]


@dataclass(frozen=True)
class Body:
    """The body that a contender takes: what surrounds the rows, and whether each has brackets of its own.

    npy: as a NumPy file of float64 instead, with nothing around it, and the answer likewise. distinct: how many
    different rows there are, which are asked again and again; 0 for rows that were never asked before.
    """

    prefix: str = ""
    suffix: str = ""
    nested: bool = True
    npy: bool = False
    distinct: int = 0

    @property
    def media_type(self) -> str:
        """The Content-Type."""
        return "application/x-npy" if self.npy else "application/json"

    def of(self, rows: list[list[float]]) -> bytes:
        """Return the body that holds these rows."""
        if self.npy:
            return npy_header(len(rows), len(rows[0])) + b"".join(doubles(row) for row in rows)
        texts = [",".join(map(repr, row)) for row in rows]
        return (self.prefix + ",".join(f"[{text}]" if self.nested else text for text in texts) + self.suffix).encode()


@dataclass(frozen=True)
class Round:
    """The measurements of one round of load. Latencies in milliseconds; `wrong`: answers that were no answers."""

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


def available_generator() -> Generator:
    """Return the one that takes least of the machine among those that are there."""
    return "wrk" if shutil.which("wrk") else "own"


def load(
    url: str,
    body: Body,
    *,
    connections: int,
    seconds: float,
    rows: int = 1,
    features: int = FEATURES,
    key: str | None = None,
    generator: Generator | None = None,
) -> Round:
    """Ask `url` from so many connections for so long, each request with `rows` new rows. Raises RuntimeError."""
    environment = {
        "BENCH_PREFIX": body.prefix,
        "BENCH_SUFFIX": body.suffix,
        "BENCH_NESTED": "1" if body.nested else "0",
        "BENCH_NPY": "1" if body.npy else "0",
        "BENCH_ROWS": str(rows),
        "BENCH_DISTINCT": str(body.distinct),
        "BENCH_FEATURES": str(features),
        "BENCH_FIRST_ROW": str(next(_first_rows)),
    }
    if key:
        environment["BENCH_KEY"] = key
    if (generator or available_generator()) == "wrk":
        command = ["wrk", "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s", "--timeout", "20s", "-s"]
        command += [str(_HERE / "rows.lua"), url]
    else:
        command = [sys.executable, "-m", "benchmarks.serving.generator", url, str(connections), f"{seconds:g}"]
    done = subprocess.run(command, env=os.environ | environment, cwd=_ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"{command[0]} failed: {done.stderr or done.stdout}")
    seen = json.loads(lines[-1])
    return Round(
        requests=seen["requests"],
        seconds=seen["seconds"],
        wrong=seen["wrong"],
        p50=seen["p50"] / 1e3,
        p99=seen["p99"] / 1e3,
        p999=seen["p999"] / 1e3,
    )


def npy_header(rows: int, columns: int) -> bytes:
    """Return the header of a NumPy file (format 1.0) of float64, (rows, columns)."""
    said = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}"
    said += " " * (-(len(said) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said.encode()


def doubles(row: list[float]) -> bytes:
    """Return the row's little-endian float64."""
    return struct.pack(f"<{len(row)}d", *row)
