"""The time of `GET /budget` beside what it must not tell: what another client asks, and the logits of its questions.

A client asks for its account, again and again. Before each time one of four acts is drawn: another client asks
something new, which is charged, or what it paid for already; or the client itself does. Within one run:

- the chance that a time is longer after the other's new question than after a repeated one (0.5: nothing is told);
- the rank correlation of a time with the largest logit of the other's new question (0: nothing is told);
- as a control, the first figure for the client's own questions: its explanation is computed anew after a new one and
  kept after a repeated one, which the client may know. It must be near 1, or the run could not have seen anything.

Each is printed with its standard deviation where nothing is told. An idle machine is not needed: a disturbance comes
after either act alike.

Run: python -m benchmarks.budget_times [--trials 8000]
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from scipy.stats import mannwhitneyu, spearmanr

from benchmarks.serving.contenders import ours, run_dpserve, train_bundle
from dpserve.training.kinds.head.bundle import load_bundle

_FEATURES, _CLASSES = 20, 10
_BUDGET = ("--rho", "1000", "--delta", "1e-5")
"""A ninth of the lineage's, so that the client's own account says how many answers are left."""


@dataclass(frozen=True)
class Figure:
    """A figure, and its standard deviation where times tell nothing."""

    value: float
    deviation: float

    def __str__(self) -> str:
        """Return both."""
        return f"{self.value:.3f} (standard deviation where nothing is told {self.deviation:.3f})"


def longer_after(one: Sequence[float], other: Sequence[float]) -> Figure:
    """Return the chance that a time of `one` is longer than one of `other`, where half of the ties count."""
    pairs = len(one) * len(other)
    above = mannwhitneyu(one, other).statistic
    return Figure(float(above) / pairs, math.sqrt((len(one) + len(other) + 1) / (12 * pairs)))


def rank_correlation(times: Sequence[float], values: Sequence[float]) -> Figure:
    """Return Spearman's."""
    return Figure(float(spearmanr(times, values).statistic), 1 / math.sqrt(len(times) - 1))


class _Client:
    """A client of the service, on one connection."""

    def __init__(self, url: str, key: str, generator: np.random.Generator) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._generator = generator
        self._asked = np.zeros((1, _FEATURES))
        self._predict(self._asked)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def request(self, method: str, path: str, body: str | None = None) -> None:
        """Ask, and read the answer. Raises RuntimeError for a refusal."""
        self._connection.request(method, path, body, self._headers)
        with self._connection.getresponse() as answer:
            content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}: {content!r}")

    def ask(self, new: bool) -> np.ndarray:
        """Ask about a row that is new, or about the last one again; return it, (1, d)."""
        if new:
            self._asked = self._generator.random((1, _FEATURES))
        self._predict(self._asked)
        return self._asked

    def seconds_of_budget(self) -> float:
        """Return how long `GET /budget` takes, after a request that takes up what the one before left to do."""
        self.request("GET", "/livez")
        began = time.perf_counter()
        self.request("GET", "/budget")
        return time.perf_counter() - began

    def _predict(self, row: np.ndarray) -> None:
        self.request("POST", "/predict", json.dumps({"instances": row.tolist()}))


def figures(trials: int, seed: int = 0) -> dict[str, Figure]:
    """Return what the times of so many requests say."""
    generator = np.random.default_rng(seed)
    times: dict[tuple[str, bool], list[float]] = {(who, new): [] for who in ("other", "own") for new in (False, True)}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = train_bundle(folder / "model", features=_FEATURES, classes=_CLASSES)
        head = load_bundle(bundle)
        with ours(bundle, features=_FEATURES).start(folder) as endpoint, ExitStack() as stack:
            added = run_dpserve(folder, "clients", "add", "own", *_BUDGET)
            assert endpoint.key is not None
            clients = {
                who: stack.enter_context(closing(_Client(endpoint.url, key, generator)))
                for who, key in (("other", endpoint.key), ("own", max(added.split(), key=len)))
            }
            clients["own"].seconds_of_budget()
            acts = list(times)
            for which in generator.integers(len(acts), size=trials):
                who, new = acts[which]
                row = clients[who].ask(new)
                if (who, new) == ("other", True):
                    rows.append(row)
                times[who, new].append(clients["own"].seconds_of_budget())
    largest = head.logits(head.features(np.concatenate(rows))).max(axis=1)
    return {
        "longer after another client's new question than after a repeated one": longer_after(
            times["other", True], times["other", False]
        ),
        "rank correlation with the largest logit of another client's question": rank_correlation(
            times["other", True], largest.tolist()
        ),
        "control: longer after the client's own new question": longer_after(times["own", True], times["own", False]),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8000)
    options = parser.parse_args()
    for name, figure in figures(options.trials).items():
        print(f"{name}: {figure}")


if __name__ == "__main__":
    main()
