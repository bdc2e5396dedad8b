"""dpserve: private predictions, charged to a budget. The face: a command line and a Python client."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpserve.client import Answers, BudgetExhausted, Client, ServiceError

__all__ = ["Answers", "BudgetExhausted", "Client", "ServiceError"]


def __dir__() -> list[str]:
    """Name what is imported late, too: completion in a shell or a notebook asks here."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import the client when it is asked for: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module 'dpserve' has no attribute {name!r}")
    # A module-level __getattr__ exists to import late.
    from dpserve import client

    return getattr(client, name)
