"""Estimators of tests, whose parameters stand in one dictionary: a test changes one of them by its name."""

from typing import Any

from dpserve import Blocks, Lineage, PrivateClassifier, Schema
from dpserve.training.feature_choice import Features
from dpserve.training.kinds.registry import kind_named


def estimator(**flat: Any) -> PrivateClassifier:
    """Return an estimator. flat: its parameters, and those of the values that it takes, by the names of their fields.

    budget: the epsilon and the delta of the lineage. kind: by its name.
    """

    def taken(options: Any, *but: str) -> dict[str, Any]:
        return {name: flat.pop(name) for name in options.flags() if name in flat and name not in but}

    if (budget := flat.pop("budget", None)) is not None:
        flat["lineage_epsilon"], flat["lineage_delta"] = budget
    blocks = taken(Blocks)
    lineage = flat.pop("lineage", None)
    own = {name: flat.pop(f"lineage_{name}") for name in ("epsilon", "delta") if f"lineage_{name}" in flat}
    own |= taken(Lineage, "name", "epsilon", "delta", "blocks") | ({"blocks": Blocks(**blocks)} if blocks else {})
    if lineage is not None and own:
        lineage = Lineage(lineage, **own)
    kind = flat.pop("kind", "auto")
    if kind != "auto":
        kind = kind_named(kind).options
        kind = kind(**taken(kind))
    features = taken(Features)
    schema = taken(Schema)
    return PrivateClassifier(
        schema=Schema(**schema) if schema else None,
        lineage=lineage,
        kind=kind,
        features=Features.of_words(features) if features else "auto",
        **flat,
    )
