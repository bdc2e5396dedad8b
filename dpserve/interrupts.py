"""Ctrl-C, while a command starts and in one that charges: one line says what was charged, and the status is 130.

Imports take up to a second, and an interrupt in them may fall into any library. Until a command's own code begins
nothing is opened, written or charged, so the process may end where it is.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STATUS = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ended."""
_WORDS = b"\ndpserve: stopped before it began; nothing was charged\n"


def heed_interrupts() -> None:
    """Have Ctrl-C end the process with one line, until the command begins: a handler of the caller's stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def begin() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again: the command begins."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: FrameType | None) -> None:
    # No exception: in an import an extension may swallow it, or print it.
    del number, frame
    os.write(2, _WORDS)
    os._exit(_STATUS)


@contextmanager
def stopped_by_signals(what: str, charged: Callable[[], str]) -> Iterator[None]:
    """Have SIGTERM end a task as Ctrl-C does, which takes back what was noted, and say what was charged.

    what: the task, with its article. charged: says what was charged, when it is asked.
    """
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():  # signals are no other's
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except BaseException as error:
        # A library may make an error of its own of the interrupt, as pydantic does where it builds a type.
        if not stopped and not isinstance(error, KeyboardInterrupt):
            raise
        sys.stderr.write(f"dpserve: {what} was stopped; {charged()}\n")
        sys.exit(_STATUS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
