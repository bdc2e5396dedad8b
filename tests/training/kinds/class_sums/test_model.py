"""Noisy class sums: the sensitivity attacked with neighbours, the bundle, and an audit by distinguishing.

Statistical tests have fixed seeds; each states its false-alarm rate.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.fitting.unit_rows import GRID, grid_terms, unit
from dpserve.training.inputs.sums import MOST_RECORDS, ROWS, of_rows
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.steps import CENTRE, TOTALS
from dpserve.training.kinds.class_sums.sums import centre_of, mean_of, sums_of
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.loading import load_model
from dpserve.training.pay_once.chain import PublicNumbers, divided
from dpserve.training.pay_once.releases import composed
from tests.changed_releases import with_mu
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records

FALSE_ALARM = 1e-6
WHOLE = whole_picorho("rho:0.5")
NUMBERS = PublicNumbers(3, identity(make_records()))


def exact_norm(difference) -> Fraction:
    """The squared norm, without rounding."""
    return sum((Fraction(float(value)) ** 2 for value in difference.ravel()), Fraction(0))


def adversarial_rows(generator, n, dimension, kind):
    rows = {
        "random": generator.standard_normal((n, dimension)),
        "equal": np.ones((n, dimension)),
        "sparse": generator.standard_normal((n, dimension)) * (generator.uniform(size=(n, dimension)) < 0.2),
        "tiny": generator.standard_normal((n, dimension)) * 10.0 ** generator.integers(-320, 3, (n, 1)),
        "opposite": np.where(np.arange(n)[:, None] % 2 == 0, 1.0, -1.0) * np.ones(dimension),
    }[kind]
    return unit(rows)


def of(rows, *units):
    """The centre of rows that are here."""
    return centre_of(of_rows(rows, np.zeros(len(rows), dtype=np.int64), *units), ROWS)


def sums(rows, y, classes, mean, *units):
    return sums_of(of_rows(rows, y, *units), ROWS, classes, mean)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 30),
    dimension=st.integers(1, 12),
    classes=st.integers(2, 5),
    kind=st.sampled_from(["random", "equal", "sparse", "tiny", "opposite"]),
    mean=st.sampled_from(["theirs", "noisy", "a row", "zero"]),
)
def test_no_neighbour_moves_a_sum_by_more_than_one(seed, n, dimension, classes, kind, mean):
    generator = np.random.default_rng(seed)
    rows = adversarial_rows(generator, n + 1, dimension, kind)
    y = generator.integers(classes, size=n + 1)
    left = generator.integers(n + 1)
    others = np.delete(np.arange(n + 1), left)
    generator.shuffle(others)
    whole, part = of(rows), of(rows[others])
    assert exact_norm(whole - part) <= 1
    public = {
        "theirs": mean_of(whole),
        "noisy": mean_of(whole + 3 * generator.standard_normal(dimension + 1)),
        "a row": rows[left],
        "zero": np.zeros(dimension),
    }[mean]
    difference = sums(rows, y, classes, public) - sums(rows[others], y[others], classes, public)
    assert exact_norm(difference) <= 1
    assert not difference[np.arange(classes) != y[left]].any()


def test_the_sensitivity_is_nearly_reached():
    """So that the test above could fail: a unit vector moves its class's sum by almost 1."""
    row = np.array([[1.0, 0.0, 0.0]]) * (1 - 2.0**-30)
    assert 1 - 1e-6 < float(exact_norm(sums(row, np.array([0]), 2, np.zeros(3)))) <= 1
    assert 1 - 1e-6 < float(exact_norm(of(row))) <= 1


@given(vector=st.lists(st.floats(-2, 2), min_size=1, max_size=6), scale=st.sampled_from([1.0, 0.5, 1e-9]))
def test_terms_are_never_longer_than_their_vector_or_than_one(vector, scale):
    values = np.array(vector) * scale
    (terms,) = grid_terms(values[None])
    assert sum(int(k) ** 2 for k in terms) <= GRID**2 * (1 - 2**-40)
    assert np.all(np.abs(terms / GRID) <= np.abs(values))
    if np.linalg.norm(values) < 1 - 1e-11:
        assert np.all(np.abs(terms / GRID - values) < 1 / GRID)


def test_what_is_longer_than_one_counts_as_nothing():
    assert not grid_terms(np.array([[1.0, 2.0**-14]])).any()
    assert not grid_terms(np.array([[1.0, 0.0]])).any()
    assert grid_terms(np.array([[1.0 - 2.0**-28, 0.0]]))[0, 0] == 2**28 - 1
    assert not grid_terms(np.array([[np.sqrt(0.5) + 1e-8] * 2])).any()


