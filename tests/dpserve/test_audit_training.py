"""`dpserve audit training` and `region`, small enough to be quick, as a user runs them."""

import json

import pytest
from typer.testing import CliRunner

from audit.reports import ACQUITTED
from dpserve.cli import app


def audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return tmp_path_factory.mktemp("pieces")


def test_an_interrupted_audit_goes_on_from_its_pieces(pieces):
    small = ("training", "--steps", 60, "--runs", 1, "--resume", pieces, "--json")
    sound = audit(*small)
    assert sound.exit_code == ACQUITTED
    kept = {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()}
    assert audit(*small).stdout == sound.stdout
    assert {path.name: path.stat().st_mtime_ns for path in pieces.iterdir()} == kept


def test_a_record_as_canary_and_its_bounds_in_words():
    shown = audit("training", "--steps", 30, "--runs", 1, "--canary", "mislabelled", "--epsilon", 8)
    assert shown.exit_code == ACQUITTED
    assert "Not refuted" in shown.stdout


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
        (("region", "nothing"), "a region can be drawn of"),
    ],
)
def test_nonsense_is_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        audit(*arguments)


@pytest.mark.parametrize(("model", "ignored"), [("certified", ("--neighbours", 2)), ("published", ("--lam", 2))])
def test_an_option_that_would_be_ignored_is_refused(model, ignored):
    found = audit("sensitivity", model, *ignored)
    assert found.exit_code == 2
    assert f"{ignored[0]}: it has no effect" in " ".join(found.stderr.split())
