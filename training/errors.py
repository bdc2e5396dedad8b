"""Errors of training, each one clear sentence for the owner; a missing optional dependency is among them."""

from collections.abc import Iterator
from contextlib import contextmanager


class TrainingError(Exception):
    """Base of everything that training and bundles refuse."""


class WrongOption(TrainingError):
    """An option does not go with the others, or does not take its value."""

    def __init__(self, option: str, why: str) -> None:
        """option: its name in Python, `records_declared`; the command line writes `--records-declared`."""
        super().__init__(f"--{option.replace('_', '-')} {why}")
        self.option = option
        self.why = why


class DataError(TrainingError):
    """The records do not fit what their owner declared; names the row and the column."""


class NotConverged(TrainingError):
    """The solver did not reach the gradient norm that the certificate would state, so there is none."""


class BundleError(TrainingError):
    """A bundle is missing, damaged, or does not match its certificate."""


class NotExportable(TrainingError):
    """A model cannot be taken away, or not so; says why and what to do."""


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


class PrivacyWarning(UserWarning):
    """Something beside the model uses the records as no budget covers. For their owner: it says something of them."""
