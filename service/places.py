"""Places for what must not all go on at once: no caller takes those of the others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from dpserve.service.errors import Overloaded

Result = TypeVar("Result")


class Places:
    """So many places, a quarter of them for one caller at most, and one at least."""

    def __init__(self, most: int) -> None:
        """most: of all callers."""
        self._all, self._each = asyncio.Semaphore(most), max(1, most // 4)
        self._own: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def in_turn(self, caller: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and hold it for as long as the block lasts: callers take turns."""
        async with self._own.setdefault(caller, asyncio.Semaphore(self._each)), self._all:
            yield

    @asynccontextmanager
    async def at_once(self, caller: Hashable) -> AsyncIterator[None]:
        """Hold a place for as long as the block lasts. Raises Overloaded where none is free."""
        own = self._own.setdefault(caller, asyncio.Semaphore(self._each))
        if own.locked() or self._all.locked():
            raise Overloaded(1)
        async with own, self._all:
            yield


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns that computes in a thread, and wait for its end even when cancelled.

    What it holds, a place or a body, is given up no sooner.
    """
    computed = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(computed)
    except asyncio.CancelledError:
        await asyncio.wait([computed])
        raise
    finally:
        # An error's traceback has this frame, which has the future, which has the error: all of it would stay until
        # the collector comes by, with the body that was parsed.
        del computed
