"""The names of options in each front end: flags on the command line, parameters in Python.

A floor below says which option it means (`dpserve.accounting.messages`), and how one is written is said here alone.
"""

import functools
import shlex
from collections.abc import Mapping

from dpserve.accounting.messages import Message, spelled
from dpserve.training.errors import SeveralErrors, WrongOption, WrongValue
from dpserve.training.options import OneOf, Options, is_several

_PARAMETERS = {
    "out": "path=",
    "lineage_budget": "Lineage(NAME, epsilon=, delta=)",
    "lineage_epsilon": "Lineage(epsilon=)",
    "lineage_delta": "Lineage(delta=)",
}
"""The options that Python gives otherwise than by a parameter of the same name."""
_TEXTS = frozenset({"decimal", "encoding", "features", "kind", "prediction_sets", "unlabelled"})
"""The options whose values are texts, which messages give as they are: Python puts them in quotation marks."""
_BY_NAME = frozenset({"bounds", "classes", "missing"})
"""The options that Python takes as mappings: NAME=LOW:HIGH on the command line, {NAME: (LOW, HIGH)} there."""
_IN_FILE = " in a schema's file, which 'dpserve schema init' writes,"
PROPERTIES = {
    "unknown_levels": (f'"unknownLevels": "{{}}"{_IN_FILE}', "Levels(..., unknown={!r})"),
    "decimal_char": ('"decimalChar": "{}"', "Number(..., decimal={!r})"),
    "group_char": ('"groupChar": "{}"', "Number(..., group={!r})"),
    "pattern": (f'"format": "{{}}"{_IN_FILE}', "Date(..., pattern={!r})"),
    "fields_match": ('"fieldsMatch": "{}"', "{{'fields': [...], 'fieldsMatch': {!r}}}"),
    "number_column": ("--bounds COLUMN=LOW:HIGH", "Schema(columns={{COLUMN: Number(LOW, HIGH)}})"),
    "levels_column": ("--levels COLUMN=A,B", "Schema(columns={{COLUMN: Levels(A, B)}})"),
    "date_column": ("--dates COLUMN=EARLIEST:LATEST", "Schema(columns={{COLUMN: Date(EARLIEST, LATEST)}})"),
    "text_column": ("--texts COLUMN", "Text()"),
    "boolean_column": ("--levels COLUMN=false,true", "Schema(columns={{COLUMN: Boolean()}})"),
    "enum": ("constraints.enum", "Levels(...)"),
    "categories": (
        'categories, where {{"value": 0, "label": "no"}} gives a number a name',
        "Schema(classes={{0: 'no'}})",
    ),
}
"""Properties of a table's columns, as a Table Schema's file has them, and Python."""
_FLAGS = {
    "lineage_budget": "--epsilon E --delta D, or in 'evaluate' --lineage-epsilon E --lineage-delta D",
    "kind": "KIND",
}
"""The options that the command line gives otherwise than by a flag of their name."""


def as_flag(option: str, form: str = "") -> str:
    """Return an option as the command line writes it: `--missing COLUMN=VALUE`."""
    if option == "kind" and form:
        return f"'dpserve train {form}'"
    if option in PROPERTIES:
        return PROPERTIES[option][0].format(form)
    flag = _FLAGS.get(option, f"--{option.replace('_', '-')}")
    return f"{flag} {form}" if form else flag


def flags_of(options: Options) -> list[str]:
    """Return the command line's words for the options that were given."""
    words = []
    if isinstance(options, OneOf) and options.word != next(iter(options.members())):
        words.append(as_flag(options.choice, options.word))
    for name, field in type(options).model_fields.items():
        if name in options.model_fields_set:
            value = getattr(options, name)
            values = value if is_several(field) else [",".join(map(str, value)) if isinstance(value, tuple) else value]
            words += [as_flag(name, shlex.quote(str(value))) for value in values]
    return words


def as_parameter(option: str, form: str = "") -> str:
    """Return an option as Python writes it: `Schema(missing={COLUMN: VALUE})`."""
    if option in PROPERTIES:
        return PROPERTIES[option][1].format(form)
    if option in _TEXTS and form:
        form = repr(form)
    return _written(option, _in_pairs(form) if option in _BY_NAME else form)


def _written(option: str, value: str) -> str:
    """Return an option with its value in Python, within what takes it."""
    if option in _PARAMETERS:
        return _PARAMETERS[option]
    owner = _owners().get(option)
    return f"{option}={value}" if owner is None else f"{owner}({option}={value})"


@functools.cache
def _owners() -> Mapping[str, str]:
    """Return the names of the classes whose parameters options are, by option."""
    # A command line needs none of these.
    from dpserve.lineages import Lineage
    from dpserve.training.block_choice import Blocks
    from dpserve.training.feature_choice import Features
    from dpserve.training.inputs.described import Schema

    own = {"features", "name", "epsilon", "delta"}  # the estimator has them itself
    classes: tuple[type[Options], ...] = (Schema, Lineage, Features, Blocks)
    flags = [flag for owner in classes for flag in owner.flags().items()]
    return {name: owner.__name__ for name, (_, owner) in flags if name not in own}


def _in_pairs(form: str) -> str:
    """Return NAME=VALUE and LOW:HIGH as Python has them."""
    name, equals, value = form.partition("=")
    if equals:
        return f"{{{name}: {_in_pairs(value)}}}"
    return f"({form.replace(':', ', ')})" if ":" in form else form


def in_python(error: BaseException) -> str:
    """Return what an error says in Python's words: `steps=0 must be at least 1`."""
    if isinstance(error, SeveralErrors):
        return "\n".join(map(in_python, error.errors))
    if not isinstance(error, WrongOption) or error.value is None:
        return spelled(error, as_parameter)
    reason = error.requirement if isinstance(error, WrongValue) else error.reason
    remedy = "" if error.remedy is None else Message(": {}", error.remedy)
    return spelled(Message("{} {}{}", _written(error.field, repr(error.value)), reason, remedy), as_parameter)
