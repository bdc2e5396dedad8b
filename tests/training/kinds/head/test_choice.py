"""Private choice: what one record can move, attacked with re-solved neighbours; the price; and what is chosen."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.losses import Cost
from audit.estimators import gdp
from mechanisms.gaussian_vector import mu_for, whole_picorho
from mechanisms.seeded import SeededRandomness
from tests.training.conftest import identity, make_records
from training.errors import TrainingError
from training.exact.quantised import products, quantised, summands
from training.fitting.objective import RegularisedCrossEntropy
from training.fitting.solver import minimise
from training.inputs.digits import load_digits
from training.inputs.records import Records, Units
from training.inputs.validating import ONE_IN
from training.kinds.head.choice import Choice, choice_for, choose, loss_sum, parted
from training.kinds.head.recipe import Recipe
from training.kinds.head.train import train_head

KEY = bytes(32)
TOLERANCE = 1e-3


def choice(lams=(0.5, 5.0), most=50, mu=0.5, classes=3, dimension=5) -> Choice:
    return Choice(lams, most, mu, TOLERANCE, classes, dimension)


def words(seed: int) -> SeededRandomness:
    return SeededRandomness(seed, ("choice",))


def paid(cost: Cost) -> None:
    del cost


def exact_sums(records: Records, made: Choice) -> np.ndarray:
    """The sums of all candidates, before noise, as `choose` computes them."""
    phi = identity(records)(records.X, {})
    training, counted = parted(records, KEY, made.most)
    found = []
    for lam in made.lams:
        objective = RegularisedCrossEntropy.from_rows(phi[training], records.y[training], made.classes, lam)
        weights = quantised(minimise(objective, made.tolerance))
        found.append(loss_sum(products(phi[counted], summands(weights)), records.y[counted], made.largest_loss))
    return np.array(found)


def without(records: Records, index: int) -> Records:
    return replace(records, X=np.delete(records.X, index, axis=0), y=np.delete(records.y, index))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(8, 60),
    lam=st.sampled_from([0.01, 0.3, 10.0]),
    most=st.sampled_from([1, 3, 50]),
    extreme=st.booleans(),
)
def test_no_record_moves_the_sums_by_more_than_is_said(seed, n, lam, most, extreme):
    """Every record is left out in turn; each neighbour is solved again."""
    records = make_records(seed % 1000, n=n, features=4)
    if extreme:  # all rows alike, so that one label moves every loss
        records = replace(records, X=np.full_like(records.X, 0.5), y=np.where(np.arange(n) < n // 2, 0, 1))
    made = choice((lam, 10 * lam), most=most)
    whole = exact_sums(records, made)
    generator = np.random.default_rng(seed)
    for gone in generator.choice(n, size=min(n, 8), replace=False):
        assert np.linalg.norm(whole - exact_sums(without(records, int(gone)), made)) <= made.sensitivity


def test_a_training_record_moves_the_sums_further_than_a_validating_one_could():
    """So that a bound on what validating records do would not be enough: 300 rows alike follow one label."""
    records = make_records(n=3, features=4)
    row = np.full((1, 4), 0.9)
    found = 0.0
    for offset in range(60):
        rows = row + np.linspace(0, 1e-3, 301)[:, None] + offset * 1e-5
        y = np.zeros(301, dtype=np.int64)
        crowd = replace(records, X=rows, y=y)
        training, counted = parted(crowd, KEY, 300)
        if len(training) < 5:
            continue
        # Nearly all training labels are thrown out: two are left, and one of them decides.
        kept = np.concatenate([training[:2], counted])
        few = replace(crowd, X=rows[kept], y=np.concatenate([[1, 0], np.zeros(len(counted), dtype=np.int64)]))
        training, _ = parted(few, KEY, 300)
        made = choice((0.05, 0.06), most=len(counted))
        apart = [
            np.linalg.norm(exact_sums(few, made) - exact_sums(without(few, int(index)), made)) for index in training
        ]
        found = max(found, *apart)
        assert max(apart) <= made.sensitivity
        if found > math.sqrt(2) * made.largest_loss:
            return
    pytest.fail(f"no record moved the sums by more than {found}")


def test_heads_of_the_same_records_that_stopped_elsewhere_are_covered_where_a_record_validates():
    """A solver may stop anywhere within its tolerance, and nobody promises that it stops at the same bits.

    So the heads lie at both ends of what the tolerance allows, along the direction that moves most, and the record that
    one of the neighbours lacks has the largest loss that counts: all of it together is within the sensitivity.
    """
    made = choice((30.0, 31.0), most=40, classes=2, dimension=3)
    row = np.rint(np.full(3, 1 / math.sqrt(3)) * 2.0**24 - 1) * 2.0**-24
    wrong = np.outer([-1.0, 1.0], row)
    phi, y = np.vstack([row, *[0.9 * row] * 39]), np.zeros(40, dtype=np.int64)
    apart = []
    for lam in made.lams:
        ends = [quantised(wrong * (1.4 + sign * TOLERANCE / lam / math.sqrt(2))) for sign in (1, -1)]
        assert np.linalg.norm(ends[0] - ends[1]) <= 2 * TOLERANCE / lam
        counted = zip((phi, phi[1:]), ends, strict=True)
        first, second = (
            loss_sum(products(rows, summands(end)), y[: len(rows)], made.largest_loss) for rows, end in counted
        )
        apart.append(first - second)
    assert np.linalg.norm(apart) > math.sqrt(2) * made.largest_loss
    assert np.linalg.norm(apart) <= made.sensitivity


def test_a_certificate_names_what_its_choice_shows_to_all():
    records = make_records(n=40)
    recipe = Recipe("m", identity(records), 1.0)
    made = choice_for((1.0, 10.0), 40, whole_picorho("rho:0.5"), recipe, 3)
    chosen = choose(records, recipe.feature_map, made, KEY, words(1), pay=paid)
    without, with_it = (
        train_head(records, replace(recipe, strong_convexity=chosen.lam, choice=each), "a") for each in (None, chosen)
    )
    assert without.certificate.shown_to_all() == ""
    assert f"mu = {chosen.mu:.4g}" in with_it.certificate.shown_to_all()


def test_a_record_s_part_depends_on_that_record_alone():
    records = make_records(n=600)
    training, validating = parted(records, KEY, 600)
    assert len(training) + len(validating) == 600
    assert 600 / ONE_IN * 0.6 < len(validating) < 600 / ONE_IN * 1.5
    fewer = parted(without(records, int(training[0])), KEY, 600)
    assert np.array_equal(records.X[validating], without(records, int(training[0])).X[fewer[1]])


def test_no_more_records_count_than_was_said_and_one_takes_another_s_place():
    records = make_records(n=600)
    _, counted = parted(records, KEY, 20)
    assert len(counted) == 20
    left = without(records, int(counted[3]))
    _, after = parted(left, KEY, 20)
    shared = {row.tobytes() for row in records.X[counted]} & {row.tobytes() for row in left.X[after]}
    assert len(shared) == 19


def test_a_choice_costs_what_was_asked_and_is_paid_before_noise_is_drawn():
    records = make_records(n=40)
    recipe = Recipe("m", identity(records), 1.0)
    whole = whole_picorho("rho:0.02")
    made = choice_for((1.0, 10.0), 40, whole, recipe, 3)
    assert whole - 2 <= made.cost.picorho <= whole
    charged: list[Cost] = []

    class Refused(Exception):
        pass

    def refuse(cost: Cost) -> None:
        charged.append(cost)
        raise Refused

    class NoWords:
        def words(self, count):
            pytest.fail("noise was drawn before it was paid for")

    with pytest.raises(Refused):
        choose(records, recipe.feature_map, made, KEY, NoWords(), pay=refuse)
    assert charged == [made.cost]


def test_the_better_lambda_is_found_where_the_noise_is_less_than_the_difference():
    """Digits: Lambda of 2,000 guesses, and of 30 does not; ten choices with the noise of each on its mean loss."""
    records = load_digits().train
    feature_map = identity(records)
    made = Choice((30.0, 2000.0), len(records) // ONE_IN, mu_for(whole_picorho("rho:0.5")), TOLERANCE, 10, 65)
    found = [choose(records, feature_map, made, KEY, words(seed), pay=paid).lam for seed in range(3)]
    assert found == [30.0] * 3
    assert made.noise < 0.2


@pytest.mark.parametrize("lams", [(1.0,), (1.0, 1.0)])
def test_fewer_than_two_candidates_are_refused(lams):
    with pytest.raises(ValueError, match="at least two candidates"):
        choice(lams)


def test_records_of_units_are_refused():
    records = make_records(n=10)
    owned = replace(records, units=Units("person", np.arange(10) // 2))
    with pytest.raises(TrainingError, match="units"):
        choose(owned, identity(records), choice(), KEY, words(0), pay=paid)


def test_an_audit_finds_as_much_as_is_claimed_and_no_more():
    """A record that moves all sums as far as any may: 400 choices each way, false alarms 1e-6.

    The control: a fifth of the noise is convicted.
    """
    vector = choice(mu=1.5).vector
    moved = np.full(2, vector.sensitivity / math.sqrt(2))

    def scores(seed: int, present: int, fault: float = 1.0) -> np.ndarray:
        randomness = words(seed)
        drawn = np.array([vector.release(np.zeros(2), randomness) for _ in range(400)])
        return (fault * drawn + present * moved) @ moved

    assert 0.5 < gdp(scores(1, 1), scores(2, 0), 1 - 1e-6).value <= 1.5
    assert gdp(scores(1, 1, 0.2), scores(2, 0, 0.2), 1 - 1e-6).value > 1.5
