"""A process that ends an embedded store's server once nobody uses its folder, however its users ended.

The shell that becomes the server starts it first, so that no server is ever without it: what its arguments are says
`dpserve.accounting.ledger.embedded`. It imports nothing of ours, because it stays as long as the server.
"""

import fcntl
import os
import signal
import sys
import time

_BETWEEN_LOOKS = 0.25
_SECONDS_TO_END = 10


def end_unused(server: int, users: str) -> None:
    """Wait until no process shares the lock of the file `users`, and end the server, this process's parent.

    Whoever opens the store meanwhile waits for that lock, and so for the server's end.
    """
    file = os.open(users, os.O_RDWR)
    while os.getppid() == server and not try_lock(file):
        time.sleep(_BETWEEN_LOOKS)
    last = time.monotonic() + _SECONDS_TO_END
    while os.getppid() == server:
        # What it acknowledged is on disk, so that nothing is lost by a kill, either.
        os.kill(server, signal.SIGTERM if time.monotonic() < last else signal.SIGKILL)
        time.sleep(_BETWEEN_LOOKS)


def try_lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a file's lock, alone or shared, if nobody is in the way; tell whether it is taken."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    end_unused(int(sys.argv[1]), sys.argv[2])
