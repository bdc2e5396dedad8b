"""A coin falls as a whole number of 64 bits below its threshold would."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.mechanisms.tapes import coins


class Given:
    """Words that are given: first four numbers of 16 bits in each, then one of 48 bits above in each."""

    def __init__(self, *drawn):
        self.drawn = list(drawn)

    def words(self, count):
        return self.drawn.pop(0)[:count]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    threshold=st.integers(0, 2**64 - 1),
    near=st.lists(st.sampled_from([-1, 0, 1]), min_size=8, max_size=8),
    lower=st.lists(st.integers(0, 2**48 - 1), min_size=8, max_size=8),
    same=st.booleans(),
)
def test_a_coin_falls_as_its_64_bits_say(threshold, near, lower, same):
    upper = [min(max((threshold >> 48) + step, 0), 2**16 - 1) for step in near]
    if same:
        lower = [max((threshold & 2**48 - 1) + step, 0) for step in near]
    asked = [place for place in range(8) if upper[place] == threshold >> 48]
    # Whatever is below the 48 bits does not count.
    words = np.array([(lower[place] & 2**48 - 1) << 16 | 0xABCD for place in asked], dtype=np.uint64)
    randomness = Given(np.array(upper, dtype=np.uint16).view(np.uint64), words)
    whole = [up << 48 | low & 2**48 - 1 for up, low in zip(upper, lower, strict=True)]
    assert coins(8, threshold, randomness).tolist() == [number < threshold for number in whole]
