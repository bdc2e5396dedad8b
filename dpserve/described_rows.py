"""Rows of a table as a `Schema` describes them in Python."""

from collections.abc import Mapping
from typing import Any

from dpserve.frames import names_of
from dpserve.labels import classes_of, schema_with_label
from dpserve.training.errors import DataError, WrongValue
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import Missing
from dpserve.training.inputs.declared import Bounds
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.reading import RowsForm, TableRows
from dpserve.training.inputs.records import OnRows, Records
from dpserve.training.inputs.schema import TableSchema


def rows_form(described: Schema, label: str) -> RowsForm:
    """Return the form of a table. label: its column of classes."""
    return RowsForm(**dict({name: getattr(described, name) for name in TableRows.model_fields}, label=label))


def read_described(
    described: Schema,
    table: Any,
    label: str,
    schema: TableSchema | None,
    classes: Any,
    *,
    blocks: BlockDeclaration | None = None,
    progress: OnRows = lambda _, __: None,
) -> Records:
    """Return the records of a table. schema: with the label; None where bounds and classes declare all.

    Raises TrainingError.
    """
    named = isinstance(classes, Mapping)
    return rows_form(described, label).read(
        table,
        classes=tuple(map(str, (classes.values() if named else classes) if schema is None else ())),
        values=tuple(map(str, classes if schema is None else ())),
        bounds=bounds_of(described.bounds),
        clip=described.clip,
        schema=schema,
        unit=described.unit,
        missing=missing_of(described.missing),
        blocks=blocks,
        progress=progress,
    )


def bounds_of(declared: Any) -> Bounds:
    """Return declared bounds by column, under None those of every other. Raises WrongValue."""
    if declared is None:
        return {}
    pairs = declared.items() if isinstance(declared, Mapping) else [(None, declared)]
    try:
        return {name: (float(low), float(high)) for name, (low, high) in pairs}
    except (TypeError, ValueError):
        raise WrongValue("bounds", "must be (LOW, HIGH) or {COLUMN: (LOW, HIGH)}", value=declared) from None


def missing_of(declared: Any) -> Missing:
    """Return what missing values become by column, under None those of every other."""
    if declared is None:
        return {}
    return dict(declared) if isinstance(declared, Mapping) else {None: declared}


def public_records(described: Schema, rows: Any) -> Records:
    """Return public rows, a table with the column of classes, as a schema describes them. Raises DataError."""
    import pyarrow as pa

    if (names := names_of(rows)) is None or described.label not in names:
        raise DataError(f"public rows are a data frame or a table with the column of classes {described.label!r}")
    table = pa.RecordBatchReader.from_stream(rows).read_all()
    type_ = table.schema.field(described.label).type
    schema = described.table
    if schema is not None:
        schema = schema_with_label(schema, described.label, described.classes, type_)
    classes = described.classes if schema is not None else classes_of(described.classes, type_)
    beside = [name for name in (described.unit, described.id) if name in names]
    form = described.replaced(unit=None, id=None, ignore=(*described.ignore, *beside))
    return read_described(form, table, described.label, schema, classes)
