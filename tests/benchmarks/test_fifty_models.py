"""The table of research/README.md from kept runs, and which kept runs count."""

import json

from benchmarks import kept_runs
from benchmarks.fifty_models import MECHANISMS, kept, summary, table


def finished(run, best):
    name, price = MECHANISMS[run % len(MECHANISMS)]
    return {
        "run": run,
        "mechanism": name,
        "price": price,
        "best": best,
        "of_each_attack": {"RMIA": best, "LiRA, online": 0.1},
        "largest_epsilon": 0.0,
        "bound_one_step": 0.25,
        "decided": [188, 188],
        "convicted": False,
        "inconclusive": False,
        "code": "this",
    }


def test_each_mechanism_has_a_row_and_what_exceeds_the_bound_is_counted():
    results = [finished(0, 0.02), finished(5, 0.3), finished(2, -0.1)]
    lines = table(results).splitlines()
    assert lines[2:] == [
        "| `gaussian`, noise-multiplier:1 | 2 | 0.160, 0.300 | 0.300 | 0.250 |",
        "| `laplace`, epsilon:1 | 1 | -0.100, -0.100 | 0.100 | 0.250 |",
    ]
    said = summary(results)
    assert said.startswith("3 models, 6 measured TPR - FPR, the largest 0.300; runs in which one exceeds")
    assert "the bound for one step: 1;" in said


def test_runs_of_other_code_and_lines_that_were_cut_off_are_made_again(tmp_path):
    path = tmp_path / "results"
    assert kept(path, "this") == []
    lines = [json.dumps(finished(run, 0.0)) for run in (3, 1)] + [json.dumps(finished(2, 0.0) | {"code": "other"})]
    path.write_text("\n".join([*lines, lines[0][:40]]))
    assert [one["run"] for one in kept(path, "this")] == [1, 3]


def test_a_run_after_a_line_that_was_cut_off_has_a_line_of_its_own(tmp_path):
    path = tmp_path / "results"
    kept_runs.append(path, finished(1, 0.0))
    path.write_text(path.read_text()[:-20])
    kept_runs.append(path, finished(2, 0.0))
    assert [one["run"] for one in kept(path, "this")] == [2]
