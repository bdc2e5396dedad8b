"""The errors of a validator in words of our own: no message of a library reaches a person."""

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "missing": "is needed",
    "extra_forbidden": "is not known here",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "finite_number": "must be finite",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": "must be at least {min_length} values",
    "too_long": "must be at most {max_length} values",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must follow the pattern {pattern}",
    "json_invalid": "must be JSON",
    "union_tag_invalid": "must have as {discriminator} one of {expected_tags}",
    "union_tag_not_found": "must have the field {discriminator}",
}
_KINDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "a text",
    "bytes": "bytes",
    "tuple": "a list",
    "list": "a list",
    "frozen": "a list",
    "set": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "date": "a date",
    "datetime": "a date and a time",
}


def in_words(fault: Mapping[str, Any]) -> str:
    """Return one of the errors of a pydantic `ValidationError`, in words that follow what they are about."""
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", fault["msg"]))  # our own
    if kind in _WORDS:
        return _WORDS[kind].format(**context)
    word = _KINDS.get(kind.partition("_")[0])
    return "cannot be used" if word is None else f"must be {word}"
