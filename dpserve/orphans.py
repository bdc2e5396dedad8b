"""No process outlives the one that started it, however that one ended.

The process that starts another holds one end of a pipe, which the kernel closes with it. So the other process notices
the end also where it came before anybody looked: a signal at the parent's death (prctl) would be missed then.
The server of an embedded store, which processes share, ends with the last of them (`accounting/ledger/embedded.py`).
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_SECONDS_TO_END = 60
"""For what is under way; it is more than a service takes to drain."""


def end_with_parent() -> None:
    """Have this process, one of `multiprocessing`, end in good order once the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_after(parent.join)


def end_with_input() -> None:
    """Have this process end in good order once nobody can write to its standard input any more."""
    _end_after(_until_input_ends)


def _until_input_ends() -> None:
    # Not by sys.stdin: at its own end the interpreter would wait for its lock, and abort.
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass


def _end_after(wait: Callable[[], object]) -> None:
    def end() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_SECONDS_TO_END)
        os._exit(1)

    threading.Thread(target=end, name="end-with-parent", daemon=True).start()


def command_line() -> None:
    """Run the command line in a process that ends with its standard input."""
    from dpserve.cli import main

    end_with_input()
    main()
