"""Training with prediction sets: what is held back, what both parts cost, what the bundle says, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from dpserve import Head
from dpserve.accounting.losses import Cost
from dpserve.accounting.messages import spelled
from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
from dpserve.training.errors import BundleError, TrainingError, WrongOption
from dpserve.training.feature_choice import QuantileFeatures
from dpserve.training.fit import Request, fit
from dpserve.training.holding_back import hold_back, own_probabilities
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.kinds.loading import load_model
from dpserve.training.pay_once.prediction_sets import (
    ASSUMPTIONS,
    LEAST_RECORDS,
    counts_of,
    expected_share,
    one_in,
    record_parts,
    usual_one_in,
)
from dpserve.training.planning.planner import Planner
from dpserve.training.sets_choice import sets_by_rule
from dpserve.wording import as_flag, as_parameter
from tests.seeded import Seeded
from tests.training.conftest import terms

WHOLE = whole_picorho("rho:1")
OPTIONS = {
    "class-sums": {"price": WHOLE, "n": 3000},
    "weights": {"price": WHOLE, "lam": 4.0},
    "dpsgd": {"price": WHOLE, "n": 3000, "steps": 20},
}


def records(n=3000, units=None, seed=0):
    """Return records of two numbers, whose class is uncertain between two lines."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(size=(n, 2))
    y = (X.sum(axis=1) + generator.normal(scale=0.3, size=n) > 1).astype(np.int64)
    declaration = Declaration(("a", "b"), (0.0, 0.0), (1.0, 1.0), ("no", "yes"))
    return Records(X, y, declaration, tuple(row.tobytes() for row in X), units)


def asked(kind, sets="all", **more):
    own, beside = terms(kind, OPTIONS[kind])
    return Request(name="m", lineage="l", kind=own, prediction_sets=sets, **beside, **more)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("by", ["all", "class"])
def test_sets_cover_further_records_and_cost_nothing_beyond_the_model(kind, by, tmp_path):
    certificate = fit(records(), asked(kind, by), tmp_path / "m", state=tmp_path).certificate
    sets = certificate.prediction_sets
    assert sets.by == by
    assert Cost.parse(certificate.cost).picorho <= WHOLE
    assert certificate.cost == str(certificate.whole_cost())
    assert 0.9 * WHOLE < sets.mu**2 / 2 * 1e12 <= WHOLE
    assert set(ASSUMPTIONS) <= set(certificate.assumptions)

    model = load_model(tmp_path / "m")
    further = records(seed=1)
    answers, _ = model.answers(further.X)
    inside = sets.sets_of(answers, 800)
    covered = inside[np.arange(len(further)), further.y]
    # By Hoeffding 0.05 less than a coverage of at least 0.8 on 3,000 further rows comes with less than 1e-6.
    assert covered.mean() > 0.75
    assert inside.sum(axis=1).mean() < 2


def test_a_certificate_that_says_less_of_the_sets_does_not_hold(tmp_path):
    certificate = fit(records(300), asked("class-sums"), tmp_path / "m", state=tmp_path).certificate
    sets = certificate.prediction_sets
    for other in (
        sets.model_copy(update={"mu": sets.mu * 3}),
        sets.model_copy(update={"by": "class"}),
        sets.model_copy(update={"released": sets.released * 3, "by": "class"}),
    ):
        with pytest.raises(BundleError):
            certificate.model_copy(update={"prediction_sets": other}).verify()
    with pytest.raises(BundleError):
        certificate.model_copy(update={"prediction_sets": None}).verify()
    with pytest.raises(ValueError, match="grid"):
        type(sets).model_validate(sets.model_dump() | {"released": ((0.1,) * 42,)})


def rows_of(records):
    return np.concatenate([rows for shard in records.sums.shards for rows, _, _ in shard.blocks()])


def test_strangers_are_not_shown_the_noisy_counts(tmp_path):
    certificate = fit(records(300), asked("class-sums"), tmp_path / "m", state=tmp_path).certificate
    assert "released" in certificate.public()["prediction_sets"]
    assert "released" not in certificate.shown_to_strangers()["prediction_sets"]


def test_equal_records_are_held_back_each_by_a_coin_of_its_own():
    """P(none or all of 600 equal records is held back) < 1e-40; the number held back is Binomial(600, 1/6)."""
    same = records(1)
    many = replace(same, X=same.X.repeat(600, axis=0), y=same.y.repeat(600), source=same.source * 600)
    training, held = hold_back(many, 6, Seeded(0))
    assert len(training) + len(held) == 600
    assert 50 < len(held) < 155


def test_where_every_record_is_held_back_the_refusal_says_how_to_train():
    """One record and a coin that is even: 1 in 2."""
    seeds = [seed for seed in range(64) if Seeded(seed).words(1).view(np.uint16)[0] < 2**15]
    with pytest.raises(TrainingError, match=r"none is left to train on\. Train without") as refused:
        hold_back(records(1), 2, Seeded(seeds[0]))
    assert spelled(refused.value, as_flag).endswith("by --prediction-sets off")
    assert spelled(refused.value, as_parameter).endswith("by prediction_sets='off'")


