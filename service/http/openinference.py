"""KServe's Open Inference Protocol v2 over the same core: the same charges, replays and refusals as `POST /predict`.

Tensors are JSON, or raw bytes behind it (the binary tensor data extension). What the service adds stands in
`parameters`, in further outputs and in headers: the price, the receipt, what is left of the budget, and what is asked
for of the noise.
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, Response
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.laws import COVERAGE
from dpserve.service.http.codec import (
    budget_of,
    check_members,
    headers_of,
    json_of,
    malformed_json,
    members_around,
    receipt_of,
)
from dpserve.service.http.column_tensors import TEXTS, column_inputs, rows_of_tensors
from dpserve.service.http.numbers import numbers
from dpserve.service.http.predictions import Reply
from dpserve.service.http.problems import Problem
from dpserve.service.http.requests import RequestHeader, invalid
from dpserve.service.http.schemas import (
    COMPONENTS,
    InferRequest,
    InferResponse,
    InputTensor,
    Json,
    ModelConfig,
    ModelIndex,
    ModelMetadata,
    ModelReady,
    OutputTensor,
    ServerMetadata,
    TensorConfig,
    TensorMetadata,
    answers,
)
from dpserve.service.http.structure import SMALL, Structure, check_structure
from dpserve.service.models import VERSION, Models
from dpserve.service.predictor import INTERVAL, PREDICTION_SET, UNDECIDED, Prediction, Predictor, RowsRequest
from dpserve.training.inputs.columns import UnencodedTexts
from dpserve.training.kinds.outputs import Output

PREFIX = "/v2"
MODEL = f"{PREFIX}/models/{{name}}"
MODEL_VERSION = MODEL + "/versions/{version}"
INPUT = "instances"
JSON_LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"FP64": "<f8", "FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
"""Types in which a row's numbers may be sent. They become float64, and rows that are then equal share one answer."""

ANSWERED = {"b": "BOOL", "i": "INT64", "f": "FP64"}
"""The protocol's words for the values of an answer, by NumPy's kinds."""

_OF_NOISE = frozenset({*INTERVAL, UNDECIDED})
_LENGTH = re.compile(r"[0-9]{1,15}")
_MOST_ELEMENTS = 2**31

_BESIDE_INPUT = 64
"""Members of an input beside its data, and what stands between them, with room to spare."""


class _Tensors(msgspec.Struct):
    """A request's tensors as they come, with all their members."""

    inputs: list[dict[str, msgspec.Raw]] = []
    outputs: list[dict[str, msgspec.Raw]] = []


_decode = msgspec.json.Decoder(InferRequest).decode
_tensors = msgspec.json.Decoder(_Tensors).decode
_nested = msgspec.json.Decoder(list[list[float]]).decode
_flat = msgspec.json.Decoder(list[float]).decode
_encode = msgspec.json.Encoder().encode


class TensorRequest(RowsRequest, frozen=True, eq=False):
    """A request for inference. outputs: the names of those that are wished for, and whether each is to be raw bytes."""

    id: str | None = None
    outputs: Mapping[str, bool] = {}


