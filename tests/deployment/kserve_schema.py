"""Says what is wrong with a KServe resource, by KServe's own definitions: for the Python of an environment with kserve.

Reads a resource as JSON, writes a list of complaints as JSON.
"""

import json
import sys

import kserve.models
import kubernetes.client

_PLAIN = {"str": str, "int": int, "float": (int, float), "bool": bool, "object": object}


def complaints(value, kind, path):
    """Return what is wrong with a value of this type, as the generated classes name types."""
    if kind in _PLAIN:
        right = isinstance(value, _PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool) or kind == "object")
        return [] if right else [f"{path} should be {kind}"]
    outer, _, inner = kind.partition("[")
    if outer == "list":
        if not isinstance(value, list):
            return [f"{path} should be a list"]
        return [each for index, item in enumerate(value) for each in complaints(item, inner[:-1], f"{path}/{index}")]
    if kind.startswith("dict("):
        if not isinstance(value, dict):
            return [f"{path} should be a mapping"]
        inner = kind.removeprefix("dict(str, ").removesuffix(")")
        return [each for name, item in value.items() for each in complaints(item, inner, f"{path}/{name}")]
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind, None)
    if model is None:
        return []  # a quantity, or another type that is written as text or number
    if not isinstance(value, dict):
        return [f"{path} should be a mapping"]
    names = {written: name for name, written in model.attribute_map.items()}
    found = [f"{path}/{name} is not known" for name in value if name not in names]
    known = {names[name]: item for name, item in value.items() if name in names}
    try:
        model(**known)
    except ValueError as error:  # what is required and not there
        found.append(f"{path}: {error}")
    for name, item in known.items():
        found += complaints(item, model.openapi_types[name], f"{path}/{model.attribute_map[name]}")
    return found


if __name__ == "__main__":
    resource = json.load(sys.stdin)
    print(json.dumps(complaints(resource, "V1beta1InferenceService", "")))
