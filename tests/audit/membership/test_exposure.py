"""Single records: rates that are no smaller than chance, and limits that hold for the most exposed."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.audit.exposure_report import Groups, exposure_tables, records_file
from dpserve.audit.membership.claims import STEPS, claim_of_releases
from dpserve.audit.membership.exposure import OwnNull, exposure, holm, own_null

SURE = 1 - 1e-7


def test_rates_by_rank_are_exact():
    """Every order of four confidences is tried, the first one being the target's: as many give each rate."""
    limits = [
        own_null(np.array(order[:1]), np.array(order[1:])[:, None], np.zeros((3, 1), bool), normal=False).limits[0]
        for order in itertools.permutations((1.0, 2.0, 3.0, 4.0))
    ]
    assert sorted(limits) == [rate / 4 for rate in (1, 2, 3, 4) for _ in range(6)]


def test_models_that_saw_a_record_are_no_part_of_its_null():
    shadow, seen = np.array([[9.0, 0.0], [1.0, 8.0], [2.0, 1.0]]), np.array([[True, False], [False, True], [False] * 2])
    null = own_null(np.array([3.0, 3.0]), shadow, seen)
    assert null.limits.tolist() == [1 / 3, 1 / 3]
    assert null.compared.tolist() == [2, 2]
    everyone = own_null(np.array([3.0, 3.0]), shadow, np.ones_like(seen))
    assert everyone.rates.tolist() == everyone.limits.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("freedom", [4, None], ids=["variances that differ", "one variance"])
def test_a_fitted_rate_is_chance(freedom):
    """20,000 records beside about ten of 20 models: P(Binomial(20000, 0.01) > 275) < 1e-6, and at 0.001 more than 46.

    The control takes the fitted mean and variance for the true ones.
    """
    generator = np.random.default_rng(0)
    count = 20_000
    spread = np.ones(count) if freedom is None else np.sqrt(freedom / generator.chisquare(freedom, count))
    everything = generator.normal(size=count) + spread * generator.standard_normal((21, count))
    seen = (generator.random((20, count)) < 0.5) & (np.arange(20)[:, None] > 1)
    rates = own_null(everything[0], everything[1:], seen).rates
    assert (rates <= 0.01).sum() <= 275
    assert (rates <= 0.001).sum() <= 46
    outside = np.where(seen, np.nan, everything[1:])
    naive = scipy.stats.norm.sf((everything[0] - np.nanmean(outside, axis=0)) / np.nanstd(outside, axis=0, ddof=1))
    assert (naive <= 0.01).sum() > 275


def test_a_law_is_fitted_to_normal_confidences_alone():
    """Answers of one class alone: a confidence has two values, and nothing but its rank is believed."""
    generator = np.random.default_rng(0)
    values = generator.choice([-700.0, 700.0], size=(11, 50))
    null = own_null(values[0], values[1:], np.zeros((10, 50), bool), normal=False)
    assert (null.rates == null.limits).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.001, 0.5))
def test_holm_says_what_closed_testing_says(p_values, level):
    """A record is named where Bonferroni's test rejects every set that has it (Marcus, Peritz and Gabriel 1976)."""
    p = np.array(p_values)
    sets = [some for size in range(1, len(p) + 1) for some in itertools.combinations(range(len(p)), size)]
    for place, corrected in enumerate(holm(p)):
        margins = [min(p[list(some)]) * len(some) - level for some in sets if place in some]
        if abs(max(margins)) > 1e-12:
            assert (corrected <= level) == (max(margins) <= 0)


def of_confidences(members, others, power, confidence=SURE):
    """Exposures of confidences whose null is the standard normal law."""
    values = np.concatenate([members, others])
    own = OwnNull(scipy.stats.norm.sf(values), np.ones(len(values)), np.zeros(len(values), int))
    member = np.arange(len(values)) < len(members)
    places = np.concatenate([np.arange(len(members)), np.arange(len(others))])
    return exposure(member, places, values, own, confidence, "the law itself", power)


def test_members_are_beyond_a_claim_that_they_exceed_and_not_beyond_one_that_they_attain():
    """The claim's two steps are mu = 2: no member of 2,000 is beyond it, except with a probability of 1e-7."""
    claim = claim_of_releases(Cost((GaussianLoss(1.0),)), 1, 1e-6)
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((2, 2000))

    def beyond(mu):
        found = of_confidences(noise[0] + mu, noise[1], lambda rates: claim.power(rates, STEPS)).beyond_claim
        assert not found[2000:].any()
        return found.sum()

    assert beyond(2.0) == 0
    assert beyond(9.0) > 500


def test_a_file_has_every_record_in_its_order():
    generator = np.random.default_rng(0)
    member = np.array([False, True, True, False, True])
    places, scores = np.array([1, 2, 0, 0, 1]), np.arange(5.0)
    own = OwnNull(generator.random(5), np.full(5, 0.25), np.arange(5))
    found = exposure(member, places, scores, own, 0.95, "three models", lambda rates: np.minimum(1, 2 * rates))
    groups = Groups("ward", np.array(["a", "b", "c"]), np.array(["d", "a"]))
    header, *lines = (line.split(",") for line in records_file(found, groups).splitlines())
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [(row["file"], int(row["row"]), row["group"]) for row in rows] == [
        *(("members", place, ward) for place, ward in ((1, "a"), (2, "b"), (3, "c"))),
        *(("non-members", place, ward) for place, ward in ((1, "d"), (2, "a"))),
    ]
    assert [float(row["score"]) for row in rows] == [2, 4, 1, 3, 0]
    assert [int(row["compared_with"]) for row in rows] == [2, 4, 1, 3, 0]
    assert [float(row["fpr"]) for row in rows] == own.rates[[2, 4, 1, 3, 0]].tolist()
    by_ward = exposure_tables(found, groups)[1].rows
    assert {(row[0], row[1], row[3]) for row in by_ward} == {
        ("a", "1", "1"),
        ("b", "1", "0"),
        ("c", "1", "0"),
        ("d", "0", "1"),
    }


def test_a_unit_is_one_line_with_its_first_row():
    of, places = np.array([1, 0, 1, 0]), np.array([5, 2, 6, 3])
    own = OwnNull(np.array([0.1, 0.2]), np.array([0.1, 0.2]), np.array([3, 3]))
    member = np.array([True, False, True, False])
    found = exposure(member, places, np.array([1.0, 2.0]), own, 0.95, "models", of=of)
    assert found.columns()["row"].tolist() == [6, 3]
    assert found.own.rates.tolist() == [0.2, 0.1]
    assert "tpr_allowed" not in json.dumps(list(found.columns()))
