"""The audit that a service makes of itself: closer with every look, below the truth at every look, and no leak."""

import json

import numpy as np
import pytest

from audit.distinguishing.service import LiveAudit, TooMuchNoise, auditable
from mechanisms.gaussian import Gaussian
from mechanisms.label import Label
from mechanisms.laplace import Laplace
from mechanisms.seeded import SeededRandomness


def looked(mechanism, looks, rows, *, seed=0, noise=1.0, classes=4, delta=1e-5):
    """Audit a service whose noise is `noise` times what its price promises."""
    rng = np.random.default_rng(seed)
    audit = LiveAudit(mechanism, classes, delta)
    logits = rng.normal(scale=5, size=classes)
    found = []
    for look in range(looks):
        sensitivity = np.full(rows, 0.7) * (1 + 1e-6 * rng.random(rows))
        moved = logits + 1e-7 * rng.normal(size=(rows, classes))
        answers = mechanism.release(moved, noise * sensitivity, SeededRandomness(seed, ("live", str(look))))
        found.append(audit.look(answers, sensitivity, rng))
    return found


@pytest.mark.parametrize(
    ("mechanism", "parameter", "delta", "share"),
    [(Gaussian(1.0), "mu", 1e-5, 0.75), (Gaussian(0.5), "mu", 1e-5, 0.75), (Laplace(1.0), "epsilon", 0.0, 0.15)],
)
def test_the_bound_comes_near_the_claim_and_never_above_it(mechanism, parameter, delta, share):
    """40 looks of 256 answers. Laplace's worlds lie apart a little in each coordinate, its claim's in one: hence 0.15.

    All looks together exceed the truth in at most 5 % of audits, and by the price of many looks in far fewer; the seed
    is fixed.
    """
    found = looked(mechanism, 40, 256, delta=delta)
    bounds = [look["lower_bound"][parameter] for look in found]
    claim = found[0]["claim"][parameter]
    assert max(bounds) <= claim
    assert bounds[-1] >= share * claim
    assert not any(look["refuted"] for look in found)
    assert found[-1]["answers"] == 40 * 256


def test_sound_services_are_not_convicted_at_any_look():
    """30 audits of 20 looks, each audit wrong with probability 1e-9 at most over all its looks: 3e-8 together."""
    for seed in range(30):
        assert not looked(Gaussian(0.5), 20, 32, seed=seed)[-1]["refuted"]


@pytest.mark.parametrize("noise", [0.5, 1e-3])
def test_a_service_with_too_little_noise_is_convicted_and_stays_so(noise):
    found = looked(Gaussian(1.0), 20, 256, noise=noise)
    assert found[-1]["refuted"]
    assert found[-1]["lower_bound"]["mu"] > 1
    first = [look["refuted"] for look in found].index(True)
    assert all(look["refuted"] for look in found[first:])


def test_what_is_published_does_not_depend_on_the_logits():
    """The same words of randomness with other logits publish the same, to the last digit: nothing of them gets out."""
    published = []
    for shift in (0.0, 2.0**3):
        mechanism, rng = Gaussian(1.0), np.random.default_rng(0)
        audit = LiveAudit(mechanism, 3, 1e-5)
        logits = np.array([0.0, 1.0, 2.0]) + shift * np.array([1.0, -1.0, 0.5])
        for look in range(5):
            words = SeededRandomness(0, ("same", str(look)))
            audit.look(mechanism.release(np.tile(logits, (64, 1)), np.ones(64), words), np.ones(64), rng)
        published.append(audit.latest)
    assert published[0] == published[1]


