"""A table of records as its owner describes it in Python: which columns it has, and what is public of each.

    Schema(
        label="outcome",
        classes=["well", "ill"],
        id="pid",
        columns={"age": Number(0, 120), "ward": Levels("A", "B"), "seen": Date("2020-01-01", "2030-12-31")},
    )

A Table Schema in a file says the same, and is made of these: there is one way to read either.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, InstanceOf

from dpserve.training.errors import WrongOption, WrongValue
from dpserve.training.inputs.reading import TableRows
from dpserve.training.inputs.schema import TableSchema, facts_of, parse_schema, read_schema
from dpserve.training.options import Options, option

Day = Annotated[str, BeforeValidator(lambda given: given.isoformat() if isinstance(given, date) else given)]


def _day(name: str, text: str) -> datetime:
    """Return a day, or a time of one, as ISO 8601 has it. Raises WrongOption for another text."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError as error:
        raise WrongValue(name, "must be a date, as 2020-01-31", value=text) from error


class ColumnType(Options):
    """The public description of a column."""

    type: ClassVar[str]

    missing: float | str | None = option(
        None,
        "The public value that a missing one counts as, or 'level' for a level of its own; missing values are refused "
        "without it.",
        default_text="none, missing values are refused",
    )
    missing_texts: tuple[str, ...] = option(("",), "The texts that stand for a missing value.")

    def field(self, name: str) -> dict[str, Any]:
        """Return the field of a Table Schema."""
        made = {"name": name, "type": self.type, "constraints": self._constraints()} | self._properties()
        if self.missing is None:
            made["constraints"]["required"] = True
        elif self.missing != "level":
            made["ifMissing"] = self.missing
        return made | {"missingValues": list(self.missing_texts)}

    def _constraints(self) -> dict[str, Any]:
        return {}

    def _properties(self) -> dict[str, Any]:
        return {}


class Number(ColumnType):
    """A number within public bounds, which must not be read off the records."""

    type: ClassVar[str] = "number"

    minimum: float = option(..., "The lowest value.")
    maximum: float = option(..., "The highest value.")
    decimal: str = option(".", "The sign before the fraction, in texts.")
    group: str = option("", "The sign between thousands, in texts.")

    def __init__(self, minimum: float, maximum: float, **more: Any) -> None:
        """Take the bounds first. Raises WrongOption."""
        Options.__init__(self, minimum=minimum, maximum=maximum, **more)
        if not self.minimum < self.maximum:
            raise WrongValue("maximum", f"must be above the minimum, {self.minimum:g}", value=self.maximum)

    def _constraints(self) -> dict[str, Any]:
        return {"minimum": self.minimum, "maximum": self.maximum}

    def _properties(self) -> dict[str, Any]:
        signs = {"decimalChar": self.decimal, "groupChar": self.group}
        return {name: sign for name, sign in signs.items() if sign != (".", "")[name == "groupChar"]}


class Integer(Number):
    """A whole number within public bounds."""

    type: ClassVar[str] = "integer"


class Boolean(ColumnType):
    """True or false."""

    type: ClassVar[str] = "boolean"

    true: tuple[str, ...] = option(("true", "True", "TRUE", "1"), "The texts for true.")
    false: tuple[str, ...] = option(("false", "False", "FALSE", "0"), "The texts for false.")

    def _properties(self) -> dict[str, Any]:
        return {"trueValues": list(self.true), "falseValues": list(self.false)}


class Levels(ColumnType):
    """One of several levels, which are public."""

    type: ClassVar[str] = "string"

    levels: tuple[str | int | float, ...] = option(..., "The levels.")
    unknown: Literal["refuse", "coordinate"] = option(
        "refuse", "What becomes of any other value: refuse it, or give all of them a coordinate."
    )

    def __init__(self, *levels: str | float | Sequence[str | float], **more: Any) -> None:
        """Take the levels first, one by one or in a list. Raises WrongOption."""
        several = levels[0] if len(levels) == 1 and isinstance(levels[0], list | tuple) else levels
        Options.__init__(self, **({"levels": several} if levels else {}) | more)
        if len({str(level) for level in self.levels}) < len(self.levels):
            raise WrongValue("levels", "must be named once each", value=self.levels)

    def _constraints(self) -> dict[str, Any]:
        return {"enum": [str(level) for level in self.levels]}

    def _properties(self) -> dict[str, Any]:
        return {"unknownLevels": self.unknown}


