"""A disk that is full: a limit on files' sizes refuses a write as it does, with an error that names no file."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited_to(octets: int) -> Iterator[None]:
    """Let no file of this process grow beyond that."""
    limits, former = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
