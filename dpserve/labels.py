"""y, as a fit is given it: which column it becomes, and its own values, which `classes_` holds.

What classes there are is declared, or follows from the type of y, and never from the labels that occur.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpserve.training.inputs.column import number_in
from dpserve.training.inputs.columns import LevelsColumn
from dpserve.training.inputs.described import Schema
from dpserve.training.inputs.schema import TableSchema

_NAMES = ("label", "label_", "label__")
_BOOLEANS = ("false", "true")
"""The two classes of booleans, as a table has them."""


def label_beside(names: Sequence[str], described: Schema, y: Any) -> str:
    """Return a name for a column of classes that came by itself, y, beside the columns `names`.

    It is the field of the schema that the table lacks, unless classes are declared apart: the schema has none of it
    then, and y has its own name, or the one that is declared for the label. Raises ValueError where several fields are
    lacking, and y is not called as one of them is.
    """
    schema, own = described.table, getattr(y, "name", None)
    fields = [] if schema is None else [column.name for column in schema.columns]
    absent = [] if described.classes is not None else [name for name in fields if name not in names]
    if own in absent:
        return str(own)
    if len(absent) == 1:
        return absent[0]
    if absent:
        raise ValueError(
            "say which field of the schema y is: name the Series as the field, or put it into the table, and pass its "
            f"name. The table lacks {', '.join(map(repr, absent))}"
        )
    taken = {None, *names, *fields}
    return str(next(name for name in (own, described.label, *_NAMES) if name not in taken))


def classes_of(declared: Any, type_: Any) -> Any:
    """Return the classes of y: those declared, or for booleans their two. None where nothing says them.

    type_: Arrow's of the labels, or None.
    """
    return _BOOLEANS if declared is None and _is_boolean(type_) else declared


def schema_with_label(schema: TableSchema, label: str, classes: Any, type_: Any) -> TableSchema:
    """Return a schema that describes the label, too.

    classes: the declared names, or {value: name}; None where the schema has the label. type_: Arrow's of the labels, or
    None; booleans have their two classes without being declared. Raises ValueError where nothing says which classes
    there are, and where both do.
    """
    if any(column.name == label for column in schema.columns):
        if classes is not None:
            raise ValueError(f"the schema says which classes {label!r} has: leave classes= out")
        return schema
    classes = classes_of(classes, type_)
    if classes is None:
        raise ValueError(
            f"declare the classes of y: classes=[NAME, ...], or a field {label!r} of the schema. They are never "
            "read off the records, which would say something about single ones"
        )
    values = tuple(map(str, classes))
    named = tuple(map(str, classes.values())) if isinstance(classes, Mapping) else values
    column = LevelsColumn(name=label, levels=values, missing=schema.missing or ("",))
    return replace(schema, columns=(*schema.columns, column), class_names={**schema.class_names, label: named})


def own_values(levels: Iterable[str], type_: Any) -> list[Any]:
    """Return what y has for each class: booleans, numbers or texts, as its type says; integers, if all are written so.

    levels: what each class is called in the table. type_: Arrow's of the labels; None for a file's text, whose values
    are those that pandas would read: booleans or numbers, if all levels are. Whether a column of numbers is one of
    integers is not asked: with one label missing it is one of floats.
    """
    levels = list(levels)
    numbers = [number_in(level) for level in levels]
    texts = {level.lower() for level in levels}
    if type_ is None:
        is_boolean, is_number = texts <= set(_BOOLEANS), True
    else:
        import pyarrow as pa

        is_boolean = _is_boolean(type_)
        is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    if is_boolean and all(number in (0, 1) for number in numbers):
        return [number == 1 for number in numbers]
    if not is_number or None in numbers or texts & set(_BOOLEANS):
        return levels
    written_whole = all(level.strip().lstrip("+-").isdecimal() for level in levels)
    return [int(number or 0) for number in numbers] if written_whole else list(numbers)


def _is_boolean(type_: Any) -> bool:
    import pyarrow as pa

    return type_ is not None and bool(pa.types.is_boolean(type_))