class OpenInferenceCodec:
    """`POST /v2/models/{name}/infer`."""

    parameters = frozenset[str]()

    def decode(self, predictor: Predictor, header: RequestHeader, body: bytes) -> TensorRequest:
        """Return what is asked for. Raises Problem and the refusals of a predictor's checks."""
        if (header.field(b"content-encoding") or "identity") != "identity":
            raise invalid("send the body without compression")
        length = header.field(JSON_LENGTH.lower().encode())
        described, raw = parts_of(body, length)
        if len(described) >= SMALL:
            check_structure(described, most_in(predictor), predictor.largest_batch)
        request = parsed_request(described)
        # Where the JSON ends decides what the body says.
        return self.request_of(predictor, header, request, raw, f"v2 {length or len(body)}\0".encode() + body)

    def request_of(
        self, predictor: Predictor, header: RequestHeader, request: InferRequest, raw: bytes, identity: bytes
    ) -> TensorRequest:
        """Return what is asked for, by bytes behind the request. identity: all that decides the answer."""
        if any("shared_memory_region" in tensor.parameters for tensor in request.inputs):
            raise invalid("shared memory is not offered")
        noise, clip = request.parameters.get("noise", False), request.parameters.get("clip")
        if not isinstance(noise, bool) or not isinstance(clip, bool | None):
            raise invalid("the parameters 'noise' and 'clip' are true or false")
        coverage = request.parameters.get("coverage")
        if coverage is not None and type(coverage) not in (int, float):
            raise invalid("the parameter 'coverage' is a number")
        thousandths = None if coverage is None else predictor.check_coverage(coverage)
        X, unencoded = _rows_of(predictor, request.inputs, raw, clip)
        outputs = _outputs_of(predictor, request)
        return TensorRequest(
            X,
            header.idempotency(identity),
            header.deadline,
            noise or not _OF_NOISE.isdisjoint(outputs),
            thousandths,
            unencoded,
            id=request.id,
            outputs=outputs,
        )

    def encode(
        self, predictor: Predictor, header: RequestHeader, request: TensorRequest, prediction: Prediction
    ) -> Reply:
        """Return the answer as JSON, with the bytes of raw tensors behind it."""
        del header
        values = tensors_of(predictor, prediction, request.outputs, request.coverage)
        outputs, raw = [], b""
        for name, in_binary in request.outputs.items():
            tensor = values[name]
            output = OutputTensor(name, ANSWERED[tensor.dtype.kind], tensor.shape)
            if in_binary:
                output.parameters = {"binary_data_size": tensor.nbytes}
                raw += tensor.tobytes()
            else:
                output.data = json_of(tensor.ravel())
            outputs.append(output)
        response = InferResponse(
            predictor.name,
            VERSION,
            parameters_of(predictor, prediction),
            outputs,
            msgspec.UNSET if request.id is None else request.id,
        )
        said, headers = _encode(response), headers_of(predictor, prediction)
        if not raw:
            return said, {b"content-type": b"application/json"} | headers
        headers[JSON_LENGTH.encode()] = b"%d" % len(said)
        return said + raw, {b"content-type": b"application/octet-stream"} | headers


def _rows_of(
    predictor: Predictor, inputs: Sequence[InputTensor], raw: bytes, clip: bool | None
) -> tuple[Floats, tuple[UnencodedTexts, ...]]:
    """Return the rows that one input holds, or one for each column of the model's schema; and texts to be encoded."""
    if len(inputs) == 1 and inputs[0].name == INPUT:
        return predictor.check_array(array_of(inputs[0], raw).astype(np.float64), clip=clip), ()
    if not predictor.certificate.columns:
        raise one_input()
    return predictor.check_named(rows_of_tensors(inputs, raw, predictor), clip=clip)


def _outputs_of(predictor: Predictor, request: InferRequest) -> dict[str, bool]:
    """Return which outputs are wished for, and whether as raw bytes. Raises a 400 problem for an unknown one."""
    by_default = request.parameters.get("binary_data_output", False) is True
    if not request.outputs:
        left_out = {
            *(() if request.parameters.get("noise", False) else _OF_NOISE),
            *(() if request.parameters.get("coverage") is not None else (PREDICTION_SET,)),
        }
        return {name: by_default for name in predictor.parts if name not in left_out}
    named = {output.name: output.parameters for output in request.outputs}
    if len(named) != len(request.outputs) or not named.keys() <= set(predictor.parts):
        raise invalid(f"the outputs are {', '.join(map(repr, predictor.parts))}, each once at most")
    if PREDICTION_SET in named and request.parameters.get("coverage") is None:
        raise invalid(f"{PREDICTION_SET!r} needs the parameter 'coverage', as 0.9")
    for parameters in named.values():
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise invalid("neither classification nor shared memory is offered: every answer is whole")
    return {name: wished.get("binary_data", by_default) is True for name, wished in named.items()}


