"""The protocol's messages, of the compiled `open_inference.proto`.

They are in a pool of their own: a process may have another library's classes of the same names.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from service.http.requests import invalid

SERVICE = "inference.GRPCInferenceService"


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files("service.rpc").joinpath("open_inference.binpb").read_bytes()).file:
        pool.Add(file)
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
