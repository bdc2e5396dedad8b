"""Where the private random bits come from.

Mechanisms take a `Randomness` and never make one: production passes `SystemRandomness`, tests pass a seeded
one. Promised by `SystemRandomness`: no word is ever handed out twice, whether to two calls, two threads, two
processes that descend from one another by fork, or two copies of a machine resumed from one image of its memory.
"""

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

Words = npt.NDArray[np.uint64]

_KEY_BYTES = 32


class Randomness(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> Words:
        """Return `count` fresh words, shape (count,), never returned before and never to be returned again."""
        ...


class SystemRandomness:
    """The operating system's randomness, stretched by ChaCha20 (RFC 8439) under a key of its own for every call.

    Nothing is kept between calls. A buffer would save some microseconds, and would be answered from twice by a
    machine that is resumed twice from one image: two answers with the same noise tell the difference of their
    logits exactly. A fork *during* a call (from a signal handler) is noticed before the call returns.
    """

    def words(self, count: int) -> Words:
        """Return `count` fresh words, shape (count,). Raises ValueError for a negative count."""
        if count < 0:
            raise ValueError(f"the number of words must not be negative, and {count} is")
        while True:
            process = _process()
            words = _keystream(count)
            if process == _process():
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
