"""Optional dependencies: what is missing is said as one sentence, where it is first needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from training.errors import TrainingError


class MissingExtra(TrainingError):
    """An optional dependency is not installed; names what to install."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import optional modules in this block: `with extra("torch", "training networks"): import torch`.

    Raises MissingExtra saying what to install where one is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{purpose} needs {error.name}: pip install 'dpserve[{name}]'") from error
