"""The mixture of a model's branches: what a record can move, and what is made of what was released."""

import math

import numpy as np
import pytest

from dpserve.accounting.budgets import Budget
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.sums import Rows, Shard, of_rows
from dpserve.training.kinds.dpsgd.mixture import ROUND_PART, ROUNDS, law, mixed, record_terms, round_term
from dpserve.training.pay_once.calibration import COUNTS_PART, share_of

STEP = 2.0**-28
PARTS = Rows(lambda rows: rows)
MU = mu_for(share_of(Budget.from_epsilon_delta(1, 1e-5, "gaussian").limit))


def words(seed: int) -> SeededRandomness:
    return SeededRandomness(seed, ("mixture",))


def log_loss(logits: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(softmax(logits)[np.arange(len(y)), y]).mean())


def labelled(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, classes) that are right as they are, and labels drawn by them."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((n, classes))
    return logits, (logits + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int64)


def test_all_parts_of_a_record_together_are_at_most_one_long():
    assert COUNTS_PART**2 + ROUNDS * ROUND_PART**2 <= 1


@pytest.mark.parametrize("classes", [2, 30])
@pytest.mark.parametrize("size", [0.0, 1e-300, 1.0, 1e6, math.inf, math.nan])
@pytest.mark.parametrize("branches", [1, 2, 3])
def test_no_record_adds_more_to_a_round_than_its_part(classes, size, branches):
    """Whatever its logits are, whatever the rounds before have given: the squares are summed as whole numbers."""
    generator = np.random.default_rng(classes)
    with np.errstate(all="ignore"):
        parts = list(size * generator.choice([-1.0, -0.3, 0.0, 0.4, 1.0], size=(branches, 200, classes)))
    y, shares = generator.integers(classes, size=200), 4 * generator.standard_normal(classes)
    for weight in (0.0, 1e-6, 1.0, 64.0):
        for bound in (0.5, 12.0):
            terms = record_terms(parts, y, np.append(np.full(branches, weight), 2.0), shares, bound)
            longest = max(sum(number * number for number in map(int, row)) for row in terms)
            assert longest <= (ROUND_PART / STEP) ** 2


def test_the_largest_term_comes_near_its_bound():
    (term,) = record_terms(
        [np.array([[1e3, 0.0]])] * 2, np.array([1]), np.array([1.0, 1.0, 2.0]), np.array([1.0, -1.0]), 2.7
    )
    assert np.linalg.norm(term * STEP) > 0.99 * ROUND_PART


def test_a_record_adds_the_same_bits_whatever_records_are_beside_it():
    logits, y = labelled(1001, 7, seed=0)
    weights, shares = np.array([1.7, 0.4, 0.3]), np.linspace(-1, 1, 7)
    together = record_terms([logits, logits[::-1]], y, weights, shares, 3.9)
    for count in (1, 2, 3, 8):
        for start in (0, 17, 500):
            rows = slice(start, start + count)
            alone = record_terms([logits[rows], logits[::-1][rows]], y[rows], weights, shares, 3.9)
            assert np.array_equal(alone, together[rows])


def test_neighbours_differ_by_no_more_than_the_proof_says(monkeypatch):
    """The exact values of two neighbours, given the same answers to all before, lie at most the sensitivity apart."""
    generator = np.random.default_rng(3)
    for _ in range(30):
        n, classes, branches = (
            int(generator.integers(2, 60)),
            int(generator.integers(2, 6)),
            int(generator.integers(1, 4)),
        )
        parts = generator.choice([0.1, 5.0, 1e4]) * generator.standard_normal((n, branches * classes))
        y = generator.integers(classes, size=n)
        answers: list[np.ndarray] = []

        def exact_parts(count: int, given=(answers, parts, y, classes, branches)) -> list[np.ndarray]:
            """Run it with `answers` for what is released, and return what was to be released."""
            answers, parts, y, classes, branches = given
            asked: list[np.ndarray] = []

            def release_part(vector, values, __):
                assert vector == law(0.2, classes, branches), "the noise that is paid for"
                asked.append(values.copy())
                if len(asked) > len(answers):
                    answers.append(values + generator.normal(size=values.shape) * 30)
                return answers[len(asked) - 1]

            monkeypatch.setattr(GaussianVector, "release_part", release_part)
            mixed(of_rows(parts[:count], y[:count]), PARTS, classes, branches, 0.2, words(0))
            return asked

        one, other = exact_parts(n), exact_parts(n - 1)
        assert sum(map(len, one)) == law(0.2, classes, branches).size
        apart = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(one, other, strict=True)))
        assert COUNTS_PART <= apart <= 1


