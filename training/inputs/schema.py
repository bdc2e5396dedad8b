"""A schema file: what an owner declares about a table's columns without looking at its values.

The format is Frictionless Table Schema (https://datapackage.org/standard/table-schema/) as JSON or as TOML: `fields`
with `name`, `type`, `constraints` (`minimum`, `maximum`, `enum`, `required`, `maxLength`), `categories`,
`missingValues`, `trueValues`, `falseValues`, `decimalChar` and `groupChar` of numbers, and `format` of dates, a pattern
as C's strptime has it; `missingValues` and `fieldsMatch` ("equal" or "subset") for all of them. Four properties of a
field are this project's own, as the standard allows: `unknownLevels` ("refuse" or "coordinate"), `ifMissing` (a value
that a missing one counts as), `parts` of a date, and `text` with `buckets`, `of` ("words" or "characters") and
`lengths`, or with `encoder`, a folder beside the schema, and perhaps `sha256`. Beside the fields the file may have
`TableFacts`. What each type becomes is in `dpserve.training.inputs.columns`.

A schema is public. It goes into the certificate, so nothing in it may be read off the private records.
"""

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dpserve.accounting.faults_in_words import in_words
from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError, TrainingError, WrongOption
from dpserve.training.fields import repeated
from dpserve.training.inputs.column import quoted
from dpserve.training.inputs.columns import (
    BooleanColumn,
    Column,
    Columns,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    TimeColumn,
    coordinates_of,
)
from dpserve.training.inputs.declared import values_by_name
from dpserve.training.inputs.records import Declaration
from dpserve.training.inputs.text_encoder import read_text_encoder
from dpserve.training.options import Options, option

Unlabelled = Literal["refuse", "leave-out"]
"""The treatment of records without a label."""
TYPES = ("number", "integer", "boolean", "string", "date", "datetime")

_TABLE_PROPERTIES = {"fields", "missingValues", "fieldsMatch"}
_FIELD_PROPERTIES = {"name", "type", "constraints", "categories", "missingValues", "trueValues", "falseValues"}
_FIELD_PROPERTIES |= {"unknownLevels", "ifMissing", "parts", "text", "decimalChar", "groupChar", "format"}
_SAID_ONLY = {"$schema", "title", "description", "example", "examples", "rdfType", "categoriesOrdered", "name"}
"""Properties that say something to people, and change nothing here."""
_CONSTRAINTS = {"minimum", "maximum", "enum", "required", "maxLength"}
_DEFAULT_PARTS = {"date": ("time", "month", "weekday"), "datetime": ("time", "month", "weekday", "hour")}
_LEVELS_OF = ("number", "integer", "string")
"""Types whose values may be levels."""


class TableFacts(Options):
    """Public facts about a table beside its columns' types, as a schema's file has them."""

    label: str | None = option(None, "The column of classes.")
    unit: str | None = option(None, "The column that names the person behind each record: no feature.")
    id: str | None = option(None, "A column with a key of each record: no feature.")
    ignore: tuple[str, ...] = option((), "Columns that are left out.")
    lineage: str | None = option(None, "The lineage of the records.")
    n: int | None = option(None, "About how many records there are, or units, as a number that may be public.", ge=1)
    encoding: str | None = option(None, "Of a CSV file, as a Data Resource has it.")

    def among(self, names: Collection[str]) -> dict[str, Any]:
        """Return those of these names that the file states."""
        return {name: getattr(self, name) for name in self.model_fields_set if name in names}


_NO_FACTS = TableFacts()


@dataclass(frozen=True)
class LabelColumn:
    """The column of labels. column: its levels are what classes are called in the table; classes: their names."""

    column: LevelsColumn
    classes: tuple[str, ...]