def parameters_of(predictor: Predictor, prediction: Prediction) -> dict[str, Any]:
    """Return receipt, budget and noise as the protocol has parameters: numbers, texts and booleans, no nulls."""
    receipt = msgspec.to_builtins(receipt_of(predictor, prediction))
    receipt["receipt_id"] = receipt.pop("id")
    del receipt["model"]
    named = msgspec.to_builtins(budget_of(predictor, prediction)) | receipt
    named["rehearsal"] = True if predictor.rehearsal else None
    if prediction.noise is not None:
        noise, scale = prediction.noise.noise, prediction.noise.scale
        named |= {"noise_law": noise.law_name, "noise_on": noise.on, "coverage": COVERAGE}
        named["noise_scale"] = None if scale is None else float(scale.max())
        named["no_interval"] = noise.no_interval or None
    return {name: value for name, value in named.items() if value is not None}


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "An error; its type stands in the header dpserve-problem",
        "content": {"application/json": {"schema": {"$ref": COMPONENTS.format(name="ErrorOut")}}},
    }
}
"""The OpenAPI document's entry for every status that the protocol's routes do not name."""


def add_open_inference(app: FastAPI, models: Models) -> None:
    """Add the protocol's routes for health and metadata."""

    @app.get(f"{PREFIX}/health/live", summary="Whether the process answers", responses=ERROR_RESPONSES)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get(f"{PREFIX}/health/ready", summary="Whether the service can charge and answer", responses=ERROR_RESPONSES)
    async def ready() -> dict[str, bool]:
        await models.check_ready()
        return {"ready": True}

    @app.get(PREFIX, summary="What this server is", responses=answers(ServerMetadata) | ERROR_RESPONSES)
    async def server() -> Response:
        return Json(server_metadata())

    indexed = answers(list[ModelIndex]) | ERROR_RESPONSES

    @app.post(f"{PREFIX}/repository/index", summary="List the models", responses=indexed)
    async def index() -> Response:
        return Json(repository_index(models))

    async def is_ready(predictor: Predictor) -> ModelReady:
        await predictor.check_ready()
        return ModelReady(predictor.name, ready=True)

    async def takes(predictor: Predictor) -> ModelMetadata:
        return metadata(predictor)

    async def is_served(predictor: Predictor) -> ModelConfig:
        return config(predictor)

    _add_of_model(app, models, "/ready", "Whether the model can be asked", ModelReady, is_ready)
    _add_of_model(app, models, "", "What a model takes and gives", ModelMetadata, takes)
    _add_of_model(app, models, "/config", "How a model is served", ModelConfig, is_served)


def _add_of_model(
    app: FastAPI, models: Models, path: str, summary: str, kind: Any, tell: Callable[[Predictor], Awaitable[Any]]
) -> None:
    responses = answers(kind) | ERROR_RESPONSES

    @app.get(MODEL_VERSION + path, summary=summary, responses=responses)
    async def of_version(name: str, version: str) -> Response:
        return Json(await tell(models.named(name, version)))

    @app.get(MODEL + path, summary=summary, responses=responses)
    async def of_model(name: str) -> Response:
        return await of_version(name, VERSION)


def server_metadata() -> ServerMetadata:
    """Return what the server is."""
    extensions = ["binary_tensor_data", "model_repository", "model_configuration"]
    return ServerMetadata(name="dpserve", version=version("dpserve"), extensions=extensions)


def repository_index(models: Models) -> list[ModelIndex]:
    """Return every model that is served."""
    return [ModelIndex(name=each.name, version=VERSION, state="READY", reason="") for each in models]