def test_all_records_of_a_unit_move_a_round_by_no_more_than_one_record_may():
    """Three times the record that moves it most: each counts a third, rounded towards zero."""
    shares, weights = np.array([1.0, -1.0]), np.array([1.0, 2.0])
    lengths = []
    for number in (1, 3):
        of_unit = Units("person", np.zeros(number, dtype=np.int64)).weights()
        shard = Shard(np.array([[1e3, 0.0]] * number), np.ones(number, dtype=np.int64), of_unit)
        total = round_term(shard, None, rows=PARTS, weights=weights, shares=shares, bound=2.7)
        lengths.append(np.linalg.norm(total) * STEP / ROUND_PART)
    assert 0.99 < lengths[1] <= lengths[0] <= 1


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_scale_that_is_not_the_usual_one_is_found_among_enough_records(scale, classes):
    logits, y = labelled(33_000, classes, seed=classes)
    some = slice(0, 30_000)
    (found,), offsets = mixed(of_rows(logits[some] / scale, y[some]), PARTS, classes, 1, MU, words(7))
    asked, true = logits[30_000:], y[30_000:]
    assert log_loss(found * asked / scale + offsets, true) <= log_loss(asked, true) + 0.03


def test_a_branch_of_noise_is_switched_off_and_the_one_that_knows_is_not():
    logits, y = labelled(30_000, 3, seed=1)
    noise = np.random.default_rng(5).standard_normal(logits.shape)
    for places, expected in (([logits, noise], [1, 0]), ([noise, logits], [0, 1])):
        found, _ = mixed(of_rows(np.hstack(places), y), PARTS, 3, 2, MU, words(2))
        assert found == pytest.approx(expected, abs=0.15)
    found, _ = mixed(of_rows(np.hstack([logits / 2, logits / 2]), y), PARTS, 3, 2, MU, words(2))
    assert found.sum() == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(("n", "more"), [(3000, 0.08), (30_000, 0.02)])
def test_on_noise_nobody_is_sure(n, more):
    """Logits that say nothing, and uneven classes: hardly worse than a constant that knows the shares."""
    generator, shares = np.random.default_rng(n), np.array([0.7, 0.2, 0.1])
    y = generator.choice(3, size=n + 5000, p=shares).astype(np.int64)
    logits = generator.standard_normal((n + 5000, 3))
    for seed in range(3):
        (scale,), offsets = mixed(of_rows(logits[:n], y[:n]), PARTS, 3, 1, MU, words(seed))
        assert log_loss(scale * logits[n:] + offsets, y[n:]) <= -(shares * np.log(shares)).sum() + more


def test_where_noise_drowns_the_records_scales_are_the_usual_ones():
    logits, y = labelled(20, 2, seed=3)
    scales, _ = mixed(of_rows(np.hstack([logits, logits]), y), PARTS, 2, 2, MU, words(4))
    assert scales == pytest.approx([1, 1], abs=0.7)


def test_too_many_records_are_refused_before_anything_is_released(monkeypatch):
    monkeypatch.setattr("dpserve.training.inputs.sums.MOST_RECORDS", 9)
    with pytest.raises(TrainingError, match="at most 9 records, not 10"):
        mixed(of_rows(np.zeros((10, 2)), np.zeros(10, dtype=np.int64)), PARTS, 2, 1, MU, words(0))
