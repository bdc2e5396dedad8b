"""The region of privacy of DP-SGD: its attack on losses, its printed table, and its command on the digits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.audit.reports import ACQUITTED
from dpserve.training.fitting.network import Network
from research.erlingsson2019 import region
from research.erlingsson2019.__main__ import app
from research.erlingsson2019.region import attack_rates, losses
from research.white_box.bounds import pooled_bound


def test_points_of_training_share_the_doubt_of_a_conviction(monkeypatch):
    asked = []

    def spy(inside, outside, confidence):
        asked.append(confidence)
        return pooled_bound(inside, outside, confidence)

    monkeypatch.setattr(region, "pooled_bound", spy)
    seen = {"without": [0.0, 1.0] * 50, "with": [1.0, 0.0] * 50}
    store = SimpleNamespace(
        result=lambda piece, compute: seen | {"accuracy": 0.5, "true_positives": 0.05, "advantage": 0.0}
    )
    setting = region.SETTINGS["digits"]
    region.points(setting, (1.0, 4.0), None, store, 0, 0.95, 0.99, lambda *_: None)
    assert asked == pytest.approx([0.95, 0.995] * 2)


def test_yeom_s_attack_on_losses():
    members, others = np.arange(0, 1, 0.01), np.arange(0.5, 1.5, 0.01)
    caught, advantage = attack_rates(members, others)
    assert caught == pytest.approx(0.55, abs=0.011)
    assert advantage == pytest.approx(0.5, abs=0.011)
    assert attack_rates(others, others)[1] == 0


def test_losses_are_cross_entropies():
    network = Network((2, 3))
    inputs, labels = np.array([[0.2, 0.4], [1.0, 0.0]]), np.array([2, 0])
    assert np.allclose(losses(network, np.zeros(network.size), inputs, labels), np.log(3))


def test_the_command_draws_a_point_of_each_noise_multiplier():
    arguments = ["training", "--noise-multiplier", "2", "--json"]
    found = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == ACQUITTED
    (point,) = json.loads(found.stdout)["points"]
    assert point["noise_multiplier"] == 2


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="a region of training can be drawn on"):
        CliRunner().invoke(app, ["training", "--dataset", "nowhere"], catch_exceptions=False)
