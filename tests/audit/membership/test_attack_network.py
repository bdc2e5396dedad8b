"""The attack network learns what there is to be learnt, and nothing where there is nothing."""

import numpy as np
import pytest

from audit.membership.attack_network import train_attack_network
from audit.membership.scoring import KnownAnswers


def answers(n, seed, boost, classes=4):
    """Members' answers are surer of the true label by `boost` in logits."""
    generator = np.random.default_rng(seed)
    y, member = generator.integers(classes, size=n), np.arange(n) % 2 == 0
    z = generator.standard_normal((n, classes))
    z[np.arange(n), y] += 1 + boost * member
    weights = np.exp(z)
    return KnownAnswers(weights / weights.sum(axis=1, keepdims=True), y, member)


@pytest.mark.parametrize("kind", ["per-class", "pooled"])
def test_it_tells_members_apart_and_guesses_where_they_are_alike(kind):
    network = train_attack_network(answers(800, 0, boost=3.0), kind, 0, epochs=6 if kind == "per-class" else 24)
    seen = answers(1000, 1, boost=3.0)
    said = network.decide(seen.answers, seen.y)
    # The best rule has TPR - FPR of 0.7 here; 500 of each leave a deviation of 0.03.
    assert said[seen.member].mean() - said[~seen.member].mean() > 0.4
    alike = answers(1000, 2, boost=0.0)
    said = network.decide(alike.answers, alike.y)
    # No rule does better than chance: Hoeffding puts 0.25 at 2 exp(-2 * 500 * 0.125^2) < 4e-7 for either rate.
    assert abs(said[alike.member].mean() - said[~alike.member].mean()) < 0.25


def test_a_class_that_shadow_models_never_saw_from_both_sides_is_left_to_all():
    known = answers(600, 0, boost=3.0)
    lacking = KnownAnswers(known.answers, known.y, known.member & (known.y != 2))
    network = train_attack_network(lacking, "per-class", 0, epochs=2)
    assert network.network_of_class[2] == 3
    assert np.isfinite(network.scores(known.answers, known.y)).all()
