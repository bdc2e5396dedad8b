"""dpserve: private predictions, charged to a budget. A command line, an estimator, and clients of a service."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpserve.classifier import PrivateClassifier
    from dpserve.client import Answers, AsyncClient, BudgetExhausted, Client, ServiceError
    from dpserve.training.errors import PrivacyWarning

__all__ = ["Answers", "AsyncClient", "BudgetExhausted", "Client", "PrivacyWarning", "PrivateClassifier", "ServiceError"]
_MODULES = {"PrivateClassifier": "dpserve.classifier", "PrivacyWarning": "dpserve.training.errors"}
"""Where the names are that `dpserve.client` does not have."""


def __dir__() -> list[str]:
    """Name what users import: completion in a shell or a notebook asks here."""
    return __all__


def __getattr__(name: str) -> object:
    """Import a name's module when it is asked for: the command line starts without any."""
    if name not in __all__:
        raise AttributeError(f"module 'dpserve' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "dpserve.client")), name)
