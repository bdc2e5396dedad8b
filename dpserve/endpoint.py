"""A running service as what `audit` attacks: the public client, with the audit's words for refusals."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from dpserve.accounting.arrays import Floats
from dpserve.audit.endpoint import EndpointError, Exhausted, digest_of
from dpserve.client import BudgetExhausted, Client, ServiceError

_Answer = TypeVar("_Answer")

ATTEMPTS = 8
"""Tries of one request, with growing pauses: an attack waits out a restart rather than lose its place."""


class ServiceEndpoint:
    """One API key of a service that answers over HTTP. Its account is the service's, and outlives this process."""

    account_lasts: ClassVar[bool] = True

    def __init__(self, url: str, key: str, *, attempts: int = ATTEMPTS) -> None:
        """url: of the service. key: the API key. Raises ValueError for what cannot be either."""
        self.url = url
        self._client = Client(url, key, attempts=attempts)
        self._name = digest_of(url.rstrip("/").encode(), key.strip().encode())

    def name(self) -> str:
        """Return a digest of the URL and the key."""
        return self._name

    def model(self) -> Mapping[str, Any]:
        """Return the public part of the model's certificate."""
        return self._call(self._client.model)

    def budget(self) -> Mapping[str, Any]:
        """Return the key's account."""
        return self._call(self._client.budget)

    def answers(self, rows: Floats) -> Floats:
        """Return private probabilities of the rows."""
        return self._call(lambda: self._client.predict_proba(rows))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        """Return the endpoint, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _call(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except BudgetExhausted as refusal:
            raise Exhausted(refusal.scope) from refusal
        except ServiceError as error:
            raise EndpointError(self._message(error)) from error

    def _message(self, error: ServiceError) -> str:
        if error.status in (401, 403):
            return f"{self.url} refuses the key: {error}. Ask its owner for another with 'dpserve clients add'"
        if error.status == 0:
            return f"{error}. Is the service running, and is the address right?"
        return f"{self.url}: {error}"
