"""Calibrated probabilities: what a record can move, what is paid for it, and that they are better for it."""

import math

import numpy as np
import pytest
import scipy.optimize

from dpserve.accounting.budgets import Budget
from dpserve.accounting.picorho import PICORHO_PER_RHO
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.sums import Rows, of_rows
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.calibration import (
    CALIBRATION,
    COUNTS_PART,
    ROUND_PART,
    ROUNDS,
    Calibration,
    calibrated,
    law,
    log_shares,
    record_terms,
    share_of,
)
from dpserve.training.pay_once.chain import PublicNumbers, divided
from dpserve.training.pay_once.releases import composed
from tests.training.conftest import identity, make_records

STEP = 2.0**-28


def words(seed: int) -> SeededRandomness:
    return SeededRandomness(seed, ("calibration",))


def same(rows):
    return rows


def log_loss(logits: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(softmax(logits)[np.arange(len(y)), y]).mean())


def labelled(n: int, classes: int, strength: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, classes) that are right as they are, and labels drawn by them."""
    generator = np.random.default_rng(seed)
    logits = strength * generator.standard_normal((n, classes))
    drawn = logits + generator.gumbel(size=logits.shape)
    return logits, drawn.argmax(axis=1).astype(np.int64)


def test_all_parts_of_a_record_together_are_at_most_one_long():
    assert COUNTS_PART**2 + ROUNDS * ROUND_PART**2 <= 1


@pytest.mark.parametrize("classes", [2, 3, 30, 1024])
@pytest.mark.parametrize("size", [0.0, 1e-300, 1.0, 30.0, 1e6, math.inf, math.nan])
@pytest.mark.parametrize("bound", [0.5, 2.7, 12.0])
def test_no_record_adds_more_to_a_round_than_its_part(classes, size, bound):
    """Whatever its logits are, whatever the rounds before have given: the squares are summed as whole numbers."""
    generator = np.random.default_rng(classes)
    with np.errstate(all="ignore"):
        logits = size * generator.choice([-1.0, -0.3, 0.0, 0.4, 1.0], size=(200, classes))
    y = generator.integers(classes, size=200)
    shares = 4 * generator.standard_normal(classes)
    for scale in (0.0, 1e-6, 1.0, 500.0):
        for weight in (-2.0, 0.0, 2.0):
            terms = record_terms(logits, y, scale, weight, shares, bound)
            assert np.square(terms.astype(object)).sum(axis=1).max() <= (ROUND_PART / STEP) ** 2


def test_the_largest_term_comes_near_its_bound():
    logits = np.array([[1e3, 0.0]])
    (term,) = record_terms(logits, np.array([1]), 1.0, 2.0, np.array([1.0, -1.0]), 2.7)
    assert np.linalg.norm(term * STEP) > 0.99 * ROUND_PART


def test_a_record_adds_the_same_bits_whatever_records_are_beside_it():
    logits, y = labelled(1001, 7, 5.0, seed=0)
    shares = np.linspace(-1, 1, 7)
    together = record_terms(logits, y, 1.7, 0.3, shares, 3.9)
    for count in (1, 2, 3, 8):
        for start in (0, 17, 500):
            rows = slice(start, start + count)
            assert np.array_equal(record_terms(logits[rows], y[rows], 1.7, 0.3, shares, 3.9), together[rows])


def test_neighbours_differ_by_no_more_than_the_proof_says(monkeypatch):
    """The exact values of two neighbours, given the same answers to all before, lie at most the sensitivity apart."""
    generator = np.random.default_rng(3)
    for _ in range(40):
        n, classes = int(generator.integers(2, 60)), int(generator.integers(2, 6))
        logits = generator.choice([0.1, 5.0, 1e4]) * generator.standard_normal((n, classes))
        y = generator.integers(classes, size=n)
        answers: list[np.ndarray] = []

        def exact_parts(count: int, answers=answers, logits=logits, y=y, classes=classes) -> list[np.ndarray]:
            """Run it with `answers` for what is released, and return what was to be released."""
            asked: list[np.ndarray] = []

            def release_part(vector, values, __):
                assert vector == law(0.2, classes), "the noise that is paid for"
                asked.append(values.copy())
                if len(asked) > len(answers):
                    answers.append(values + generator.normal(size=values.shape) * 30)
                return answers[len(asked) - 1]

            monkeypatch.setattr(calibration.GaussianVector, "release_part", release_part)
            calibrated(of_rows(logits[:count], y[:count]), Rows(same), classes, 0.2, words(0))
            return asked

        one, other = exact_parts(n), exact_parts(n - 1)
        apart = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(one, other, strict=True)))
        assert COUNTS_PART <= apart <= 1


def test_a_vector_in_parts_is_the_vector():
    vector = law(0.5, 3)
    values = np.arange(vector.size, dtype=np.float64)
    whole = vector.release(values, words(0))
    source = words(0)
    parts = [vector.release_part(part, source) for part in np.split(values, [3, 10])]
    assert np.array_equal(np.concatenate(parts), whole)
    with pytest.raises(ValueError, match="a part has between 1"):
        vector.release_part(np.zeros(vector.size + 1), source)


@pytest.mark.parametrize("whole", [0, 10**9, 2_000_000_000, 2_100_000_000, 10**10, 36 * 10**9, 10**12, 4 * 10**12])
def test_a_price_is_divided_without_a_rest(whole):
    part = share_of(whole)
    assert part <= whole / 5
    assert part == 0 or law(mu_for(part), 10).cost.picorho <= part
    assert (part == 0) == (whole < 2_000_000_005)
    releases = divided((CALIBRATION,), whole, PublicNumbers(10, identity(make_records())))
    assert composed(releases).rho * PICORHO_PER_RHO <= part


@pytest.mark.parametrize("factor", [0.1, 0.3, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_wrong_temperature_is_mended(factor, classes):
    """At what three hundredths of (1, 1e-5) buy, on 5,000 records; a scale ten times too small takes most rounds."""
    logits, y = labelled(8000, classes, 2.0, seed=classes)
    whole = Budget.from_epsilon_delta(1, 1e-5, "gaussian").limit
    records, asked, mu = slice(0, 5000), slice(5000, 8000), mu_for(share_of(whole))
    found = calibrated(of_rows(factor * logits[records], y[records]), Rows(same), classes, mu, words(7))
    more = 0.05 if factor < 0.3 else 0.02
    assert log_loss(found(factor * logits[asked]), y[asked]) <= log_loss(logits[asked], y[asked]) + more


@pytest.mark.parametrize(("n", "more"), [(300, 0.15), (3000, 0.05), (30_000, 0.02)])
def test_on_noise_nobody_is_sure(n, more):
    """Logits that say nothing, and uneven classes: hardly worse than a constant that knows the shares."""
    generator = np.random.default_rng(n)
    shares = np.array([0.7, 0.2, 0.1])
    y = generator.choice(3, size=n + 5000, p=shares).astype(np.int64)
    logits = 4 * generator.standard_normal((n + 5000, 3))
    constant = float(-(shares * np.log(shares)).sum())
    uniform = math.log(3)
    mu = mu_for(share_of(Budget.from_epsilon_delta(1, 1e-5, "gaussian").limit))
    worst = max(
        log_loss(
            calibrated(of_rows(logits[:n], y[:n]), Rows(same), 3, mu, words(seed))(logits[n:]),
            y[n:],
        )
        for seed in range(3)
    )
    assert worst <= (constant if n >= 3000 else uniform) + more


def test_noisy_shares_are_drawn_towards_even_ones():
    counts = np.array([900.0, 90.0, 10.0])
    assert np.allclose(
        log_shares(counts, 1e-9), np.log(np.maximum(counts, 1000 / 60)) - np.log(np.maximum(counts, 1000 / 60)).mean()
    )
    assert np.allclose(log_shares(counts, 1e9), 0, atol=1e-12)
    assert np.isfinite(log_shares(np.array([-5.0, -7.0]), 1.0)).all()


def test_too_many_records_are_refused_before_anything_is_released(monkeypatch):
    monkeypatch.setattr("dpserve.training.inputs.sums.MOST_RECORDS", 9)
    with pytest.raises(TrainingError, match="at most 9 records, not 10"):
        calibrated(of_rows(np.zeros((10, 2)), np.zeros(10, dtype=np.int64)), Rows(same), 2, mu_for(10**9), words(0))


def test_its_numbers_are_what_a_bundle_holds():
    before = Calibration(2.5, np.array([0.5, -0.5]))
    assert np.array_equal(Calibration.read(before.numbers).numbers, before.numbers)


@pytest.mark.parametrize(
    ("signal", "lean", "noise", "size"),
    [(0.3, -6, 0.1, 4), (0.3, -6, 1, 4), (1, -6, 0.1, 0.1), (1, -6, 0.1, 1), (1, -6, 1, 4), (3, -6, 0.1, 1)],
)
def test_scale_and_shares_do_not_run_away_where_both_pull_alike(signal, lean, noise, size):
    """Logits that lean towards the common class: the log loss is within 0.03 of the least that two numbers reach."""
    generator = np.random.default_rng(0)
    n = 20_000
    margin = signal * generator.standard_normal(n) - 1.3
    y = (generator.random(n) < 1 / (1 + np.exp(-margin))).astype(np.int64)
    shown = (4 * margin + noise * generator.standard_normal(n) + lean) * size / 4
    logits = np.stack([-shown / 2, shown / 2], axis=1)
    log_odds = np.log(y.mean() / (1 - y.mean()))
    shares = np.array([-log_odds, log_odds]) / 2

    def loss(numbers):
        return log_loss(numbers[0] * logits + numbers[1] * shares, y)

    least = scipy.optimize.minimize(loss, [0.1, 1.0], method="Nelder-Mead").fun
    found = calibrated(of_rows(logits, y), Rows(same), 2, 0.05, words(0))
    assert log_loss(found(logits), y) < least + 0.03


def test_a_rare_class_does_not_make_probabilities_surer_than_records_say():
    """One record in ten is of a class that logits take for far rarer: on these they lose far more than a guess."""
    generator = np.random.default_rng(4)
    y = (generator.random(30_000) < 1 / 10).astype(np.int64)
    gap = 2 * generator.standard_normal(len(y)) + 3 * y - 8
    logits = np.stack([-gap / 2, gap / 2], axis=1)
    records, asked = slice(0, 10_000), slice(10_000, None)
    found = calibrated(of_rows(logits[records], y[records]), Rows(same), 2, 0.5, words(1))
    sides = np.array([-0.5, 0.5])
    best = min(
        log_loss(scale * logits[asked] + offset * sides, y[asked])
        for scale in np.linspace(0.05, 1.5, 30)
        for offset in np.linspace(-5, 5, 41)
    )
    assert log_loss(found(logits[asked]), y[asked]) <= best + 0.01
