"""The OpenAPI document of a service: what the routes say, made exact for the model that is served.

A row's length and bounds, the model's name and its tiers are public and fixed while the service runs, so that a request
that the document allows is one that the service understands.
"""

from typing import Any

from fastapi import FastAPI

from service.http.openinference_schemas import InferRequest
from service.plane import Plane

_REFERENCE = "#/components/schemas/{model}"


def describe(app: FastAPI, plane: Plane) -> None:
    """Have `app.openapi()` return the document of this model's service."""
    made_by_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _exact(made_by_routes(), plane)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _exact(document: dict[str, Any], plane: Plane) -> dict[str, Any]:
    components = document.setdefault("components", {}).setdefault("schemas", {})
    infer = InferRequest.model_json_schema(ref_template=_REFERENCE)
    components.update(infer.pop("$defs", {}))
    infer["examples"] = [_example(plane)]
    components["InferRequest"] = infer
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                _narrow(parameter, plane)
            operation["parameters"] = [each for each in operation.get("parameters", []) if _is_of_use(each, plane)]
            if path.endswith("/infer"):
                operation["requestBody"]["content"]["application/json"]["schema"] = {
                    "$ref": _REFERENCE.format(model="InferRequest")
                }
    _describe_rows(document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"], plane)
    return document


def _narrow(parameter: dict[str, Any], plane: Plane) -> None:
    if parameter["in"] == "path":
        known = {"name": plane.certificate.name, "version": "1"}
        if parameter["name"] in known:
            parameter["schema"] = {"type": "string", "enum": [known[parameter["name"]]]}
    elif parameter["name"] == "tier":
        parameter["schema"] = {"type": "string", "enum": list(plane.tier_names)}


def _is_of_use(parameter: dict[str, Any], plane: Plane) -> bool:
    return parameter["name"] != "tier" or bool(plane.tier_names)


def _describe_rows(content: dict[str, Any], plane: Plane) -> None:
    described = dict(content["schema"])
    properties = dict(described["properties"])
    properties["instances"] = {
        "type": "array",
        "minItems": 1,
        "maxItems": plane.largest_batch,
        "items": _row(plane),
        "description": "One list of numbers for each row, in the order of the model's feature names.",
    }
    properties["model"] = {"anyOf": [{"const": plane.certificate.name}, {"type": "null"}], "default": None}
    tiers = [{"enum": list(plane.tier_names)}] if plane.tier_names else []
    properties["tier"] = {"anyOf": [*tiers, {"type": "null"}], "default": None}
    content["schema"] = described | {"properties": properties, "examples": [{"instances": [_middle(plane)]}]}


def _row(plane: Plane) -> dict[str, Any]:
    bounds = plane.certificate.feature_map
    each = list(zip(bounds.lower, bounds.upper, strict=True))
    row: dict[str, Any] = {"type": "array", "minItems": len(each), "maxItems": len(each)}
    if len(set(each)) == 1:
        return row | {"items": _number(*each[0])}
    return row | {"prefixItems": [_number(*pair) for pair in each]}


def _number(lower: float, upper: float) -> dict[str, Any]:
    return {"type": "number", "minimum": lower, "maximum": upper}


def _middle(plane: Plane) -> list[float]:
    bounds = plane.certificate.feature_map
    return [lower + (upper - lower) / 2 for lower, upper in zip(bounds.lower, bounds.upper, strict=True)]


def _example(plane: Plane) -> dict[str, Any]:
    row = _middle(plane)
    return {"inputs": [{"name": "instances", "shape": [1, len(row)], "datatype": "FP64", "data": row}]}
