"""Lists of numbers in JSON, read straight into an array by simdjson, without a Python object for each number.

Promises: whatever is read here msgspec reads alike, to the bit but for the sign of 0. For every other body there is
None, and msgspec reads it, or says what is wrong with it: `tests/service/test_numbers.py` holds the two to each other.

simdjson's Python binding has no wheels for Python 3.14 yet. Where it is not installed, msgspec reads everything.
"""

import threading
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.training.inputs.column import NUMBER_BYTES

try:
    import simdjson
except ImportError:  # pragma: no cover - from Python 3.14 on
    simdjson = None  # type: ignore[assignment]

_SMALL = 64 * 1024
"""Bytes of a text whose parser is kept: a parser holds several times what it parsed last. Longer lists of rows are
parsed in pieces of about this size, so that the memory for it grows with a row and not with a body; between two pieces
other threads go on."""


class _Kept(threading.local):
    """A parser for each thread."""

    def __init__(self) -> None:
        self.parser = None if simdjson is None else simdjson.Parser()


_kept = _Kept()


RowsAndMembers = tuple[Floats, dict[str, Any]]
"""Rows (n, width), and the members beside them by name: texts, numbers, booleans or None."""


def rows_and_members(body: bytes, name: str, width: int, most: int) -> RowsAndMembers | None:
    """Return the rows in the member `name` of an object, and the other members. most: rows of a request.

    None where msgspec should look at the body: it has rows by name, more of them, or is wrong.

    A large object is parsed without what lies between its first opening bracket and its last closing one. So at most
    one list is in it. If the member is a list, it is that one, and what was left out is what it holds.
    """
    try:
        text, start, end = body, body.index(b"[") + 1, body.rindex(b"]")
        if len(body) >= _SMALL:
            text = body[:start] + body[end : end + _SMALL]
        # simdjson skips a byte order mark. Escapes make a name, or half of a character, that must be looked at.
        if len(text) > _SMALL or text[:1] != b"{" or b"\\" in text:
            return None
        content: Any = (_kept.parser if text is body else simdjson.Parser()).parse(text)
        others: dict[str, Any] = {}
        if len(content) > 1:
            others = {member: content[member] for member in content if member != name}
            if len(others) + 1 < len(content) or not all(isinstance(each, _SCALARS) for each in others.values()):
                return None  # a name that comes twice, or something nested
        rows = content[name]
        if type(rows) is not simdjson.Array:
            return None
        X = _numbers_of(rows, body, width) if text is body else _rows(body, start, end, width, most)
        return X.reshape(-1, width), others
    except _REFUSED:
        return None


def numbers(text: bytes, width: int, most: int) -> Floats | None:
    """Return a list of numbers, or of rows of `width` numbers each, in order, (n,); None as `rows_and_members` does."""
    try:
        if text[:1] != b"[" or text[-1:] != b"]":
            return None
        if text.find(b"[", 1) < 0:
            return np.frombuffer(_parsed(text).as_buffer(of_type="d"))
        return _rows(text, 1, len(text) - 1, width, most)
    except _REFUSED:
        return None


_SPACE = b" \t\r\n"
_SCALARS = str | int | float | None
_REFUSED = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of simdjson and of its values, for what is not there or is something else."""


def _parsed(text: bytes) -> Any:
    """Return simdjson's view of a list. Raises one of _REFUSED."""
    return (_kept.parser if len(text) < _SMALL else simdjson.Parser()).parse(text)


def _rows(text: bytes, start: int, end: int, width: int, most: int) -> Floats:
    """Return the numbers, (n,), of the rows that text[start:end] has one behind the other.

    Raises one of _REFUSED for anything else, and for more than `most` rows, as soon as it has seen so many.
    """
    view, pieces, size = memoryview(text), [], 0
    while start < end:
        stop = following = end
        if end - start > _SMALL:
            following = text.rfind(b"[", start + 1, start + _SMALL)
            if following < 0 and (following := text.find(b"[", start + _SMALL, end)) < 0:
                following = end
            if following < end:
                stop = text.rindex(b",", start, following)
                if text[stop + 1 : following].strip(_SPACE):
                    raise ValueError
        if stop - start > max(_SMALL, width * NUMBER_BYTES):
            raise ValueError
        piece = b"".join((b"[", view[start:stop], b"]"))
        pieces.append(_numbers_of(_parsed(piece), piece, width))
        start, size = following, size + len(pieces[-1])
        if size > most * width:
            raise ValueError
    return np.concatenate(pieces)


def _numbers_of(rows: Any, text: bytes, width: int) -> Floats:
    """Return the numbers, (n,), of a list of rows of this width, the one list in its text.

    Raises one of _REFUSED for any other. `as_buffer` refuses what is no number, and takes the numbers of lists in lists
    for those of the outermost. So no list may lie in a row: the text has one bracket for the list, one for each row,
    and no more. An empty list is refused, too: of a part of a list it would hide a comma that follows nothing.
    """
    if not len(rows):
        raise ValueError
    place = text.index(b"[")
    for row in rows:
        if type(row) is not simdjson.Array or len(row) != width:
            raise ValueError
        place = text.index(b"[", place + 1)
    if text.find(b"[", place + 1) >= 0:
        raise ValueError
    return np.frombuffer(rows.as_buffer(of_type="d"))
