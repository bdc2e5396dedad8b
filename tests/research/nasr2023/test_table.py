"""Table 1 beside the printed one, from exact quantiles of what a step shows, and the command on the digits."""

import json

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from audit import reports
from audit.white_box import presentation
from audit.white_box.bounds import ClaimedRun
from audit.white_box.experiments import Measured
from audit.white_box.findings import judge
from research.nasr2023 import table
from research.nasr2023.__main__ import app

CLAIM = ClaimedRun(0.8, 0.05, 30, 1e-5)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)


def measured(noise, count=2000):
    mixed = (np.random.default_rng(seed).permutation(count) for seed in (0, 1))
    outside, inside = (scipy.stats.norm.ppf((np.arange(count) + 0.5) / count)[order] * noise for order in mixed)
    return Measured(CLAIM, outside, inside + 1, 0.5)


def test_claims_judged_together_share_the_doubt_of_a_conviction(monkeypatch):
    """Any of four claims convicts, so that each has a quarter of the doubt; what is shown keeps its confidence."""
    asked = []
    monkeypatch.setattr(presentation, "judge", lambda _, *confidences: asked.extend(confidences))
    table.judge_together(dict.fromkeys((1, 4, 8, 16), measured(0.8)), 0.95, 0.996)
    assert asked == pytest.approx([0.95, 0.999] * 4)


def test_the_table_stands_beside_the_printed_one():
    finding = judge(measured(0.8), 0.95, 1 - 1e-9)
    shown = table.table_1({4: finding}, "digits", {"seed": 0}, "a note")
    row = next(row for row in shown.tables[0].rows if row[0] == "f-DP (CP)")
    assert row[1] == "4"
    assert row[3:] == ("3.4", "3.34", "3.54", "3.14")
    content = json.loads(reports.as_json(shown))
    assert content["epsilons"]["4"]["bounds"]["f-DP (CP)"]["guarantee"] == "exact"
    assert shown.pictures[0].png.startswith(b"\x89PNG")


def test_the_command_makes_the_table(tmp_path):
    found = invoke("--table", "--steps", 40, "--runs", 1, "--resume", tmp_path, "--json")
    assert found.exit_code == reports.ACQUITTED
    assert set(json.loads(found.stdout)["epsilons"]) == {"1", "4", "8", "16"}
    assert len(list(tmp_path.iterdir())) == 4


def test_a_planted_fault_is_convicted_as_by_the_audit_of_training():
    assert invoke("--fault", "clip-after-averaging", "--steps", 60, "--runs", 1).exit_code == reports.CONVICTED


def test_what_cannot_be_watched_is_refused(monkeypatch):
    monkeypatch.delenv("DPSERVE_DATA_DIR", raising=False)
    with pytest.raises(ValueError, match="training is watched on"):
        invoke("--dataset", "nowhere")
    with pytest.raises(ValueError, match="--data-dir"):
        invoke("--dataset", "mnist")
    refused = invoke("--table", "--epsilon", 3)
    assert refused.exit_code == 2
    assert "--epsilon: it has no effect with --table" in " ".join(refused.stderr.split())
