"""The protocol's messages, of the compiled `open_inference.proto`: read and answered by the same rules as over HTTP.

They are in a pool of their own: a process may have another library's classes of the same names.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from dpserve.service.http.codec import headers_of
from dpserve.service.http.column_tensors import DATATYPES as COLUMN_DATATYPES
from dpserve.service.http.column_tensors import TEXTS
from dpserve.service.http.openinference import (
    ANSWERED,
    INPUT,
    OpenInferenceCodec,
    TensorRequest,
    check_shape,
    most_in,
    one_input,
    parameters_of,
    tensors_of,
)
from dpserve.service.http.predictions import Reply
from dpserve.service.http.problems import Problem
from dpserve.service.http.requests import RequestHeader, invalid
from dpserve.service.http.schemas import InferRequest, InputTensor, RequestedOutput
from dpserve.service.http.structure import SMALL, more_than
from dpserve.service.models import VERSION
from dpserve.service.predictor import Prediction, Predictor

SERVICE = "inference.GRPCInferenceService"
ASKED_MODEL = "AskedModel"
"""The message type as which a ModelInferRequest is parsed to find its model alone."""


_CONTENTS = {
    "FP64": "fp64_contents",
    "FP32": "fp32_contents",
    "INT64": "int64_contents",
    "INT32": "int_contents",
    "BOOL": "bool_contents",
    TEXTS: "bytes_contents",
}


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(
        files("dpserve.service.rpc").joinpath("open_inference.binpb").read_bytes()
    ).file:
        pool.Add(file)
    # Where a request for inference names its model; what else it has stays bytes. Two bytes of a message can make a
    # hundred in memory, so none is parsed whole before it is known whose it is and how long it may be.
    own = FileDescriptorProto(name="asked_model.proto", package="inference", syntax="proto3")
    asked = own.message_type.add(name=ASKED_MODEL)
    for number, name in enumerate(("model_name", "model_version"), 1):
        asked.field.add(
            name=name,
            number=number,
            type=FieldDescriptorProto.TYPE_STRING,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    pool.Add(own)
    return pool


@cache
def message(name: str) -> Any:
    """Return the class of a message."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


def parse(name: str, content: bytes) -> Any:
    """Return a message. Raises a 400 problem for bytes that are none."""
    try:
        return message(name).FromString(content)
    except DecodeError:
        raise no_message(name) from None


_VARINT, _EIGHT_BYTES, _CONTENT, _FOUR_BYTES = 0, 1, 2, 5
"""The ways to write a field of a message, by Protocol Buffers' numbers."""
_LAST_OF_VARINT = 128
"""A byte below is the last of its number."""


@dataclass
class _Left:
    """The fields and the numbers that a message may still have: a parser keeps up to a hundred bytes for each.

    one_by_one: of the numbers, those that have a tag each. Clients write them one behind the other, which is counted at
    once.
    """

    fields: int
    numbers: int
    one_by_one: int = 100_000

    def is_enough_for(self, content: memoryview, kind: Any) -> bool:
        """Count a message's fields and those of the messages in it. Raises a 400 problem for what is no message."""
        at = 0
        while at < len(content):
            tag, at = _number_at(content, at)
            how = tag & 7
            if how == _CONTENT:
                length, at = _number_at(content, at)
                field = kind.fields_by_number.get(tag >> 3)
                self.fields -= 1
                if field is not None and not self._has_room(field, content[at : at + length]):
                    return False
                at += length
            elif how == _VARINT:
                _, at = _number_at(content, at)
                self.one_by_one -= 1
            elif how in (_EIGHT_BYTES, _FOUR_BYTES):
                at += 8 if how == _EIGHT_BYTES else 4
                self.one_by_one -= 1
            else:
                raise no_message()
            if self.fields < 0 or self.numbers < 0 or self.one_by_one < 0:
                return False
        return True

    def _has_room(self, field: Any, content: memoryview) -> bool:
        if field.message_type is not None:
            return self.is_enough_for(content, field.message_type)
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            # Numbers one behind the other, none of which is shorter than a byte.
            size = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}.get(field.type)
            ends = np.count_nonzero(np.frombuffer(content, np.uint8) < _LAST_OF_VARINT)
            self.numbers -= int(ends) if size is None else len(content) // size
        return True


