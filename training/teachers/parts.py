"""Which teacher a record belongs to: a keyed hash of the record itself.

A record's part must depend on that record alone. A share of a shuffled list would not do: adding one record would
move others to other parts, and with them other teachers.
"""

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from training.data.records import Records
from training.errors import DataError

Parts = tuple[NDArray[np.int64], ...]
"""For each teacher the rows of its records, in the order of their hashes: whatever order the records came in."""

_PURPOSE = b"dpserve: which teacher a record belongs to\0"


def parts_of(records: Records, key: bytes, teachers: int) -> Parts:
    """Return the part of each of `teachers` teachers.

    A record is its features and its label as 64-bit numbers; equal records fall into one part. key: the owner's
    secret, so that nobody else can compute which records meet in one teacher.
    """
    parts: list[list[tuple[bytes, int]]] = [[] for _ in range(teachers)]
    for index, (row, label) in enumerate(zip(records.X, records.y, strict=True)):
        # 0.0 and -0.0 are the same number.
        content = (row + 0.0).astype("<f8").tobytes() + int(label).to_bytes(8, "little")
        digest = hmac.digest(key, _PURPOSE + content, hashlib.sha256)
        parts[int.from_bytes(digest, "little") % teachers].append((digest, index))
    return tuple(np.array([index for _, index in sorted(part)], dtype=np.int64) for part in parts)


def check_disjoint(parts: Parts) -> None:
    """Raise DataError if a record is in two parts: then it moves two teachers, and the sensitivity is not sqrt(2)/m."""
    seen: dict[int, int] = {}
    for teacher, rows in enumerate(parts):
        for row in rows.tolist():
            if row in seen:
                raise DataError(
                    f"record {row} is in the parts of the teachers {seen[row]} and {teacher}. Parts that overlap are "
                    "refused: one record would move more than one teacher, which the noise does not cover"
                )
            seen[row] = teacher
