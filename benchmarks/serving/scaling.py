"""Our service's speed by the number of classes, of features, of rows of a request, and by the ledger's size."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import contenders
from benchmarks.serving.comparison import measure_undisturbed, warm
from benchmarks.serving.figures import MANY, Setting
from benchmarks.serving.load import load
from benchmarks.serving.network import CLASSES, FEATURES

CLASS_COUNTS = (2, 10, 100, 1000)
FEATURE_COUNTS = (64, 600, 3000)
BATCHES = (1, 16, 256, 1000)
LEDGER_ROWS = (0, 100_000)


@dataclass(frozen=True)
class Point:
    """One point of a curve. Latencies and CPU in ms a request; peak: MiB of the service and its store."""

    curve: str
    at: int
    rows_per_second: float
    p50: float
    p99: float
    cpu: float
    peak_memory: float
    others: float = 0.0
    """Cores that something else took."""


def curves(bundle: Path, folder: Path, seconds: float) -> list[Point]:
    """Measure each curve once. Raises RuntimeError."""
    points: list[Point] = []
    for point in _points(bundle, folder, seconds):
        print(f"{point.curve} {point.at}: {point.rows_per_second:.0f} rows/s", file=sys.stderr)
        points.append(point)
    return points


def _points(bundle: Path, folder: Path, seconds: float) -> Iterator[Point]:
    for classes in CLASS_COUNTS:
        yield from _shape("classes", classes, folder, seconds, classes=classes)
    for features in FEATURE_COUNTS:
        yield from _shape("features", features, folder, seconds, features=features)
    home = _make_folder(folder / "batches")
    with contenders.ours(bundle).start(home) as endpoint:
        warm(endpoint)
        for rows in BATCHES:
            yield _point("rows of a request, 4 connections", rows, endpoint, Setting(4, rows), seconds)
    home = _make_folder(folder / "ledger")
    with contenders.ours(bundle).start(home) as endpoint:
        warm(endpoint)
        held = 0
        for rows in LEDGER_ROWS:
            while held < rows:
                seen = load(
                    endpoint.url, endpoint.body(Setting(2, 1000)), connections=2, seconds=5, rows=1000, key=endpoint.key
                )
                held += (seen.requests - seen.wrong) * 1000
            yield _point("answered rows in the ledger", held, endpoint, MANY, seconds)


def _shape(
    curve: str, at: int, folder: Path, seconds: float, *, features: int = FEATURES, classes: int = CLASSES
) -> Iterator[Point]:
    home = _make_folder(folder / f"{curve}-{at}")
    bundle = contenders.train_bundle(home, features=features, classes=classes)
    with contenders.ours(bundle, features=features).start(home) as endpoint:
        endpoint.check()
        warm(endpoint)
        yield _point(curve, at, endpoint, MANY, seconds)


def _point(curve: str, at: int, endpoint: contenders.Endpoint, setting: Setting, seconds: float) -> Point:
    seen = measure_undisturbed(endpoint, setting, seconds)
    if seen.round.wrong:
        raise RuntimeError(f"{curve} {at}: {seen.round.wrong} of {seen.round.requests} requests were not answered")
    return Point(
        curve,
        at,
        seen.round.per_second * setting.rows,
        seen.round.p50,
        seen.round.p99,
        seen.cpu,
        sum(use.peak for use in seen.after),
        seen.others,
    )


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