def config(predictor: Predictor) -> ModelConfig:
    """Return how a model is served, as Triton's configuration extension has it."""
    description = metadata(predictor)
    return ModelConfig(
        name=description.name,
        platform=description.platform,
        backend=description.platform,
        max_batch_size=predictor.largest_batch,
        input=[_without_rows(each) for each in description.inputs],
        output=[_without_rows(each) for each in description.outputs],
    )


def _without_rows(tensor: TensorMetadata) -> TensorConfig:
    kind = "STRING" if tensor.datatype == TEXTS else tensor.datatype
    return TensorConfig(name=tensor.name, data_type=f"TYPE_{kind}", dims=tensor.shape[1:])


def metadata(predictor: Predictor) -> ModelMetadata:
    """Return what a model takes and gives, and at which price."""
    certificate = predictor.certificate
    outputs = {each.name: each for each in predictor.outputs.fields}
    return ModelMetadata(
        name=predictor.name,
        versions=[VERSION],
        platform="dpserve",
        inputs=column_inputs(certificate.columns)
        or [TensorMetadata(INPUT, "FP64", [-1, len(certificate.feature_names)])],
        outputs=[_tensor_of(name, outputs.get(name), predictor) for name in predictor.parts],
        parameters={
            **({} if predictor.outputs.classes is None else {"classes": json.dumps(predictor.outputs.classes)}),
            "features": json.dumps(certificate.feature_names),
            "mechanism": predictor.mechanism_name,
            "status": predictor.mechanism_status,
            "price_per_row": to_rho(predictor.price_per_row.picorho),
            "largest_batch": predictor.largest_batch,
        },
    )


def _tensor_of(name: str, output: Output | None, predictor: Predictor) -> TensorMetadata:
    """Return the metadata of an answer's part. output: None for what is said beside the outputs."""
    if output is None:
        numbers = sum(each.size for each in predictor.outputs.fields)
        if name == UNDECIDED:
            return TensorMetadata(name, "BOOL", [-1])
        return TensorMetadata(name, "BOOL" if name == PREDICTION_SET else "FP64", [-1, numbers])
    datatype = "INT64" if output.counts else "FP64"
    return TensorMetadata(name, datatype, [-1] if output.labels is None else [-1, output.size])


def most_in(predictor: Predictor) -> Structure:
    """Return the most that a request's JSON may have: an input of rows, or one of a row's value for each column."""
    rows, inputs = predictor.largest_batch, max(1, len(predictor.certificate.columns or ()))
    beside = _BESIDE_INPUT * (inputs + 1)
    return Structure(
        commas=rows * max(predictor.width, inputs) + beside,
        members=beside,
        lists=rows * inputs + beside,
        objects=beside,
    )


def parts_of(body: bytes, json_length: str | None) -> tuple[bytes, bytes]:
    """Return a request's JSON, and the bytes behind it. json_length: of the JSON, if it is not all of the body.

    Raises a 400 problem.
    """
    length = len(body)
    if json_length is not None:
        if not _LENGTH.fullmatch(json_length) or int(json_length) > length:
            raise invalid(f"{JSON_LENGTH} must be the length in bytes of the JSON in the body")
        length = int(json_length)
    return body[:length], body[length:]


