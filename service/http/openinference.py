"""KServe's Open Inference Protocol v2 over the same core: the same charges, replays and refusals as `POST /predict`.

What it adds stands in `parameters` and in two headers: the price, the receipt and what is left of the budget.
"""

import asyncio
import json
import time
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np
from fastapi import Depends, FastAPI, Request, Response

from accounting.ledger import Idempotency
from accounting.picorho import to_rho
from accounting.report import AccountReport
from service.http.authentication import BEARER, Authentication, authorization_of, peer_of
from service.http.bodies import SMALL_BODY, read_body
from service.http.hanging_up import unless_hung_up
from service.http.idempotency import IDEMPOTENCY_PARAMETER, idempotency_of
from service.http.openinference_schemas import (
    ErrorOut,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
)
from service.http.predictions import BUDGET, PATH, PREFER_PARAMETER, RECEIPT, Asked, Predictions
from service.http.problems import Problem, ProblemType
from service.http.tensors import Inference, array_of, invalid, parse_inference
from service.plane import Floats, Plane, Prediction

PREFIX = "/v2"
_MODEL, _OF_VERSION = f"{PREFIX}/models/{{name}}", "/versions/{version}"
INPUT, OUTPUT = "instances", "probabilities"
VERSION = "1"
"""The only version of a model that a service has."""

_JSON_LENGTH = "Inference-Header-Content-Length"


def add_open_inference(
    app: FastAPI, plane: Plane, authentication: Authentication, predictions: Predictions, *, largest_body: int
) -> None:
    """Add the routes under /v2. largest_body: bytes; a longer body is refused unread."""
    _add_health(app, plane)
    _add_metadata(app, plane)
    inference = OpenInference(plane, authentication, predictions, largest_body=largest_body)

    async def infer(request: Request, name: str) -> Response:
        _check(plane, name)
        return await inference.answer(request)

    async def infer_version(request: Request, name: str, version: str) -> Response:
        _check(plane, name, version)
        return await inference.answer(request)

    for path, answer in ((_MODEL, infer), (_MODEL + _OF_VERSION, infer_version)):
        app.post(
            f"{path}/infer",
            summary="Ask for private predictions",
            response_model=InferResponse,
            responses=_RESPONSES,
            dependencies=[Depends(BEARER)],
            openapi_extra=_OPENAPI,
        )(answer)


def _check(plane: Plane, name: str, version: str = VERSION) -> None:
    plane.check_model(name)
    if version != VERSION:
        raise Problem(HTTPStatus.NOT_FOUND, ProblemType.UNKNOWN_MODEL, f"{name!r} has the version {VERSION!r} alone")


def _add_health(app: FastAPI, plane: Plane) -> None:
    @app.get(f"{PREFIX}/health/live", summary="Whether the process answers", responses=_RESPONSES)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get(f"{PREFIX}/health/ready", summary="Whether the service can charge and answer", responses=_RESPONSES)
    async def ready() -> dict[str, bool]:
        await plane.check_ready()
        return {"ready": True}

    async def model_ready(name: str) -> ModelReady:
        return await version_ready(name, VERSION)

    async def version_ready(name: str, version: str) -> ModelReady:
        _check(plane, name, version)
        await plane.check_ready()
        return ModelReady(name=name, ready=True)

    for path, answer in ((_MODEL, model_ready), (_MODEL + _OF_VERSION, version_ready)):
        app.get(f"{path}/ready", summary="Whether the model can be asked", responses=_RESPONSES)(answer)


def _add_metadata(app: FastAPI, plane: Plane) -> None:
    @app.get(PREFIX, summary="What this server is", responses=_RESPONSES)
    async def server() -> ServerMetadata:
        return ServerMetadata(name="dpserve", version=version("dpserve"), extensions=["binary_tensor_data"])

    async def model(name: str) -> ModelMetadata:
        _check(plane, name)
        return _metadata(plane)

    async def model_version(name: str, version: str) -> ModelMetadata:
        _check(plane, name, version)
        return _metadata(plane)

    for path, answer in ((_MODEL, model), (_MODEL + _OF_VERSION, model_version)):
        app.get(path, summary="What a model takes and gives", responses=_RESPONSES)(answer)


def _metadata(plane: Plane) -> ModelMetadata:
    certificate = plane.certificate
    classes = certificate.classes
    return ModelMetadata.model_validate(
        {
            "name": certificate.name,
            "versions": [VERSION],
            "platform": "dpserve",
            "inputs": [
                {"name": INPUT, "datatype": "FP64", "shape": [-1, len(certificate.feature_names)]},
            ],
            "outputs": [{"name": OUTPUT, "datatype": "FP64", "shape": [-1, len(classes)]}],
            "parameters": {
                "classes": json.dumps(classes),
                "features": json.dumps(certificate.feature_names),
                "mechanism": plane.mechanism_name,
                "status": plane.mechanism_status,
                "price_per_row_rho": to_rho(plane.price_per_row.picorho),
                "largest_batch": plane.largest_batch,
            },
        }
    )


