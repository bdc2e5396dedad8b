"""Scores by a mechanism's own law, against formulas, integrals, and the score that does not know the law."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpserve.audit.membership.own_law import own_law_ratio
from dpserve.audit.membership.scoring import online_ratio, scaled_confidence
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.registry import priced
from dpserve.mechanisms.seeded import SeededRandomness

MODELS, ROWS, CLASSES = 12, 400, 6


def softmax(z):
    weights = np.exp(z - z.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def some_models(seed, rows=ROWS, classes=CLASSES, moved=1.0):
    """Exact logits of shadow models and of a target: a row that was trained on moves them along its gradient."""
    generator = np.random.default_rng(seed)
    base, y = 2 * generator.normal(size=(rows, classes)), generator.integers(classes, size=rows)
    seen = generator.random((MODELS + 1, rows)) < 0.5
    seen[0], seen[1] = True, False
    gradient = np.eye(classes)[y] - softmax(base)
    spread = 0.3 * generator.normal(size=(MODELS + 1, rows, classes))
    logits = base + moved * seen[:, :, None] * gradient + spread
    return logits[:-1], seen[:-1], logits[-1], seen[-1], y


def answers_of(mechanism, logits, seed):
    return mechanism.release(logits, np.ones(len(logits)), SeededRandomness(seed, ("answers",)))


def test_of_gaussian_noise_it_is_the_matched_filter():
    """A row whose worlds are m +- d/2 has the ratio d . (y - m)/sigma^2, on what a softmax leaves of y."""
    logits, seen, target, _, y = some_models(1)
    answers = answers_of(Gaussian(2.0), target, 0)
    ratio = own_law_ratio(Gaussian(2.0), np.ones(ROWS), answers[None], logits, y, seen)
    middle = np.empty((ROWS, CLASSES))
    numerator = denominator = 0.0
    for row in range(ROWS):
        inside, outside = logits[seen[:, row], row].mean(axis=0), logits[~seen[:, row], row].mean(axis=0)
        middle[row] = (inside + outside) / 2
        gradient = np.eye(CLASSES)[y[row]] - softmax(middle[row])
        numerator += (inside - outside) @ gradient
        denominator += gradient @ gradient
    step = numerator / denominator
    assert step == pytest.approx(1.0, abs=0.1)
    for row in range(ROWS):
        moved = step * (np.eye(CLASSES)[y[row]] - softmax(middle[row]))
        noise = np.log(answers[row]) - middle[row]
        by_hand = moved @ (noise - noise.mean()) / Gaussian(2.0).answer_noise(np.ones(1), CLASSES).scale[0] ** 2
        assert ratio[row] == pytest.approx(by_hand, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Laplace(2.0), Label(2.0), priced("selected-neuron", "rho:2", 6)])
def test_answers_to_several_questions_add_up(mechanism):
    logits, seen, target, _, y = some_models(2)
    copies = np.stack([answers_of(mechanism, target, seed) for seed in range(3)])
    copies[1, :7] = np.nan
    each = [own_law_ratio(mechanism, np.ones(ROWS), copies[[copy]], logits, y, seen) for copy in range(3)]
    assert (each[1][:7] == 0).all()
    np.testing.assert_allclose(
        own_law_ratio(mechanism, np.ones(ROWS), copies, logits, y, seen), np.sum(each, axis=0), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Laplace(2.0), Label(2.0), Published(CLASSES, 20.0, "laplace")])
def test_it_tells_members_from_others(mechanism):
    """The least area of the four, .66, is 9 deviations (.026: Hanley and McNeil 1982) from .5 with 800 rows each."""
    logits, seen, target, member, y = some_models(3, 1600)
    ratio = own_law_ratio(mechanism, np.ones(1600), answers_of(mechanism, target, 4)[None], logits, y, seen)
    assert roc_auc_score(member, ratio) > 0.62
    without = own_law_ratio(
        mechanism, np.ones(1600), answers_of(mechanism, logits[1], 5)[None], logits, y, np.roll(seen, 1, axis=0)
    )
    assert abs(roc_auc_score(member, without) - 0.5) < 5.3 * 0.0145  # scores know nothing of who is a member


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_noise_on_one_neuron_hides_nothing_of_the_others(noise):
    """The score that takes the noised logit with the others is at chance, and that of the law far from it."""
    logits, seen, target, member, y = some_models(5, 1600)
    mechanism = Published(CLASSES, 0.05, noise)
    answers = answers_of(mechanism, target, 6)
    ratio = own_law_ratio(mechanism, np.ones(1600), answers[None], logits, y, seen)
    shadow = np.stack([scaled_confidence(answers_of(mechanism, each, 7), y) for each in logits])
    blind = online_ratio(scaled_confidence(answers, y), shadow, seen)
    assert roc_auc_score(member, blind) < 0.58
    assert roc_auc_score(member, ratio) > 0.7


def test_the_noise_of_the_noised_neuron_changes_no_score():
    logits, seen, target, _, y = some_models(8, 200)
    mechanism = Published(CLASSES, 0.1, "laplace")
    scores = []
    for noise in (-40.0, 90.0, 300.0):
        noisy = target.copy()
        noisy[np.arange(200), (y + 1) % CLASSES] += noise
        scores.append(own_law_ratio(mechanism, np.ones(200), softmax(noisy)[None], logits, y, seen))
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-6)
    own = target.copy()
    own[np.arange(200), y] += 90.0
    ratio = own_law_ratio(mechanism, np.ones(200), softmax(own)[None], logits, y, seen)
    np.testing.assert_allclose(ratio, 0.0, atol=1e-12)


def test_an_answer_that_shows_one_class_alone_says_nothing():
    logits, seen, target, _, y = some_models(9, 50)
    far = target.copy()
    far[:, 2] += 5000.0
    mechanism = Published(CLASSES, 0.1, "gaussian")
    assert (own_law_ratio(mechanism, np.ones(50), softmax(far)[None], logits, y, seen) == 0).all()
    both = np.stack([softmax(far), softmax(target)])
    np.testing.assert_array_equal(
        own_law_ratio(mechanism, np.ones(50), both, logits, y, seen),
        own_law_ratio(mechanism, np.ones(50), both[[1]], logits, y, seen),
    )


def test_without_models_of_both_kinds_there_is_no_ratio():
    logits, seen, target, _, y = some_models(10, 20)
    answers = answers_of(Gaussian(1.0), target, 0)[None]
    for used in (np.ones_like(seen), np.zeros_like(seen)):
        assert own_law_ratio(Gaussian(1.0), np.ones(20), answers, logits, y, used) is None
