"""The promise of prediction sets, tried at small numbers of records, with ties, missing classes and lopsided units."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pytest

from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.mechanisms.prefix_sums import PrefixSums
from dpserve.training.inputs.records import Units
from dpserve.training.pay_once import coverage as coverages
from dpserve.training.pay_once.coverage import thousandths
from dpserve.training.pay_once.prediction_sets import (
    counts_of,
    expected_share,
    mean_size,
    one_in,
    record_parts,
    release_sets,
)
from dpserve.training.pay_once.scores import CELLS, EDGES, cells_of, least_in
from tests.seeded import Seeded

ALARM = 1e-7


@dataclass(frozen=True)
class Source:
    """A law of classes and of the probability that a model gives the own class."""

    shares: tuple[float, ...]
    name: str

    def draw(self, n, rng):
        """Return classes and probabilities of n records."""
        y = rng.choice(len(self.shares), n, p=self.shares)
        match self.name:
            case "smooth":
                own = rng.beta(2 + y, 1.3)
            case "equal":
                own = np.full(n, 0.4)
            case "two values":
                own = np.where(rng.random(n) < 0.12, 0.001, 0.97)
            case _:
                own = np.where(y == 0, rng.uniform(0.6, 1, n), rng.uniform(0, 0.4, n))
        return y, own


SOURCES = [
    Source((0.6, 0.4), "smooth"),
    Source((0.6, 0.4), "equal"),
    Source((0.6, 0.4), "two values"),
    Source((0.95, 0.05), "a rare and hard class"),
    Source((1.0, 0.0), "smooth"),
]


def fewest(trials, share):
    """Return the least number of successes that chance leaves but for ALARM, where each has at least this chance.

    Chernoff: P(successes <= t f) <= exp(-t KL(f, share)) for f < share.
    """
    for count in range(int(trials * share), -1, -1) if trials else ():
        f = count / trials
        divergence = (f * math.log(f / share) if f else 0.0) + (1 - f) * math.log((1 - f) / (1 - share))
        if trials * divergence > -math.log(ALARM):
            return count + 1
    return 0


def covered(source, n, mu, asked, groups, trials, seed=0):
    """Return in how many trials the one more record is in its set, and in how many by class, with their numbers."""
    inside, by_class, records = 0, np.zeros(2), np.zeros(2)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        y, own = source.draw(n + 1, rng)
        counts = counts_of(own[:n], y[:n], record_parts(None, n), groups)
        least = release_sets(counts, mu, 6, Seeded(trial)).least(asked, 2)
        hit = own[n] >= least[y[n]]
        inside += hit
        records[y[n]] += 1
        by_class[y[n]] += hit
    return inside, by_class, records


CASES = [(7, 1.0, 500, 1), (60, 0.6, 800, 1), (60, 1.5, 900, 2), (250, 1.0, 900, 1)]


@pytest.mark.parametrize(
    ("source", "n", "mu", "asked", "groups"),
    [
        pytest.param(
            source,
            *case,
            marks=[] if row % len(CASES) == column else pytest.mark.slow,
            id=f"{source.name} {source.shares}-{case[0]}",
        )
        for row, source in enumerate(SOURCES)
        for column, case in enumerate(CASES)
    ],
)
def test_coverage_is_reached(source, n, mu, asked, groups):
    """False alarm below 1e-7 for each case. All pairs of a law and a case are slow; each is in one that is not."""
    trials = 500
    inside, by_class, records = covered(source, n, mu, asked, groups, trials)
    assert inside >= fewest(trials, asked / 1000)
    if groups == 2:
        for hits, of in zip(by_class, records, strict=True):
            assert hits >= fewest(int(of), asked / 1000)


def test_without_the_bound_on_the_noise_coverage_is_not_reached(monkeypatch):
    """The control of the test above: the same test convicts a threshold of noisy counts taken for exact ones."""
    monkeypatch.setattr(coverages, "_first_cell", _careless)
    trials = 500
    inside, _, _ = covered(SOURCES[0], 60, 0.15, 900, 1, trials)
    assert inside < fewest(trials, 0.9)


def _careless(sums, noisy, share, quantile):
    del quantile
    passing = [cell for cell in range(CELLS) if sums.excess(noisy, cell, share) >= 0]
    return passing[0] if passing else CELLS - 1


def test_coverage_is_reached_for_records_of_further_units():
    """Units of 1 to 40 records, the large ones hard: counting records and not units would reach 0.75 of further units.

    The one more record is one of a further unit, drawn evenly among its records. False alarm below 1e-7.
    """
    trials, inside = 500, 0
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        sizes = np.where(rng.random(120) < 0.25, 40, 1)
        hard = sizes > 1
        of = np.repeat(np.arange(120), sizes)
        own = np.where(hard[of], rng.uniform(0.0, 0.3, len(of)), rng.uniform(0.5, 1, len(of)))
        y = np.zeros(len(of), dtype=np.int64)
        calibrating = of < 119
        units = Units("who", of[calibrating])
        counts = counts_of(own[calibrating], y[calibrating], record_parts(units, calibrating.sum()), 1)
        (least,) = release_sets(counts, 1.5, 6, Seeded(trial)).least(800, 1)
        inside += rng.choice(own[~calibrating]) >= least
    assert inside >= fewest(trials, 0.8)


@pytest.fixture
def without_noise(monkeypatch):
    """Release exact numbers, and take the bound on their noise for what floating point is off."""
    monkeypatch.setattr(GaussianVector, "release", lambda _, values, randomness: values)
    monkeypatch.setattr(PrefixSums, "bound", lambda *_: 1e-9)


def least_without(gone, own, y, of, asked, groups):
    """Return the least probability of each class, (groups,), from the exact counts of all units but one."""
    kept = np.flatnonzero(of != gone)
    units = Units("who", np.unique(of[kept], return_inverse=True)[1])
    sums = PrefixSums(1.0, groups, CELLS)
    noisy = sums.release(counts_of(own[kept], y[kept], record_parts(units, len(kept)), groups), Seeded(0))
    return np.array(coverages.least_probabilities(sums, noisy, asked, [[group] for group in range(groups)]))


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("largest", [1, 3])
def test_exact_counts_cover_each_of_a_few_units_in_turn(groups, largest):
    """The first step of the proof, by enumeration: noise and its bound, which hide a count that is off by one, are out.

    Units are exchangeable, so that each is the one more in turn. Their coverage, a sum over all of them, reaches the
    share of every class exactly: there is no chance in it. Probabilities are all different, tied, or all equal; a class
    may have no records, and units have up to `largest` records, of both classes.
    """
    rng = np.random.default_rng(largest)
    for units in (2, 3, 4, 5, 6):
        for values in ([0.99, 0.9, 0.7, 0.5, 0.3, 0.2, 0.05], [0.9, 0.1], [0.5], None):
            sizes = rng.integers(1, largest + 1, units)
            of = np.repeat(np.arange(units), sizes)
            own = rng.permutation(np.linspace(0.02, 0.98, len(of))) if values is None else rng.choice(values, len(of))
            y = rng.integers(0, groups, len(of))
            parts = record_parts(Units("who", of), len(of))
            for asked in (500, 700, 800):
                covered_parts, parts_in = np.zeros(groups), np.bincount(y, weights=parts, minlength=groups)
                for gone in range(units):
                    least = least_without(gone, own, y, of, asked, groups)
                    inside = (of == gone) & (own >= least[y])
                    covered_parts += np.bincount(y[inside], weights=parts[inside], minlength=groups)
                assert (covered_parts >= coverages.asked_of_counts(asked)[0] * parts_in).all()


class Passing:
    """Cells that pass, and those that are tried."""

    def __init__(self, passing):
        self.passing, self.tried = passing, []

    def excess(self, noisy, cell, share):
        """Return a number that passes, or one that does not."""
        self.tried.append(cell)
        return 1.0 if self.passing[cell] else -1.0

    def bound(self, *arguments):
        """Return no bound."""
        return 0.0


def test_a_threshold_is_wrong_only_by_a_false_pass_of_one_of_nine_cells():
    """The second step of the proof, for every first cell B that passes by exact counts, whatever noise does elsewhere.

    The cells that halving tries on its way to B are nine at most. Where none of them below B passes, what all others
    do leaves the threshold at B or above.
    """
    rng = np.random.default_rng(0)
    for first in range(CELLS):
        exact = np.arange(CELLS) >= first
        way = Passing(exact)
        assert coverages._first_cell(way, np.zeros((1, CELLS)), 0.5, 0.0) == first
        assert len(way.tried) <= 9
        assert NormalDist().cdf(-coverages.asked_of_counts(900)[1]) * len(way.tried) <= 0.1 / coverages.SPARED
        for chance in (0.1, 0.5, 0.9):
            noisy = rng.random(CELLS) < chance
            noisy[[cell for cell in way.tried if cell < first]] = False
            assert coverages._first_cell(Passing(noisy), np.zeros((1, CELLS)), 0.5, 0.0) >= first


def test_much_more_than_asked_is_not_covered_where_records_are_many():
    rng = np.random.default_rng(0)
    y, own = SOURCES[0].draw(20_000, rng)
    sets = release_sets(counts_of(own, y, record_parts(None, 20_000), 1), 0.3, 6, Seeded(0))
    _, further = SOURCES[0].draw(20_000, rng)
    for asked in (500, 800, 900, 950):
        share = np.mean(further >= sets.least(asked, 2)[0])
        assert asked / 1000 - 0.01 < share < asked / 1000 + 0.035


@pytest.mark.parametrize(("records", "mu"), [(3_000, 0.3), (12_000, 1.0), (60_000, 0.3)])
def test_a_plan_expects_the_share_that_sets_reach(records, mu):
    """Noise moves the share by its deviation, at most 12/mu records: five times that are allowed."""
    held, rng = records // one_in(records), np.random.default_rng(2)
    y, own = SOURCES[0].draw(held, rng)
    _, further = SOURCES[0].draw(50_000, rng)
    for asked in (500, 900):
        least = release_sets(counts_of(own, y, record_parts(None, held), 1), mu, 6, Seeded(4)).least(asked, 2)[0]
        assert expected_share(records, mu, asked) == pytest.approx(np.mean(further >= least), abs=0.03 + 60 / mu / held)


def test_a_plan_expects_all_classes_where_noise_covers_the_held_back():
    answers, y = np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.7, 0.3]]), np.array([0, 1, 0, 1])
    assert expected_share(200, 0.2, 900) == 1
    assert mean_size(answers, y, 1.0) == 2
    assert mean_size(answers, y, 0.66) == 1.0
    assert mean_size(answers, y, 0.99) == 1.5


def test_sets_grow_with_coverage():
    rng = np.random.default_rng(1)
    y, own = SOURCES[0].draw(3000, rng)
    sets = release_sets(counts_of(own, y, record_parts(None, 3000), 2), 1.0, 6, Seeded(1))
    thresholds = np.array([sets.least(asked, 2) for asked in (500, 700, 900, 990, 999)])
    assert (np.diff(thresholds, axis=0) <= 0).all()


def test_a_class_without_records_is_in_every_set():
    rng = np.random.default_rng(2)
    y, own = Source((1.0, 0.0), "smooth").draw(3000, rng)
    sets = release_sets(counts_of(own, y, record_parts(None, 3000), 2), 1.0, 6, Seeded(1))
    least = sets.least(900, 2)
    assert least[0] > 0
    assert least[1] == 0


def test_cells_hold_the_probabilities_that_their_edges_say():
    p = np.concatenate([EDGES, [1.0, 0.0, 0.5, 1e-9], np.random.default_rng(0).random(500)])
    cells = cells_of(p)
    assert cells.min() == 0
    assert cells.max() == CELLS - 1
    least = np.array([least_in(int(cell)) for cell in cells])
    assert (p >= least).all()
    inner = cells > 0
    above = np.array([least_in(int(cell) - 1) for cell in cells[inner]])
    assert (p[inner] < above).all()
    assert (np.diff(EDGES) < 0).all()


@pytest.mark.parametrize("asked", [0.4, 0.9995, math.nan, math.inf, -1.0])
def test_other_coverages_are_refused(asked):
    with pytest.raises(ValueError, match="coverage"):
        thousandths(asked)


def test_coverages_are_rounded_up_to_thousandths():
    assert [thousandths(asked) for asked in (0.5, 0.9, 0.999, 0.505, 0.70001)] == [500, 900, 999, 505, 701]
