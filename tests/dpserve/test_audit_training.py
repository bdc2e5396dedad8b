"""`dpserve audit training` and `region`, small enough to be quick, as a user runs them."""

import json

import pytest
from typer.testing import CliRunner

from audit.reports import ACQUITTED, CONVICTED
from dpserve.cli import app


def audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


def test_a_planted_fault_is_convicted_and_a_sound_step_is_not(pieces, tmp_path):
    """Clipping after averaging moves the sum by more than 40 where the noise is 3: all 60 steps tell."""
    small = ("training", "--steps", 60, "--runs", 1, "--resume", pieces, "--json")
    broken = audit(*small, "--fault", "clip-after-averaging", "--html", tmp_path / "page.html")
    assert broken.exit_code == CONVICTED
    found = json.loads(broken.stdout)
    assert found["convicted"]
    assert found["bounds"]["f-DP (CP)"]["step_epsilon"] > 1.27 == pytest.approx(found["claim"]["step_epsilon"])
    assert "<img" in (tmp_path / "page.html").read_text()
    sound = audit(*small, "--fault", "none")
    assert sound.exit_code == ACQUITTED
    kept = {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()}
    assert audit(*small, "--fault", "none").stdout == sound.stdout
    assert {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()} == kept


def test_a_record_as_canary_and_its_bounds_in_words():
    shown = audit("training", "--steps", 30, "--runs", 1, "--canary", "mislabelled", "--epsilon", 8)
    assert shown.exit_code == ACQUITTED
    assert "Not refuted" in shown.stdout


def test_whole_runs_need_a_record():
    found = audit("training", "--whole-runs", 40, "--steps", 10, "--canary", "blank", "--json")
    assert found.exit_code == ACQUITTED
    assert set(json.loads(found.stdout)["bounds"]) == {"sees every step", "sees the final model"}
    with pytest.raises(ValueError, match="the canaries are"):
        audit("training", "--whole-runs", 10, "--steps", 10)


def test_the_region_of_a_mechanism():
    found = audit(
        "region",
        "gaussian",
        "--classes",
        3,
        "--noise-multiplier",
        1,
        "--noise-multiplier",
        4,
        "--trials",
        600,
        "--json",
    )
    assert found.exit_code == ACQUITTED
    points = json.loads(found.stdout)["points"]
    assert [point["noise_multiplier"] for point in points] == [1, 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("training", "--canary", "yellow"), "the canaries are"),
        (("training", "--fault", "none at all"), "the planted faults are"),
        (("region", "nothing"), "a region can be drawn of"),
    ],
)
def test_nonsense_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        audit(*arguments)


def test_an_audit_is_sized_for_the_noise_it_looks_for(tmp_path):
    """At 0.3 of the noise and a confidence of 0.999: a few hundred observations, said beforehand, and convicted.

    The power is 0.99; the seed is fixed.
    """
    found = audit(
        "training",
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
    assert found.exit_code == CONVICTED
    assert "is convicted with probability 0.99 by" in found.stderr
    content = json.loads(found.stdout)
    assert content["observations"] == content["setting"]["runs"] * 100
    assert content["power"]["against_noise_ratio"] >= 0.3
    with pytest.raises(ValueError, match="ask for them with --runs"):
        audit("training", "--fault", "noise-too-small", "--noise-ratio", 0.98)


def test_an_audit_that_refutes_nothing_says_what_it_could_have_seen():
    few = "training", "--fault", "noise-too-small", "--noise-ratio", 0.9, "--runs", 1, "--steps", 60
    found = audit(*few)
    assert found.exit_code == ACQUITTED
    assert "against noise 0.9 times the claimed" in " ".join(found.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "ignored"),
    [
        (("training", "--fault", "none", "--epsilon", 3), "--epsilon"),
        (("training", "--noise-ratio", 0.5), "--noise-ratio"),
        (("training", "--fault", "clip-after-averaging", "--noise-ratio", 0.5), "--noise-ratio"),
        (("training", "--whole-runs", 20, "--runs", 3, "--canary", "blank"), "--runs"),
        (("sensitivity", "certified", "--neighbours", 2), "--neighbours"),
        (("sensitivity", "published", "--lam", 2), "--lam"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(arguments, ignored):
    found = audit(*arguments)
    assert found.exit_code == 2
    assert f"{ignored}: it has no effect" in " ".join(found.stderr.split())
