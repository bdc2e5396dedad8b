"""Fault tests: each breaks one thing many times and counts the violations of the ledger's promises.

`DPSERVE_FAULTS=full` runs every trial (`make faults`); otherwise a quick form of each runs. Each fault's line, with
its trials, violations and seconds, is printed at the end.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

FULL = os.environ.get("DPSERVE_FAULTS") == "full"

_lines: list[str] = []


@dataclass
class Fault:
    """The results of one fault's trials."""

    name: str
    trials: int = 0
    violations: int = 0

    def trial(self, *, held: bool) -> None:
        self.trials += 1
        self.violations += not held


@contextmanager
def fault(name: str) -> Iterator[Fault]:
    """Count the trials of a fault, print its line, and fail if a promise was broken."""
    found = Fault(name)
    start = time.monotonic()
    try:
        yield found
    finally:
        seconds = time.monotonic() - start
        _lines.append(f"{name:<64} {found.trials:>5} trials {found.violations:>3} violations {seconds:7.1f} s")
    assert found.trials > 0
    assert found.violations == 0


def trials(full: int, quick: int) -> int:
    return full if FULL else quick


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _lines:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def head() -> CertifiedHead:
    generator = np.random.default_rng(0)
    y = generator.integers(2, size=80)
    X = np.clip(0.2 + 0.5 * np.eye(2)[y] + 0.1 * generator.standard_normal((80, 2)), 0, 1)
    declaration = Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("no", "yes"))
    feature_map = Identity(lower=declaration.lower, upper=declaration.upper, clip_norm=1.0, bias=0.0)
    return train_head(Records(X, y, declaration, ()), Recipe("two", feature_map, 1.0), "two-lineage")


@pytest.fixture(scope="session")
def bundle(head: CertifiedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "two"
    save_bundle(folder, head)
    return folder
