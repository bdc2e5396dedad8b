"""Open Inference requests that name the columns of a model's schema: a tensor for each, with one value for each row.

A value that is missing is null in JSON, NaN among numbers, or an empty text. Which values fit is the column's to say.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from dpserve.service.http.requests import invalid
from dpserve.service.http.schemas import Cell, InputTensor, TensorMetadata
from dpserve.service.predictor import Value
from dpserve.training.inputs.columns import Column

DATATYPES = {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8", "INT32": "<i4", "BOOL": "?"}
"""Types of fixed length in which a column's values may come."""
TEXTS = "BYTES"
"""The type of texts: each has its length before it, in four bytes."""

_OF_KIND = {"number": "FP64", "integer": "INT64", "boolean": "BOOL"}
_LENGTH_BYTES = 4

_flat = msgspec.json.Decoder(list[Cell]).decode
_nested = msgspec.json.Decoder(list[list[Cell]]).decode


class Table(Protocol):
    """Checks of a model's tables before their rows are read."""

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InvalidRows unless these name the model's columns, each once."""
        ...

    def check_count(self, rows: int) -> None:
        """Raise InvalidRows for no row, and for more than may be asked about at once."""
        ...


def column_inputs(columns: Sequence[Column]) -> list[TensorMetadata]:
    """Return the input of each column."""
    return [
        TensorMetadata(column.name, _OF_KIND.get(getattr(column, "kind", ""), TEXTS), [-1, 1]) for column in columns
    ]


def rows_of_tensors(tensors: Sequence[InputTensor], behind: bytes, table: Table) -> list[dict[str, Value]]:
    """Return rows by the names of their columns. behind: the bytes after the JSON, which are the tensors' in order.

    Raises a 400 problem and InvalidRows.
    """
    table.check_names([tensor.name for tensor in tensors])
    counts = {_rows_in(tensor.shape) for tensor in tensors}
    if len(counts) != 1:
        raise invalid("every input must have as many rows")
    (rows,) = counts
    table.check_count(rows)
    columns: list[list[Value]] = []
    raw, start = memoryview(behind), 0
    for tensor in tensors:
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            values = _of_json(tensor)
        else:
            if type(size) is not int or not 0 <= size <= len(raw) - start or bytes(tensor.data):
                raise invalid("binary_data_size must be the bytes of an input without data that are behind the JSON")
            values = _of_bytes(tensor.datatype, raw[start : start + size], rows)
            start += size
        if len(values) != rows:
            raise invalid(f"the input {tensor.name!r} has {len(values)} values, and its shape says {rows}")
        columns.append(values)
    if start < len(raw):
        raise invalid("there are bytes behind the JSON, and no input that says that they are its own")
    names = [tensor.name for tensor in tensors]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _rows_in(shape: Sequence[int]) -> int:
    if not shape or shape[0] < 1 or list(shape[1:]) not in ([], [1]):
        raise invalid("the shape of a column is [rows] or [rows, 1]")
    return shape[0]


def _of_json(tensor: InputTensor) -> list[Value]:
    """Return the JSON's values in order."""
    content = bytes(tensor.data)
    if not content:
        raise invalid(f"the input {tensor.name!r} has no data")
    try:
        values = _flat(content)
    except (msgspec.ValidationError, RecursionError):
        values = _values_of_rows(content)
    _check_type(tensor.datatype)
    if tensor.datatype == "FP32":
        return [_single(value) if isinstance(value, float) else value for value in values]
    return values


def _single(value: float) -> float:
    """Return a number as the bytes of a float32 would say it: both ways ask one question."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _values_of_rows(content: bytes) -> list[Value]:
    try:
        rows = _nested(content)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid(f"the data must be values, flat or in a list for each row: {error}") from None
    if any(len(row) != 1 for row in rows):
        raise invalid("each row of a column's data must have one value")
    return [row[0] for row in rows]


def _check_type(datatype: str) -> None:
    if datatype not in DATATYPES and datatype != TEXTS:
        raise invalid(f"the datatype must be one of {', '.join([*DATATYPES, TEXTS])}")


def _of_bytes(datatype: str, raw: memoryview, rows: int) -> list[Value]:
    """Return the values that bytes hold, one for each row; of texts no more than one more than there should be."""
    _check_type(datatype)
    if datatype == TEXTS:
        return _texts(raw, rows)
    kind = np.dtype(DATATYPES[datatype])
    if len(raw) != rows * kind.itemsize:
        raise invalid(f"{len(raw)} bytes are not {rows} values of {datatype}, as the shape says")
    numbers: Any = np.frombuffer(raw, kind)
    values: list[Value] = (numbers if datatype == "BOOL" else numbers.astype(np.float64)).tolist()
    return values


def _texts(raw: memoryview, most: int) -> list[Value]:
    texts: list[Value] = []
    start = 0
    while start < len(raw) and len(texts) <= most:
        begin = start + _LENGTH_BYTES
        length = int.from_bytes(raw[start:begin], "little")
        if begin + length > len(raw):
            raise invalid(f"{TEXTS} has before each text its length in four bytes")
        try:
            texts.append(str(raw[begin : begin + length], "utf-8"))
        except UnicodeDecodeError:
            raise invalid(f"{TEXTS} must be UTF-8") from None
        start = begin + length
    return texts
