"""The replies of a store, read from a connection that redis-py made, in a third of the time that its streams take.

Promises: a connection is used for one exchange at a time; one on which anything unexpected came, or that was closed,
or whose replies did not come in time, is not `whole` any more, and nobody is to use it again.
"""

import asyncio
from typing import Any, cast

import redis.exceptions as refused
from hiredis import Reader
from redis._parsers.base import BaseParser

_CLOSED = "the connection was closed by the store"


class Replies(asyncio.Protocol):
    """Takes the place of the protocol that a transport has, which goes on hearing whether the transport is closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Take over; no reply may be on its way."""
        self.whole = True
        self._transport = transport
        self._former = cast(asyncio.Protocol, transport.get_protocol())
        self._reader = Reader(protocolError=refused.InvalidResponse, replyError=BaseParser.parse_error)
        self._result: asyncio.Future[list[Any]] | None = None
        self._surplus: refused.InvalidResponse | None = None  # what came before who waits took the replies
        self._awaited = 0
        self._read: list[Any] = []
        transport.set_protocol(self)

    @property
    def usable(self) -> bool:
        """Whether the connection is whole and open: one that is being closed may not have been told yet."""
        return self.whole and not self._transport.is_closing()

    async def exchange(self, packed: bytes, awaited: int, seconds: float) -> list[Any]:
        """Send commands, packed, and return as many replies, errors as values.

        Raises TimeoutError if they are not there in time, redis.ConnectionError if the connection is closed before, or
        if a reply says that the store cannot be used, redis.InvalidResponse if they cannot be read or more came than
        was asked for: whose the ones that came first are is not known then. After any exception the connection is not
        whole.
        """
        loop = asyncio.get_running_loop()
        self._result, self._awaited, self._read = loop.create_future(), awaited, []
        timer = loop.call_later(seconds, self._fail, TimeoutError())
        try:
            self._transport.write(packed)
            replies = await self._result
            if self._surplus is not None:
                raise self._surplus
            for reply in replies:
                if isinstance(reply, Exception) and not isinstance(reply, refused.ResponseError):
                    raise reply
        except BaseException:
            self.whole = False  # a reply may still be on its way
            raise
        finally:
            timer.cancel()
            self._result = None
        return replies

    def abort(self) -> None:
        """Close the connection at once: what was not sent is not, and whoever waits for replies hears of it."""
        self.whole = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read what came."""
        if self._result is None:
            self.whole = False
            return
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._read.append(reply)
        except refused.RedisError as error:
            self._fail(error)
            return
        if len(self._read) > self._awaited or (len(self._read) == self._awaited and self._reader.has_data()):
            self._fail(refused.InvalidResponse("the store replied more often than it was asked"))
        elif len(self._read) == self._awaited and not self._result.done():
            self._result.set_result(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail who waits, and tell who had the connection before."""
        self._fail(refused.ConnectionError(_CLOSED))
        self._former.connection_lost(exc)

    def _fail(self, error: Exception) -> None:
        self.whole = False
        if self._result is None:
            return
        if not self._result.done():
            self._result.set_exception(error)
        elif isinstance(error, refused.InvalidResponse):
            self._surplus = error
