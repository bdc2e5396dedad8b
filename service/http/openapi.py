"""The OpenAPI document of a service: FastAPI's of its own routes, and the requests for predictions from their schemas.

It is exact for one model: the default one, or the one whose document is asked for. A row's length and bounds, the
model's name is public and fixed while the service runs, so that a request that the document allows is
one that the service understands.
"""

import ast
import inspect
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from fastapi import FastAPI

from dpserve.service.http import npy, schemas
from dpserve.service.http.codec import BUDGET, NOISE, RECEIPT, SETS
from dpserve.service.http.column_tensors import DATATYPES as COLUMN_DATATYPES
from dpserve.service.http.column_tensors import TEXTS, column_inputs
from dpserve.service.http.openinference import DATATYPES, ERROR_RESPONSES, INPUT, JSON_LENGTH, MODEL, MODEL_VERSION
from dpserve.service.http.requests import IDEMPOTENCY_PARAMETER, PREFER_PARAMETER
from dpserve.service.models import VERSION, Models
from dpserve.service.predictor import Predictor
from dpserve.training.pay_once.coverage import LEAST_COVERAGE, MOST_COVERAGE

_STRUCTS = [
    kind for kind in vars(schemas).values() if isinstance(kind, type(msgspec.Struct)) and kind.__struct_fields__
]


def _parameter(name: str, schema: dict[str, Any], description: str, *, place: str = "query") -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": description}


_DRY_RUN = _parameter(
    "dry_run",
    {"type": "boolean", "default": False},
    "true: say what the request would cost and whether it would be admitted; answer and spend nothing.",
)
_NOISE = _parameter(
    "noise",
    {"type": "boolean", "default": False},
    "true: say how far noise may have moved the answers, too; the same as `noise` in the body.",
)
_CLIP = _parameter(
    "clip",
    {"type": "boolean"},
    "true: clip values beyond the declared bounds to them; false: refuse them. By default as in training; the "
    "same as `clip` in the body.",
)
_COVERAGE = _parameter(
    "coverage",
    {"type": "number", "minimum": LEAST_COVERAGE, "maximum": MOST_COVERAGE},
    "Say `prediction_sets` of this coverage, in thousandths, too; the same as `coverage` in the body.",
)
_JSON_LENGTH = _parameter(
    JSON_LENGTH,
    {"type": "integer", "minimum": 2},
    "How many bytes of the body are JSON, where raw tensor data stands behind it.",
    place="header",
)
_OF_DEFAULT = ("/predict", "/budget", "/budget/receipts")
"""Paths that name no model."""

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
        return document | {
            "paths": {path: operations for path, operations in document["paths"].items() if path not in _OF_DEFAULT}
        }

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        described = models.default or next(iter(models), None)
        return app.openapi() if described is None else document_of(described)

    @app.get("/models/{name}/openapi.json", include_in_schema=False)
    async def document(name: str) -> dict[str, Any]:
        return document_of(models.named(name))


def _complete(document: dict[str, Any], predictor: Predictor) -> dict[str, Any]:
    components = document["components"]["schemas"]
    components |= deepcopy(_bodies())
    _narrow_rows(components["PredictRequest"], predictor)
    _narrow_tensors(components, predictor)
    document["paths"] |= {
        "/predict": {"post": _predict(predictor, [])},
        "/models/{name}/predict": {"post": _predict(predictor, ["name"])},
        f"{MODEL}/infer": {"post": _infer(["name"])},
        f"{MODEL_VERSION}/infer": {"post": _infer(["name", "version"])},
    }
    known = {"name": predictor.name, "version": VERSION}
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["schema"] = {"type": "string", "enum": [known[parameter["name"]]]}
    return document


