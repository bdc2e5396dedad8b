"""Public facts about a table that a training needs and nobody has declared, all at once.

Nothing here looks at a value: a table has names and storage types, as the owner's own file has them.
"""

import shlex
from collections.abc import Collection, Mapping

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError, TrainingError, WrongOption
from dpserve.training.inputs.reading import LabelledRows

_NAMED = 12
_USUAL_LABEL = str(LabelledRows.model_fields["label"].default)
_NUMBER, _DATE = Message("{number_column}"), Message("{date_column}")
_TEXT = Message("{levels_column} or {text_column}")
_DECLARED_BY: Mapping[str | None, Message] = {
    "number": _NUMBER,
    "integer": _NUMBER,
    "boolean": Message("{boolean_column}"),
    "date": _DATE,
    "datetime": _DATE,
    "string": _TEXT,
}
_ANY = Message("{number_column}, {levels_column}, {date_column} or {text_column}")


def undeclared(
    columns: Mapping[str, str | None],
    *,
    label: str | None,
    has_classes: bool,
    declared: Collection[str],
    left_out: Collection[str] = (),
) -> list[TrainingError]:
    """Return what is to be declared, an error for each option.

    columns: the storage types of a table's columns by name, None where it has none. label: the column of classes; None
    where these came by themselves. left_out: columns that are no features. Raises DataError for a
    label that there is not, and a column to leave out.
    """
    named = [*left_out, *([label] if label not in (None, _USUAL_LABEL) else [])]
    if absent := [repr(name) for name in named if name not in columns]:
        raise DataError(f"there is no column {' or '.join(absent)}; the columns are {_some(list(columns))}")
    lacking: list[TrainingError] = []
    # Where the classes came by themselves, a field may be theirs.
    if label is not None and (absent := [repr(name) for name in sorted(declared) if name not in columns]):
        lacking.append(DataError(f"there is no column {' or '.join(absent)}; the columns are {_some(list(columns))}"))
    if label == _USUAL_LABEL and label not in columns:
        remedy = f"the column of classes, one of {_some(list(columns))}"
        lacking.append(WrongOption("label", "is needed", remedy=remedy))
    if not has_classes:
        remedy = "the names of the classes. A list read off the records would say which of them occur"
        lacking.append(WrongOption("classes", "is needed", remedy=remedy))
    ways: dict[Message, list[str]] = {}
    for name, type_ in columns.items():
        if name != label and name not in declared and name not in left_out:
            ways.setdefault(_DECLARED_BY.get(type_, _ANY), []).append(name)
    lacking += [
        TrainingError(Message("nothing declares {}: give {}, or {ignore:COLUMN} to leave one out", _some(names), way))
        for way, names in ways.items()
    ]
    return lacking


def shortest_way(source: str) -> TrainingError:
    """Return the last line of what is undeclared. source: the table, as its owner names it."""
    return TrainingError(
        Message(
            "run dpserve schema init {}: it asks for what is public, and writes it into a file that {schema} takes",
            shlex.quote(source),
        )
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
