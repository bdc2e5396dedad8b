"""NumPy's own file format as the body of a request and of an answer: an array without a detour through decimal text.

Promises: nothing is unpickled or evaluated (`numpy.load` evaluates the header as Python's literals, and in 20 us where
this takes one): the header is one that NumPy writes of plain arrays, or is refused; an array is as large as the body
that holds it; only numbers of 32 and 64 bits are taken.
"""

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.service.http.problems import Problem, ProblemType

MEDIA_TYPE = "application/x-npy"

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1024
_HEADER = re.compile(
    rb"\{'descr': '(<f[48])', 'fortran_order': (True|False), 'shape': \((\d{1,9}), ?(\d{1,9})\), ?\} *\n?"
)
_PREFIX = struct.Struct("<H")
_LONG_PREFIX = struct.Struct("<I")


def parse_npy(body: bytes) -> NDArray[np.floating[Any]]:
    """Return the array (n, d) of float32 or float64 that the body holds, or raise a 400 or 422 problem."""
    if body[:6] != _MAGIC or len(body) < 10:
        raise _malformed("it does not begin as an .npy file does")
    if body[6:8] == b"\x01\x00":
        start, length = 10, _PREFIX.unpack_from(body, 8)[0]
    elif body[6:8] in (b"\x02\x00", b"\x03\x00") and len(body) >= 12:
        start, length = 12, _LONG_PREFIX.unpack_from(body, 8)[0]
    else:
        raise _malformed("its version is not 1.0, 2.0 or 3.0")
    described = _HEADER.fullmatch(body[start : start + length]) if length <= _LONGEST_HEADER else None
    if described is None:
        raise Problem(
            ProblemType.INVALID_ROWS,
            "the array must have two dimensions, rows and features, of little-endian float32 or float64",
            row=None,
            column=None,
        )
    kind, fortran, rows, columns = described.groups()
    dtype, shape = np.dtype(kind.decode()), (int(rows), int(columns))
    if len(body) - start - length != dtype.itemsize * shape[0] * shape[1]:
        raise _malformed(f"it does not hold the {shape[0]} x {shape[1]} numbers that it announces")
    values: NDArray[np.floating[Any]] = np.frombuffer(body, dtype, offset=start + length)
    return values.reshape(shape, order="F" if fortran == b"True" else "C")


def npy_of(array: NDArray[np.float64]) -> bytes:
    """Return the bytes that `numpy.save` writes of an array (n, C) of float64."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({array.shape[0]}, {array.shape[1]}), }}".encode()
    padding = -(len(_MAGIC) + 4 + len(header) + 1) % 64
    header += b" " * padding + b"\n"
    return _MAGIC + b"\x01\x00" + _PREFIX.pack(len(header)) + header + array.astype("<f8", copy=False).tobytes()


def _malformed(why: str) -> Problem:
    return Problem(ProblemType.MALFORMED_ARRAY, f"the body is no array that can be read: {why}")
