"""Canaries that an auditor adds to a table: real rows with labels drawn at random, half of them trained on, by coins.

A record that fits badly moves a model most (Carlini et al., "The secret sharer", 2019), and an auditor who may add
records attacks these alone, with all others for shadow models. Canaries are alike but for their coins, so that whoever
was trained on and whoever was not are of one distribution, as every verdict of an attack assumes. The other sort of
canary, with coordinates of its own, is `dpserve.training.pay_once.canaries`.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from dpserve.training.errors import DataError
from dpserve.training.inputs.tables import Table

_FEWEST = 2


@dataclass(frozen=True, eq=False)
class CanaryTables:
    """A table's rows in four tables with its columns, and how they are written.

    training: what to train on, in an order drawn at random: a share of the rows that are no canaries, and the canaries
    that coins put in. members: these canaries; others: those that coins left out. population: all rows that are no
    canaries.
    """

    training: pa.Table
    members: pa.Table
    others: pa.Table
    population: pa.Table
    delimiter: str | None

    @property
    def shadow_records(self) -> int:
        """The size of shadow models that these rows allow: as many as are trained on, if there are as many again."""
        everybody = len(self.members) + len(self.others) + len(self.population)
        return min(len(self.training), everybody // 2)

    @property
    def ending(self) -> str:
        """The end of the files' names: CSV's where the table was text, and else Parquet's."""
        return ".parquet" if self.delimiter is None else ".csv"

    def files(self, encoding: str | None) -> dict[str, bytes]:
        """Return each table's file. encoding: of CSV, None for UTF-8. Raises DataError for what it cannot hold."""
        parts = {
            "training": self.training,
            "members": self.members,
            "non-members": self.others,
            "population": self.population,
        }
        return {f"{name}{self.ending}": self._content(rows, encoding) for name, rows in parts.items()}

    def _content(self, rows: pa.Table, encoding: str | None) -> bytes:
        written = io.BytesIO()
        if self.delimiter is None:
            pa_parquet.write_table(rows, written)
            return written.getvalue()
        pa_csv.write_csv(rows, written, pa_csv.WriteOptions(delimiter=self.delimiter, quoting_style="needed"))
        if encoding is None:
            return written.getvalue()
        try:
            return written.getvalue().decode().encode(encoding)
        except UnicodeEncodeError as error:
            raise DataError(f"{error.object[error.start : error.end]!r} cannot be written as {encoding}") from None


def with_canaries(
    table: Table,
    count: int,
    rng: np.random.Generator,
    *,
    label: str,
    classes: Sequence[str] | None = None,
    unit: str | None = None,
    share: float = 0.5,
) -> CanaryTables:
    """Return the table's rows with `count` of them, drawn at random, made canaries.

    A canary keeps its features; its label is drawn evenly from the classes, by default those in the table: what comes
    of it is for the auditor's eyes. A fair coin for each says whether it is trained on. share: of the other rows, those
    to train on, drawn at random; shadow models as large need as many rows again. unit: the column of privacy units:
    each canary becomes a unit of its own, with a name that no other has. Raises DataError where the table has no such
    column, or rows too few to leave one that is no canary, or coins put all on one side.
    """
    for column in (label, *([] if unit is None else [unit])):
        if column not in table.names:
            raise DataError(f"{table.name} has no column {column!r}: it has {', '.join(table.names[:8])}")
    batches = [batch.data for batch, _ in table.batches()]
    rows = pa.Table.from_batches(batches).unify_dictionaries() if batches else pa.table({})
    if not _FEWEST <= count < len(rows):
        raise DataError(
            f"{table.name} has {len(rows)} rows, and {count} canaries were to be taken of them: take at least "
            f"{_FEWEST}, and fewer than there are rows"
        )
    order = rng.permutation(len(rows))
    canaries, population = rows.take(order[:count]), rows.take(np.sort(order[count:]))
    canaries = _replaced(canaries, label, _labels(rows[label], count, rng, classes))
    if unit is not None:
        canaries = _replaced(canaries, unit, _new_names(rows[unit], count))
    inside = rng.random(count) < 0.5
    if inside.all() or not inside.any():
        raise DataError(f"the coins of {count} canaries fell all on one side: take more canaries, or another seed")
    members, others = canaries.filter(pa.array(inside)), canaries.filter(pa.array(~inside))
    ordinary = population.take(np.sort(rng.permutation(len(population))[: round(share * len(population))]))
    together = pa.concat_tables([ordinary, members])
    delimiter = "," if table.types[0] is None and table.delimiter is None else table.delimiter
    return CanaryTables(together.take(rng.permutation(len(together))), members, others, population, delimiter)


def _labels(column: pa.ChunkedArray, count: int, rng: np.random.Generator, classes: Sequence[str] | None) -> pa.Array:
    present = pc.unique(column).drop_null()
    values_by_name = {str(value): value for value in present.to_pylist() if str(value) != ""}
    drawn_from = sorted(values_by_name) if classes is None else list(classes)
    if len(set(drawn_from)) < max(2, len(drawn_from)):
        raise DataError(f"labels are drawn from two classes or more, each named once, not from {', '.join(drawn_from)}")
    chosen: NDArray[np.int64] = rng.integers(len(drawn_from), size=count)
    values = [values_by_name.get(drawn_from[index], drawn_from[index]) for index in chosen]
    return _of_type(values, column, "classes")


def _new_names(column: pa.ChunkedArray, count: int) -> pa.Array:
    """Return as many names as no row has, numbers where the units have numbers."""
    value = pc.unique(column).drop_null()
    if pa.types.is_integer(column.type):
        largest = pc.max(value).as_py() or 0
        return _of_type([largest + 1 + index for index in range(count)], column, "units")
    taken = {str(name) for name in value.to_pylist()}
    free = (name for index in range(count + len(taken)) if (name := f"canary-{index}") not in taken)
    return _of_type([next(free) for _ in range(count)], column, "units")


def _of_type(values: list[object], column: pa.ChunkedArray, what: str) -> pa.Array:
    try:
        return pa.array(values, type=column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise DataError(f"the {what} of canaries cannot be written as {column.type}: {error}") from None


def _replaced(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)
