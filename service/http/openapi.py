"""The OpenAPI document of a service: FastAPI's of its own routes, and the requests for predictions from their schemas.

It is exact for one model: the default one, or the one whose document is asked for. A row's length and bounds, the
model's name and its tiers are public and fixed while the service runs, so that a request that the document allows is
one that the service understands.
"""

import csv
import io
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from fastapi import FastAPI

from service.http import npy, schemas
from service.http.codec import BUDGET, NOISE, RECEIPT
from service.http.openinference import DATATYPES, INPUT, JSON_LENGTH, MODEL, MODEL_VERSION, VERSION
from service.http.requests import IDEMPOTENCY_PARAMETER, PREFER_PARAMETER
from service.http.tables import CSV
from service.models import Models
from service.predictor import Predictor

_STRUCTS = (
    schemas.PredictRequest,
    schemas.PredictResponse,
    schemas.QuoteResponse,
    schemas.InferRequest,
    schemas.InferResponse,
)
_DRY_RUN = {
    "name": "dry_run",
    "in": "query",
    "required": False,
    "schema": {"type": "boolean", "default": False},
    "description": "true: say what the request would cost and whether it would be admitted; answer and spend nothing.",
}
_OF_DEFAULT = ("/predict", "/invocations", "/budget", "/budget/receipts")
"""Paths that name no model."""

_ASKED_AS = {
    "predict": ("PredictRequest", "Ask for private predictions"),
    "invocations": ("InvocationsRequest", "Ask for private predictions by MLflow's scoring protocol"),
}
"""The schemas of requests for rows, and what they do, by the last part of the path."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}


def describe(app: FastAPI, models: Models) -> None:
    """Add the document of the default model, without one of the first; and each model's."""
    made: WeakKeyDictionary[Predictor, dict[str, Any]] = WeakKeyDictionary()

    def document_of(predictor: Predictor) -> dict[str, Any]:
        if predictor not in made:
            made[predictor] = _complete(deepcopy(app.openapi()), predictor)
        document = made[predictor]
        if predictor is models.default:
            return document
        return document | {"paths": {path: said for path, said in document["paths"].items() if path not in _OF_DEFAULT}}

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        described = models.default or next(iter(models), None)
        return app.openapi() if described is None else document_of(described)

    @app.get("/models/{name}/openapi.json", include_in_schema=False)
    async def document(name: str) -> dict[str, Any]:
        return document_of(models.named(name))


def _complete(document: dict[str, Any], predictor: Predictor) -> dict[str, Any]:
    components = document["components"]["schemas"]
    _, of_structs = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    components |= of_structs
    _narrow_rows(components["PredictRequest"], predictor)
    components["InvocationsRequest"] = _invocations(predictor)
    _narrow_tensors(components, predictor)
    document["paths"] |= {
        f"{of_model}/{name}": {"post": _predict(predictor, name, in_path)}
        for of_model, in_path in (("", []), ("/models/{name}", ["name"]))
        for name in _ASKED_AS
    } | {
        f"{MODEL}/infer": {"post": _infer(["name"])},
        f"{MODEL_VERSION}/infer": {"post": _infer(["name", "version"])},
    }
    known = {"name": predictor.certificate.name, "version": VERSION}
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["schema"] = {"type": "string", "enum": [known[parameter["name"]]]}
    return document


def _predict(predictor: Predictor, name: str, in_path: list[str]) -> dict[str, Any]:
    request, summary = _ASKED_AS[name]
    tier = {
        "name": "tier",
        "in": "query",
        "required": False,
        "schema": {"type": "string", "enum": list(predictor.tier_names)},
        "description": "The precision to be answered at; the same as `tier` in the body.",
    }
    answer = {"anyOf": [_reference("PredictResponse"), _reference("QuoteResponse")]}
    return {
        "summary": summary,
        "operationId": "_".join([name, *in_path]),
        "security": [{"API key": []}],
        "parameters": [
            *_in_path(in_path),
            IDEMPOTENCY_PARAMETER,
            PREFER_PARAMETER,
            _DRY_RUN,
            *([tier] if predictor.tier_names else []),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _reference(request)},
                CSV: {"schema": {"type": "string"}, "example": _csv(predictor)},
                npy.MEDIA_TYPE: _BINARY,
            },
        },
        "responses": {
            "200": {
                "description": f"The predictions; as a NumPy array if {npy.MEDIA_TYPE} is accepted, with the receipt, "
                f"the budget and the noise as JSON in the headers {RECEIPT}, {BUDGET} and {NOISE}.",
                "content": {"application/json": {"schema": answer}, npy.MEDIA_TYPE: _BINARY},
            },
            "default": {
                "description": "A problem (RFC 9457)",
                "content": {"application/problem+json": {"schema": _reference("ProblemOut")}},
            },
        },
    }


def _infer(in_path: list[str]) -> dict[str, Any]:
    json_length = {
        "name": JSON_LENGTH,
        "in": "header",
        "required": False,
        "schema": {"type": "integer", "minimum": 2},
        "description": "How many bytes of the body are JSON, where raw tensor data stands behind it.",
    }
    return {
        "summary": "Ask for private predictions",
        "operationId": "_".join(["infer", *in_path]),
        "security": [{"API key": []}],
        "parameters": [
            *_in_path(in_path),
            IDEMPOTENCY_PARAMETER,
            PREFER_PARAMETER,
            json_length,
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _reference("InferRequest")}}},
        "responses": {
            "200": {
                "description": "The predictions",
                "content": {"application/json": {"schema": _reference("InferResponse")}},
            },
            "default": {
                "description": "An error; its type stands in the header dpserve-problem",
                "content": {"application/json": {"schema": _reference("ErrorOut")}},
            },
        },
    }