def test_a_unit_is_held_back_as_a_whole_and_counts_once():
    of = np.random.default_rng(0).integers(0, 100, 500)
    of = np.unique(of, return_inverse=True)[1]
    units = Units("who", of, np.arange(16 * (of.max() + 1), dtype=np.uint16).astype(np.uint8).reshape(-1, 16))
    training, held = hold_back(records(500, units), 4, Seeded(0))
    key = {tuple(row): unit for row, unit in zip(records(500).X, of, strict=True)}
    assert not {key[tuple(row)] for row in rows_of(training)} & {key[tuple(row)] for row in held.X}
    parts = record_parts(held.units, len(held))
    assert np.bincount(held.units.of, weights=parts).tolist() == [2**14] * (held.units.of.max() + 1)


def test_a_held_back_record_changes_one_cell(tmp_path):
    fit(records(400), asked("dpsgd"), tmp_path / "m", state=tmp_path)
    model = load_model(tmp_path / "m")
    held = records(40, seed=3)
    own = own_probabilities(model, held)
    counts = counts_of(own, held.y, record_parts(None, 40), 2)
    for gone in range(40):
        rest = held.taken(np.arange(40) != gone)
        fewer = counts_of(own_probabilities(model, rest), rest.y, record_parts(None, 39), 2)
        assert np.abs(counts - fewer).sum() == 2**14


def test_nothing_trains_that_is_held_back(tmp_path, monkeypatch):
    """The quantiles of the features among it: the records that train and those held back have no row in common."""
    seen = []
    from dpserve.training import holding_back

    original = holding_back.hold_back

    def noted(*arguments):
        training, held = original(*arguments)
        seen.extend([training, held])
        return training, held

    monkeypatch.setattr(holding_back, "hold_back", noted)
    counted = []
    from dpserve.training.fitting import histograms

    monkeypatch.setattr(
        histograms, "counts_of", lambda sums, feature_map: counted.append(sums.lengths) or np.zeros((2, 16384))
    )
    fit(records(), asked("dpsgd", features=QuantileFeatures()), tmp_path / "m", state=tmp_path)
    training, held = seen
    assert not {row.tobytes() for row in rows_of(training)} & {row.tobytes() for row in held.X}
    assert sum(counted[0]) == len(training)


@pytest.mark.parametrize(
    "request_",
    [
        Request(name="m", lineage="l", kind=Head(lam=1), prediction_sets="all"),
        Request(name="m", lineage="l", n=9, price=WHOLE, kind=Planner(queries=3), prediction_sets="all"),
    ],
    ids=["a head", "answers paid for one by one"],
)
def test_a_model_that_can_have_none_says_why(request_, tmp_path):
    with pytest.raises(WrongOption) as refused:
        fit(records(100), request_, tmp_path / "m", state=tmp_path)
    assert refused.value.field == "prediction_sets"


def test_by_rule_sets_are_made_where_noise_leaves_them_small():
    assert sets_by_rule(None, 2, 1.0) is None
    assert sets_by_rule(LEAST_RECORDS - 1, 2, 1.0) is None
    assert sets_by_rule(LEAST_RECORDS, 2, None) is None
    assert sets_by_rule(LEAST_RECORDS, 2, 1.0) == "class"
    assert sets_by_rule(LEAST_RECORDS, 2, 0.25) == "all"
    assert sets_by_rule(LEAST_RECORDS, 2, 0.1) is None
    assert sets_by_rule(LEAST_RECORDS, 5, 1.0) is None
    assert sets_by_rule(25_000, 5, 0.5) == "all"
    assert sets_by_rule(10**7, 2, 1.0) == "class"


def test_few_are_held_back_where_sets_say_enough():
    assert one_in(None) == 6
    assert one_in(LEAST_RECORDS) == 10
    assert one_in(None, 1.0) == 6
    assert [one_in(records, 0.27) for records in (300, 1000, 1600, 5000, LEAST_RECORDS, 10**6)] == [6, 4, 4, 6, 10, 50]
    assert one_in(LEAST_RECORDS, 0.27, groups=10) < 6


def test_more_are_held_back_only_where_that_makes_sets_smaller():
    for records in (200, 500, 900, 2000, 7000, 30_000):
        for mu in (0.1, 0.3, 1.0):
            part = one_in(records, mu)
            assert 4 <= part <= usual_one_in(records)
            assert part == usual_one_in(records) or expected_share(records, mu, 900) < 1


@pytest.mark.parametrize(("by", "part"), [("all", 5), ("class", 4)])
def test_training_holds_back_what_sets_of_all_or_of_each_class_need(by, part, tmp_path):
    kind, _ = terms("class-sums", OPTIONS["class-sums"])
    price = whole_picorho("rho:0.036")
    request = Request(name="m", lineage="l", kind=kind, price=price, n=2000, prediction_sets=by)
    sets = fit(records(2000), request, tmp_path / "m", state=tmp_path).certificate.prediction_sets
    assert sets.one_in == part == one_in(2000, mu_for(price), 2 if by == "class" else 1)


def test_sets_are_made_by_rule_for_whatever_number_of_records_is_declared(tmp_path):
    assert usual_one_in(10**9) == 1000
    kind, _ = terms("class-sums", OPTIONS["class-sums"])
    request = Request(name="m", lineage="l", kind=kind, price=WHOLE, n=10**9)
    assert fit(records(300), request, tmp_path / "m", state=tmp_path).certificate.prediction_sets.one_in == 1000


def test_off_holds_nothing_back(tmp_path):
    request = asked("class-sums", "off")
    assert fit(records(300), request, tmp_path / "m", state=tmp_path).certificate.prediction_sets is None
    auto = asked("class-sums", "auto")
    assert fit(records(300), auto, tmp_path / "n", state=tmp_path).certificate.prediction_sets is None
