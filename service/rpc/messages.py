"""The protocol's messages, of the compiled `open_inference.proto`.

They are in a pool of their own: a process may have another library's classes of the same names.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from service.http.requests import invalid

SERVICE = "inference.GRPCInferenceService"
ASKED_MODEL = "AskedModel"
"""What a ModelInferRequest is parsed as to find its model alone."""


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
    """Return a message. Raises a 400 problem for what is none."""
    try:
        return message(name).FromString(content)
    except DecodeError:
        raise invalid(f"the message is no {name}") from None
