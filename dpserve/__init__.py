"""dpserve: private predictions, charged to a budget. A command line, an estimator, and clients of a service."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpserve.classifier import PrivateClassifier
    from dpserve.client import Answers, AsyncClient, BudgetExhausted, Client, ServiceError
    from dpserve.lineages import Lineage
    from dpserve.plans import plan
    from dpserve.training.block_choice import Blocks
    from dpserve.training.errors import PrivacyWarning
    from dpserve.training.feature_choice import (
        AutoFeatures,
        BinFeatures,
        EncoderFeatures,
        FourierFeatures,
        HogFeatures,
        HogFourierFeatures,
        IdentityFeatures,
        QuantileFeatures,
    )
    from dpserve.training.inputs.described import Boolean, Date, Datetime, Integer, Levels, Number, Schema, Text
    from dpserve.training.kinds.class_sums.kind import ClassSums
    from dpserve.training.kinds.dpsgd.kind import DPSGD
    from dpserve.training.kinds.head.kind import Head
    from dpserve.training.kinds.weights.kind import Weights

__all__ = [
    "DPSGD",
    "Answers",
    "AsyncClient",
    "AutoFeatures",
    "BinFeatures",
    "Blocks",
    "Boolean",
    "BudgetExhausted",
    "ClassSums",
    "Client",
    "Date",
    "Datetime",
    "EncoderFeatures",
    "FourierFeatures",
    "Head",
    "HogFeatures",
    "HogFourierFeatures",
    "IdentityFeatures",
    "Integer",
    "Levels",
    "Lineage",
    "Number",
    "PrivacyWarning",
    "PrivateClassifier",
    "QuantileFeatures",
    "Schema",
    "ServiceError",
    "Text",
    "Weights",
    "plan",
]
_FEATURES = (
    "AutoFeatures",
    "BinFeatures",
    "EncoderFeatures",
    "FourierFeatures",
    "HogFeatures",
    "HogFourierFeatures",
    "IdentityFeatures",
    "QuantileFeatures",
)
_DESCRIBED = ("Boolean", "Date", "Datetime", "Integer", "Levels", "Number", "Schema", "Text")
_MODULES = {
    "Blocks": "dpserve.training.block_choice",
    "ClassSums": "dpserve.training.kinds.class_sums.kind",
    "DPSGD": "dpserve.training.kinds.dpsgd.kind",
    "Head": "dpserve.training.kinds.head.kind",
    "Lineage": "dpserve.lineages",
    "PrivacyWarning": "dpserve.training.errors",
    "PrivateClassifier": "dpserve.classifier",
    "Weights": "dpserve.training.kinds.weights.kind",
    "plan": "dpserve.plans",
}
_MODULES |= dict.fromkeys(_DESCRIBED, "dpserve.training.inputs.described")
_MODULES |= dict.fromkeys(_FEATURES, "dpserve.training.feature_choice")
"""Where the names are that `dpserve.client` does not have."""


def __dir__() -> list[str]:
    """Name what users import: completion in a shell or a notebook asks here."""
    return __all__


def __getattr__(name: str) -> object:
    """Import a name's module when it is asked for: the command line starts without any."""
    if name not in __all__:
        raise AttributeError(f"module 'dpserve' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "dpserve.client")), name)
