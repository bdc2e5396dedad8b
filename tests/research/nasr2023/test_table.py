"""Table 1 beside the printed one, from exact quantiles of what a step shows, and the command on the digits."""

import json

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from dpserve.audit import reports
from dpserve.commands import console
from research.nasr2023 import table
from research.nasr2023.__main__ import app
from research.nasr2023.clipping import most_of
from research.nasr2023.methods import bound_as_published, judge
from research.white_box.bounds import ClaimedRun, Measured

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
    monkeypatch.setattr(table, "judge", lambda _, *confidences: asked.extend(confidences))
    table.judge_together(dict.fromkeys((1, 4, 8, 16), measured(0.8)), 0.95, 0.996)
    assert asked == pytest.approx([0.95, 0.999] * 4)


def test_the_table_stands_beside_the_printed_one():
    finding = judge(measured(0.8), 0.95, 1 - 1e-9)
    afterwards = table.as_published({4: measured(0.8)}, 0.95)
    shown = table.table_1({4: finding}, "digits", {"seed": 0}, "a note", chosen_afterwards=afterwards)
    row = next(row for row in shown.tables[0].rows if row[0] == "f-DP (CP)")
    assert row[1] == "4"
    assert row[4:] == ("3.4", "3.34", "3.54", "3.14")
    content = json.loads(reports.as_json(shown))
    assert content["epsilons"]["4"]["bounds"]["f-DP (CP)"]["guarantee"] == "exact"
    assert shown.picture.png.startswith(b"\x89PNG")


def test_a_threshold_chosen_afterwards_says_more_than_one_fixed_before():
    seen, finding = measured(0.8), judge(measured(0.8), 0.95, 1 - 1e-9)
    afterwards = table.as_published({4: seen}, 0.95)
    for method in ("f-DP (CP)", "(eps, delta)-DP (CP)", "eps-DP (Katz)"):
        assert afterwards[method, 4] >= finding[method].run_epsilon * (1 - 1e-9)
        assert bound_as_published(seen.with_canary, seen.without, method, 0.95, CLAIM).guarantee == "none"


def test_repeats_are_summed_up():
    finding = judge(measured(0.8), 0.95, 1 - 1e-9)
    summed = table.over_repeats([{4: finding}, {4: finding}])
    row = next(row for row in summed.rows if row[0] == "f-DP (CP)")
    assert row[1:] == ("4", f"{finding['f-DP (CP)'].run_epsilon:.4g}", "0")


def test_clipping_alone_stands_beside_the_printed_figure():
    found = invoke("--clipping-alone", "--whole-runs", 10, "--steps", 10, "--json")
    assert found.exit_code == reports.ACQUITTED
    content = json.loads(found.stdout)
    assert set(content["epsilon"]) == {"0.1", "1", "10"}
    assert all(0 <= epsilon <= content["most"] for epsilon in content["epsilon"].values())
    assert most_of(10, 0.95, 1e-5) < most_of(1000, 0.95, 1e-5)


def test_random_data_need_no_files():
    found = invoke("--dataset", "random", "--steps", 10, "--runs", 1, "--json")
    assert found.exit_code == reports.ACQUITTED
    assert "random" in json.loads(found.stdout)["setting"]["dataset"]


@pytest.mark.slow
def test_the_command_makes_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0.0)
    found = invoke("--table", "--steps", 40, "--runs", 1, "--resume", tmp_path, "--json")
    assert found.exit_code == reports.ACQUITTED
    assert set(json.loads(found.stdout)["epsilons"]) == {"1", "4", "8", "16"}
    assert len(list(tmp_path.iterdir())) == 4
    for epsilon in (1, 4, 8, 16):
        assert [line for line in found.stderr.splitlines() if f"at epsilon {epsilon}:" in line][-1].endswith("100%")


def test_what_cannot_be_watched_is_refused(monkeypatch):
    monkeypatch.delenv("DPSERVE_DATA_DIR", raising=False)
    with pytest.raises(ValueError, match="training is watched on"):
        invoke("--dataset", "nowhere")
    with pytest.raises(ValueError, match="--data-dir"):
        invoke("--dataset", "mnist")
    refused = invoke("--table", "--epsilon", 3)
    assert refused.exit_code == 2
    assert "--epsilon: it has no effect with --table" in " ".join(refused.stderr.split())


def test_a_planted_fault_is_convicted_and_a_sound_step_is_not(tmp_path):
    """Clipping after averaging moves the sum by more than 40 where the noise is 3: every step tells."""
    small = ("--steps", 200, "--runs", 1, "--json")
    broken = invoke(*small, "--fault", "clip-after-averaging", "--png", tmp_path / "picture.png")
    assert broken.exit_code == reports.CONVICTED
    found = json.loads(broken.stdout)
    assert found["convicted"]
    assert found["bounds"]["f-DP (CP)"]["step_epsilon"] > 1.27 == pytest.approx(found["claim"]["step_epsilon"])
    assert (tmp_path / "picture.png").exists()
    sound = invoke(*small, "--fault", "none")
    assert sound.exit_code == reports.ACQUITTED


def test_whole_runs_need_a_record():
    found = invoke("--whole-runs", 40, "--steps", 10, "--canary", "blank", "--json")
    assert found.exit_code == reports.ACQUITTED
    assert set(json.loads(found.stdout)["bounds"]) == {"sees every step", "sees the final model"}
    with pytest.raises(ValueError, match="the canaries are"):
        invoke("--whole-runs", 10, "--steps", 10)


def test_an_audit_is_sized_for_the_noise_it_looks_for(tmp_path):
    """At 0.3 of the noise and a confidence of 0.999: a few hundred observations, said beforehand, and convicted.

    The power is 0.99; the seed is fixed.
    """
    found = invoke(
        "--fault",
        "noise-too-small",
        "--noise-ratio",
        0.3,
        "--steps",
        100,
        "--json",
        "--conviction-confidence",
        0.999,
    )
    assert found.exit_code == reports.CONVICTED
    assert "is convicted with probability 0.99 by" in found.stderr
    content = json.loads(found.stdout)
    assert content["observations"] == content["setting"]["runs"] * 100
    assert content["power"]["against_noise_ratio"] >= 0.3
    with pytest.raises(ValueError, match="ask for them with --runs"):
        invoke("--fault", "noise-too-small", "--noise-ratio", 0.98)


def test_an_interrupted_audit_goes_on_from_its_pieces(tmp_path):
    small = ("--steps", 60, "--runs", 1, "--canary", "mislabelled", "--resume", tmp_path, "--json")
    sound = invoke(*small)
    assert sound.exit_code == reports.ACQUITTED
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert invoke(*small).stdout == sound.stdout
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept


def test_an_audit_that_refutes_nothing_says_what_it_could_have_seen():
    few = "--fault", "noise-too-small", "--noise-ratio", 0.9, "--runs", 1, "--steps", 60
    found = invoke(*few)
    assert found.exit_code == reports.ACQUITTED
    assert "against noise 0.9 times the claimed" in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("arguments", "ignored"),
    [
        (("--fault", "none", "--whole-runs", 20), "--whole-runs"),
        (("--noise-ratio", 0.5), "--noise-ratio"),
        (("--repeats", 2), "--repeats"),
        (("--whole-runs", 20, "--runs", 3, "--canary", "blank"), "--runs"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments, ignored):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert f"{ignored}: it has no effect" in " ".join(found.stderr.split())
