"""Whether the bar of a training is true: which share of the time it said was over, at each tenth of the time that was.

DP-SGD on tables of 30 numbers of several sizes, and on MNIST as histograms from --data-dir, by `dpserve.training.fit`.
Run: python -m benchmarks.progress [--rows 100000 300000] [--kinds auto class-sums weights head] [--data-dir DIR]
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.training_time import COLUMNS, IMAGES
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.training.feature_choice import AutoFeatures
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.registry import trainable_kinds
from dpserve.training.planning.planner import PLANNED_KIND
from dpserve.training.watchers import Timed
from research.data import mnist

_SECONDS_BETWEEN_LOOKS = 0.02


class Looks(Timed):
    """Looks at the bar again and again, and keeps the seconds since the training began and the share that it says."""

    def __init__(self) -> None:
        """Begin."""
        super().__init__()
        self.seen: list[tuple[float, float]] = []

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Look while it is there."""
        with super().timed():
            began, ended = time.monotonic(), threading.Event()

            def look() -> None:
                while not ended.wait(_SECONDS_BETWEEN_LOOKS):
                    self.seen.append((time.monotonic() - began, self.timeline.share))

            looking = threading.Thread(target=look)
            looking.start()
            try:
                yield
            finally:
                ended.set()
                looking.join()
                self.seconds = time.monotonic() - began


def main() -> None:
    """Print a line for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 300_000])
    parser.add_argument("--kinds", nargs="*", default=[PLANNED_KIND.name])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("DPSERVE_DATA_DIR"), help="of MNIST")
    given = parser.parse_args()
    print(f"| records | seconds |{'|'.join(f' {tenth}0 % ' for tenth in range(1, 10))}|")
    print(f"| --- |{' ---: |' * 10}")
    for rows in given.rows:
        generator = np.random.default_rng(0)
        X = generator.random((rows, COLUMNS[0]))
        y = (X[:, 0] + X[:, 1] > 1).astype(np.int64)
        for name in given.kinds:
            print_line(f"{rows:,} x {COLUMNS[0]}, {name}", X, y, AutoFeatures(), name)
    if given.data_dir is not None:
        images = mnist.read(given.data_dir)
        X, y = images.X[:IMAGES].astype(np.float64), images.y[:IMAGES]
        print_line(f"{IMAGES:,} images", X, y, AutoFeatures(image_shape=(28, 28)))


def print_line(what: str, X: np.ndarray, y: np.ndarray, features: AutoFeatures, name: str = PLANNED_KIND.name) -> None:
    """Train, and print which share the bar said at each tenth of the time; `-` before it was there."""
    names = tuple(f"x{index}" for index in range(X.shape[1]))
    classes = tuple(map(str, range(int(y.max()) + 1)))
    declared = Declaration(names, (0.0,) * len(names), (1.0,) * len(names), classes)
    records = Records(X, y, declared, [row.tobytes() for row in X])
    kind = {PLANNED_KIND.name: PLANNED_KIND, **trainable_kinds()}[name]
    price = picorho_for(1.0, 1e-6) if kind.answers == "once" else None
    request = Request(name="model", lineage="own", kind=kind.options(), price=price, n=len(X), features=features)
    with tempfile.TemporaryDirectory() as folder:
        looks = Looks()
        fit(records, request, Path(folder) / "bundle", state=Path(folder) / "state", watcher=looks)
    said = []
    for tenth in range(1, 10):
        before = [share for seconds, share in looks.seen if seconds <= looks.seconds * tenth / 10]
        said.append(f"{before[-1]:.0%}" if before else "-")
    print(f"| {what} | {looks.seconds:.1f} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    main()
