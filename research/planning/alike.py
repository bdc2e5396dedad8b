"""Options that are one and the same on a table: of one kind, with equal settings, and equal features of every row.

Where no number is cut at quantiles that were bought, cuts are public, and where a table has no numbers at all, cuts,
bins and unit rows are one map. Such options differ in their noise alone, so that the least of their figures is chance,
and the mean over all their seeds says more.
"""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from accounting.arrays import Floats
from research.data.tables import Table
from training.features.maps import FeatureMap, Quantiles
from training.features.rules import feature_map
from training.kinds.class_sums.model import unit
from training.planning.options import option_named

ALIKE = Path(__file__).with_name("alike.csv")
_HEADER = ("set", "option", "as")
_ROWS = 1_000

Alike = Mapping[tuple[str, str], str]
"""The first option that is the same, for a table and an option; nothing for one that is like none before it."""


def alike_options(table: Table, names: Iterable[str]) -> Mapping[str, str]:
    """Return the first option that is the same on a table, for each of these names that is like one before it."""
    declaration, rows = table.declared(), table.X[:_ROWS]
    known: list[tuple[str, FeatureMap]] = []
    found = {}
    for name in names:
        option = option_named(name)
        chosen = feature_map(option.features, declaration)
        if option.features == "quantiles" and isinstance(chosen, Quantiles) and chosen.counted:
            continue
        first = next(
            (other for other, map_ in known if _same_kind(other, name) and _same_rows(chosen, map_, rows)), None
        )
        if first is None:
            known.append((name, chosen))
        else:
            found[name] = first
    return found


def _same_kind(one: str, other: str) -> bool:
    first, second = option_named(one), option_named(other)
    return (first.release, first.pays, dict(first.settings)) == (second.release, second.pays, dict(second.settings))


def _same_rows(one: FeatureMap, other: FeatureMap, rows: Floats) -> bool:
    first, second = (unit(each(rows, each.public_tensors())) for each in (one, other))
    return first.shape == second.shape and np.allclose(first, second, atol=1e-6)


def write_alike(found: Mapping[str, Mapping[str, str]], path: Path) -> None:
    """Write what `alike_options` found of each table, a line for each option."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        writer.writerows((name, option, first) for name, each in found.items() for option, first in each.items())


def read_alike(path: Path) -> Alike:
    """Read it."""
    with path.open(newline="", encoding="utf-8") as file:
        return {(row["set"], row["option"]): row["as"] for row in csv.DictReader(file)}