def test_an_audit_goes_on_where_another_process_left_off():
    """The looks before and after are counted together, and what was refuted stays refuted."""
    looked_at = np.random.default_rng(0)
    whole, first = (LiveAudit(Gaussian(1.0), 3, 1e-5) for _ in range(2))
    rngs = [np.random.default_rng(1), np.random.default_rng(1)]
    spread = np.ones(64)
    for look in range(6):
        answers = Gaussian(1.0).release(looked_at.normal(size=(1, 3)).repeat(64, 0), spread, SeededRandomness(look, ()))
        whole.look(answers, spread, rngs[0])
        first.look(answers, spread, rngs[1])
        later = LiveAudit(Gaussian(1.0), 3, 1e-5)
        later.go_on(json.loads(json.dumps(first.kept())))
        assert later.latest == whole.latest
        first = later
    refuted = LiveAudit(Gaussian(1.0), 3, 1e-5)
    refuted.go_on(first.kept() | {"refuted": True})
    assert refuted.look(answers, spread, rngs[0])["refuted"]
    LiveAudit(Gaussian(1.0), 3, 1e-5).go_on(LiveAudit(Gaussian(1.0), 3, 1e-5).kept())
    for wrong in ({}, first.kept() | {"errors": None}, first.kept() | {"looks": "many"}):
        with pytest.raises(ValueError, match="counted there"):
            LiveAudit(Gaussian(1.0), 3, 1e-5).go_on(wrong)


def test_what_cannot_be_audited_so_is_refused():
    with pytest.raises(ValueError, match="two services"):
        auditable(Label(1.0))
    with pytest.raises(ValueError, match="at least 8"):
        LiveAudit(Gaussian(1.0), 3, 1e-5).look(np.full((4, 3), 1 / 3), np.ones(4), np.random.default_rng(0))


@pytest.mark.parametrize(("multiplier", "sensitivity"), [(4.0, 200.0), (1.0, 1000.0)])
def test_noise_that_softmax_cannot_show_ends_the_audit_and_convicts_nobody(multiplier, sensitivity):
    mechanism = Gaussian(multiplier)
    audit = LiveAudit(mechanism, 10, 1e-5)
    rng = np.random.default_rng(0)
    spread = np.full(256, sensitivity) * (1 + 1e-6 * rng.random(256))
    answers = mechanism.release(np.zeros((256, 10)), spread, SeededRandomness(0, ("live", "wide")))
    with pytest.raises(TooMuchNoise):
        audit.look(answers, spread, rng)
    assert audit.counts.looks == 0
    assert not audit.latest["refuted"]

    after = LiveAudit(mechanism, 10, 1e-5)
    after.go_on(json.loads(json.dumps(audit.kept())))
    for ended in (audit, after):
        with pytest.raises(TooMuchNoise):
            ended.look(np.full((8, 10), 0.1), np.ones(8), rng)
        assert ended.counts.looks == 0


@pytest.mark.parametrize("looks", [2_900, 10**6, 10**9])
def test_no_number_of_looks_is_too_many(looks):
    """The millionth look has a doubt of 1e-21: a confidence of 1 less that is 1."""
    whole, rng = LiveAudit(Gaussian(1.0), 3, 1e-5), np.random.default_rng(0)
    answers = Gaussian(1.0).release(np.zeros((64, 3)), np.ones(64), SeededRandomness(0, ("many looks",)))
    whole.look(answers, np.ones(64), rng)
    late = LiveAudit(Gaussian(1.0), 3, 1e-5)
    errors = {"false_positives": 8.5e5, "negatives": 3e6, "false_negatives": 8.5e5, "positives": 3e6}
    late.go_on(whole.kept() | {"looks": looks, "errors": errors})
    found = late.look(answers, np.ones(64), rng)
    assert found["looks"] == looks + 1
    # mu = 1 has error rates of Phi(-1/2) = 0.309 and more, and these are 0.283 of 3,000,000.
    assert found["lower_bound"]["mu"] > 1
    assert found["refuted"]


def test_a_look_that_fails_leaves_the_counts_unchanged(monkeypatch):
    audit, rng = LiveAudit(Gaussian(1.0), 3, 1e-5), np.random.default_rng(0)
    answers = Gaussian(1.0).release(np.zeros((64, 3)), np.ones(64), SeededRandomness(0, ("an error",)))
    before = audit.look(answers, np.ones(64), rng), audit.kept()

    def fails(*_):
        raise ValueError("no such luck")

    monkeypatch.setattr("audit.distinguishing.service.refuted_by_limits", fails)
    with pytest.raises(ValueError, match="no such luck"):
        audit.look(answers, np.ones(64), rng)
    assert (audit.latest, audit.kept()) == before
