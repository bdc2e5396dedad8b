from contextlib import contextmanager

import numpy as np
import pytest

from dpserve.accounting.messages import spelled
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head


def make_records(seed: int = 0, n: int = 60, features: int = 4, classes: int = 3) -> Records:
    generator = np.random.default_rng(seed)
    declaration = Declaration(
        tuple(f"x{index}" for index in range(features)),
        (0.0,) * features,
        (1.0,) * features,
        tuple(str(label) for label in range(classes)),
    )
    X = generator.uniform(size=(n, features))
    y = generator.integers(classes, size=n)
    source = tuple(row.tobytes() + bytes([label]) for row, label in zip(X, y, strict=True))
    return Records(X, y, declaration, source)


def options_in(said: BaseException | str) -> list[tuple[str, str]]:
    """Return the options that a message names, each with the form of its value."""
    named: list[tuple[str, str]] = []
    spelled(said, lambda name, form: named.append((name, form)) or "")
    return named


def identity(records: Records, bias: float = 0.0) -> Identity:
    """The columns themselves, within the declared bounds."""
    return Identity(lower=records.declaration.lower, upper=records.declaration.upper, clip_norm=1.0, bias=bias)


@pytest.fixture
def records() -> Records:
    return make_records()


@pytest.fixture
def head(records: Records) -> CertifiedHead:
    return train_head(records, Recipe("small", identity(records, bias=0.25), 1.0), "lineage-of-tests")


class Silent:
    """Shows no progress."""

    @contextmanager
    def minimising(self, goal):
        yield lambda reached: None

    @contextmanager
    def steps_with_progress(self, steps):
        yield lambda done: None