@cache
def _bodies() -> dict[str, Any]:
    """Return the schemas of all bodies, with the text that stands below each field where it is declared."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template=schemas.COMPONENTS)
    module = ast.parse(inspect.getsource(schemas))
    descriptions = {
        (declared.name, ast.unparse(above.target)): " ".join(ast.literal_eval(below.value).split())
        for declared in module.body
        if isinstance(declared, ast.ClassDef)
        for above, below in pairwise(declared.body)
        if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
    for kind in _STRUCTS:
        for name, field in components[kind.__name__]["properties"].items():
            matching = [
                descriptions[base.__name__, name] for base in kind.__mro__ if (base.__name__, name) in descriptions
            ]
            field |= {"description": matching[0]} if matching else {}
    return components


def _predict(predictor: Predictor, in_path: list[str]) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference("PredictRequest")}, npy.MEDIA_TYPE: _BINARY}
    answer = {"anyOf": [_reference("PredictResponse"), _reference("QuoteResponse")]}
    receipt, budget, noise, sets_rule = (name.decode() for name in (RECEIPT, BUDGET, NOISE, SETS))
    answered = {
        "description": f"The predictions; as a NumPy array if {npy.MEDIA_TYPE} is accepted, with the receipt, "
        f"the budget and, where they are asked for, the noise and the rule of prediction sets as JSON in the headers "
        f"{receipt}, {budget}, {noise} and {sets_rule}.",
        "content": {"application/json": {"schema": answer}, npy.MEDIA_TYPE: _BINARY},
    }
    sets = [] if predictor.prediction_sets is None else [_COVERAGE]
    parameters = [_DRY_RUN, _NOISE, _CLIP, *sets]
    responses = {"200": answered, **schemas.PROBLEM_RESPONSES}
    return _operation("predict", in_path, parameters, content, responses)


def _infer(in_path: list[str]) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference("InferRequest")}}
    answer = {"application/json": {"schema": _reference("InferResponse")}}
    responses = {"200": {"description": "The predictions", "content": answer}, **ERROR_RESPONSES}
    return _operation("infer", in_path, [_JSON_LENGTH], content, responses)


def _operation(
    name: str,
    in_path: list[str],
    parameters: list[dict[str, Any]],
    content: dict[str, Any],
    responses: dict[Any, Any],
) -> dict[str, Any]:
    placed = [{"name": each, "in": "path", "required": True} for each in in_path]
    return {
        "summary": "Ask for private predictions",
        "operationId": "_".join([name, *in_path]),
        "security": [{"API key": []}],
        "parameters": [*placed, IDEMPOTENCY_PARAMETER, PREFER_PARAMETER, *parameters],
        "requestBody": {"required": True, "content": content},
        "responses": responses,
    }


def _narrow_rows(schema: dict[str, Any], predictor: Predictor) -> None:
    properties = schema["properties"]
    sizes = {"type": "array", "minItems": 1, "maxItems": predictor.largest_batch}
    description = properties["instances"]["description"]
    kinds = [sizes | {"items": row} for row in (_named(predictor), _row(predictor))]
    properties["instances"] = {"anyOf": kinds, "description": description}
    properties["model"] = {"anyOf": [{"const": predictor.name}, {"type": "null"}], "default": None}
    coverages = [] if predictor.prediction_sets is None else [_COVERAGE["schema"]]
    properties["coverage"] = {"anyOf": [*coverages, {"type": "null"}], "default": None}
    schema["examples"] = [{"instances": [row]} for row in (_example(predictor), _middle(predictor))]


def _narrow_tensors(components: dict[str, Any], predictor: Predictor) -> None:
    tensor = components["InputTensor"]["properties"]
    columns = predictor.certificate.columns
    cell = {"type": ["number", "string", "boolean", "null"] if columns else "number"}
    values = {"type": "array", "items": cell}
    tensor["name"] = {"enum": [INPUT, *(column.name for column in columns)]}
    tensor["datatype"] = {"enum": [*COLUMN_DATATYPES, TEXTS] if columns else list(DATATYPES)}
    tensor["shape"] |= {"minItems": 1 if columns else 2, "maxItems": 2, "items": {"type": "integer", "minimum": 1}}
    tensor["data"] = {
        "anyOf": [values, {"type": "array", "items": values}],
        "description": "Flat or in a list for each row; absent where `parameters` has a `binary_data_size`.",
    }
    components["RequestedOutput"]["properties"]["name"] = {"enum": list(predictor.parts)}
    request = components["InferRequest"]
    request["properties"]["inputs"] |= {"minItems": 1, "maxItems": max(1, len(columns))}
    row = _middle(predictor)
    request["examples"] = [{"inputs": [{"name": INPUT, "shape": [1, len(row)], "datatype": "FP64", "data": row}]}]
    if columns:
        example, inputs = _example(predictor), column_inputs(columns)
        tensors = [
            {"name": each.name, "shape": [1, 1], "datatype": each.datatype, "data": [example[each.name]]}
            for each in inputs
        ]
        request["examples"].insert(0, {"inputs": tensors})


def _numbers(predictor: Predictor) -> list[dict[str, Any]]:
    bounds = predictor.certificate.feature_map
    pairs = zip(bounds.lower, bounds.upper, strict=True)
    return [{"type": "number", "minimum": lower, "maximum": upper} for lower, upper in pairs]


def _row(predictor: Predictor) -> dict[str, Any]:
    each = _numbers(predictor)
    row: dict[str, Any] = {"type": "array", "minItems": len(each), "maxItems": len(each)}
    return row | ({"items": each[0]} if all(one == each[0] for one in each) else {"prefixItems": each})


def _named(predictor: Predictor) -> dict[str, Any]:
    """A row by the names of its columns."""
    properties = {column.name: column.json_schema() for column in predictor.certificate.columns or ()} or dict(
        zip(predictor.certificate.feature_names, _numbers(predictor), strict=True)
    )
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _example(predictor: Predictor) -> dict[str, Any]:
    """A row by name, from declared bounds and lists alone."""
    return {column.name: column.example for column in predictor.certificate.columns or ()} or dict(
        zip(predictor.certificate.feature_names, _middle(predictor), strict=True)
    )


def _middle(predictor: Predictor) -> list[float]:
    return [each["minimum"] + (each["maximum"] - each["minimum"]) / 2 for each in _numbers(predictor)]


def _reference(name: str) -> dict[str, str]:
    return {"$ref": schemas.COMPONENTS.format(name=name)}
