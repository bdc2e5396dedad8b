"""Where the private random bits come from.

Mechanisms take a `Randomness` and never make one: production passes `SystemRandomness`, tests pass a seeded
one. Promised by `SystemRandomness`: no word is ever handed out twice, whether to two calls, two threads or
two processes that descend from one another by fork.
"""

import os
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

Words = npt.NDArray[np.uint64]

_WORD_BYTES = 8
_KEY_BYTES = 32
_BUFFER_WORDS = 8192
_BUFFERED_AT_MOST = _BUFFER_WORDS // 4


class Randomness(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> Words:
        """Return `count` fresh words, shape (count,), never returned before and never to be returned again."""
        ...


class SystemRandomness:
    """The operating system's randomness, stretched by ChaCha20 (RFC 8439) and buffered.

    Every 64 KiB of output (or every larger request) has a key of its own from `os.urandom`, which is dropped
    at once, and words are erased from the buffer as they leave it: whoever reads the memory later finds
    neither past words nor a key that makes them again.

    Threads share a buffer under a lock. A buffer belongs to the process that filled it: it remembers its
    process id and the number of forks behind it, both are compared at every call, and a child starts a new
    one. The fork count is kept by the interpreter's own hook, the process id notices a fork made behind the
    interpreter's back, and a fork *during* a call (from a signal handler) is noticed before the call returns.
    """

    def __init__(self) -> None:
        """Start with an empty buffer."""
        self._stream = _Stream()

    def words(self, count: int) -> Words:
        """Return `count` fresh words, shape (count,). Raises ValueError for a negative count."""
        if count < 0:
            raise ValueError(f"the number of words must not be negative, and {count} is")
        while True:
            stream = self._stream
            if stream.process != _process():
                stream = self._stream = _Stream()
            words = stream.take(count)
            if stream.process == _process():
                return words


class _Stream:
    """One process's buffer of keystream. A forked child abandons it, lock and all."""

    def __init__(self) -> None:
        self.process = _process()
        self._lock = threading.Lock()
        self._buffer: Words = np.empty(0, dtype=np.uint64)
        self._used = 0

    def take(self, count: int) -> Words:
        if count > _BUFFERED_AT_MOST:
            return _keystream(count)
        with self._lock:
            if self._used + count > len(self._buffer):
                self._buffer = _keystream(_BUFFER_WORDS)
                self._used = 0
            fresh = self._buffer[self._used : self._used + count]
            words = fresh.copy()
            fresh[:] = 0
            self._used += count
            return words


def _keystream(count: int) -> Words:
    """Return `count` words of ChaCha20 output under a key that is used for nothing else."""
    cipher = Cipher(algorithms.ChaCha20(os.urandom(_KEY_BYTES), bytes(16)), mode=None)
    words = np.zeros(count, dtype=np.uint64)
    octets = words.data.cast("B")
    cipher.encryptor().update_into(octets, octets)
    return words


_forks = 0


def _process() -> tuple[int, int]:
    """Name this process: a process id alone may be given again to a grandchild."""
    return os.getpid(), _forks


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
