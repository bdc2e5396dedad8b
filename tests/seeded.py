"""Randomness that repeats, in place of the operating system's."""

import contextlib
import hashlib
import threading
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms


@dataclass
class Seeded:
    """Words of a generator that starts from a seed."""

    seed: int

    def __post_init__(self):
        self.generator = np.random.Philox(self.seed)

    def words(self, count):
        return self.generator.random_raw(count).astype(np.uint64, copy=False)


def seed_of(name):
    """Return 32 bytes that follow from a name."""
    return hashlib.sha256(name.encode()).digest()


class NamedWords:
    """Words and tokens that follow from the name of what draws them, such as a test: the same ones in every run.

    Without a name, what it was made with is asked. Names nest, and each begins its stream anew when it is entered.
    """

    def __init__(self, keystream, token_bytes):
        self._fresh = keystream, token_bytes
        self._streams = [None]
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def named(self, name):
        """Draw by the name in here, or afresh where it is None."""
        stream = name and Cipher(algorithms.ChaCha20(seed_of(name), bytes(16)), mode=None).encryptor()
        self._streams.append(stream)
        try:
            yield
        finally:
            self._streams.pop()

    def keystream(self, count):
        """Return words as `dpserve.mechanisms.randomness.keystream` does, shape (count,)."""
        if self._streams[-1] is None:
            return self._fresh[0](count)
        return np.frombuffer(self._next(8 * count), dtype="<u8").astype(np.uint64)

    def token_bytes(self, nbytes=None):
        """Return bytes as `secrets.token_bytes` does."""
        if self._streams[-1] is None:
            return self._fresh[1](nbytes)
        return self._next(32 if nbytes is None else nbytes)

    def _next(self, size):
        with self._lock:
            return self._streams[-1].update(bytes(size))
