"""Which rows ask the same question: those that the model's public feature map makes the same numbers of.

Such rows get one answer for one charge. An attack counts them as one row, so that no decision is counted twice and no
service accused of charging too little.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from training.exact_network import rounded
from training.feature_maps import AnyFeatureMap

Floats = NDArray[np.float64]

_FEATURE_MAPS: TypeAdapter[AnyFeatureMap] = TypeAdapter(AnyFeatureMap)
_AT_ONCE = 1000


def as_asked(model: Mapping[str, Any], rows: Floats) -> Floats:
    """Return the rows (n, d), each replaced by the first of them that asks the same question.

    model: as `GET /models/NAME` returns it. Of a model on a deep network nobody outside knows which rows these are.
    """
    questions = [
        question.tobytes()
        for start in range(0, len(rows), _AT_ONCE)
        for question in _questions(model["feature_map"], rows[start : start + _AT_ONCE])
    ]
    first: dict[bytes, int] = {}
    places = [first.setdefault(question, place) for place, question in enumerate(questions)]
    found: Floats = rows[places]
    return found


def _questions(feature_map: Mapping[str, Any], rows: Floats) -> Floats:
    if feature_map["kind"] == "scaled":
        lower, upper = (np.asarray(feature_map[end]) for end in ("lower", "upper"))
        return rounded((np.clip(rows, lower, upper) - lower) / (upper - lower)) + 0.0
    try:
        known = _FEATURE_MAPS.validate_python(feature_map)
    except ValidationError:
        return rows + 0.0
    return known(rows, known.public_tensors()) + 0.0
