"""The share of a training's time: it never falls, ends at 1, and is true where what is expected is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.watchers import Timeline

PHASES = {"centre": 2.0, "steps": 10.0, "calibration": 3.0}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def shares(expected, real, before=0.0, parts=20):
    """Each moment's share of the time, and what is said, of phases that take these seconds."""
    clock = Clock()
    timeline = Timeline(clock)
    clock.now += before
    timeline.expect(expected)
    whole, said = before + sum(real.values()), []
    for phase, seconds in real.items():
        timeline.report(phase, 0.0)
        for part in range(1, parts + 1):
            clock.now += seconds / parts
            if phase == "steps" or part == parts:
                timeline.report(phase, part / parts)
            said.append(((clock.now - 100.0) / whole, timeline.share))
    return said


@pytest.mark.parametrize("before", [0.0, 4.0])
def test_the_share_is_true_where_what_is_expected_is(before):
    for true, said in shares(PHASES, PHASES, before):
        assert said == pytest.approx(min(true, 0.99) if true < 1 else 1)


def test_phases_that_all_take_longer_are_believed_when_a_tenth_of_one_is_done():
    real = {"centre": 2.0, "steps": 20.0, "calibration": 6.0}
    errors = {true: abs(true - said) for true, said in shares(PHASES, real, parts=40)}
    assert max(errors.values()) > 0.05  # at first
    assert all(error < 0.02 for true, error in errors.items() if true > 5 / 28)


SECONDS = st.floats(0.01, 100)


@settings(derandomize=True, deadline=None)
@given(st.lists(SECONDS, min_size=3, max_size=3), st.lists(SECONDS, min_size=3, max_size=3), SECONDS)
def test_the_share_never_falls_and_ends_at_one(expected, real, before):
    said = [share for _, share in shares(*(dict(zip(PHASES, each, strict=True)) for each in (expected, real)), before)]
    assert said == sorted(said)
    assert all(0 <= share <= 1 for share in said)
    assert said[-1] == 1
    assert max(said[:-1]) < 1


def test_a_phase_that_is_left_out_has_passed():
    clock = Clock()
    timeline = Timeline(clock)
    timeline.expect(PHASES)
    timeline.report("steps", 0.0)
    clock.now += 5
    assert timeline.share == pytest.approx(5 / 13)


def test_nothing_is_over_until_anything_is_expected():
    clock = Clock()
    timeline = Timeline(clock)
    clock.now += 5
    timeline.report("centre", 0.5)
    assert timeline.share == 0