class Date(ColumnType):
    """A date between two public ones."""

    type: ClassVar[str] = "date"

    minimum: Day = option(..., "The earliest, as 2020-01-01.")
    maximum: Day = option(..., "The latest.")
    parts: tuple[str, ...] | None = option(
        None, "Its parts that a model sees, as time, month, weekday, hour.", default_text="all"
    )
    pattern: str | None = option(None, "The pattern of its texts, as %d.%m.%Y.", default_text="2026-01-31")

    def __init__(self, minimum: str | date, maximum: str | date, **more: Any) -> None:
        """Take the earliest and the latest first. Raises WrongOption."""
        Options.__init__(self, minimum=minimum, maximum=maximum, **more)
        days = {name: _day(name, getattr(self, name)) for name in ("minimum", "maximum")}
        if not days["minimum"] < days["maximum"]:
            raise WrongValue("maximum", f"must be after {self.minimum}", value=self.maximum)

    def _constraints(self) -> dict[str, Any]:
        return {"minimum": self.minimum, "maximum": self.maximum}

    def _properties(self) -> dict[str, Any]:
        parts = {} if self.parts is None else {"parts": list(self.parts)}
        return parts | ({} if self.pattern is None else {"format": self.pattern})


class Datetime(Date):
    """A date with a time of day between two public ones."""

    type: ClassVar[str] = "datetime"


class Text(ColumnType):
    """Free text, by hashed words or characters, or by a public encoder."""

    type: ClassVar[str] = "string"

    buckets: int | None = option(None, "The number of buckets that words are hashed to.", default_text="1024")
    of: Literal["words", "characters"] | None = option(None, "The parts that are hashed.", default_text="words")
    lengths: tuple[int, int] | None = option(None, "The fewest and the most parts in a row.", default_text="1, 2")
    longest: int | None = option(None, "The most characters.", default_text="100000")
    encoder: Path | None = option(None, "The folder of a public encoder of texts, in place of buckets.")
    sha256: str | None = option(None, "The digest of the encoder.", default_text="none, that of its files")

    def _constraints(self) -> dict[str, Any]:
        return {} if self.longest is None else {"maxLength": self.longest}

    def _properties(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("buckets", "of", "lengths", "sha256")}
        given["encoder"] = None if self.encoder is None else str(self.encoder)
        return {"text": {name: value for name, value in given.items() if value is not None}}


class Schema(TableRows):
    """A table of records: its columns and classes, what identifies a record, and how values are read. All of it is
    public, and nothing is read off the records."""

    columns: Mapping[str, InstanceOf[ColumnType]] | Mapping[str, Any] | Path | str | None = option(
        None, "The columns, {NAME: Number(0, 120)}; or a Table Schema: a file, or its content."
    )
    bounds: Any = option(
        None,
        "In place of columns, where all of them are numbers: the lowest and the highest value of every column, in its "
        "own units, or {COLUMN: (LOW, HIGH)}.",
    )
    classes: Any = option(
        None,
        "The names of the classes, or {VALUE: NAME}. Not where the columns describe the label, or it is a boolean.",
    )
    unit: str | None = option(
        None, "The column that identifies the person behind each record: all records of one are protected together."
    )
    missing: Any = option(
        None,
        "The public value that a missing one counts as, within the bounds, or 'level' for a level of its own; of every "
        "column, or {COLUMN: VALUE}.",
    )
    clip: bool = option(False, "Clip values beyond the bounds instead of refusing them, in training and in answers.")

    def __init__(self, **given: Any) -> None:
        """Take the fields; what a schema's file states beside its columns stands for those that are not given.

        Raises WrongOption, also for classes that contradict themselves.
        """
        super().__init__(**facts_of(given.get("columns")).among(type(self).model_fields) | given)
        if not isinstance(self.classes, Mapping | list | tuple):
            return
        names = [str(name) for name in (self.classes.values() if isinstance(self.classes, Mapping) else self.classes)]
        if len(names) < 2 or len(set(names)) < len(names):
            raise WrongValue("classes", "must be two at least, each named once", value=self.classes)

    @property
    def table(self) -> TableSchema | None:
        """The columns as a Table Schema declares them; None where bounds do. Raises DataError."""
        if self.columns is None:
            return None
        if self.bounds is not None:
            raise WrongOption("bounds", "is for a table without a description of its columns: leave one of them out")
        if isinstance(self.columns, Path | str):
            return read_schema(Path(self.columns))
        fields = [
            column.field(name) if isinstance(column, ColumnType) else None for name, column in self.columns.items()
        ]
        content = self.columns if None in fields else {"fields": fields}
        return parse_schema(content)
