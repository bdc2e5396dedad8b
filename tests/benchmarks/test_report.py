"""The table for the terminal and the page say what was measured, each figure where it belongs."""

import json
from dataclasses import asdict

from benchmarks.serving import report, results
from benchmarks.serving.figures import (
    IN_MEMORY,
    MANY,
    OURS,
    OURS_WORKERS,
    PLAIN,
    UNPROTECTED_WORKERS,
    Figures,
    Idle,
    goals,
)
from benchmarks.serving.scaling import Point
from benchmarks.serving.stages import Stage

OUR_FIGURES = Figures(7000, 6900, 7100, 4.0, 7.0, 12.5, 0.1234, 150, 0)
BY_SETTING = {
    str(MANY): {
        OURS: OUR_FIGURES,
        IN_MEMORY: Figures(1750, 1, 1, 1, 1, 1, 1, 1, 0),
        PLAIN: Figures(3500, 3400, 3600, 9.0, 10.0, 11.0, 0.2, 50, 3, 0.25),
    }
}
IDLE = {OURS: Idle(80, 70), IN_MEMORY: Idle(80, 70), PLAIN: Idle(30, 30)}
PAGE = "".join(
    f"{name}\n<!-- {name} -->\nold\n<!-- end -->\n" for name in ("machine", "goals", "comparison", "stages", "scaling")
)


def document():
    return {
        "comparison": results.comparison(BY_SETTING, IDLE, 5, 3.0),
        "stages": results.stages({str(MANY): [Stage("noise", 10.4, 0.25)]}),
        "scaling": results.scaling([Point("classes", 1000, 1234.5, 1, 2, 0.5, 99, 0.125)]),
    }


def test_the_terminal_shows_goals_then_ratios():
    lines = report.terminal(BY_SETTING, IDLE).splitlines()
    assert "requests/s over plain" in lines[1]
    assert lines[1].split()[-5:-1] == ["2.00", ">=", "1", "met"]
    assert lines[1].split()[-1] == "0.50"
    ours = next(line for line in lines if line.startswith(OURS))
    assert ours.removeprefix(OURS).split() == [
        "1.00",
        "7000",
        "4.00",
        "7.00",
        "12.50",
        "0.123",
        "150",
        "80",
        "0",
        "0.00",
    ]
    plain = next(line for line in lines if line.startswith(PLAIN))
    assert plain.removeprefix(PLAIN).split() == [
        "2.00",
        "3500",
        "9.00",
        "10.00",
        "11.00",
        "0.200",
        "50",
        "30",
        "3",
        "0.25",
    ]


def test_two_workers_are_compared_with_two_that_are_unprotected():
    more = {OURS_WORKERS: Figures(10_500, 1, 1, 2, 3, 1, 1, 1, 0), UNPROTECTED_WORKERS: OUR_FIGURES}
    by_setting = {str(MANY): BY_SETTING[str(MANY)] | more}
    found = {goal.what.partition(": ")[2]: goal.value for goal in goals(by_setting, IDLE, OURS_WORKERS)}
    assert found["requests/s over ours without privacy and ledger"] == 1.5
    assert found["requests/s over plain"] == 3
    idle = IDLE | dict.fromkeys(more, Idle(90, 90))
    assert report.terminal(by_setting, idle).splitlines()[1].split()[-2:] == ["0.50", "3.00"]


def test_the_page_is_made_from_the_document_and_from_nothing_else():
    measured = document()
    page = report.with_tables(PAGE, measured)
    assert "old" not in page
    assert f"| {PLAIN} | 2.00 | 3,500 | 9.00 | 10.00 | 0.200 | 30 |" in page
    assert "| noise | 10 |" in page
    assert "| classes | 1,000 | 1,234 | 1.00 | 0.500 | 99 |" in page
    assert "medians of 5 interleaved rounds of 3 s each" in page
    assert report.with_tables(page, measured) == page


def test_figures_survive_the_document():
    part = json.loads(json.dumps(document()["comparison"]))
    assert results.read_comparison(part) == (BY_SETTING, IDLE)
    assert part["goals"][OURS] == [asdict(goal) | {"met": goal.met} for goal in goals(BY_SETTING, IDLE)]
    assert [goal["met"] for goal in part["goals"][IN_MEMORY] if goal["what"].endswith("over plain")] == [False]


def test_parts_are_merged_into_the_document(tmp_path):
    file = tmp_path / "results.json"
    results.merge(file, {"stages": {"a": 1}, "scaling": {"b": 2}})
    results.merge(file, {"stages": {"a": 3}})
    assert json.loads(file.read_text()) == {"stages": {"a": 3}, "scaling": {"b": 2}}
