"""The structure of a text of JSON, counted before msgspec parses it.

msgspec makes an object of every two or three bytes, as of `[[],[],...]`: up to thirty times the text. So a large body
is counted first, in time and memory that grow with its bytes alone, and parsed where it has no more values than the
rows that a request may have. Lists of numbers that `dpserve.service.http.numbers` reads make no objects.
"""

import re
from typing import NamedTuple

import numpy as np

from dpserve.service.errors import InvalidRows

SMALL = 64 * 1024
"""Bytes of a text that is parsed as it is, in no time."""
_CHUNK = 2**18
"""Bytes that are counted at a time: between two of them other threads go on."""
_BACKSLASHES = re.compile(rb"\\*")
_QUOTE, _COMMA, _COLON, _LIST, _OBJECT = b'",:[{'


class Structure(NamedTuple):
    """Numbers of characters outside of strings. members: as many as all objects have, if it is JSON."""

    commas: int
    members: int
    lists: int
    objects: int


def check_structure(text: bytes, most: Structure, rows: int) -> None:
    """Raise InvalidRows for a text with more than `most` of anything, which `rows` rows may have at most.

    Of a text shorter than `SMALL` nobody need ask.
    """
    # Usually there is too little even with what strings have of these characters, and no string is looked for.
    if not _within(_with_strings(text), most) and not _within(structure_of(text), most):
        raise more_than(rows)


def _with_strings(text: bytes) -> Structure:
    """Return the numbers of characters, those in strings too. `bytes.count` takes four times as long for them."""
    counts = [0, 0, 0, 0]
    for start in range(0, len(text), _CHUNK):
        characters = np.frombuffer(text, dtype=np.uint8, count=min(_CHUNK, len(text) - start), offset=start)
        for place, each in enumerate((_COMMA, _COLON, _LIST, _OBJECT)):
            counts[place] += int(np.count_nonzero(characters == each))
    return Structure(*counts)


def more_than(rows: int) -> InvalidRows:
    """Return the refusal of a body with more than so many rows may have."""
    return InvalidRows(f"the body has more rows than {rows}, or more values than these have; send fewer at a time")


def _within(has: Structure, most: Structure) -> bool:
    return all(own <= limit for own, limit in zip(has, most, strict=True))


def structure_of(text: bytes) -> Structure:
    """Return the numbers of characters outside of strings. A string that does not end goes on to the end."""
    found = np.zeros(256, dtype=np.int64)
    start, inside = 0, False
    while start < len(text):
        # What a backslash escapes is in the same chunk.
        backslashes = _BACKSLASHES.match(text, start + _CHUNK - 1)
        assert backslashes is not None  # there may be none
        chunk = text[start : backslashes.end() + 1]
        start += len(chunk)
        if b"\\" in chunk:
            chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        characters = np.frombuffer(chunk, dtype=np.uint8)
        in_strings = np.logical_xor.accumulate(characters == _QUOTE) ^ inside
        inside = bool(in_strings[-1]) if len(in_strings) else inside
        found += np.bincount(characters[~in_strings], minlength=256)
    return Structure(*found[[_COMMA, _COLON, _LIST, _OBJECT]].tolist())