def parsed_request(described: bytes) -> InferRequest:
    """Return a request of JSON. Raises a 400 problem."""
    try:
        request = _decode(described)
        members = _members_of(described, request)
    except msgspec.ValidationError as error:
        raise invalid(f"the body is no request for inference: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_json(error) from None
    check_members(described, members)
    return request


def _members_of(described: bytes, request: InferRequest) -> int:
    """Return how many different members the objects of a request have."""
    tensors = _tensors(described)
    of_inputs, of_outputs = [each.parameters for each in request.inputs], [each.parameters for each in request.outputs]
    objects = *tensors.inputs, *tensors.outputs, *of_inputs, *of_outputs, request.parameters
    return members_around(described) + sum(map(len, objects))


def one_input() -> Problem:
    """Return the problem of a request without the one input."""
    return invalid(f"send one input, {INPUT!r}, of the shape [rows, features]")


def check_shape(shape: Sequence[int]) -> None:
    """Raise a 400 problem for what is not the shape of rows."""
    if len(shape) != 2 or min(shape) < 1 or shape[0] * shape[1] > _MOST_ELEMENTS:
        raise invalid("the shape must be [rows, features]")


def array_of(tensor: InputTensor, behind: bytes) -> NDArray[np.floating[Any] | np.integer[Any]]:
    """Return a tensor of two dimensions. behind: the bytes after the JSON, all of which must be this tensor's.

    Raises a 400 problem.
    """
    kind = DATATYPES.get(tensor.datatype)
    if kind is None:
        raise invalid(f"the datatype must be one of {', '.join(DATATYPES)}")
    check_shape(tensor.shape)
    size = tensor.parameters.get("binary_data_size")
    elements = _elements(tensor, kind) if size is None else np.frombuffer(_raw(tensor, kind, size, behind), kind)
    if size is None and behind:
        raise invalid("there are bytes behind the JSON, and no input that says that they are its own")
    if elements.size != tensor.shape[0] * tensor.shape[1]:
        raise invalid(f"the data has {elements.size} numbers, and the shape says {tensor.shape[0] * tensor.shape[1]}")
    return elements.reshape(tensor.shape)


def _raw(tensor: InputTensor, kind: str, size: Any, behind: bytes) -> bytes:
    if bytes(tensor.data):
        raise invalid("an input has either data or binary_data_size")
    needed = tensor.shape[0] * tensor.shape[1] * np.dtype(kind).itemsize
    if type(size) is not int or size != len(behind) or size != needed:
        raise invalid(f"binary_data_size must be the number of bytes behind the JSON, and {needed} by the shape")
    return behind


def _elements(tensor: InputTensor, kind: str) -> NDArray[np.floating[Any]]:
    """Return the JSON's numbers in order, rounded to what the datatype can say."""
    raw = bytes(tensor.data)
    if not raw:
        raise invalid("the input has no data")
    values = numbers(raw, tensor.shape[1], tensor.shape[0])
    if values is None:
        try:
            values = np.array(_flat(raw), dtype=np.float64)
        except (msgspec.ValidationError, RecursionError):
            values = np.array(_numbers_of_rows(raw, tensor.shape[1]), dtype=np.float64)
    if kind == "<f4":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is out of every bound
            return values.astype(np.float32)
    if kind != "<f8" and not (np.isfinite(values).all() and (values == np.trunc(values)).all()):
        raise invalid(f"{tensor.datatype} data must be whole numbers")
    return values


def _numbers_of_rows(raw: bytes, features: int) -> list[float]:
    try:
        rows = _nested(raw)
    except (msgspec.ValidationError, RecursionError) as error:
        raise invalid(f"the data must be numbers, flat or in a list for each row: {error}") from None
    if any(len(row) != features for row in rows):
        raise invalid(f"each row of the data must have {features} numbers, as the shape says")
    return [number for row in rows for number in row]


def tensors_of(
    predictor: Predictor, prediction: Prediction, names: Collection[str], coverage: int | None
) -> dict[str, NDArray[Any]]:
    """Return those of an answer's tensors, `Predictor.parts`, that have these names. coverage: of prediction sets."""
    columns = predictor.outputs.split(prediction.values)
    if (noise := prediction.noise) is not None:
        if UNDECIDED in names and (undecided := noise.undecided) is not None:
            columns[UNDECIDED] = undecided
        if not set(INTERVAL).isdisjoint(names) and (ends := noise.intervals) is not None:
            columns |= zip(INTERVAL, ends, strict=True)
    if coverage is not None and (sets := predictor.prediction_sets) is not None:
        columns[PREDICTION_SET] = sets.sets_of(prediction.values, coverage)
    return {name: columns[name] for name in names}