def test_a_row_has_one_direction_and_one_term_whatever_rows_are_beside_it():
    generator = np.random.default_rng(5)
    rows = generator.standard_normal((70, 37)) * 10.0 ** generator.integers(-9, 9, (70, 37))
    weights = generator.uniform(size=70)
    together = unit(rows)
    terms = grid_terms(together, weights)
    for count in (1, 2, 3, 8):
        for start in (0, 17, 50):
            some = slice(start, start + count)
            alone = unit(rows[some].copy())
            assert np.array_equal(alone, together[some])
            assert np.array_equal(grid_terms(alone, weights[some]), terms[some])


def test_the_mean_is_in_the_ball_whatever_was_drawn():
    for centre in (np.array([3.0, 4.0, -1.0]), np.array([1e6, 0.0, 0.2]), np.zeros(3)):
        assert np.linalg.norm(mean_of(centre)) <= 1 + 1e-12
    np.testing.assert_allclose(unit(np.array([[0.6, 0.8]]) - np.array([0.6, 0.0])), [[0, 1]], atol=1e-8)


@pytest.mark.parametrize("price", ["rho:0.000801", "rho:0.01", "epsilon:1@1e-5", "rho:4"])
def test_centre_and_sums_cost_what_was_asked_and_no_more(price):
    whole = whole_picorho(price)
    if price == "rho:4":
        whole -= 1
    cost = composed(divided((CENTRE, TOTALS), whole, NUMBERS))
    assert whole - 3 <= cost.picorho <= whole


def test_too_small_a_price_is_refused():
    with pytest.raises(ValueError, match="two releases, and cost at least"):
        divided((CENTRE, TOTALS), whole_picorho("rho:0.0005"), NUMBERS)


@pytest.mark.parametrize("factor", [0.3, 0.7, 0.999, 1.001])
def test_a_certificate_of_other_noise_than_was_drawn_is_refuted_by_what_was_drawn(tmp_path, factor):
    """The certificate is sound in itself, and costs less, or more, than what was released."""
    records = make_records(n=20, features=7, classes=4)
    model = train_class_sums(records, "small", identity(records), WHOLE, "lineage", Seeded(1))
    honest = model.certificate
    for step in (CENTRE, TOTALS):
        other = with_mu(honest, step.name, honest.mu_of(step) * factor)
        other.verify()
        save_class_sums(tmp_path / step.name, replace(model, certificate=other))
        with pytest.raises(BundleError, match=f"the tensor {step.name} does not lie on the grid of noise"):
            load_model(tmp_path / step.name)


def test_another_release_under_the_same_id_is_another_release_to_the_ledger(tmp_path):
    records = make_records(n=20)
    one, two = (train_class_sums(records, "m", identity(records), WHOLE, "l", Seeded(seed)) for seed in (1, 2))
    ids = {"model_id": one.certificate.model_id, "binding_key": one.certificate.binding_key}
    copied = replace(two, certificate=two.certificate.model_copy(update=ids))
    save_class_sums(tmp_path / "one", one)
    save_class_sums(tmp_path / "two", copied)

    first, second = (load_model(tmp_path / name).certificate for name in ("one", "two"))
    again = load_model(tmp_path / "one").certificate
    assert first.model_id == second.model_id
    assert first.drawn == again.drawn != second.drawn
    # Who knows the file's digest, and not the key, cannot tell: another key is another value.
    assert first.drawn != first.model_copy(update={"binding_key": "0" * 64}).drawn
    assert not {"binding_key", "weights_sha256"} & first.public().keys()


def test_a_price_that_cannot_be_is_refused():
    records = make_records(n=20)
    with pytest.raises(TrainingError, match="two releases"):
        train_class_sums(records, "small", identity(records), whole_picorho("rho:0.0005"), "lineage", Seeded(1))


