"""The bodies of the Open Inference Protocol, as the OpenAPI document shows them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Parameter = str | int | float | bool
Datatype = Literal["FP64", "FP32", "INT64", "INT32"]


class ServerMetadata(BaseModel):
    """What the server is."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives; -1 for any number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelReady(BaseModel):
    """Whether a model can be asked."""

    name: str
    ready: bool


class ModelMetadata(BaseModel):
    """What a model takes and gives, and at which price."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Parameter]


class InputTensor(BaseModel):
    """Rows to be answered: all of them or none."""

    name: Literal["instances"]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
    datatype: Datatype
    parameters: dict[str, Parameter] = {}
    data: list[float] | list[list[float]] = []
    """Flat or in a list for each row; absent where `parameters` has a `binary_data_size`."""


class RequestedOutput(BaseModel):
    """A tensor that is wished for."""

    name: Literal["probabilities"]
    parameters: dict[str, Parameter] = {}


class InferRequest(BaseModel):
    """A request for inference."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"inputs": [{"name": "instances", "shape": [1, 2], "datatype": "FP64", "data": [0.0, 1.0]}]},
            ]
        }
    )

    id: str | None = None
    parameters: dict[str, Parameter] = {}
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: list[RequestedOutput] = []


class OutputTensor(BaseModel):
    """Private answers: one probability for each class and row."""

    name: str
    datatype: str
    shape: list[int]
    data: list[float] | None = None
    parameters: dict[str, Parameter] | None = None


class InferResponse(BaseModel):
    """Private answers, with what they cost and what is left in `parameters`."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Parameter]
    outputs: list[OutputTensor]


class ErrorOut(BaseModel):
    """An error of the protocol; its type stands in the header `dpserve-problem`."""

    error: str
