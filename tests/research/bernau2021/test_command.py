"""`python -m research.bernau2021` on the digits, as a reader of the paper runs it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.audit.reports import ACQUITTED
from research.bernau2021.__main__ import app
from research.bernau2021.experiments import (
    SETTINGS,
    choices_of,
    membership_advantage,
    network_for,
    pair_of,
)
from research.bernau2021.games import play
from research.data.labelled import LabelledSet


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


def test_the_belief_is_swept_beside_the_membership_adversary():
    arguments = ["--games", "10", "--belief", "0.75", "--belief", "0.9", "--json"]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == ACQUITTED
    rows = json.loads(found.stdout)["rows"]
    assert [row["belief"] for row in rows] == ["0.75"] * 4 + ["0.9"] * 4
    assert {(row["belief"], row["epsilon"]) for row in rows} == {("0.75", "1.1"), ("0.9", "2.2")}
    assert all(float(row["of sensitivity"]) <= float(row["epsilon"]) for row in rows)


def test_a_belief_that_is_none_is_refused():
    with pytest.raises(ValueError, match="the belief"):
        CliRunner().invoke(app, ["--belief", "0.4"], catch_exceptions=False)


def test_the_membership_adversary_accuses_losses_below_the_members_mean():
    assert membership_advantage(np.array([0.0, 0.0, 3.0]), np.array([0.5, 2.0])) == pytest.approx(2 / 3 - 1 / 2)
    assert membership_advantage(np.ones(4), np.ones(4)) == 0


def test_the_networks_of_baskets_are_played_on(tmp_path):
    rng = np.random.default_rng(0)
    baskets = LabelledSet("retail-100", rng.integers(2, size=(60, 600)).astype(np.float32), np.arange(60), 100, "made")
    small = replace(SETTINGS["retail-100"], records=30, holdout=30)
    pair = pair_of(small, baskets, "bounded", 0)
    outcome = play(network_for("retail-100"), pair, replace(choices_of(small, "global"), steps=2), 1)
    assert outcome.sensitivities.shape == (2,)


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="the adversary plays on"):
        CliRunner().invoke(app, ["--dataset", "nowhere"], catch_exceptions=False)