@dataclass(frozen=True)
class TableSchema:
    """The declared columns of a table, in the schema's order.

    class_names: for each column of levels what its levels are called, if that column is the label. subset: whether the
    table may have other columns, which are left out. missing: texts that stand for none in a column without a field.
    facts: what the file states beside the columns.
    """

    columns: Columns
    class_names: Mapping[str, tuple[str, ...]]
    subset: bool = False
    missing: tuple[str, ...] = ()
    facts: TableFacts = _NO_FACTS

    def split(self, label: str) -> tuple[Columns, LabelColumn]:
        """Return the columns of features, and the label. Raises DataError for a label that is none."""
        label_column = next((column for column in self.columns if column.name == label), None)
        if label_column is None:
            names = ", ".join(column.name for column in self.columns)
            raise DataError(f"the schema has no field {label!r} to be the label; its fields are {names}")
        if isinstance(label_column, BooleanColumn):
            texts = (label_column.false, label_column.true)
            if texts != (BooleanColumn.model_fields["false"].default, BooleanColumn.model_fields["true"].default):
                if len(label_column.false) != 1 or len(label_column.true) != 1:
                    raise DataError(f"the label {label!r} needs one text for true and one for false, or categories")
                levels = (label_column.false[0], label_column.true[0])
            else:
                levels = ("false", "true")
            levels_column = LevelsColumn(name=label, levels=levels, missing=label_column.missing)
            return self._but(label), LabelColumn(levels_column, ("false", "true"))
        if not isinstance(label_column, LevelsColumn) or len(label_column.levels) < 2:
            raise DataError(
                Message("the label {!r} needs its classes: at least two in {enum}, or in {categories}", label)
            )
        return self._but(label), LabelColumn(
            label_column.model_copy(update={"unknown": "refuse"}), self.class_names.get(label, label_column.levels)
        )

    def class_values(self, label: str, classes: Sequence[str]) -> tuple[str, ...]:
        """Return what each of a model's classes is called in the table. Raises DataError for other classes."""
        _, declared = self.split(label)
        return values_by_name(classes, dict(zip(declared.classes, declared.column.levels, strict=True)))

    def _but(self, label: str) -> Columns:
        features = tuple(column for column in self.columns if column.name != label)
        if not features:
            raise DataError("the schema has no field beside the label")
        return features


def declaration_of(schema: TableSchema, label: str) -> Declaration:
    """Return what a schema declares of the records of a table. label: the field of classes. Raises DataError."""
    columns, classes = schema.split(label)
    return Declaration(*coordinates_of(columns), classes.classes, columns)


def schema_of(columns: Columns, label: str, classes: Sequence[str], values: Sequence[str]) -> TableSchema | None:
    """Return the schema of other rows for a model with these columns and classes; None if it has no columns.

    label: their column of classes. values: what each class is called there. A table may have more columns.
    """
    if not columns:
        return None
    levels_column = LevelsColumn(name=label, levels=tuple(values))
    return TableSchema((*columns, levels_column), {label: tuple(classes)}, subset=True)


