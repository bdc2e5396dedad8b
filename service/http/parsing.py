"""A parser of HTTP/1.1 requests that changes to no other protocol."""

from typing import Any, Protocol

import httptools


class Receiver(Protocol):
    """What is told of the parts of a request."""

    def head_without_upgrade(self) -> bytes:
        """Return the newest request's line and header fields, without its wish for another protocol."""
        ...


class RequestParser(httptools.HttpRequestParser):
    """Has a request that asks for an upgrade read as if it had not asked, which RFC 9110, section 7.8, allows.

    httptools takes all that follows such a header for the other protocol's: the body would be lost, or come to be a
    request of its own.
    """

    def __init__(self, receiver: Receiver) -> None:
        """Tell `receiver`; of a request that asks for an upgrade twice, first with `should_upgrade()` true."""
        super().__init__(receiver)
        self._receiver = receiver

    def feed_data(self, data: Any) -> None:
        """Take bytes in. Raises httptools.HttpParserError."""
        while True:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._receiver.head_without_upgrade() + bytes(data[upgrade.args[0] :])
            else:
                return
