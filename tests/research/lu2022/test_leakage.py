"""`python -m research.lu2022` with the attack: Priv_Leak beside the accuracy loss."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from research.lu2022 import printed, rivals
from research.lu2022.__main__ import app
from research.lu2022.leakage import KnownAnswers, train_blind_networks

SMALL = ("--dataset", "location", "--repeats", "2", "--n", "50", "--epochs", "12", "--epsilons", "0.1,1000000")


def invoke(*arguments):
    result = CliRunner().invoke(app, [*SMALL, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_privacy_leakage_stands_beside_accuracy_loss_and_converges_to_that_without_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(rivals, "STRONG_CONVEXITIES", (100.0,))
    monkeypatch.setattr(printed, "SHADOW_MODELS", {"location": 4})
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 30, size=220)
    X = (rng.random((30, 446)) < 0.3)[labels] ^ (rng.random((220, 446)) < 0.1)
    rows = [
        ",".join([f'"{label + 1}"', *map(str, row)]) for label, row in zip(labels, X.astype(int).tolist(), strict=True)
    ]
    (tmp_path / "bangkok").write_text("\n".join(rows))
    where = ("--data-dir", str(tmp_path), "--out", str(tmp_path / "out"))
    read = json.loads(invoke(*where, "--rivals", "--json"))
    (leakage,) = [row for row in read["table_v"] if row["quantity"] == "Priv_Leak"]
    assert leakage["printed"] == 0.36
    points = {(point["mechanism"], point["epsilon"]): point for point in read["accuracy_loss"]}
    for noise in ("laplace", "gaussian"):
        # At a claimed epsilon of a million no noise is left: the same decisions but for a row or two of 200.
        assert abs(points[f"published-{noise}", 1e6]["privacy_leakage"] - leakage["ours"]) <= 0.02
    assert all("privacy_leakage" in point for point in points.values())
    with (tmp_path / "out" / "location-accuracy-loss.csv").open() as file:
        assert all(row["privacy_leakage"] for row in csv.DictReader(file))
    assert (tmp_path / "out" / "location-accuracy-loss.png").read_bytes().startswith(b"\x89PNG")
    text = invoke(*where, "--rivals")
    assert "Priv_Leak by epsilon, mean" in text


def answers(n, seed, boost, classes=4):
    """Members' answers are surer of the true label by `boost` in logits."""
    generator = np.random.default_rng(seed)
    y, member = generator.integers(classes, size=n), np.arange(n) % 2 == 0
    z = generator.standard_normal((n, classes))
    z[np.arange(n), y] += 1 + boost * member
    weights = np.exp(z)
    return KnownAnswers(weights / weights.sum(axis=1, keepdims=True), y, member)


def test_blind_networks_see_no_labels_and_do_not_depend_on_each_other():
    known = [answers(800, seed, boost=3.0) for seed in (0, 1)]
    both = train_blind_networks(known, (5, 6), most=300)
    (alone,) = train_blind_networks(known[1:], (6,), most=300)
    seen = answers(1000, 2, boost=3.0)
    np.testing.assert_allclose(both[1].scores(seen.answers), alone.scores(seen.answers), atol=0.05)
    said = both[0].decide(seen.answers, seen.y)
    # Sure answers are members' here: the best rule has TPR - FPR of 0.5; 500 of each leave a deviation of 0.03.
    assert said[seen.member].mean() - said[~seen.member].mean() > 0.25
    with pytest.raises(ValueError, match="equally many answers"):
        train_blind_networks([known[0], answers(600, 0, boost=1.0)], (0, 1))
