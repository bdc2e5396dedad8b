"""Lists of numbers in JSON, read straight into an array by simdjson, without a Python object for each number.

Promises: whatever is read here msgspec reads alike, to the bit but for the sign of 0. For every other body there is
None, and msgspec reads it, or says what is wrong with it: `tests/service/test_numbers.py` holds the two to each other.

simdjson's Python binding has no wheels for Python 3.14 yet. Where it is not installed, msgspec reads everything.
"""

import threading
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats

try:
    import simdjson
except ImportError:  # pragma: no cover - from Python 3.14 on
    simdjson = None  # type: ignore[assignment]

_SMALL = 64 * 1024
"""Bytes of a text whose parser is kept: a parser holds several times what it parsed last."""


class _Kept(threading.local):
    """A parser for each thread."""

    def __init__(self) -> None:
        self.parser = None if simdjson is None else simdjson.Parser()


_kept = _Kept()


RowsAndMembers = tuple[Floats, dict[str, Any]]
"""Rows (n, width), and the members beside them by name: texts, numbers, booleans or None."""


def rows_and_members(body: bytes, name: str, width: int) -> RowsAndMembers | None:
    """Return the rows in the member `name` of an object, and the other members.

    None for rows by name, and for all else that msgspec should look at.
    """
    try:
        content = _parsed(body)
        members = list(content)
        others: dict[str, Any] = {}
        if len(members) > 1:
            others = {member: content[member] for member in members if member != name}
            if len(others) + 1 < len(members) or not all(isinstance(each, _SCALARS) for each in others.values()):
                return None  # a name that comes twice, or something nested
        return _rows(content[name], body, width), others
    except _REFUSED:
        return None


def numbers(text: bytes, width: int) -> Floats | None:
    """Return a list of numbers, or of rows of `width` numbers each, in order, (n,); None as `rows_and_members` does."""
    try:
        content = _parsed(text)
        if text.find(b"[", 1) < 0:
            return np.frombuffer(content.as_buffer(of_type="d"))
        return _rows(content, text, width).reshape(-1)
    except _REFUSED:
        return None


_SCALARS = str | int | float | None
_REFUSED = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of simdjson and of its values, for what is not there or is something else."""


def _parsed(text: bytes) -> Any:
    """Return simdjson's view of an object or list. Raises one of _REFUSED."""
    if simdjson is None or text[:1] not in (b"{", b"[") or b"\\" in text:
        # simdjson skips a byte order mark. Escapes make a name, or half of a character, that must be looked at.
        raise ValueError
    parser = _kept.parser if len(text) < _SMALL else simdjson.Parser()
    return parser.parse(text)


def _rows(rows: Any, text: bytes, width: int) -> Floats:
    """Return a list of lists as an array (n, width). Raises one of _REFUSED for any other.

    `as_buffer` refuses what is no number, and takes the numbers of lists in lists for those of the outermost. So no
    list may lie in a row: the text has one bracket for the list, one for each row, and no more.
    """
    if not len(rows):
        raise ValueError  # an array of no rows has no columns to count
    for row in rows:
        if type(row) is not simdjson.Array or len(row) != width:
            raise ValueError
    place = -1
    for _ in range(len(rows) + 1):
        place = text.index(b"[", place + 1)
    if text.find(b"[", place + 1) >= 0:
        raise ValueError
    return np.frombuffer(rows.as_buffer(of_type="d")).reshape(len(rows), width)
