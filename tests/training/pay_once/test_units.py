"""Privacy units of releases: all records of one unit more or fewer move a sum by no more than one record does."""

import functools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
from dpserve.training.bundles.certificate import UNIT_ASSUMPTION, UNITS
from dpserve.training.errors import TrainingError
from dpserve.training.fitting.network import Network
from dpserve.training.fitting.unit_rows import GRID, unit
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.sums import ROWS, of_rows
from dpserve.training.kinds.class_sums import continued
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.sums import centre_of, sums_of
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.bundle import save_dpsgd
from dpserve.training.kinds.dpsgd.choices import choices_for
from dpserve.training.kinds.dpsgd.noisy_step import StepRelease, private_step
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.train import release_weights
from dpserve.training.pay_once import calibration
from tests.seeded import Seeded
from tests.training.conftest import identity, make_records

WHOLE = whole_picorho("rho:0.5")


def with_units(records, of):
    of = np.unique(of, return_inverse=True)[1]
    names = np.arange(of.max() + 1, dtype="<u8").repeat(2).view(np.uint8).reshape(-1, 16)
    return replace(records, units=Units("person", of, names))


def cases(count=200):
    """Rows of units of which one has many alike: (all rows, their classes, their units, which rows are that one's)."""
    for seed in range(count):
        generator = np.random.default_rng(seed)
        n, dimension, classes = int(generator.integers(2, 60)), int(generator.integers(1, 9)), 3
        of = generator.integers(0, int(generator.integers(1, 9)), n)
        rows = generator.standard_normal((n, dimension))
        mine = of == generator.choice(of)
        if seed % 2:
            rows[mine] = 1.0
        y = generator.integers(classes, size=n)
        if seed % 3:
            y[mine] = 0
        yield unit(rows), y, np.unique(of, return_inverse=True)[1], mine


def sums(rows, y, of, kept, *, weighted=True):
    """The sums over some of the records, with the weights that they have then."""
    of = np.unique(of[kept], return_inverse=True)[1].astype(np.int64)
    weights = Units("person", of).weights() if weighted else None
    return of_rows(rows[kept], y[kept], weights, of if kept.any() else None)


def squared(difference) -> Fraction:
    return sum((Fraction(float(value)) ** 2 for value in np.ravel(difference)), Fraction(0))


def neighbours(weighted=True):
    for rows, y, of, mine in cases():
        one = np.arange(len(y)) == np.argmax(mine)
        for left in (mine, one):
            if not left.all():
                pair = [sums(rows, y, of, kept, weighted=weighted) for kept in (~(left & False), ~left)]
                yield *pair, rows[np.argmax(mine)] * 0.9


def test_no_unit_moves_the_centre_or_the_class_sums_by_more_than_one():
    largest = Fraction(0)
    for whole, less, mean in neighbours():
        largest = max(largest, squared(centre_of(whole, ROWS) - centre_of(less, ROWS)))
        moved = squared(sums_of(whole, ROWS, 3, mean) - sums_of(less, ROWS, 3, mean))
        largest = max(largest, moved)
        assert largest <= 1
    assert largest > Fraction(99, 100)


def test_without_weights_a_unit_moves_the_centre_further():
    """The control: the same sets, each record with the weight 1."""
    assert any(
        squared(centre_of(whole, ROWS) - centre_of(less, ROWS)) > 4 for whole, less, _ in neighbours(weighted=False)
    )


def test_no_unit_moves_a_round_of_calibration_by_more_than_one_record_may():
    generator = np.random.default_rng(1)
    shares = generator.standard_normal(3)
    for rows, y, of, mine in cases():
        if mine.all():
            continue
        logits = 50 * rows[:, :1] * np.array([1.0, -1.0, 0.3])
        pair = [sums(logits, y, of, kept) for kept in (mine | True, ~mine)]
        term = functools.partial(calibration.round_term, rows=ROWS, scale=1.0, weight=1.0, shares=shares, bound=3.1)
        one, other = (each.total(term) for each in pair)
        assert squared((one - other) / GRID) <= Fraction(calibration.ROUND_PART) ** 2
        one, other = (each.total(functools.partial(calibration.counts_term, classes=3)) for each in pair)
        assert squared((one - other) / GRID) <= Fraction(calibration.COUNTS_PART) ** 2


