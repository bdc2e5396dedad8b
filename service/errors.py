"""The reasons for refusing a request. None depends on logits or on private records."""

from dataclasses import dataclass

from dpserve.accounting.ledger import LedgerError


class RequestRefused(Exception):
    """Base of every refusal that has not cost anything."""


Refusal = LedgerError | RequestRefused
"""The refusal of a request, by the ledger or by the service."""


class UnknownModel(RequestRefused):
    """The service does not serve a model of this name."""


class InvalidCoverage(RequestRefused):
    """The model has no prediction sets of this coverage."""


@dataclass
class InvalidRows(RequestRefused):
    """Rows that cannot be asked about; `row` is the first such row's index, or None if it is the batch itself."""

    message: str
    row: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return the sentence for the client."""
        return self.message


@dataclass
class Overloaded(RequestRefused):
    """More waits than is answered soon; `retry_after` is in how many seconds to ask again."""

    retry_after: int


class DeadlinePassed(RequestRefused):
    """The client's deadline passed before its request was charged."""


class CannotServe(Exception):
    """The service cannot start; one clear line says why."""
