"""Errors of training, each one clear sentence for the owner; a missing optional dependency is among them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from dpserve.accounting.messages import Message, message_of, named

_Part = TypeVar("_Part")


class TrainingError(Exception):
    """Base of everything that training and bundles refuse."""


class WrongOption(TrainingError, ValueError):
    """An option does not go with the others, is missing, or does not take its value.

    field: its name in Python, `records_declared`. value: what was given; None where nothing was, or where it does not
    matter. reason: what is wrong, to be read after the option's name. remedy: what would do, if the reason does not say
    it. No text of these says how a front end writes an option: see `dpserve.accounting.messages`.
    """

    def __init__(self, field: str, reason: str, *, value: object = None, remedy: str | None = None) -> None:
        """Take the parts; the error's own text names the option as Python does."""
        self.field = field
        self.value = value
        self.reason = reason
        self.remedy = remedy
        super().__init__(Message("{} {}", named(field), self.explanation))

    @property
    def explanation(self) -> str:
        """The reason and the remedy."""
        return self.reason if self.remedy is None else Message("{}: {}", self.reason, self.remedy)


class WrongValue(WrongOption):
    """An option's value is not what its declaration allows. requirement: as "must be at least 1"."""

    def __init__(self, field: str, requirement: str, *, value: object) -> None:
        """Take the parts."""
        self.requirement = requirement
        super().__init__(field, Message("{}, not {!r}", requirement, value), value=value)


class SeveralErrors(TrainingError):
    """All that is wrong at once: in the options, in the schema, in the records."""

    def __init__(self, errors: Sequence[TrainingError]) -> None:
        """Take them in the order in which they are told."""
        self.errors = tuple(errors)
        super().__init__(Message("\n").join(map(message_of, errors)))


class ErrorList:
    """The errors of several parts, which are raised together."""

    def __init__(self, errors: Sequence[TrainingError] = ()) -> None:
        """Begin with these."""
        self.errors: list[TrainingError] = [*errors]

    def attempt(self, part: Callable[[], _Part]) -> _Part | None:
        """Return what a part returns; None where it raises a TrainingError, which is noted."""
        try:
            return part()
        except SeveralErrors as error:
            self.errors += error.errors
        except TrainingError as error:
            self.errors.append(error)
        return None

    def check(self) -> None:
        """Raise what was noted, if anything was."""
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else SeveralErrors(self.errors)


class DataError(TrainingError):
    """The records do not fit what their owner declared; names the row and the column."""


class NotConverged(TrainingError):
    """The solver did not reach the gradient norm that the certificate would state, so there is none."""


class BundleError(TrainingError):
    """A bundle is missing, damaged, or does not match its certificate."""


class ClaimRefuted(BundleError):
    """Canaries of a run refute its certificate, at a confidence that a sound run hardly ever reaches: no bundle."""


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
