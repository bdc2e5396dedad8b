"""The statistics of the benchmark's table."""

import statistics

import pytest

from benchmarks.serving.figures import (
    ARRAYS,
    BATCHES,
    MANY,
    MLSERVER,
    MLSERVER_WORKERS,
    MOSEC,
    ONE,
    OURS,
    OURS_REPLAYED,
    PAY_ONCE,
    PLAIN,
    Figures,
    Goal,
    Idle,
    Measured,
    idle,
    medians,
    metered_goals,
    pay_once_goals,
    ratio,
)
from benchmarks.serving.load import Round
from benchmarks.serving.processes import Use, busy_seconds, children_seconds


def use(cpu, peak=10.0, resident=8.0, share=5.0):
    return Use("python", cpu, 0.0, peak, resident, share)


def measured(requests, cpu, p50=1.0, wrong=0):
    return Measured(
        Round(requests, 2.0, wrong, p50, 2 * p50, 3 * p50), [use(1.0)], [use(1.0 + cpu), use(0.5 * cpu)], 0.25
    )


def figures(per_second, p50=1.0, cpu=0.1):
    return Figures(per_second, per_second, per_second, p50, 1.5, 1.5, cpu, 100.0, 0)


def test_medians_are_of_rounds_and_not_of_each_other():
    found = medians([measured(100, 0.1, 3.0), measured(400, 0.2, 1.0), measured(200, 0.4, 2.0, wrong=1)])
    assert (found.per_second, found.low, found.high) == (100.0, 50.0, 200.0)
    assert (found.p50, found.p99, found.p999) == (2.0, 4.0, 6.0)
    assert found.cpu == pytest.approx(statistics.median([1.5 * 1.0, 1.5 * 0.5, 1.5 * 2.0]))
    assert found.peak_memory == 20.0
    assert found.wrong == 1
    assert found.others == 0.25


def test_idle_memory_counts_shared_pages_once_and_a_worker_by_itself():
    assert idle([use(0, resident=80, share=50), use(0, resident=30, share=10)]) == Idle(60, 80)


def test_a_ratio_to_nothing_is_infinite():
    assert ratio(3, 2) == 1.5
    assert ratio(3, 0) == float("inf")


def test_goals_take_the_peer_that_is_hardest_to_beat():
    many = {
        OURS: figures(7000),
        OURS_REPLAYED: figures(5800),
        PLAIN: figures(6900),
        MLSERVER: figures(2000),
        MLSERVER_WORKERS: figures(1000),
    }
    one = {OURS: figures(500, p50=2.0), MLSERVER: figures(500, p50=2.0), MLSERVER_WORKERS: figures(300, p50=1.25)}
    goals = metered_goals({str(MANY): many, str(ONE): one}, {OURS: Idle(60, 96), PLAIN: Idle(200, 200)})
    found = {(goal.what, goal.value, goal.met) for goal in goals}
    assert found == {
        (f"{MANY}: requests/s over MLServer's faster", 3.5, True),
        (f"{MANY}: questions asked before, over MLServer's faster", 2.9, False),
        (f"{ONE}: median latency over MLServer's faster", 1.6, True),
        ("MB of an idle worker", 96 * 2**20 / 1e6, False),
    }
    assert pay_once_goals({str(MANY): many, str(ONE): one}, {}) == []


def test_goals_of_pay_once_models_are_those_of_the_one_that_is_furthest_from_them():
    first, second, *_ = PAY_ONCE
    results = {
        str(MANY): {
            first: figures(9000, cpu=0.08), second: figures(6300, cpu=0.1), MLSERVER: figures(2000),
            PLAIN: figures(7000), MOSEC: figures(9000, cpu=0.05),
        },
        str(ONE): {first: figures(1, p50=0.5), second: figures(1, p50=0.4), MLSERVER_WORKERS: figures(1, p50=1.0)},
        str(BATCHES): {first: figures(80), second: figures(90), MLSERVER: figures(80)},
        str(ARRAYS): {first: figures(290), second: figures(270)},
    }  # fmt: skip
    idle_by_name = {first: Idle(60, 90), second: Idle(60, 80)}
    found = {(goal.what, goal.value, goal.met) for goal in pay_once_goals(results, idle_by_name)}
    first, second = (f"({', '.join(PAY_ONCE[name])})" for name in (first, second))
    assert found == {
        (f"{MANY}: requests/s over plain {second}", 0.9, False),
        (f"{MANY}: requests/s over MLServer's faster {second}", 3.15, False),
        (f"{MANY}: requests per CPU second beside mosec's {second}", 0.5, False),
        (f"{ONE}: median latency over MLServer's faster {first}", 0.5, True),
        (f"{BATCHES}: requests/s over MLServer's faster {first}", 1.0, False),
        (f"{ARRAYS}: requests/s over MLServer's faster in JSON {second}", 3.375, False),
        (f"MB of an idle worker {first}", 90 * 2**20 / 1e6, True),
    }


def test_a_goal_that_is_just_reached_is_met():
    assert Goal("", 0.9, 0.9).met
    assert Goal("", 2, 2, at_least=False).met
    assert not Goal("", 2.01, 2, at_least=False).met


def test_cpu_of_the_machine_is_at_least_what_one_spends():
    busy, own = busy_seconds(), children_seconds()
    while children_seconds() - own < 0.2:
        pass
    # The kernel counts in ticks of 10 ms.
    assert busy_seconds() - busy >= 0.15
