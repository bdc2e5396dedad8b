"""The protocol's messages, of the compiled `open_inference.proto`: read and answered by the same rules as over HTTP.

They are in a pool of their own: a process may have another library's classes of the same names.
"""

import math
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
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
    one_input,
    parameters_of,
    tensors_of,
)
from dpserve.service.http.predictions import Reply
from dpserve.service.http.requests import RequestHeader, invalid
from dpserve.service.http.schemas import InferRequest, InputTensor, RequestedOutput
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
        raise invalid(f"the message is no {name}") from None


class MessageCodec(OpenInferenceCodec):
    """`ModelInfer`."""

    def decode(self, predictor: Predictor, header: RequestHeader, body: bytes) -> TensorRequest:
        """Return what the message asks. body: the message as it came."""
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
