"""Gathering by itself: how long a tick is held for those who were just answered; by a clock that is set."""

from itertools import pairwise

import pytest

from service.gathering import CROWD, LONGEST, MOST_ROWS, PAUSE, SHARE, Gathering

LONG = 1.0
"""Seconds that a tick takes here, where it does not matter."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gathering(clock: Clock) -> Gathering:
    return Gathering(clock)


def answer(gathering: Gathering, clients: str, waiting: str = "", took: float = LONG) -> None:
    """Let a tick begin and end. Who asks or waits is a letter, once for each request."""
    gathering.begun(clients)
    gathering.answered(clients, waiting, took)


def come(gathering: Gathering, clients: str) -> list[bool]:
    return [gathering.came(client) for client in clients]


def test_nobody_is_held_unless_a_crowd_was_answered(gathering: Gathering) -> None:
    assert gathering.seconds(1) == 0.0
    answer(gathering, "a" * (CROWD - 1))
    assert come(gathering, "a") == [False]
    assert gathering.seconds(1) == 0.0
    answer(gathering, "a" * CROWD)
    assert come(gathering, "a") == [True]
    assert gathering.seconds(1) > 0.0


@pytest.mark.parametrize("clients", ["aaaaa", "abcde", "aabbc"])
def test_each_answer_is_awaited_once_and_no_more_than_pay(gathering: Gathering, clients: str) -> None:
    answer(gathering, clients)
    come(gathering, clients[:-1])
    assert gathering.seconds(4) > 0.0
    assert come(gathering, clients[0]) == [clients == "aaaaa"]  # comes again, and is not the one that is missing
    assert (gathering.seconds(5) > 0.0) == (clients != "aaaaa")
    come(gathering, clients[-1])
    assert gathering.seconds(6) == 0.0
    assert gathering.seconds(1) == 0.0  # they came: whoever comes behind them waits for nobody
    answer(gathering, "a" * 1000)
    come(gathering, "aaa")
    assert gathering.seconds(MOST_ROWS - 1) > 0.0
    assert gathering.seconds(MOST_ROWS) == 0.0
    answer(gathering, "a" * 4)
    come(gathering, "aaa")  # not those of before: and so many rows had been enough, whoever was missing
    assert gathering.seconds(3) > 0.0


def test_a_stranger_is_not_held_and_ends_the_hold(gathering: Gathering) -> None:
    answer(gathering, "mmmm")
    come(gathering, "m")
    assert gathering.seconds(1) > 0.0
    assert come(gathering, "v") == [False]
    assert gathering.seconds(2) == 0.0
    answer(gathering, "mmmm", waiting="mv")  # who came while the tick was under way
    assert gathering.seconds(2) == 0.0
    answer(gathering, "mv")
    answer(gathering, "mmmm")
    answer(gathering, "mmmm")
    come(gathering, "mv")  # v was answered two ticks before the newest: that was not just now
    assert gathering.seconds(2) == 0.0


def test_who_missed_the_newest_tick_is_put_together_with_the_others_again(gathering: Gathering) -> None:
    gathering.begun("a")
    answer(gathering, "bcd", waiting="a")
    assert gathering.seconds(1) > 0.0
    assert come(gathering, "bcd") == [True, True, True]
    assert gathering.seconds(4) == 0.0
    answer(gathering, "abcd")
    answer(gathering, "bcd")
    assert come(gathering, "a") == [False]  # it is not awaited, and no stranger
    assert gathering.seconds(1) > 0.0


def test_what_strangers_end_says_nothing_of_whether_the_answered_come(gathering: Gathering) -> None:
    for _ in range(5):
        answer(gathering, "abcd")
        come(gathering, "ax")
        assert gathering.seconds(2) == 0.0
    answer(gathering, "abcd")
    come(gathering, "a")
    assert gathering.seconds(1) > 0.0


def test_a_stranger_after_the_longest_is_no_excuse_for_those_who_did_not_come(
    gathering: Gathering, clock: Clock
) -> None:
    answer(gathering, "abcd")
    clock.now += LONGEST
    come(gathering, "x")
    assert gathering.seconds(1) == 0.0
    answer(gathering, "abcd")
    come(gathering, "a")
    assert gathering.seconds(1) == 0.0


def test_what_is_given_up_does_not_keep_the_hold(gathering: Gathering) -> None:
    answer(gathering, "m" * 10)
    come(gathering, "mm")
    gathering.look()
    assert gathering.seconds(2) > 0.0
    come(gathering, "m")
    gathering.left()
    gathering.look()  # one came and one left
    assert gathering.seconds(2) == 0.0


def test_what_is_given_up_did_not_come_back(gathering: Gathering) -> None:
    answer(gathering, "m" * 10)
    come(gathering, "m" * 8)
    gathering.left()
    gathering.look()
    gathering.look()
    answer(gathering, "m" * 10)  # too few stayed: this crowd is not waited for
    come(gathering, "m")
    assert gathering.seconds(1) == 0.0


@pytest.mark.parametrize("took", [0.001, 0.002, 2 * LONGEST / SHARE])
def test_they_are_awaited_while_they_keep_coming_and_never_longer_than_part_of_a_tick(
    gathering: Gathering, clock: Clock, took: float
) -> None:
    answer(gathering, "a" * 50, took=took)
    held = 0.0
    come(gathering, "a")
    while (seconds := gathering.seconds(1)) > 0.0:
        assert seconds <= PAUSE
        clock.now += seconds
        held += seconds
        come(gathering, "a")
        gathering.look()
    assert held == pytest.approx(min(LONGEST, took * SHARE))


def test_they_are_not_awaited_once_nobody_comes(gathering: Gathering) -> None:
    answer(gathering, "a" * 10, waiting="a")
    assert 0.0 < gathering.seconds(1) <= PAUSE
    come(gathering, "aaa")
    gathering.look()
    assert gathering.seconds(4) > 0.0
    gathering.look()  # nobody came since
    assert gathering.seconds(4) == 0.0


def test_where_the_answered_do_not_come_back_few_ticks_are_held_until_they_do(
    gathering: Gathering, clock: Clock
) -> None:
    def held() -> bool:
        answer(gathering, "a" * 10)
        clock.now += 1.0 if (first := gathering.seconds(1)) else 0.0
        assert gathering.seconds(1) == 0.0
        return first > 0.0

    tried = [number for number in range(200) if held()]
    apart = [after - before for before, after in pairwise(tried)]
    assert apart[:5] == [2, 4, 8, 16, 32]
    assert set(apart[5:]) == {32}
    while True:
        answer(gathering, "a" * 10)
        if gathering.seconds(1):
            break
    come(gathering, "a" * 8)
    assert gathering.seconds(8) > 0.0
    gathering.look()
    gathering.look()  # most of them came
    answer(gathering, "a" * 10)
    assert gathering.seconds(1) > 0.0
