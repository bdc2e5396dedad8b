"""Tensors of the Open Inference Protocol: as JSON, or as raw bytes behind it (the binary tensor data extension)."""

from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from service.http.problems import Problem, ProblemType

DATATYPES = {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
"""What a row's numbers may be sent as. They become float64, and rows that are then equal share one answer."""

_MOST_ELEMENTS = 2**31


class Output(msgspec.Struct):
    """A tensor that is wished for."""

    name: str
    parameters: dict[str, Any] = {}


class Tensor(msgspec.Struct):
    """A tensor that is sent. data: nested or flat lists of numbers; absent where the bytes stand behind the JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


class Inference(msgspec.Struct):
    """The JSON of a request for inference."""

    inputs: list[Tensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[Output] = []


_decode = msgspec.json.Decoder(Inference).decode
_nested = msgspec.json.Decoder(list[list[float]]).decode
_flat = msgspec.json.Decoder(list[float]).decode


def invalid(detail: str) -> Problem:
    """Return the problem of a request that cannot be understood."""
    return Problem(HTTPStatus.BAD_REQUEST, ProblemType.INVALID_REQUEST, detail)


def parse_inference(body: bytes, header_length: str | None) -> tuple[Inference, bytes]:
    """Return a request's JSON, and the bytes behind it. header_length: how long the JSON is, if not all of the body.

    Raises a 400 problem.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal() and int(header_length) <= length):
            raise invalid("Inference-Header-Content-Length must be the length in bytes of the JSON in the body")
        length = int(header_length)
    try:
        return _decode(body[:length]), body[length:]
    except msgspec.ValidationError as error:
        raise invalid(f"the body is no request for inference: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Problem(HTTPStatus.BAD_REQUEST, ProblemType.MALFORMED_JSON, "the body is not JSON") from None


def array_of(tensor: Tensor, behind: bytes) -> NDArray[np.floating[Any] | np.integer[Any]]:
    """Return a tensor of two dimensions. behind: the bytes after the JSON, all of which must be this tensor's.

    Raises a 400 problem.
    """
    kind = DATATYPES.get(tensor.datatype)
    if kind is None:
        raise invalid(f"the datatype must be one of {', '.join(DATATYPES)}")
    if len(tensor.shape) != 2 or min(tensor.shape) < 1 or tensor.shape[0] * tensor.shape[1] > _MOST_ELEMENTS:
        raise invalid("the shape must be [rows, features]")
    size = tensor.parameters.get("binary_data_size")
    elements = _elements(tensor, kind) if size is None else np.frombuffer(_raw(tensor, kind, size, behind), kind)
    if size is None and behind:
        raise invalid("there are bytes behind the JSON, and no input that says that they are its own")
    if elements.size != tensor.shape[0] * tensor.shape[1]:
        raise invalid(f"the data has {elements.size} numbers, and the shape says {tensor.shape[0] * tensor.shape[1]}")
    return elements.reshape(tensor.shape)


def _raw(tensor: Tensor, kind: str, size: Any, behind: bytes) -> bytes:
    if bytes(tensor.data):
        raise invalid("an input has either data or binary_data_size")
    needed = tensor.shape[0] * tensor.shape[1] * np.dtype(kind).itemsize
    if type(size) is not int or size != len(behind) or size != needed:
        raise invalid(f"binary_data_size must be the number of bytes behind the JSON, and {needed} by the shape")
    return behind


def _elements(tensor: Tensor, kind: str) -> NDArray[np.floating[Any]]:
    """Return the JSON's numbers in order, rounded to what the datatype can say."""
    raw = bytes(tensor.data)
    if not raw:
        raise invalid("the input has no data")
    try:
        numbers = _flat(raw)
    except msgspec.ValidationError:
        numbers = _numbers_of_rows(raw, tensor.shape[1])
    found = np.array(numbers, dtype=np.float64)
    if kind == "<f4":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is out of every bound
            return found.astype(np.float32)
    if kind != "<f8" and not (np.isfinite(found).all() and (found == np.trunc(found)).all()):
        raise invalid(f"{tensor.datatype} data must be whole numbers")
    return found


def _numbers_of_rows(raw: bytes, features: int) -> list[float]:
    try:
        rows = _nested(raw)
    except msgspec.ValidationError as error:
        raise invalid(f"the data must be numbers, flat or in a list for each row: {error}") from None
    if any(len(row) != features for row in rows):
        raise invalid(f"each row of the data must have {features} numbers, as the shape says")
    return [number for row in rows for number in row]
