"""Rows of a table as a `Schema` describes them in Python."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

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


class Target(NamedTuple):
    """The declaration of the classes. schema: with the label; None where bounds and classes declare all. classes: the
    names, or {value: name}; None where the schema says them."""

    schema: TableSchema | None
    classes: Any

    @classmethod
    def of(cls, described: Schema, label: str, type_: Any) -> Self:
        """Return what is declared of a label. type_: Arrow's. Raises ValueError where that is too little."""
        schema = described.table
        if schema is not None:
            target = cls(schema_with_label(schema, label, described.classes, type_), described.classes)
        else:
            target = cls(None, classes_of(described.classes, type_))
        target._check(described)
        return target

    def levels(self, label: str) -> list[str]:
        """Return what each class is called in the table, in the certificate's order."""
        return [*map(str, self.classes)] if self.schema is None else [*self.schema.split(label)[1].column.levels]

    def _check(self, described: Schema) -> None:
        if self.schema is None and (self.classes is None or described.bounds is None):
            lacking = {"columns={COLUMN: Number(LOW, HIGH)}": described.bounds, "classes=[NAME, ...]": self.classes}
            asked = ", ".join(option for option, value in lacking.items() if value is None)
            raise ValueError(
                f"declare what is public about the records: Schema({asked}). It is never read off the records, which "
                "would say something about single ones"
            )
        if self.classes is not None and (isinstance(self.classes, str) or not isinstance(self.classes, Iterable)):
            raise WrongValue("classes", "must be several values", value=self.classes)


def read_described(
    described: Schema,
    table: Any,
    label: str,
    target: Target,
    *,
    blocks: BlockDeclaration | None = None,
    progress: OnRows = lambda _, __: None,
) -> Records:
    """Return the records of a table. Raises TrainingError."""
    classes = target.classes if target.schema is None else ()
    names = classes.values() if isinstance(classes, Mapping) else classes
    return rows_form(described, label).read(
        table,
        classes=tuple(map(str, names)),
        values=tuple(map(str, classes)),
        bounds=bounds_of(described.bounds),
        clip=described.clip,
        schema=target.schema,
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
    target = Target.of(described, described.label, table.schema.field(described.label).type)
    beside = [name for name in (described.unit, described.id) if name in names]
    form = described.replaced(unit=None, id=None, ignore=(*described.ignore, *beside))
    return read_described(form, table, described.label, target)