def _number_at(content: memoryview, at: int) -> tuple[int, int]:
    """Return the number that is written at a place, and where it ends. Raises a 400 problem for none."""
    number = 0
    for place, byte in enumerate(content[at : at + 10]):
        number |= (byte & 127) << 7 * place
        if byte < _LAST_OF_VARINT:
            return number, at + place + 1
    raise no_message()


def no_message(name: str = "ModelInferRequest") -> Problem:
    """Return the 400 problem of bytes that are not the message that they should be."""
    return invalid(f"the message is no {name}")


class MessageCodec(OpenInferenceCodec):
    """`ModelInfer`."""

    def decode(self, predictor: Predictor, header: RequestHeader, body: bytes) -> TensorRequest:
        """Return what the message asks. body: the message as it came."""
        if len(body) >= SMALL:
            most = most_in(predictor)
            left = _Left(fields=most.lists, numbers=most.commas)
            if not left.is_enough_for(memoryview(body), message("ModelInferRequest").DESCRIPTOR):
                raise more_than(predictor.largest_batch)
        asked = parse("ModelInferRequest", body)
        if len(asked.inputs) != 1 and not predictor.certificate.columns:
            raise one_input()
        each = _raw_of(asked)
        inputs = [
            InputTensor(
                tensor.name,
                list(tensor.shape),
                tensor.datatype,
                _parameters(tensor.parameters) | {"binary_data_size": len(content)},
            )
            for tensor, content in zip(asked.inputs, each, strict=True)
        ]
        outputs = [RequestedOutput(output.name, _parameters(output.parameters)) for output in asked.outputs]
        request = InferRequest(inputs, asked.id or None, _parameters(asked.parameters), outputs)
        # The same message may be written in several ways.
        question = b"grpc\0" + asked.SerializeToString(deterministic=True)
        return self.request_of(predictor, header, request, b"".join(each), question)

    def encode(
        self, predictor: Predictor, header: RequestHeader, request: TensorRequest, prediction: Prediction
    ) -> Reply:
        """Return the answer with raw tensors."""
        del header
        answer = message("ModelInferResponse")(model_name=predictor.name, model_version=VERSION, id=request.id or "")
        for name, value in parameters_of(predictor, prediction).items():
            _set(answer.parameters[name], value)
        for name, tensor in tensors_of(predictor, prediction, request.outputs, request.coverage).items():
            answer.outputs.add(name=name, datatype=ANSWERED[tensor.dtype.kind], shape=list(tensor.shape))
            answer.raw_output_contents.append(tensor.tobytes())
        return answer.SerializeToString(), headers_of(predictor, prediction)


def _raw_of(asked: Any) -> list[bytes]:
    """Return the bytes of each tensor, which are behind all of them or in its contents. Raises a 400 problem."""
    behind = list(asked.raw_input_contents)
    if behind and len(behind) != len(asked.inputs):
        raise invalid("there are raw_input_contents for each input, or for none")
    return [_raw(tensor, behind[place] if behind else None) for place, tensor in enumerate(asked.inputs)]


def _raw(tensor: Any, behind: bytes | None) -> bytes:
    """Return the bytes of a tensor. behind: those behind it; None where its contents have its values."""
    named, texts = _CONTENTS.get(tensor.datatype), tensor.datatype == TEXTS
    if named is None:
        raise invalid(f"the datatype must be one of {', '.join(_CONTENTS)}")
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if filled != ([named] if behind is None else []):
        raise invalid(f"an input has either its raw_input_contents or its {named}")
    if texts:
        values = () if behind is not None else tensor.contents.bytes_contents
        return behind if behind is not None else b"".join(len(each).to_bytes(4, "little") + each for each in values)
    if tensor.name == INPUT:
        check_shape(tensor.shape)  # first: the product of a million numbers takes hours
    kind = np.dtype(COLUMN_DATATYPES[tensor.datatype])
    content: bytes = np.array(getattr(tensor.contents, named), kind).tobytes() if behind is None else behind
    if tensor.name == INPUT and len(content) != math.prod(tensor.shape) * kind.itemsize:
        raise invalid(f"the shape {list(tensor.shape)} of {tensor.datatype} does not have {len(content)} bytes")
    return content


def _parameters(parameters: Any) -> dict[str, Any]:
    return {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice") or "", None)
        for name, parameter in parameters.items()
    }


def _set(parameter: Any, value: str | float | bool) -> None:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    setattr(parameter, kinds[type(value)], value)