def test_who_sees_everything_released_learns_what_is_claimed():
    """The best distinguisher of two neighbours: the likelihood ratio of centre and sums; false alarms 1e-6.

    With half of the noise (the planted fault) it convicts.
    """
    records = make_records(n=6, features=2, classes=2)
    worlds = (records, replace(records, X=records.X[:-1], y=records.y[:-1]))
    rows = [unit(identity(world)(world.X, {})) for world in worlds]
    centres = [of(row) for row in rows]
    whole, runs = whole_picorho("rho:2"), 200

    def statistics(which: int, seed: int) -> tuple[float, float]:
        model = train_class_sums(worlds[which], "audited", identity(records), whole, "lineage", Seeded(seed))
        exact = [sums(r, w.y, 2, mean_of(model.centre)) for r, w in zip(rows, worlds, strict=True)]
        released = ((model.centre, centres), (model.sums, exact))
        noises = [release.standard_deviation for release in model.certificate.mechanisms().values()]
        ratios = [0.0, 0.0]
        for (seen, whole_sums), noise in zip(released, noises, strict=True):
            for index, fault in enumerate((1.0, 2.0)):
                ratios[index] += gaussian_ratio(
                    whole_sums[which] + (seen - whole_sums[which]) / fault, *whole_sums, noise
                )
        return ratios[0], ratios[1]

    scores = np.array([[statistics(which, seed + which * runs) for seed in range(runs)] for which in (0, 1)])
    assert not exceeds(scores[:, :, 0], claimed=2.0)
    assert exceeds(scores[:, :, 1], claimed=2.0)


def gaussian_ratio(seen, one, other, noise):
    return float((np.square(seen - other) - np.square(seen - one)).sum()) / (2 * noise**2)


def exceeds(scores, claimed):
    """Whether telling the worlds apart at 0 goes beyond mu-GDP, at a false alarm of 1e-6."""
    hits, alarms = ((world > 0).sum() for world in scores)
    power = stats.binomtest(int(hits), len(scores[0])).proportion_ci(1 - FALSE_ALARM).low
    level = stats.binomtest(int(alarms), len(scores[1])).proportion_ci(1 - FALSE_ALARM).high
    return power > stats.norm.sf(stats.norm.isf(level) - claimed)


def test_more_records_than_have_exact_sums_are_refused(monkeypatch):
    records = make_records()
    assert MOST_RECORDS * GRID <= 2**53
    monkeypatch.setattr("dpserve.training.inputs.sums.MOST_RECORDS", len(records) - 1)
    with pytest.raises(TrainingError, match=f"at most {len(records) - 1} records, not {len(records)}"):
        train_class_sums(records, "many", identity(records), WHOLE, "lineage", Seeded(0))


@pytest.mark.parametrize(("classes", "signal"), [(2, 0.0), (4, 0.0), (4, 3.0), (4, 100.0)])
def test_intervals_hold_what_the_same_scales_make_of_sums_without_noise(classes, signal):
    """Also where all is noise, and shrinkage chooses by the noise what it keeps.

    Of 100 draws with a true share of 0.95, at most 0.81 hold with a chance below 1e-6.
    """
    records = make_records(n=40, features=9, classes=classes)
    model = train_class_sums(records, "small", identity(records), WHOLE, "lineage", Seeded(0))
    generator, draws = np.random.default_rng(8), 100
    assert stats.binom.cdf(int(0.81 * draws), draws, 0.95) < FALSE_ALARM
    sigma, row = model.certificate.standard_deviation(), records.X[:1]
    exact = signal * generator.standard_normal(model.sums.shape)
    held, control = (np.zeros((draws, classes), dtype=bool) for _ in range(2))
    for draw in range(draws):
        noisy = replace(model, stepped=None, sums=exact + sigma * generator.standard_normal(exact.shape))
        shown, noise = noisy.answers(row)
        lower, upper = noise.intervals(shown)
        without = replace(noisy, sums=exact)
        without.__dict__["_lengths"] = noisy._lengths
        truth = softmax(without.answers(row)[1].logits)[0]
        held[draw] = (lower[0] <= truth) & (truth <= upper[0])
        narrow = AnswerNoise(GAUSSIAN, noise.scale / 10, logits=noise.logits).intervals(shown)
        control[draw] = (narrow[0][0] <= truth) & (truth <= narrow[1][0])
        assert (lower <= shown).all()
        assert (shown <= upper).all()
    assert held.mean(axis=0).min() > 0.81
    assert control.mean(axis=0).min() <= 0.81


def test_answers_are_the_probabilities_beside_their_noise():
    records = make_records(n=40, features=9, classes=4)
    trained = train_class_sums(records, "small", identity(records), WHOLE, "lineage", Seeded(0))
    model = replace(trained, stepped=None)
    shown, noise = model.answers(records.X)
    assert np.array_equal(shown, model.values(records.X))
    alone, noise_alone = model.answers(records.X[7:8])
    assert np.array_equal(alone[0], shown[7])
    assert np.array_equal(noise_alone.logits[0], noise.logits[7])
