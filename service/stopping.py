"""Being told to stop: by which signals, and what they do to a block of code."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def stopping_on_signals() -> AsyncIterator[None]:
    """See to it that SIGINT, SIGTERM and SIGHUP end the block as an exception would, so that all is closed.

    From when `serve` answers requests they are its own: it drains and returns, and nothing cuts that short.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False

    def stop(*_: object) -> None:
        nonlocal told
        if not told:
            told = True
            loop.call_soon_threadsafe(task.cancel)

    former = {number: signal.signal(number, stop) for number in STOPPING_SIGNALS}
    try:
        yield
    except asyncio.CancelledError:
        if not told:
            raise
    finally:
        told = True
        for number, handler in former.items():
            signal.signal(number, handler)