def _members_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError for a name that comes twice, as TOML does."""
    if (twice := repeated(name for name, _ in members)) is not None:
        raise ValueError(f"the member {quoted(twice)} comes twice")
    return dict(members)


def read_schema(path: Path) -> TableSchema:
    """Read a schema file, .json or .toml. Raises DataError that names all that is wrong in it."""
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() == ".toml":
            content = tomllib.loads(text)
        else:
            content = json.loads(text, object_pairs_hook=_members_once)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        raise DataError(f"{path.name} is not a schema in {kind}: {error}") from error
    return parse_schema(content, path.name, path.parent)


def parse_schema(content: Any, file_name: str = "the schema", folder: Path = Path()) -> TableSchema:
    """Return what a Table Schema descriptor declares. folder: where folders that it names are looked for.

    Raises DataError that names all that is wrong in it.
    """
    if not isinstance(content, dict) or not isinstance(content.get("fields"), list) or not content["fields"]:
        raise DataError(f"{file_name} needs a list of fields, as a Table Schema has it")
    match = content.get("fieldsMatch", "equal")
    match = match[0] if isinstance(match, list) and len(match) == 1 else match
    problems: list[str] = list(_problems_of_table(content, match))
    facts = _NO_FACTS
    try:
        facts = TableFacts(**{name: content[name] for name in TableFacts.model_fields if name in content})
    except WrongOption as error:
        problems.append(f"{error.field} {error.explanation}")
    columns: list[Any] = []
    earlier: set[str] = set()
    class_names: dict[str, tuple[str, ...]] = {}
    for index, field in enumerate(content["fields"]):
        reading = _Field(field, index, content.get("missingValues", [""]), folder)
        column = reading.column()
        problems += reading.problems
        if column is None:
            continue
        if column.name in earlier:
            problems.append(f"field {column.name!r} is there twice")
        earlier.add(column.name)
        columns.append(column)
        if reading.class_names:
            class_names[column.name] = reading.class_names
    if not problems:
        names = [name for column in columns for name, _, _ in column.coordinates]
        if (twice := repeated(names)) is not None:
            problems.append(f"two columns have a coordinate {twice!r}: rename one of them")
    if problems:
        raise DataError(Message("\n - ").join([f"{file_name} cannot be used:", *problems]))
    missing = _as_texts(content.get("missingValues", [""])) or ()
    return TableSchema(tuple(columns), class_names, match == "subset", missing, facts)


def facts_of(source: Any) -> TableFacts:
    """Return what a schema states beside its columns: a file or its content.

    Of one that cannot be read that is nothing: whoever reads its columns says what is wrong.
    """
    with suppress(DataError):
        if isinstance(source, str | Path):
            return read_schema(Path(source)).facts
        if isinstance(source, Mapping) and "fields" in source:
            return parse_schema(source).facts
    return _NO_FACTS


def _problems_of_table(content: Mapping[str, Any], match: object) -> Iterator[str]:
    """Yield what is wrong with the properties of a descriptor beside its fields."""
    for name in content.keys() - _TABLE_PROPERTIES - _SAID_ONLY - TableFacts.model_fields.keys():
        yield f"the property {name!r} is not known here: leave it out"
    if match not in ("equal", "subset"):
        yield f'fieldsMatch must be "equal" or "subset", not {match!r}'
    encoding = content.get("encoding")
    if encoding is not None and not is_encoding(encoding):
        yield f"the encoding {encoding!r} is not known: take utf-8, windows-1252 or latin-1, for example"


class _Field:
    """One field of a descriptor on its way to a column; collects what is wrong with it."""

    def __init__(self, field: Any, index: int, missing: Any, folder: Path) -> None:
        """field: as the file has it. missing: the table's `missingValues`. folder: that of its encoders' folders."""
        self._folder = folder
        self._field = field if isinstance(field, dict) else {}
        self._name = self._field.get("name")
        self._where = f"field {self._name!r}" if isinstance(self._name, str) else f"field number {index + 1}"
        self._missing = missing
        self.problems: list[str] = []
        self.class_names: tuple[str, ...] = ()

    def column(self) -> Column | None:
        """Return the column, or None if something is wrong."""
        field = self._field
        if not isinstance(self._name, str) or not self._name:
            self._wrong("needs a name")
            return None
        for name in sorted(field.keys() - _FIELD_PROPERTIES - _SAID_ONLY):
            self._wrong(f"the property {name!r} is not known here: leave it out")
        constraints = field.get("constraints") or {}
        if not isinstance(constraints, dict):
            self._wrong("constraints must be an object")
            return None
        for name in sorted(constraints.keys() - _CONSTRAINTS):
            self._wrong(f"the constraint {name!r} is not checked here: leave it out")
        type_ = field.get("type")
        if type_ not in TYPES:
            self._wrong(
                f"needs a type, one of {', '.join(TYPES)}"
                if type_ is None
                else f"the type {type_!r} has no encoding: take one of {', '.join(TYPES)}; or leave the field out, and "
                'set fieldsMatch to "subset"'
            )
            return None
        common = {
            "name": self._name,
            "required": self._boolean(constraints.get("required", False)),
            "missing": self._texts("missingValues", field.get("missingValues", self._missing)),
        }
        if (value := field.get("ifMissing")) is not None:  # TOML has dates
            common["if_missing"] = value if isinstance(value, str | int | float) else str(value)
        made = self._made(type_, constraints, common)
        return None if self.problems else made

    def _made(self, type_: str, constraints: Mapping[str, Any], common: dict[str, Any]) -> Column | None:
        field = self._field
        levels = self._levels(type_, constraints)
        self._check_belongings(type_, levels, constraints)
        if levels is not None:
            for name in ("minimum", "maximum"):
                self._belongs(name, False, "a field without enum or categories", constraints)
            return self._validated(LevelsColumn, common | {"levels": levels} | self._given(unknown="unknownLevels"))
        if type_ == "boolean":
            return self._validated(BooleanColumn, common | self._given(true="trueValues", false="falseValues"))
        if type_ == "string":
            if "text" not in field:
                self._wrong(
                    Message(
                        'needs constraints.enum with its levels, or "text": {{}} where it is free text. A '
                        "name or key of each record or person is no feature: take its field out, and name "
                        "the column with {unit}, {id} or {ignore}"
                    )
                )
                return None
            return self._text(constraints, common)
        bounds = {name: constraints.get(name) for name in ("minimum", "maximum")}
        lacking = [f"constraints.{name}" for name, value in bounds.items() if value is None]
        if lacking:
            self._wrong(f"needs {' and '.join(lacking)}: public bounds, which must not be read off the records")
            return None
        if type_ in _DEFAULT_PARTS:
            texts = {name: value if isinstance(value, str) else str(value) for name, value in bounds.items()}
            parts = {"parts": field.get("parts", _DEFAULT_PARTS[type_])}
            if field.get("format", "default") != "default":
                parts["pattern"] = field["format"]
            return self._validated(TimeColumn, common | texts | parts | {"kind": type_})
        signs = self._given(decimal="decimalChar", group="groupChar")
        return self._validated(NumberColumn, common | bounds | signs | {"kind": type_})

    def _text(self, constraints: Mapping[str, Any], common: dict[str, Any]) -> Column | None:
        """Return the column of free text, with what was read of its encoder; None if something is wrong."""
        text = self._field["text"]
        if not isinstance(text, dict) or text.keys() - {"buckets", "of", "lengths", "encoder", "sha256"}:
            self._wrong(
                "text is an object with buckets, of and lengths, each of which may be left out, or with encoder, and "
                "perhaps its sha256"
            )
            return None
        given = {name: value for name, value in text.items() if name not in ("encoder", "sha256")}
        named, sha256 = text.get("encoder"), text.get("sha256")
        if named is not None or sha256 is not None:
            if not isinstance(named, str) or not named.strip() or not isinstance(sha256, str | None):
                self._wrong("text needs the folder of its encoder as a text, and so its sha256")
                return None
            try:
                given["encoder"] = read_text_encoder(self._folder / named, sha256).encoding
            except TrainingError as error:
                self._wrong(f"text: {error}")
                return None
        longest = {"longest": constraints["maxLength"]} if "maxLength" in constraints else {}
        return self._validated(TextColumn, common | given | longest)

    def _check_belongings(self, type_: str, levels: object, constraints: Mapping[str, Any]) -> None:
        """Note properties that stand in a field of another type."""
        self._belongs("unknownLevels", levels is not None, "a field with enum or categories")
        self._belongs("parts", type_ in _DEFAULT_PARTS, "a date or a datetime")
        self._belongs("text", type_ == "string" and levels is None, "a string without enum or categories")
        self._belongs("maxLength", "text" in self._field, 'free text, with "text": {}', constraints)
        self._belongs("trueValues", type_ == "boolean", "a boolean")
        self._belongs("falseValues", type_ == "boolean", "a boolean")
        for name in ("decimalChar", "groupChar"):
            fits = type_ in ("number", "integer") and levels is None
            self._belongs(name, fits, "a number without enum or categories")
        if self._field.get("format", "default") != "default" and type_ not in _DEFAULT_PARTS:
            self._wrong("a format belongs to a date or a datetime")

    def _levels(self, type_: str, constraints: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Return the declared levels as texts; None if none are declared."""
        declared = [
            (name, values)
            for name, values in (("enum", constraints.get("enum")), ("categories", self._field.get("categories")))
            if values is not None
        ]
        if not declared:
            return None
        name, values = declared[0]
        if len(declared) > 1 or type_ not in _LEVELS_OF:
            why = "take one of them" if len(declared) > 1 else f"leave it out of a {type_}"
            self._wrong(f"{' and '.join(name for name, _ in declared)}: {why}")
            return None
        if not isinstance(values, list) or not values:
            self._wrong(f"{name} must list the levels")
            return None
        if name == "categories" and all(isinstance(value, dict) and "value" in value for value in values):
            self.class_names = tuple(str(value.get("label", value["value"])) for value in values)
            values = [value["value"] for value in values]
        if not all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values):
            self._wrong(f"{name} must list texts or numbers")
            return None
        if self.class_names and len(set(self.class_names)) < len(self.class_names):
            self._wrong("two categories have one label")
        return tuple(str(value).strip() for value in values)

    def _given(self, **properties: str) -> dict[str, Any]:
        return {ours: self._field[theirs] for ours, theirs in properties.items() if theirs in self._field}

    def _belongs(self, name: str, fits: bool, to: str, properties: Mapping[str, Any] | None = None) -> None:
        if not fits and (self._field if properties is None else properties).get(name) is not None:
            self._wrong(f"{name} belongs to {to}")

    def _boolean(self, value: Any) -> bool:
        if not isinstance(value, bool):
            self._wrong("constraints.required is true or false")
        return value is True

    def _texts(self, name: str, values: Any) -> tuple[str, ...]:
        texts = _as_texts(values)
        if texts is None:
            self._wrong(f"{name} must be a list of texts")
        return texts or ()

    def _validated(self, kind: type[Column], fields: dict[str, Any]) -> Column | None:
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            for each in error.errors():
                where = ".".join(map(str, each["loc"]))
                self._wrong(f"{where} {in_words(each)}" if where and each["type"] != "value_error" else in_words(each))
            return None

    def _wrong(self, what: str) -> None:
        self.problems.append(Message("{}: {}", self._where, what))


def is_encoding(name: object) -> bool:
    """Tell whether this names an encoding of text that Python knows."""
    try:
        "".encode(name)  # type: ignore[arg-type]
    except (LookupError, TypeError, ValueError):
        return False
    return True


def _as_texts(values: Any) -> tuple[str, ...] | None:
    """Return texts, or the values of objects, without the spaces around them; None of anything else."""
    if isinstance(values, list):
        texts = [value.get("value") if isinstance(value, dict) else value for value in values]
        if all(isinstance(value, str) for value in texts):
            return tuple(str(value).strip() for value in texts)
    return None
