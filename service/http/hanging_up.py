"""Who hangs up before the answer takes back what was not charged yet, also where the application answers."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

Got = TypeVar("Got")


async def unless_hung_up(request: Request, answering: Coroutine[Any, Any, Got]) -> Got:
    """Return what `answering` returns, or cancel it when the client hangs up. Raises ClientDisconnect then.

    The request's body must have been read. Cancelling leaves what is charged to be finished (`service.ticks`).
    """
    task, hung_up = asyncio.ensure_future(answering), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((task, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        hung_up.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
