"""The options that declare a table's columns and classes, one by one or by a schema's file."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpserve.commands.tables import SCHEMA, FileOptions, schema_alone
from dpserve.training.errors import DataError, TrainingError, WrongOption, WrongValue
from dpserve.training.inputs.column_words import column_in_words, levels_in_words
from dpserve.training.inputs.columns import LevelsColumn
from dpserve.training.inputs.declared import parse_bounds, parse_classes
from dpserve.training.inputs.described import ColumnType, Date, Levels, Number, Text
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.reading import LabelledRows
from dpserve.training.inputs.schema import TableSchema, facts_of, parse_schema
from dpserve.training.inputs.undeclared import undeclared
from dpserve.training.options import option

WITHOUT_SCHEMA = "A table without a schema"


class ColumnOptions(LabelledRows):
    """A table's columns and classes, declared one by one."""

    unit: str | None = option(
        None,
        "Of a table: the column that names whose each record is. All records of one are then protected together. Not "
        "with --objective convexified. --n then counts people.",
        panel="Who is protected",
    )
    classes: str | None = option(
        None, "The class names, separated by commas, or VALUE=NAME of each.", panel=WITHOUT_SCHEMA
    )
    bounds: tuple[str, ...] = option(
        (),
        "LOW:HIGH for every number, COLUMN=LOW:HIGH for one; public, not read off the records.",
        panel=WITHOUT_SCHEMA,
    )
    levels: tuple[str, ...] = option(
        (), "COLUMN=A,B: a column of levels, which are public.", form="COLUMN=A,B", panel=WITHOUT_SCHEMA
    )
    dates: tuple[str, ...] = option(
        (),
        "COLUMN=2020-01-01:2030-12-31: a column of dates between two public ones.",
        form="COLUMN=EARLIEST:LATEST",
        panel=WITHOUT_SCHEMA,
    )
    texts: tuple[str, ...] = option((), "COLUMN: a column of free text.", form="COLUMN", panel=WITHOUT_SCHEMA)

    def declared_classes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the declared names of the classes, and what each is called in the records; two empty ones for none."""
        if not self.classes:
            return (), ()
        names, values = parse_classes(self.classes)
        if len(names) < 2:
            raise WrongOption("classes", "must name two at least", value=self.classes)
        return names, values

    def described(self, types: Mapping[str, str | None] | None = None) -> dict[str, ColumnType]:
        """Return the columns that are declared by themselves. types: their storage types. Raises WrongOption."""
        storage = types or {}
        columns: dict[str, ColumnType] = {}
        for flag, expected in (("levels", Levels), ("dates", Date)):
            for text in getattr(self, flag):
                name, words = _named_value(flag, text)
                with _of_flag(flag, text):
                    columns[name] = (
                        levels_in_words(words) if expected is Levels else column_in_words(words, storage.get(name))
                    )
                if not isinstance(columns[name], expected):
                    raise WrongOption(flag, "is written COLUMN=EARLIEST:LATEST", value=text)
        return columns | {name: Text() for name in self.texts}


class Declarations(ColumnOptions, FileOptions):
    """A table's columns and classes, declared one by one or by a schema's file, which takes their place."""

    schema_file: Path | None = SCHEMA(panel="")
    missing: tuple[str, ...] = option(
        (),
        "Of a table: COLUMN=VALUE, a public value that a missing one counts as, or COLUMN=level, a level of its own; "
        "without COLUMN= for every column. Repeatable.",
    )
    clip: bool = option(False, "Clip values beyond the bounds instead of refusing them.")

    def __init__(self, **given: Any) -> None:
        """Take the options; what the schema's file states beside its columns stands for those that were not given."""
        facts = facts_of(given["schema_file"]) if "schema_file" in given else None
        super().__init__(**({} if facts is None else facts.among(type(self).model_fields)) | given)

    @property
    def stated_n(self) -> int | None:
        """The number of records that the schema's file states."""
        return facts_of(self.schema_file).n

    @property
    def is_table(self) -> bool:
        """Whether the records are a table whose columns are declared here, and not by a file."""
        data: str = getattr(self, "data", "")
        return data != DIGITS and not data.lower().endswith(".npz") and self.schema_file is None

    @property
    def no_features(self) -> set[str]:
        """The columns that are no features, as far as they are named."""
        named = {self.label, self.unit, self.id, getattr(self, "block", None), *self.ignore}
        return {name for name in named if name is not None}

    def numbers(self, names: list[str]) -> dict[str, ColumnType]:
        """Return the columns of these names as numbers within the declared bounds. Raises DataError."""
        lower, upper = parse_bounds(self.bounds, names) if names else ((), ())
        numbers: dict[str, ColumnType] = {}
        for name, low, high in zip(names, lower, upper, strict=True):
            if not low < high:
                raise DataError(f"the bounds of feature {name!r} must be finite and in order, not {low:g}:{high:g}")
            more = {} if self.decimal is None else {"decimal": self.decimal}
            numbers[name] = Number(low, high, **more)
        return numbers

    def file_schema(self) -> TableSchema | None:
        """Return the schema of the file, if there is one. Raises WrongOption beside what it takes the place of."""
        given = ("classes", "bounds", "levels", "dates", "texts")
        return schema_alone(self.schema_file, **{name: getattr(self, name) for name in given})

    def column_schema(self, names: Sequence[str]) -> TableSchema | None:
        """Return the schema that is declared column by column; None where all columns are numbers.

        names: of the table's columns. Raises TrainingError.
        """
        described = self.described()
        if not described:
            return None
        features = [name for name in names if name not in self.no_features]
        absent = [name for name in self.ignore if name not in names]
        if unknown := absent + [name for name in described if name not in features]:
            raise DataError(f"there is no column {unknown[0]!r} beside the classes; the columns are {', '.join(names)}")
        columns = self.numbers([name for name in features if name not in described]) | described
        schema = parse_schema({"fields": [columns[name].field(name) for name in features]})
        class_names, called = self.declared_classes()
        if not class_names:
            raise WrongOption("classes", "is needed", remedy="the names of the classes")
        label = LevelsColumn(name=self.label, levels=called)
        return TableSchema((*schema.columns, label), {self.label: class_names})

    def undeclared_of(self, source: str) -> list[TrainingError]:
        """Return what is to be declared of a table, of which this looks at no value. Raises WrongOption, DataError."""
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.tables import open_table

        table = open_table(source, self.encoding, self.sheet)
        columns = dict(zip(table.names, table.types, strict=True))
        bounded = {text.rpartition("=")[0] for text in self.bounds}
        declared = {*columns} if "" in bounded else {*bounded, *self.described()}
        has_classes, left_out = bool(self.classes), self.no_features - {self.label}
        return undeclared(
            columns, label=self.label, has_classes=has_classes, declared=declared, left_out=sorted(left_out)
        )


def _named_value(name: str, text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals or not column or not value:
        raise WrongOption(name, "is written COLUMN=...", value=text)
    return column, value


@contextmanager
def _of_flag(flag: str, text: str) -> Iterator[None]:
    """Say of the flag what is wrong with a field of the column that it describes, which no flag has."""
    try:
        yield
    except (WrongValue, DataError) as error:
        reason = f"{error.field}: {error.requirement}" if isinstance(error, WrongValue) else str(error)
        raise WrongOption(flag, reason, value=text) from error
