"""Files of a table's schema as they are written: JSON, or TOML with comments on what each line declares.

`dpserve.training.inputs.schema` reads them.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from dpserve.training.inputs.columns import MISSING_TEXTS
from dpserve.training.inputs.described import Boolean, ColumnType, Levels
from dpserve.training.inputs.schema import TableFacts

_HEAD = """\
# What is public of {table}: a Table Schema (https://datapackage.org/standard/table-schema/).
# Columns and classes go into the model's certificate. Declare what you know without
# the records: a bound, a level or a class that is read off them tells of a single one.
"""
_FACTS = {
    "label": "the column of classes",
    "unit": "the person behind each record: all records of one are protected together",
    "id": "a key of each record: no feature",
    "ignore": "columns that are left out",
    "lineage": "your name for these records: all models of them share one budget",
    "n": "about how many records (with a unit: people), as a number that may be public",
    "missingValues": "texts that stand for no value: in a column one is a level of its own",
    "encoding": "of the file",
}
_TYPES = {
    "number": "a number between possible values, not the observed ones",
    "integer": "a whole number between possible values, not the observed ones",
    "boolean": "true or false",
    "date": "a date between possible ones, not the observed ones",
    "datetime": "a time between possible ones, not the observed ones",
}
_LEVELS, _TEXT, _CLASSES = "one of these levels", "free text, in hashed words", "the classes"


def schema_content(facts: TableFacts, columns: Mapping[str, ColumnType], classes: Mapping[str, str]) -> dict[str, Any]:
    """Return a Table Schema's descriptor. columns: of features. classes: the name of each by its value in the table.

    Values may be missing everywhere but among the classes.
    """
    fields = [_field(name, column) for name, column in columns.items()]
    constraints: dict[str, Any] = {"required": True}
    label: dict[str, Any] = {"name": facts.label, "type": "string"}
    if all(value == name for value, name in classes.items()):
        constraints["enum"] = list(classes)
    else:
        label["categories"] = [{"value": value, "label": name} for value, name in classes.items()]
    stated = facts.model_dump(exclude_none=True, exclude_defaults=True)
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()},
        "missingValues": [*MISSING_TEXTS],
        "fields": [*fields, label | {"constraints": constraints} | _missing_beside(classes)],
    }


def _field(name: str, column: ColumnType) -> dict[str, Any]:
    """Return a column's field, without what follows for the whole table, or is the default."""
    field = column.replaced(missing="level").field(name)
    constraints = {
        limit: int(value) if isinstance(value, float) and value.is_integer() else value
        for limit, value in field.pop("constraints").items()
    }
    del field["missingValues"]
    if field.get("unknownLevels") == "refuse":
        del field["unknownLevels"]
    if isinstance(column, Boolean):
        del field["trueValues"], field["falseValues"]
    levels = column.levels if isinstance(column, Levels) else ()
    return field | ({"constraints": constraints} if constraints else {}) | _missing_beside([*map(str, levels)])


def _missing_beside(levels: Collection[str]) -> dict[str, Any]:
    """Return the texts for no value of a column where a level is one of the usual ones."""
    kept = [text for text in MISSING_TEXTS if text not in levels]
    return {} if len(kept) == len(MISSING_TEXTS) else {"missingValues": kept}


def schema_toml(content: Mapping[str, Any], table: str) -> str:
    """Return a descriptor as TOML, with what each line says. table: its name."""
    lines = [_HEAD.format(table=_toml(table))]
    for name, said in _FACTS.items():
        if name in content:
            lines += [f"# {said}", f"{name} = {_toml(content[name])}"]
    for field in content["fields"]:
        said = _CLASSES if field["name"] == content["label"] else _meaning(field)
        lines += ["", f"[[fields]]  # {said}"]
        lines += [f"{name} = {_toml(value)}" for name, value in field.items()]
    return "\n".join(lines) + "\n"


def _meaning(field: Mapping[str, Any]) -> str:
    if field["type"] == "string":
        return _TEXT if "text" in field else _LEVELS
    return _TYPES[field["type"]]


def _toml(value: object) -> str:
    # A JSON text, number, list or truth value is one of TOML, too.
    if isinstance(value, Mapping):
        inside = ", ".join(f"{name} = {_toml(each)}" for name, each in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
