"""No word is handed out twice: not by one process, not by its threads, not by its children."""

import os
import signal
import threading

import numpy as np
import pytest

from dpserve.mechanisms import randomness
from dpserve.mechanisms.randomness import SystemRandomness

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
    pytest.mark.fresh_noise,
]


def forked(work):
    """Return what `work` returns in a forked child, as words."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a deadlocked child must not hang the suite
        try:
            os.write(sending, work().tobytes())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        octets = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    return np.frombuffer(octets, dtype=np.uint64)


def all_different(*parts):
    """Equal words among n independent ones: a chance of n^2 / 2^65, below 1e-9 for 10^5."""
    words = np.concatenate(parts)
    return len(np.unique(words)) == len(words)


@pytest.mark.parametrize("count", [0, 1, 2, 17, 2048, 2049, 8192, 20_000])
def test_words_have_the_shape_asked_for(count):
    words = SystemRandomness().words(count)
    assert words.shape == (count,)
    assert words.dtype == np.uint64


def test_a_negative_count_is_refused():
    with pytest.raises(ValueError, match="-1"):
        SystemRandomness().words(-1)


def test_words_never_repeat():
    source = SystemRandomness()
    assert all_different(*(source.words(count) for count in [1, 20, 2000, 2048, 2049, 3, 9000] * 6))


def test_every_bit_is_fair():
    """64 two-sided tests of 40,000 bits at 6 standard deviations: false alarm below 64 * 2e-9 < 1e-6."""
    words = SystemRandomness().words(40_000)
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 20_000) <= 6 * 100


def test_changing_returned_words_changes_nothing_to_come():
    source = SystemRandomness()
    source.words(10)[:] = 0
    assert source.words(10).all()


def test_threads_never_share_words():
    source = SystemRandomness()
    start = threading.Barrier(8)
    parts = [[] for _ in range(8)]

    def draw(part):
        start.wait()
        part.extend(source.words(7) for _ in range(1000))

    threads = [threading.Thread(target=draw, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all_different(*(words for part in parts for words in part))


@pytest.mark.parametrize("used_before", [0, 5])
def test_forked_children_never_share_words(used_before):
    source = SystemRandomness()
    before = source.words(used_before)
    children = [forked(lambda: source.words(1000)) for _ in range(3)]
    assert all_different(before, *children, source.words(1000))


def test_grandchildren_never_share_words():
    source = SystemRandomness()
    source.words(1)

    def child():
        grandchild = forked(lambda: source.words(1000))
        return np.concatenate([grandchild, source.words(1000)])

    assert all_different(forked(child), source.words(1000))


def test_nothing_is_kept_between_calls():
    """A machine resumed twice from one image of its memory must not draw the same words twice."""
    assert not vars(SystemRandomness())
    assert not hasattr(SystemRandomness, "__slots__")


def test_a_fork_during_a_call_is_noticed_before_it_returns(monkeypatch):
    source = SystemRandomness()
    keystream = randomness.keystream
    receiving, sending = os.pipe()
    child = None

    def draw_and_fork(count):
        nonlocal child
        words = keystream(count)
        monkeypatch.setattr(randomness, "keystream", keystream)
        child = os.fork()
        return words

    monkeypatch.setattr(randomness, "keystream", draw_and_fork)
    words = source.words(100)
    if child == 0:
        os.write(sending, words.tobytes())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        in_child = np.frombuffer(pipe.read(), dtype=np.uint64)
    os.waitpid(child, 0)
    assert len(in_child) == 100
    assert all_different(words, in_child)
