"""Where the private random bits come from.

Mechanisms take a `Randomness` and never make one. What is drawn once, such as the noise of a model that is paid for
once, takes `SystemRandomness`. What answers a question takes `KeyedRandomness`: a function of the question under a
secret key, so that a question that is asked again gets the same answer and no other.

Promised by `SystemRandomness`: no word is ever handed out twice, whether to two calls, two threads, two
processes that descend from one another by fork, or two copies of a machine resumed from one image of its memory.

Why the noise may be a function of the question. Let a row be answered by M(k, N): k is the function of the weights
and of the public phi that is protected, N the mechanism's noise. Give every question q = (model, mechanism and
price, phi and its sensitivity) an N_q of its own, independent of all others, drawn when q is first asked and kept for
ever. Answers to the same question
are then one release, sent several times: the first is M(k_q, N_q), and the others are copies of it, because k_q is the
same number whenever it is computed (`dpserve.training.exact.quantised`). Answers to distinct questions are releases
with independent noise, which compose, also if the questions are chosen adaptively. So what all answers cost is the sum
over distinct questions, each paid for once, whoever asks.

Replace the table of N_q by a pseudorandom function F of q under a key of 256 bits that nobody outside knows. Whoever
sees answers has asked at most as many questions as the budgets pay for; if answers from F could be told from
answers from the table by more than adv, asking the mechanisms' questions of an oracle would tell F from a random
function by adv. So every (epsilon, delta) statement about the table holds for F with (1 + e^epsilon) adv added to
delta, which for all that anybody can compute is taken for zero (computational differential privacy: Mironov, Pandey,
Reingold and Vadhan 2009). F is BLAKE2b under a key (RFC 7693), whose output keys ChaCha20 (RFC 8439): that each is
a pseudorandom function, or generator, is assumed, as it is of the operating system's generator.

Why the question is phi, neither x nor k. Were it x, two x with one phi, and so one k, would get two answers: that is
safe and wasteful. Were it k, two phi with the same k would get the same answer, which shows that their k are equal,
exactly. phi is public, so that equal noise at equal phi shows nothing; and k is exactly a function of phi and the
weights, without which the same noise on two different k would show their difference.

What the loss of a key means: whoever has it can subtract the noise from every answer that it has seen. It lies with
the weights in the bundle, which whoever has it needs no answers for, and nowhere else.
"""

import functools
import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from dpserve.accounting.arrays import Words

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_KEY_BYTES = 32
_DIGEST_BYTES = 16
_PURPOSE = b"dpserve question"  # BLAKE2b takes 16 bytes to tell the uses of one key apart


def load_cipher() -> None:
    """Import the cipher that noise is drawn with: 50 ms and 7 MB, once. A service does it where nobody waits for it."""
    from cryptography.hazmat.primitives.ciphers import algorithms  # noqa: F401


class Randomness(Protocol):
    """A source of independent uniform 64-bit words."""

    def words(self, count: int) -> Words:
        """Return the next `count` words, shape (count,). No two draws share a word; a question's own repeats."""
        ...


@dataclass(frozen=True)
class NoiseKey:
    """256 secret bits, made with a model: the noise of every answer follows from them. Never public, never printed."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a key of another length."""
        if len(self.secret) != _KEY_BYTES:
            raise ValueError(f"a noise key has {_KEY_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def fresh(cls) -> Self:
        """Return a new key from the operating system's randomness."""
        return cls(secrets.token_bytes(_KEY_BYTES))


class KeyedRandomness:
    """The noise of n questions: each has a stream of words of its own, a function of the key, context and question.

    digests: for each question 16 bytes that stand for it in a ledger. Questions with the same digest have the same
    words, and other digests other words, up to collisions: among 2^40 questions one with probability 2^-49. Nobody
    without the key can look for a collision, which would be a question that nobody pays for.

    Digest and stream are parts of one BLAKE2b output of 64 bytes under the noise key, so that a digest tells nothing
    of its stream. Two uses of one key differ in `context` (`dpserve.mechanisms.mechanism.noise_context`).
    """

    def __init__(self, noise_key: NoiseKey, context: bytes, questions: Sequence[bytes]) -> None:
        """Derive the digests and streams of the questions. Each is written in one way, such as numbers on a grid."""
        keyed = hashlib.blake2b(frame_parts(context), key=noise_key.secret, person=_PURPOSE)
        derived = []
        for question in questions:
            # The key and the context are hashed once for all questions of a batch.
            hashed = keyed.copy()
            hashed.update(question)
            derived.append(hashed.digest())
        self._derived = derived
        self.digests = tuple([output[-_DIGEST_BYTES:] for output in derived])

    def for_rows(self, rows: Sequence[int]) -> "KeyedRandomness":
        """Return the noise of some of the questions, in this order, from the beginning of their streams."""
        some = KeyedRandomness.__new__(KeyedRandomness)
        some._derived = [self._derived[row] for row in rows]
        some.digests = tuple([self.digests[row] for row in rows])
        return some

    @functools.cached_property
    def _streams(self) -> "list[CipherContext]":
        # 7 MB, which a service of pay-once models does not take: it draws nothing.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        # A nonce of zeros is safe: each question has a key of its own, and no key ever has a second stream.
        start = bytes(16)
        return [
            Cipher(algorithms.ChaCha20(output[:_KEY_BYTES], start), mode=None).encryptor() for output in self._derived
        ]

    def words(self, count: int) -> Words:
        """Return count / n words for each question in turn, shape (count,): the next of its stream at every call.

        Raises ValueError unless `count` is a multiple of the number of questions.
        """
        questions = len(self._derived)
        if count < 0 or (count % questions if questions else count):
            raise ValueError(f"{count} words cannot be shared evenly among {questions} questions")
        octets, size = memoryview(bytearray(8 * count)), 8 * count // max(questions, 1)
        for number, stream in enumerate(self._streams):
            stretch = octets[number * size : (number + 1) * size]
            stream.update_into(stretch, stretch)
        return np.frombuffer(octets, dtype="<u8").astype(np.uint64, copy=False)


def frame_parts(*parts: bytes) -> bytes:
    """Return the parts, each after its length, so that no two lists of parts look alike."""
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


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
            words = keystream(count)
            if process == _process():
                return words


def keystream(count: int) -> Words:
    """Return `count` words of ChaCha20 output under a key that is used for nothing else."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # not before: see `KeyedRandomness`

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