class OpenInference:
    """Answers requests for inference as `Predictions` does its own."""

    def __init__(
        self, plane: Plane, authentication: Authentication, predictions: Predictions, *, largest_body: int
    ) -> None:
        """Answer from `plane`. largest_body: bytes; a longer body is refused unread."""
        self._plane = plane
        self._authentication = authentication
        self._predictions = predictions
        self._largest_body = largest_body

    async def answer(self, request: Request) -> Response:
        """Answer one request. Raises Problem and the refusals that `as_problem` knows."""
        began = time.monotonic()
        caller = await self._authentication.payer(authorization_of(request.headers), peer_of(request))
        body = await read_body(request, self._largest_body)
        prefer = request.headers.get("prefer", "")
        asked, prediction, headers = await unless_hung_up(
            request, self._predictions.paid(caller, self._asked(request, body), prefer, began)
        )
        response = self._response(asked, prediction)
        response.headers.update(headers)
        return response

    async def _asked(self, request: Request, body: bytes) -> "_Asked":
        if request.query_params:
            # Whoever asks for a dry run must not be charged for a wet one.
            raise invalid(
                f"this route takes no parameters in its query; what an answer costs is told by POST {PATH}?dry_run=true"
            )
        if request.headers.get("content-encoding", "identity") != "identity":
            raise invalid("send the body without compression")
        length = request.headers.get(_JSON_LENGTH)
        # Other requests go on while a large body is parsed.
        parsed = _parse(body, length) if len(body) < SMALL_BODY else await asyncio.to_thread(_parse, body, length)
        inference, X = parsed
        tier = _tier(inference)
        self._plane.check_tier(tier)
        X = self._plane.check_array(X)
        in_binary = _wants_bytes(inference)
        return _Asked(X, tier, _idempotency(request, body, length), id=inference.id, in_binary=in_binary)

    def _response(self, asked: "_Asked", prediction: Prediction) -> Response:
        probabilities = prediction.probabilities.astype("<f8", copy=False)
        receipt = self._predictions.receipt_of(prediction)
        output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP64", "shape": list(probabilities.shape)}
        content: dict[str, Any] = {"model_name": self._plane.certificate.name, "model_version": VERSION}
        if asked.id is not None:
            content["id"] = asked.id
        content["parameters"] = _parameters(receipt, prediction.budget, rehearsal=self._plane.rehearsal)
        budget = self._predictions.budget_of(prediction)
        headers = {RECEIPT: msgspec.json.encode(receipt).decode(), BUDGET: budget.decode()}
        if not asked.in_binary:
            content["outputs"] = [output | {"data": probabilities.ravel().tolist()}]
            return Response(msgspec.json.encode(content), headers=headers, media_type="application/json")
        raw = probabilities.tobytes()
        content["outputs"] = [output | {"parameters": {"binary_data_size": len(raw)}}]
        said = msgspec.json.encode(content)
        headers[_JSON_LENGTH] = str(len(said))
        return Response(said + raw, headers=headers, media_type="application/octet-stream")


class _Asked(Asked, frozen=True, eq=False):
    """What a request for inference asks for."""

    id: str | None
    in_binary: bool


def _parse(body: bytes, length: str | None) -> tuple[Inference, Floats]:
    inference, behind = parse_inference(body, length)
    if len(inference.inputs) != 1 or inference.inputs[0].name != INPUT:
        raise invalid(f"send one input, {INPUT!r}, of the shape [rows, features]")
    if "shared_memory_region" in inference.inputs[0].parameters:
        raise invalid("shared memory is not offered")
    return inference, array_of(inference.inputs[0], behind).astype(np.float64)


def _wants_bytes(inference: Inference) -> bool:
    """Return whether the output is to stand behind the JSON. Raises a 400 problem for outputs that there are not."""
    by_default = inference.parameters.get("binary_data_output", False)
    if [output.name for output in inference.outputs] not in ([], [OUTPUT]):
        raise invalid(f"the only output is {OUTPUT!r}")
    asked = inference.outputs[0].parameters if inference.outputs else {}
    if "classification" in asked or "shared_memory_region" in asked:
        raise invalid("neither classification nor shared memory is offered: every answer is all probabilities")
    return asked.get("binary_data", by_default) is True


def _tier(inference: Inference) -> str | None:
    tier = inference.parameters.get("tier")
    if tier is not None and not isinstance(tier, str):
        raise invalid("the parameter 'tier' is the name of a tier")
    return tier


def _idempotency(request: Request, body: bytes, length: str | None) -> Idempotency | None:
    # Where the JSON ends decides what the body says.
    return idempotency_of(request.headers.get("idempotency-key"), f"v2 {length or len(body)}\0".encode() + body)


def _parameters(receipt: dict[str, Any], budget: AccountReport, *, rehearsal: bool) -> dict[str, Any]:
    """Return the receipt and the budget as the protocol has parameters: numbers, texts and booleans, no nulls."""
    named = {f"receipt_{name}" if name == "id" else name: value for name, value in receipt.items() if name != "model"}
    left: dict[str, Any] = {
        "spent_rho": budget.spent.rho,
        "remaining_rho": budget.remaining.rho,
        "spent_epsilon": budget.spent.epsilon,
        "remaining_epsilon": budget.remaining.epsilon,
        "delta": budget.delta,
        "queries_left": budget.queries_left,
        "rehearsal": True if rehearsal else None,
    }
    return {name: value for name, value in (named | left).items() if value is not None}


_RESPONSES: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorOut, "description": "An error; its type stands in the header dpserve-problem"}
}

_OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")}
        },
    },
    "parameters": [
        IDEMPOTENCY_PARAMETER,
        PREFER_PARAMETER,
        {
            "name": _JSON_LENGTH,
            "in": "header",
            "required": False,
            "schema": {"type": "integer", "minimum": 2},
            "description": "How many bytes of the body are JSON, where raw tensor data stands behind it.",
        },
    ],
}
