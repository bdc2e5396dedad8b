"""Gathering by itself: how long a tick is held for those who were just answered; by a clock that is set."""

from itertools import pairwise

import pytest

from service.gathering import CROWD, LONGEST, MOST_ROWS, PAUSE, Gathering


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nobody_is_held_unless_a_crowd_was_answered(clock: Clock) -> None:
    gathering = Gathering(clock)
    assert gathering.seconds(1, 1) == 0.0
    gathering.answered(CROWD - 1, 0)
    assert gathering.seconds(1, 1) == 0.0
    gathering.answered(CROWD, 0)
    assert gathering.seconds(1, 1) > 0.0


def test_the_answered_are_awaited_with_those_who_wait_already_and_no_more_than_pay(clock: Clock) -> None:
    gathering = Gathering(clock)
    gathering.answered(5, 2)
    assert gathering.seconds(6, 6) > 0.0
    assert gathering.seconds(7, 7) == 0.0
    assert gathering.seconds(1, 1) == 0.0  # they came: whoever comes behind them waits for nobody
    gathering.answered(1000, 0)
    assert gathering.seconds(3, MOST_ROWS - 1) > 0.0
    assert gathering.seconds(3, MOST_ROWS) == 0.0


def test_they_are_awaited_while_they_keep_coming_and_for_a_bounded_time(clock: Clock) -> None:
    gathering = Gathering(clock)
    gathering.answered(10, 1)
    assert gathering.seconds(1, 1) <= PAUSE
    gathering.look(4)
    assert gathering.seconds(4, 4) > 0.0
    gathering.look(4)  # nobody came since
    assert gathering.seconds(4, 4) == 0.0
    gathering = Gathering(clock)
    gathering.answered(50, 0)
    held, waiting = 0.0, 0
    while (seconds := gathering.seconds(waiting, waiting)) > 0.0:
        clock.now += seconds
        held += seconds
        waiting += 1
        gathering.look(waiting)
    assert held == pytest.approx(LONGEST)


def test_where_the_answered_do_not_come_back_few_ticks_are_held_until_they_do(clock: Clock) -> None:
    gathering = Gathering(clock)

    def held() -> bool:
        gathering.answered(10, 0)
        clock.now += 1.0 if (first := gathering.seconds(1, 1)) else 0.0
        assert gathering.seconds(1, 1) == 0.0
        return first > 0.0

    tried = [number for number in range(200) if held()]
    apart = [after - before for before, after in pairwise(tried)]
    assert apart[:5] == [2, 4, 8, 16, 32]
    assert set(apart[5:]) == {32}
    while True:
        gathering.answered(10, 0)
        if gathering.seconds(1, 1):
            break
    assert gathering.seconds(8, 8) > 0.0
    gathering.look(8)
    gathering.look(8)  # most of them came
    gathering.answered(10, 0)
    assert gathering.seconds(1, 1) > 0.0
