from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dpserve.accounting.messages import spelled
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.registry import kind_named
from dpserve.training.options import Options


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


def terms(kind: str | None, given: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Return a kind's options, and the price and the number of records that are beside them.

    kind: its name; None for a head. given: all of them by name, the price in picorho or in words.
    """
    more: dict[str, Any] = {name: given[name] for name in ("price", "n") if name in given}
    if isinstance(more.get("price"), str):
        more["price"] = whole_picorho(more["price"])
    own = {name: value for name, value in given.items() if name not in more}
    return kind_named(kind or "head").options(**own), more


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
