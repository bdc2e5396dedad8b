"""Noise that repeats: by the name of a test or of what tests share, and never where a test asks for fresh noise."""

import secrets

import numpy as np
import pytest

from dpserve.mechanisms.randomness import NoiseKey, SystemRandomness
from tests.seeded import NamedWords


@pytest.fixture
def words():
    """Words whose fresh ones can be told from all others."""
    return NamedWords(lambda count: np.zeros(count, dtype=np.uint64), lambda nbytes: bytes(nbytes))


def test_a_name_has_the_same_words_whenever_it_is_entered(words):
    drawn = []
    for _ in range(2):
        with words.named("a test"):
            drawn.append((words.keystream(3).tolist(), words.token_bytes().hex(), words.token_bytes(5).hex()))
    assert drawn[0] == drawn[1]
    assert len(bytes.fromhex(drawn[0][1])) == 32
    assert len(bytes.fromhex(drawn[0][2])) == 5


def test_other_names_and_later_calls_have_other_words(words):
    with words.named("one"):
        one = words.keystream(4)
        more = words.keystream(4)
    with words.named("other"):
        other = words.keystream(4)
    assert len(np.unique(np.concatenate([one, more, other]))) == 12


def test_what_is_drawn_inside_does_not_move_the_words_around_it(words):
    with words.named("a test"):
        plain = words.keystream(6)
    with words.named("a test"):
        before = words.keystream(3)
        with words.named("what tests share"):
            words.keystream(100)
        after = words.keystream(3)
    assert np.array_equal(plain, np.concatenate([before, after]))


def test_without_a_name_they_are_fresh(words):
    assert not words.keystream(4).any()
    with words.named("a test"), words.named(None):
        assert words.token_bytes(4) == bytes(4)
        assert not words.keystream(4).any()


def system_words():
    return SystemRandomness().words(4).tolist(), NoiseKey.fresh().secret, secrets.token_hex(8)


def test_this_process_draws_by_the_names_of_its_tests(request):
    if request.config.getoption("fresh_noise"):
        pytest.skip("--fresh-noise was given")
    drawn = system_words()
    words = NamedWords(None, None)
    with words.named(request.node.nodeid):
        assert drawn[0] == words.keystream(4).tolist()
        assert drawn[1] == words.token_bytes(32)
        assert drawn[2] == words.token_bytes(8).hex()


@pytest.mark.fresh_noise
def test_a_test_can_ask_for_fresh_noise(request):
    words = NamedWords(None, None)
    with words.named(request.node.nodeid):
        repeated = words.keystream(4).tolist()
    assert system_words()[0] != repeated
