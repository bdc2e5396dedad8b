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

from service.http.codec import headers_of
from service.http.openinference import (
    ANSWERED,
    DATATYPES,
    OpenInferenceCodec,
    TensorRequest,
    check_shape,
    one_input,
    parameters_of,
    tensors_of,
)
from service.http.predictions import Reply
from service.http.requests import RequestHeader, invalid
from service.http.schemas import InferRequest, InputTensor, RequestedOutput
from service.models import VERSION
from service.predictor import Prediction, Predictor

SERVICE = "inference.GRPCInferenceService"
ASKED_MODEL = "AskedModel"
"""The message type as which a ModelInferRequest is parsed to find its model alone."""


_CONTENTS = {"FP64": "fp64_contents", "FP32": "fp32_contents", "INT64": "int64_contents", "INT32": "int_contents"}


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files("service.rpc").joinpath("open_inference.binpb").read_bytes()).file:
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
        if len(asked.inputs) != 1:
            raise one_input()
        raw = _raw_of(asked)
        inputs = [
            InputTensor(
                tensor.name,
                list(tensor.shape),
                tensor.datatype,
                _parameters(tensor.parameters) | {"binary_data_size": len(raw)},
            )
            for tensor in asked.inputs
        ]
        outputs = [RequestedOutput(output.name, _parameters(output.parameters)) for output in asked.outputs]
        request = InferRequest(inputs, asked.id or None, _parameters(asked.parameters), outputs)
        # The same message may be written in several ways.
        question = b"grpc\0" + asked.SerializeToString(deterministic=True)
        return self.request_of(predictor, header, request, raw, question)

    def encode(
        self, predictor: Predictor, header: RequestHeader, request: TensorRequest, prediction: Prediction
    ) -> Reply:
        """Return the answer with raw tensors."""
        del header
        answer = message("ModelInferResponse")(
            model_name=predictor.certificate.name, model_version=VERSION, id=request.id or ""
        )
        for name, value in parameters_of(predictor, prediction).items():
            _set(answer.parameters[name], value)
        for name, tensor in tensors_of(predictor, prediction, request.outputs, request.coverage).items():
            answer.outputs.add(name=name, datatype=ANSWERED[tensor.dtype.kind], shape=list(tensor.shape))
            answer.raw_output_contents.append(tensor.tobytes())
        return answer.SerializeToString(), headers_of(predictor, prediction)


def _raw_of(asked: Any) -> bytes:
    """Return the bytes of the one tensor, which are behind it or in its contents. Raises a 400 problem."""
    tensor, raw = asked.inputs[0], asked.raw_input_contents
    check_shape(tensor.shape)  # first: the product of a million numbers takes hours
    named = _CONTENTS.get(tensor.datatype)
    if named is None:
        raise invalid(f"the datatype must be one of {', '.join(DATATYPES)}")
    kind = np.dtype(DATATYPES[tensor.datatype])
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if (len(raw), filled) not in ((1, []), (0, [named])):
        raise invalid(f"the input has either one raw_input_contents or its {named}")
    content: bytes = raw[0] if raw else np.array(getattr(tensor.contents, named), kind).tobytes()
    if len(content) != math.prod(tensor.shape) * kind.itemsize:
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
