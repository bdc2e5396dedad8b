"""A column's declaration in a person's words, and proposals in these words.

    0:120                    a number between two public ones
    no,yes                   levels
    2020-01-01:2030-12-31    a date between two public ones; with T00:00 behind each, a date with a time of day
    boolean                  true or false
    text                     free text

A proposal follows from a column's name and storage type alone, and never from values: what is declared is public, and a
bound that was read off the records would tell of the one that has it.
"""

import re
from collections.abc import Mapping, Sequence

from dpserve.training.errors import DataError, WrongValue
from dpserve.training.inputs.described import Boolean, ColumnType, Date, Datetime, Integer, Levels, Number, Text

IGNORE = "ignore"
"""Leaves a column out."""
FORMS = (
    "LOW:HIGH for a number, A,B for levels, EARLIEST:LATEST for dates as 2020-01-31, boolean, text for free text, or "
    "ignore"
)
_DAY = r"(\d{4}-\d\d-\d\d(?:[T ][\d:.]+)?)"
_DAYS = re.compile(f"{_DAY}:{_DAY}", re.ASCII)
_TIMES = "1900-01-01:2100-01-01"


def column_in_words(words: str, storage: str | None = None) -> ColumnType:
    """Return the column that a person describes. storage: its storage type, None for text. Raises DataError."""
    words = words.strip()
    try:
        if words in _PLAIN:
            return _PLAIN[words]()
        if times := _DAYS.fullmatch(words):
            has_time = storage == "datetime" or len(times[1]) > len("2020-01-31")
            of_time: type[Date] = Datetime if has_time else Date
            return of_time(times[1], times[2])
        low, colon, high = words.partition(":")
        if colon:
            of_number: type[Number] = Integer if storage == "integer" else Number
            return of_number(float(low), float(high))
        if "," in words:
            return levels_in_words(words)
    except WrongValue as error:
        raise DataError(f"{words!r}: {error.field} {error.requirement}") from error
    except ValueError:
        pass
    raise DataError(f"{words!r} is none of these: {FORMS}")


def levels_in_words(words: str) -> Levels:
    """Return a column of levels, which stand between commas. Raises DataError for one without text."""
    levels = [level.strip() for level in words.split(",")]
    if "" in levels:
        raise DataError(f"a level needs a text, and {words!r} has one without: a missing value is no level to be named")
    return Levels(levels)


_PLAIN: Mapping[str, type[ColumnType]] = {"boolean": Boolean, "text": Text}

_TYPES_OF: Mapping[str, tuple[str | None, ...]] = {
    "number": ("number", "integer", None),
    "times": ("date", "datetime", "string", None),
    "words": ("string", None),
}
_BY_NAME: Sequence[tuple[str, frozenset[str], str]] = (
    ("number", frozenset({"age"}), "0:120"),
    ("number", frozenset({"percent", "percentage", "pct"}), "0:100"),
    ("number", frozenset({"probability", "share"}), "0:1"),
    ("number", frozenset({"year"}), "1900:2100"),
    ("number", frozenset({"month"}), "1:12"),
    ("number", frozenset({"hour"}), "0:23"),
    ("number", frozenset({"latitude", "lat"}), "-90:90"),
    ("number", frozenset({"longitude", "lon", "lng"}), "-180:180"),
    ("times", frozenset({"date", "day", "dob", "birthday", "born", "timestamp", "datetime", "at"}), _TIMES),
    ("words", frozenset({"sex", "gender"}), "female,male"),
    ("words", frozenset({"note", "notes", "comment", "comments", "text", "description", "remarks", "message"}), "text"),
    ("words", frozenset({"name", "surname", "email", "phone", "address", "street"}), IGNORE),
)
"""The kind of values, the last word of a column's name, and the proposal."""
_LABELS = ("label", "target", "outcome", "class", "diagnosis", "y")
_KEYS = frozenset({"id", "key", "uuid", "guid", "no", "nr", "number", "code"})
_OWN_KEYS = frozenset({"id", "key", "uuid", "record id", "row id"})
_PEOPLE = frozenset({"patient", "person", "people", "customer", "client", "user", "member", "employee", "student"})


def column_proposed(name: str, storage: str | None) -> str | None:
    """Return what a column probably is, in words; None where its name and its storage type do not say."""
    if storage == "boolean":
        return "boolean"
    words = _words(name)
    for kind, names, proposal in _BY_NAME:
        if words and words[-1] in names and storage in _TYPES_OF[kind]:
            return proposal
    if storage in ("date", "datetime"):
        return _TIMES
    return IGNORE if words and words[-1] in ("id", "key", "uuid", "guid") else None


def label_proposed(names: Sequence[str]) -> str | None:
    """Return the column that probably has the classes."""
    return next((name for usual in _LABELS for name in names if _words(name)[-1:] == [usual]), None)


def unit_proposed(names: Sequence[str]) -> str | None:
    """Return the column that probably names the person behind each record."""
    return next((name for name in names if _names_people(_words(name))), None)


def id_proposed(names: Sequence[str]) -> str | None:
    """Return the column that probably has a key of each record."""
    return next((name for name in names if " ".join(_words(name)) in _OWN_KEYS), None)


def _names_people(words: Sequence[str]) -> bool:
    return bool(words) and words[0] in _PEOPLE and {*words[1:]} <= _KEYS


def _words(name: str) -> list[str]:
    """Return the words of a column's name: patient_id, PatientId and patientID have two."""
    return [word.lower() for word in re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", name))]
