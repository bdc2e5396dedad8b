"""The measurements as one document: `results.json`, and the copy of it that docs/performance.md is made from."""

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving import environments
from benchmarks.serving.figures import Figures, Idle, metered_goals, pay_once_goals
from benchmarks.serving.load import available_generator
from benchmarks.serving.scaling import Point
from benchmarks.serving.stages import Stage

Document = dict[str, Any]

_ROOT = Path(__file__).parents[2]


def machine() -> dict[str, object]:
    """Return what the figures depend on beside the code."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "disk_sync_ms": round(disk_sync_milliseconds(), 2),
    }


def disk_sync_milliseconds() -> float:
    """Return the median time that the disk under the temporary folder takes to make 512 appended bytes durable."""
    taken = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(100):
            began = time.perf_counter()
            file.write(bytes(512))
            file.flush()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def comparison(results: dict[str, dict[str, Figures]], idle: dict[str, Idle], rounds: int, seconds: float) -> Document:
    """Return the part of the document that says who is how fast."""
    return stamp(
        {
            "rounds": rounds,
            "seconds": seconds,
            "peers": environments.versions(),
            "goals": [
                asdict(goal) | {"met": goal.met}
                for goal in pay_once_goals(results, idle) + metered_goals(results, idle)
            ],
            "settings": {
                setting: {name: asdict(one) for name, one in by_name.items()} for setting, by_name in results.items()
            },
            "idle": {name: asdict(one) for name, one in idle.items()},
        }
    )


def stages(by_setting: dict[str, list[Stage]]) -> Document:
    """Return the part of the document that says where the time goes."""
    return stamp({setting: [asdict(one) for one in found] for setting, found in by_setting.items()})


def scaling(points: list[Point]) -> Document:
    """Return the part of the document that says how the speed depends on sizes."""
    return stamp({"points": [asdict(point) for point in points]})


def merge(file: Path, parts: Document) -> None:
    """Write the parts into the document, beside the parts that it has."""
    former = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(former | parts, indent=2) + "\n")


def read_comparison(part: Document) -> tuple[dict[str, dict[str, Figures]], dict[str, Idle]]:
    """Return what `comparison` was made of."""
    results = {
        setting: {name: Figures(**one) for name, one in by_name.items()}
        for setting, by_name in part["settings"].items()
    }
    idle = {name: Idle(**one) for name, one in part["idle"].items()}
    return results, idle


def stamp(part: Document) -> Document:
    """Return the part with when, where and with what it was measured."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "load": available_generator(),
    } | part
