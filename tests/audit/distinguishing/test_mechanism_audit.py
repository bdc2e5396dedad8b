"""Audits of mechanisms: scores are likelihood ratios, sound mechanisms stand, broken ones and the published one fall.

Seeds are fixed; each statistical test says how seldom a right implementation would fail it for other seeds.
"""

import math

import numpy as np
import pytest

from dpserve.audit.distinguishing.mechanism import CONVICTION_CONFIDENCE, claimed_tradeoff, contradicts, judge, observe
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.registry import priced
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.mechanisms.worlds import Worlds

PROVEN = [
    ("gaussian", "epsilon:1@1e-5", 2, 1e-5),
    ("gaussian", "epsilon:1@1e-5", 10, 1e-5),
    ("laplace", "epsilon:1", 2, 0.0),
    ("laplace", "epsilon:2", 5, 0.0),
    ("label", "epsilon:1", 2, 0.0),
    ("label", "epsilon:1", 4, 0.0),
    ("selected-neuron", "epsilon:1", 2, 0.0),
    ("selected-neuron", "rho:0.2", 3, 1e-5),
    ("selected-neuron by exponential", "epsilon:1", 3, 0.0),
    ("selected-neuron by permute-and-flip", "rho:0.2", 3, 1e-5),
]


def named(name, price, classes):
    name, _, selection = name.partition(" by ")
    return priced(name, price, classes, selection or None)


def randomness(*purpose):
    return SeededRandomness(0, tuple(map(str, purpose)))


def audited(name, price, classes, delta, trials, *purpose, **confidences):
    mechanism = named(name, price, classes)
    found = observe(mechanism, mechanism.worst_neighbours(classes), trials, randomness(name, price, classes, *purpose))
    return judge(mechanism, *found, delta=delta, **confidences)


@pytest.mark.parametrize(("name", "price", "classes", "delta"), PROVEN)
def test_scores_are_log_likelihood_ratios(name, price, classes, delta):
    """E_out[e^score] = E_in[e^-score] = 1, which holds for the true ratio and for hardly anything else.

    Five and a half standard errors: two-sided 4e-8 for each of 16 means, if they are normal; 20,000 answers each.
    """
    mechanism = named(name, price, classes)
    rng = np.random.default_rng(classes)
    worlds = mechanism.worst_neighbours(classes)
    shift = rng.normal(size=classes)  # some other logits than the tidy ones, as far apart
    worlds = Worlds(worlds.logits_in + shift, worlds.logits_out + shift, worlds.sensitivity)
    scores_in, scores_out = observe(mechanism, worlds, 20_000, randomness("ratio", name, classes))
    for ratios in (np.exp(-scores_in), np.exp(scores_out)):
        assert abs(ratios.mean() - 1) <= 5.5 * ratios.std() / math.sqrt(len(ratios))
        assert ratios.std() > 0.01


@pytest.mark.parametrize(
    ("name", "price", "classes", "delta", "share"),
    [
        ("gaussian", "epsilon:1@1e-5", 10, 1e-5, 0.75),
        ("label", "epsilon:4", 10, 0.0, 0.84),
    ],
)
def test_the_bound_comes_close_to_the_claim(name, price, classes, delta, share):
    """10,000 answers in each world. The shares lie 5 standard errors of the estimate below the expected ones."""
    found = audited(name, price, classes, delta, 10_000)
    assert not found.convicted
    assert found.epsilon_through_the_family >= share * found.claim.epsilon


@pytest.mark.parametrize(("audits", "most"), [(2, 7), pytest.param(25, 27, marks=pytest.mark.slow)])
def test_nothing_proven_is_convicted_in_many_audits(audits, most):
    """16 or 200 audits of 2,000 answers in each world, as many as convict worlds four times as far apart (below).

    At 1 - 1e-9 each is wrong with probability 1e-9 at most: 2e-7 together. At 95 % one in twenty may be, and
    P(Binomial(16, 0.05) > 7) and P(Binomial(200, 0.05) > 27) are below 1e-6: a rule that convicts the sound more often
    than it says is found.
    """
    convicted = 0
    for name, price, classes, delta in PROVEN:
        mechanism = named(name, price, classes)
        claim, worlds = claimed_tradeoff(mechanism.cost, delta), mechanism.worst_neighbours(classes)
        for audit in range(audits):
            found = observe(mechanism, worlds, 2000, randomness(name, price, classes, audit))
            assert not contradicts(claim, *found, CONVICTION_CONFIDENCE), (name, price, classes, audit)
            convicted += contradicts(claim, *found, 0.95)
    assert convicted <= most


@pytest.mark.parametrize(("name", "price", "classes", "delta"), PROVEN)
def test_the_same_audits_convict_noise_of_a_quarter(name, price, classes, delta):
    """Four sensitivities apart instead of one: either of 2 audits of 2,000 answers convicts, and of 50 each did."""
    mechanism = named(name, price, classes)
    claim, honest = claimed_tradeoff(mechanism.cost, delta), mechanism.worst_neighbours(classes)
    wrong = Worlds(4 * honest.logits_in, 4 * honest.logits_out, honest.sensitivity)
    for audit in range(2):
        found = observe(mechanism, wrong, 2000, randomness("a quarter", name, price, classes, audit))
        assert contradicts(claim, *found, CONVICTION_CONFIDENCE)


@pytest.mark.parametrize(("claimed", "classes"), [("epsilon:0.1", 3), ("rho:0.005", 10)])
def test_the_published_mechanism_falls_for_three_or_more_classes(classes, claimed):
    """Two un-noised logits tell the world exactly. At 99 % confidence 2,000 answers bound epsilon above 5."""
    delta = 0.0 if claimed.startswith("epsilon") else 1e-5
    found = audited("published", claimed, classes, delta, 2000, confidence=0.99)
    assert found.status == "unproven"
    assert found.claim.epsilon < 0.4
    assert found.epsilon > 5
    assert found.convicted


def test_the_published_mechanism_stands_for_two_classes():
    """Its one log-ratio is noised: at the claimed epsilon of 0.1, 20,000 answers do not refute it."""
    found = audited("published", "epsilon:0.1", 2, 0.0, 20_000, confidence=0.99)
    assert found.claim.epsilon == pytest.approx(0.1, rel=1e-12)
    assert found.epsilon <= 0.1
    assert not found.convicted


def test_rows_take_turns_and_chunks_do_not_matter():
    mechanism = Gaussian(2.0)
    one = mechanism.worst_neighbours(3)
    rows = Worlds(*(np.repeat(part, 7, axis=0) for part in (one.logits_in, one.logits_out, one.sensitivity)))
    scores_in, scores_out = observe(mechanism, rows, 4100, randomness("turns"))
    assert len(scores_in) == len(scores_out) == 4100


def test_a_gaussian_claim_needs_a_delta():
    with pytest.raises(ValueError, match="delta above 0"):
        judge(Gaussian(2.0), np.arange(10.0), np.arange(10.0), delta=0.0)
    assert Published(3, 0.1, "laplace").status == "unproven"