def test_no_unit_moves_a_gradient_step_of_class_sums_further_than_a_record_may():
    """Whatever the weights are that the steps before led to."""
    largest = 0.0
    for seed, (whole, less, row) in enumerate(neighbours()):
        dimension = len(row)
        network = Network((dimension, 3))
        parameters = 10.0 ** (seed % 4 - 2) * np.random.default_rng(seed).standard_normal(network.size)
        step = functools.partial(continued.gradient_sum, network=network, parameters=parameters, rows=ROWS)
        ((apart, _),) = network.layers(whole.total(step) - less.total(step))
        largest = max(largest, float(np.linalg.norm(apart)) / continued.movement(dimension))
        assert largest <= 1
    assert largest > 0.9


def test_no_unit_moves_the_sum_of_a_step_further_than_a_record_may():
    largest = 0.0
    for rows, y, of, mine in cases():
        if mine.all():
            continue
        network = Network((rows.shape[1], 3))
        parameters = np.random.default_rng(0).standard_normal(network.size)
        step = private_step(network, StepRelease(1.0, 1.0, 0.5), Seeded(0))
        bare = replace(step, add_noise=lambda total: total)
        whole, less = (
            bare.noisy_totals(parameters, sums(rows * 4, y, of, kept), ROWS, None)[0] for kept in (mine | True, ~mine)
        )
        largest = max(largest, float(np.linalg.norm(whole - less)))
    assert 0.49 < largest <= 0.5


def test_a_unit_joins_a_step_as_a_whole_and_at_the_rate():
    """There are 4,000 units at a rate of 0.3; P(|Binomial(4000, 0.3) - 1200| > 145) < 1e-6."""
    of = np.repeat(np.arange(4000), 3)
    records = of_rows(np.ones((12_000, 1)), np.zeros(12_000, dtype=np.int64), Units("person", of).weights(), of)
    seen = []
    step = private_step(Network((1, 2)), StepRelease(1.0, 0.3), Seeded(4))
    counted = replace(
        step,
        clipped_sum=lambda parameters, inputs, labels, weights: seen.append(len(labels)) or np.zeros_like(parameters),
    )
    counted.noisy_totals(np.zeros(4), records, ROWS, None)
    assert sum(seen) % 3 == 0
    assert abs(sum(seen) / 3 - 1200) <= 145


def trained(kind, records):
    phi = identity(records)
    match kind:
        case "class-sums":
            return train_class_sums(records, "m", phi, WHOLE, "lineage", Seeded(0)), save_class_sums
        case "dpsgd":
            choices = choices_for(20, mu_for(WHOLE), 3 * (phi.dimension + 1), steps=3)
            return train_dpsgd(records, DpSgdRecipe("m", phi, choices, WHOLE), "lineage", Seeded(0)), save_dpsgd
        case _:
            head = train_head(records, Recipe("m", phi, 1.0, 1e-6), "lineage")
            return release_weights(head, WHOLE, "lineage", Seeded(0), records), save_weights


@pytest.mark.parametrize("kind", ["class-sums", "dpsgd", "weights"])
def test_the_certificate_names_the_unit_and_is_loaded_again(tmp_path, kind):
    records = with_units(make_records(n=40), np.arange(40) // 4)
    model, save = trained(kind, records)
    save(tmp_path / "m", model)
    certificate = load_model(tmp_path / "m").certificate
    assert (certificate.neighbouring, certificate.unit) == (UNITS, "person")
    assert certificate.assumptions[0] == UNIT_ASSUMPTION
    alone, _ = trained(kind, replace(records, units=None))
    assert alone.certificate.unit is None
    assert "unit" not in alone.certificate.model_dump()


@pytest.mark.parametrize("kind", ["class-sums", "weights"])
def test_units_of_one_record_release_what_records_do(kind):
    records = make_records(n=40)
    of_units, _ = trained(kind, with_units(records, np.arange(40)))
    of_records, _ = trained(kind, records)
    X = records.X[:5]
    np.testing.assert_array_equal(of_units.logits(X), of_records.logits(X))


def test_a_head_of_records_is_not_calibrated_on_units():
    records = make_records(n=40)
    head = train_head(records, Recipe("m", identity(records), 1.0, 1e-6), "lineage")
    with pytest.raises(TrainingError, match="other privacy units"):
        release_weights(head, WHOLE, "lineage", Seeded(0), with_units(records, np.arange(40) // 4))
