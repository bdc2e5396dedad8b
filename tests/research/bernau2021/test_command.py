"""`python -m research.bernau2021` on the digits, as a reader of the paper runs it."""

import json

import pytest
from typer.testing import CliRunner

from audit.reports import ACQUITTED
from research.bernau2021.__main__ import app


def test_games_on_digits(tmp_path):
    arguments = ["--games", "10", "--json", "--png", str(tmp_path / "beliefs.png")]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == ACQUITTED
    content = json.loads(found.stdout)
    assert content["verdict"].startswith(
        "Not refuted: with global sensitivity and a record added or removed the advantage"
    )
    assert content["games"]["local unbounded"]["games"] == 10
    assert content["games"]["global unbounded"]["epsilon_of_sensitivity"] <= 2.2 * (1 + 1e-9)
    assert (tmp_path / "beliefs.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="the adversary plays on"):
        CliRunner().invoke(app, ["--dataset", "nowhere"], catch_exceptions=False)