def _in_path(names: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True} for name in names]


def _narrow_rows(schema: dict[str, Any], predictor: Predictor) -> None:
    properties = schema["properties"]
    sizes = {"type": "array", "minItems": 1, "maxItems": predictor.largest_batch}
    description = properties["instances"]["description"]
    kinds = [sizes | {"items": row} for row in (_named(predictor), _row(predictor))]
    properties["instances"] = {"anyOf": kinds, "description": description}
    properties["model"] = {"anyOf": [{"const": predictor.certificate.name}, {"type": "null"}], "default": None}
    tiers = [{"enum": list(predictor.tier_names)}] if predictor.tier_names else []
    properties["tier"] = {"anyOf": [*tiers, {"type": "null"}], "default": None}
    schema["examples"] = [{"instances": [row]} for row in (_example(predictor), _middle(predictor))]


def _narrow_tensors(components: dict[str, Any], predictor: Predictor) -> None:
    tensor = components["InputTensor"]["properties"]
    numbers = {"type": "array", "items": {"type": "number"}}
    tensor["name"] = {"enum": [INPUT]}
    tensor["datatype"] = {"enum": list(DATATYPES)}
    tensor["shape"] |= {"minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": 1}}
    tensor["data"] = {
        "anyOf": [numbers, {"type": "array", "items": numbers}],
        "description": "Flat or in a list for each row; absent where `parameters` has a `binary_data_size`.",
    }
    components["RequestedOutput"]["properties"]["name"] = {"enum": list(predictor.outputs)}
    request = components["InferRequest"]
    request["properties"]["inputs"] |= {"minItems": 1, "maxItems": 1}
    row = _middle(predictor)
    request["examples"] = [{"inputs": [{"name": INPUT, "shape": [1, len(row)], "datatype": "FP64", "data": row}]}]


def _invocations(predictor: Predictor) -> dict[str, Any]:
    """What MLflow's scoring protocol asks with: exactly one of its forms."""
    named, row, example = _named(predictor), _row(predictor), _example(predictor)
    sizes = {"type": "array", "minItems": 1, "maxItems": predictor.largest_batch}
    rows = {"anyOf": [sizes | {"items": named}, sizes | {"items": row}]}
    values = list(named["properties"].values())
    split = {
        "columns": {"const": list(named["properties"])},
        "index": {"type": "array"},
        "data": sizes
        | {"items": {"type": "array", "prefixItems": values, "minItems": len(values), "maxItems": len(values)}},
    }
    unnamed = {"index": {"type": "array"}, "data": sizes | {"items": row}}
    tiers = {"tier": {"enum": list(predictor.tier_names)}} if predictor.tier_names else {}
    params = {"type": ["object", "null"], "properties": tiers, "additionalProperties": False}
    forms = {
        "dataframe_split": {
            "anyOf": [
                {"type": "object", "properties": split, "required": list(needed), "additionalProperties": False}
                for split, needed in ((split, ("columns", "data")), (unnamed, ("data",)))
            ]
        },
        "dataframe_records": sizes | {"items": named},
        "instances": rows,
        "inputs": rows | {"description": "As instances; or an object with a list of values for each column."},
    }
    return {
        "title": "InvocationsRequest",
        "description": "Rows as MLflow's clients send them: all of them or none.",
        "type": "object",
        "properties": {
            **forms,
            "params": params,
        },
        "oneOf": [{"required": [form]} for form in forms],
        "additionalProperties": False,
        "examples": [
            {"dataframe_split": {"columns": list(example), "data": [list(example.values())]}},
            {"dataframe_records": [example]},
            {"inputs": [_middle(predictor)]},
        ],
    }


def _csv(predictor: Predictor) -> str:
    """A header and a row."""
    written, example = io.StringIO(), _example(predictor)
    csv.writer(written, lineterminator="\n").writerows([example, example.values()])
    return written.getvalue()


def _row(predictor: Predictor) -> dict[str, Any]:
    bounds = predictor.certificate.feature_map
    each = list(zip(bounds.lower, bounds.upper, strict=True))
    row: dict[str, Any] = {"type": "array", "minItems": len(each), "maxItems": len(each)}
    if len(set(each)) == 1:
        return row | {"items": _number(*each[0])}
    return row | {"prefixItems": [_number(*pair) for pair in each]}


def _named(predictor: Predictor) -> dict[str, Any]:
    """A row by the names of its columns."""
    columns = predictor.certificate.columns
    if columns:
        properties = {column.name: column.json_schema() for column in columns}
    else:
        bounds, names = predictor.certificate.feature_map, predictor.certificate.feature_names
        each = zip(names, bounds.lower, bounds.upper, strict=True)
        properties = {name: _number(lower, upper) for name, lower, upper in each}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _example(predictor: Predictor) -> dict[str, Any]:
    """A row by name, from declared bounds and lists alone."""
    columns = predictor.certificate.columns
    if columns:
        return {column.name: column.example for column in columns}
    return dict(zip(predictor.certificate.feature_names, _middle(predictor), strict=True))


def _number(lower: float, upper: float) -> dict[str, Any]:
    return {"type": "number", "minimum": lower, "maximum": upper}


def _middle(predictor: Predictor) -> list[float]:
    bounds = predictor.certificate.feature_map
    return [lower + (upper - lower) / 2 for lower, upper in zip(bounds.lower, bounds.upper, strict=True)]


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
