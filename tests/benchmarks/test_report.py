"""The table for the terminal and the page say what was measured, each figure where it belongs."""

import json
from dataclasses import asdict

from benchmarks.serving import report, results
from benchmarks.serving.figures import (
    MANY,
    OURS,
    PAY_ONCE,
    PLAIN,
    Figures,
    Idle,
    metered_goals,
    pay_once_goals,
)
from benchmarks.serving.scaling import Point
from benchmarks.serving.stages import Stage

CLASS_SUMS, *_ = PAY_ONCE
CLASS_SUMS_WORDS = "(class-sums, identity)"
OUR_FIGURES = Figures(7000, 6900, 7100, 4.0, 7.0, 12.5, 0.1234, 150, 0)
BY_SETTING = {
    str(MANY): {
        OURS: OUR_FIGURES,
        CLASS_SUMS: Figures(1750, 1, 1, 1, 1, 1, 1, 1, 0),
        PLAIN: Figures(3500, 3400, 3600, 9.0, 10.0, 11.0, 0.2, 50, 3, 0.25),
    }
}
IDLE = {OURS: Idle(80, 70), CLASS_SUMS: Idle(80, 70), PLAIN: Idle(30, 30)}
PAGE = "".join(
    f"{name}\n<!-- {name} -->\nold\n<!-- end -->\n"
    for name in (
        "machine",
        "pay-once goals",
        "pay-once",
        "metered goals",
        "metered",
        "stages",
        "scaling",
        "ray data",
    )
)


def document():
    return {
        "comparison": results.comparison(BY_SETTING, IDLE, 5, 3.0),
        "stages": results.stages({str(MANY): [Stage("noise", 10.4, 0.25)]}),
        "scaling": results.scaling([Point("classes", 1000, 1234.5, 1, 2, 0.5, 99, 0.125)]),
        "ray data": results.stamp({"rows": 200_000, "rows_per_second": {"1": 1234.5, "2": 2000.4}}),
    }


def test_the_terminal_shows_goals_then_ratios():
    lines = report.terminal(BY_SETTING, IDLE).splitlines()
    (goal,) = (line for line in lines if "over plain" in line and CLASS_SUMS_WORDS in line)
    assert goal.split()[-4:] == ["0.5", ">=", "1.05", "missed"]
    (goal,) = (line for line in lines if "MB of an idle worker" in line and CLASS_SUMS_WORDS not in line)
    assert goal.split()[-4:] == ["73.4", "<=", "100", "met"]
    figures = "- 2.00 7000 4.00 7.00 12.50 0.123 150 80 0 0.00"
    ours = next(line for line in lines if line.startswith(OURS))
    assert ours.removeprefix(OURS).split() == figures.split()
    plain = next(line for line in lines if line.startswith(PLAIN))
    figures = "- 1.00 3500 9.00 10.00 11.00 0.200 50 30 3 0.25"
    assert plain.removeprefix(PLAIN).split() == figures.split()


def test_the_page_is_made_from_the_document_and_from_nothing_else():
    measured = document()
    page = report.with_tables(PAGE, measured)
    assert "old" not in page
    assert page.count(f"| {PLAIN} | - | 1.00 | 3,500 | 9.00 | 10.00 | 0.200 | 30 |") == 1
    assert page.count(f"| {OURS} |") == page.count(f"| {CLASS_SUMS} |") == 1
    assert "| 2 | 2,000 |" in page
    assert "| noise | 10 |" in page
    assert "| classes | 1,000 | 1,234 | 1.00 | 0.500 | 99 |" in page
    assert "medians of 5 interleaved rounds of 3 s each" in page
    assert report.with_tables(page, measured) == page


def test_figures_survive_the_document():
    part = json.loads(json.dumps(document()["comparison"]))
    assert results.read_comparison(part) == (BY_SETTING, IDLE)
    found = pay_once_goals(BY_SETTING, IDLE) + metered_goals(BY_SETTING, IDLE)
    assert part["goals"] == [asdict(goal) | {"met": goal.met} for goal in found]


def test_a_page_without_figures_says_so():
    assert report.with_tables(PAGE, {}).count("Not measured yet.") == 8


def test_parts_are_merged_into_the_document(tmp_path):
    file = tmp_path / "results.json"
    results.merge(file, {"stages": {"a": 1}, "scaling": {"b": 2}})
    results.merge(file, {"stages": {"a": 3}})
    assert json.loads(file.read_text()) == {"stages": {"a": 3}, "scaling": {"b": 2}}
