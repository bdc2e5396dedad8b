"""The region of privacy of a mechanism's answers, and how it is shown."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dpserve.accounting import conversions
from dpserve.accounting.losses import Cost, GaussianLoss, LaplaceLoss
from dpserve.audit import reports
from dpserve.mechanisms.seeded import SeededRandomness
from research.erlingsson2019 import answers
from research.erlingsson2019.__main__ import app
from research.erlingsson2019.presentation import Point, region_report


def test_a_multiplier_is_a_price_whatever_the_mechanism():
    for name in ("gaussian", "laplace", "label", "selected-neuron"):
        assert float(answers.mechanism_at(name, 3, 4.0).cost.rho) == pytest.approx(1 / 32, rel=0.01)


def test_releases_together_cost_what_they_cost_one_by_one():
    gaussian, laplace = Cost((GaussianLoss(0.25),)), Cost((LaplaceLoss(0.25),))
    assert answers.together(gaussian, 16).losses == (GaussianLoss(answers.together(gaussian, 16).losses[0].mu),)
    assert answers.together(gaussian, 16).losses[0].mu == pytest.approx(1.0)
    assert answers.together(laplace, 3).losses == laplace.losses * 3
    assert answers.together(laplace, 1) == laplace


@pytest.mark.parametrize(("name", "releases"), [("gaussian", 4), ("laplace", 2)])
def test_bounds_from_below_lie_below_those_from_above(name, releases):
    """At a confidence of 1 - 1e-7 for each of three bounds: wrong once in three million."""
    mechanism = answers.mechanism_at(name, 3, 1.0)
    scores = answers.observe_releases(mechanism, 3, releases, 1000, SeededRandomness(1, (name,)))
    point = answers.point_of(
        mechanism, 1.0, releases, scores, delta=1e-5, confidence=1 - 1e-7, conviction_confidence=1 - 1e-9, points=1
    )
    assert 0 < point.best_lower < point.best_upper
    assert not point.convicted
    assert point.upper["basic"] > point.upper["exact"]


def test_bounds_that_are_shown_together_hold_together():
    asked = []
    found = answers.jointly({name: lambda each: asked.append(each) or each for name in "abc"}, 0.95)
    assert list(found) == ["a", "b", "c"]
    assert asked == pytest.approx([1 - 0.05 / 3] * 3)


def test_the_best_of_three_attacks_is_above_the_truth_no_more_often_than_one_may_be():
    """400 audits at 80 %; the best of bounds at 80 % each is above in more. P(Binomial(400, 0.2) > 120) < 1e-6."""
    mechanism = answers.mechanism_at("gaussian", 2, 1.0)
    truth = conversions.gaussian_epsilon(1.0, 1e-5)
    above = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        scores = rng.normal(0.5, 1, 300), rng.normal(-0.5, 1, 300)
        claim = answers.claimed_tradeoff(mechanism.cost, 1e-5)
        above += max(answers.jointly(answers.attacks(claim, scores), 0.8).values()) > truth
    assert above <= 120


def test_a_claim_that_is_too_low_is_convicted():
    """Four times the loss that is claimed: the worst-case answers of noise multiplier 1 scored as if it were 4."""
    loud = answers.mechanism_at("gaussian", 3, 1.0)
    scores = answers.observe_releases(loud, 3, 1, 4000, SeededRandomness(2, ("loud",)))
    claimed = answers.mechanism_at("gaussian", 3, 4.0)
    point = answers.point_of(
        claimed, 4.0, 1, scores, delta=1e-5, confidence=0.95, conviction_confidence=1 - 1e-9, points=1
    )
    assert point.convicted
    assert point.best_lower > point.best_upper


def test_a_region_s_points_share_the_doubt_of_a_conviction(monkeypatch):
    """Any point convicts, so that each of three has a third of the doubt."""
    asked = []
    monkeypatch.setattr(answers, "contradicts", lambda claim, inside, outside, confidence: asked.append(confidence))
    words = ["mechanism", "gaussian", "--classes", "2", "--trials", "100", "--conviction-confidence", "0.997"]
    words += [word for multiplier in "124" for word in ("--noise-multiplier", multiplier)]
    CliRunner().invoke(app, words, catch_exceptions=False)
    assert asked == pytest.approx([0.999] * 3)


def test_the_command_draws_a_point_of_each_noise_multiplier():
    words = ["mechanism", "gaussian", "--classes", "3", "--noise-multiplier", "4", "--trials", "600", "--json"]
    found = CliRunner().invoke(app, words, catch_exceptions=False)
    assert found.exit_code == reports.ACQUITTED
    assert [point["noise_multiplier"] for point in json.loads(found.stdout)["points"]] == [4]
    with pytest.raises(ValueError, match="a region can be drawn of"):
        CliRunner().invoke(app, ["mechanism", "nothing"], catch_exceptions=False)


def test_the_report_shows_the_region():
    points = [
        Point(1.0, {"attack": 0.5}, {"rdp": 2.0, "exact": 1.5}, {"accuracy": 0.9}, False),
        Point(4.0, {"attack": 0.0}, {"rdp": 0.4}, {}, False),
    ]
    shown = region_report("A region", points, 1e-5, {"seed": 0})
    assert shown.verdict == "Not refuted: the best lower bound reaches 33% of the best upper bound at most."
    assert shown.tables[1].rows[1] == ("4", "0.4", "-")
    assert shown.picture.png.startswith(b"\x89PNG")
    convicted = region_report("A region", [Point(2.0, {"a": 3.0}, {"b": 1.0}, {}, True)], 1e-5, {})
    assert convicted.exit_status == reports.CONVICTED
    with pytest.raises(ValueError, match="at least one"):
        region_report("A region", [], 1e-5, {})


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("inf"), float("nan")])
def test_a_noise_multiplier_that_is_none_is_refused(multiplier):
    with pytest.raises(ValueError, match="the noise multiplier must lie"):
        answers.mechanism_at("gaussian", 10, multiplier)
