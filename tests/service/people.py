"""A model with a schema that has columns of every kind, and a row of it."""

import numpy as np

from dpserve.training.features.maps import Identity
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
    encode_rows,
)
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

COLUMNS = (
    NumberColumn(name="age", minimum=0, maximum=100, required=True),
    LevelsColumn(name="city", levels=("Oslo", "Lima")),
    BooleanColumn(name="member", required=True),
    TimeColumn(name="since", kind="date", minimum="2000-01-01", maximum="2030-12-31", parts=("time", "month")),
    TextColumn(name="note", buckets=16),
)
ROW = {"age": 39, "city": "Oslo", "member": True, "since": "2011-05-06", "note": "came twice"}


def head_on_columns():
    """A head on columns of every kind."""
    generator = np.random.default_rng(1)
    rows = [ROW | {"age": int(age), "member": bool(age > 50)} for age in generator.integers(100, size=60)]
    return head_on(COLUMNS, rows, np.array([int(row["age"] > 50) for row in rows]))


def head_on(columns, rows, y=None):
    """A head on rows by name. y: their classes, of two; they take turns without it."""
    X, y = encode_rows(columns, rows), np.arange(len(rows)) % 2 if y is None else y
    names, lower, upper = coordinates_of(columns)
    declaration = Declaration(names, lower, upper, ("no", "yes"), columns)
    feature_map = Identity(lower=lower, upper=upper, clip_norm=2.0, bias=0.0, columns=columns)
    return train_head(Records(X, y, declaration, ()), Recipe("people", feature_map, 1.0), "people-lineage")
