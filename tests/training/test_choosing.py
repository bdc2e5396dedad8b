"""A choice among pay-once models: what one record can move, what it costs, what is kept, and what is refused."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.accounting.losses import Cost
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.choosing import ONE_IN, choose_release, keyed, parted, score
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.features.maps import Quantiles
from dpserve.training.fitting.histograms import cut_at_quantiles
from dpserve.training.holding_back import with_sets
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.records import Records, Units
from dpserve.training.inputs.sums import of_rows
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.loading import load_model
from dpserve.training.options import Options
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.watchers import Unwatched
from tests.training import conftest
from tests.training.conftest import identity, make_records

KEY = bytes(32)
WHOLE = whole_picorho("rho:0.5")
STEP = 2**28


def words(seed: int) -> SeededRandomness:
    return SeededRandomness(seed, ("choice",))


def paid(certificate: ReleaseCertificate) -> None:
    del certificate


@dataclass(frozen=True)
class Linear:
    """A model whose weights were released."""

    weights: np.ndarray
    kind_name = "class-sums"

    def values(self, X):
        return softmax(X @ self.weights.T)


def with_units(records: Records, units: int, generator: np.random.Generator) -> Records:
    of = np.unique(generator.integers(units, size=len(records)), return_inverse=True)[1]
    names = np.arange(of.max() + 1, dtype="<u8").repeat(2).view(np.uint8).reshape(-1, 16)
    return replace(records, units=Units("person", of, names))


def without(records: Records, gone: np.ndarray) -> Records:
    """The neighbour without these records."""
    units = records.units
    if units is not None:
        kept, of = np.unique(units.of[~gone], return_inverse=True)
        units = Units(units.column, of, units.names[kept])
    return replace(records, X=records.X[~gone], y=records.y[~gone], units=units)


def terms(records: Records) -> list[bytes]:
    """Return what training and scores see of each record."""
    weights = np.ones(len(records)) if records.weights is None else records.weights
    return [
        row.tobytes() + bytes([label]) + weight.tobytes()
        for row, label, weight in zip(records.X, records.y, weights, strict=True)
    ]


def check_neighbours(
    records: Records, gone: np.ndarray, models: list[Linear], split: Callable[[Records, bytes], tuple[Records, Records]]
) -> None:
    """Hold the two sets to what `ChosenAmong.cost` says."""
    (training, validating), (after, validating_after) = split(records, KEY), split(without(records, gone), KEY)
    lost = int(gone.sum())
    scores, scores_after = (
        np.array([score(model, part) for model in models]) for part in (validating, validating_after)
    )
    if terms(validating) == terms(validating_after):
        assert np.array_equal(scores, scores_after)
        assert len(training) - len(after) == lost
    else:
        assert terms(training) == terms(after)
        assert len(validating) - len(validating_after) == lost
        assert np.linalg.norm((scores - scores_after) / STEP) <= math.sqrt(len(models))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(8, 40),
    units=st.sampled_from([0, 2, 12]),
    candidates=st.integers(2, 16),
    alike=st.booleans(),
)
def test_a_record_or_a_unit_trains_or_validates_and_moves_the_scores_by_no_more_than_is_said(
    seed, n, units, candidates, alike
):
    generator = np.random.default_rng(seed)
    records = make_records(seed % 1000, n=n)
    if alike:  # equal records are in one part, and each is a record of its own
        records = replace(records, X=np.round(records.X), y=records.y % 2)
    if units:
        records = with_units(records, units, generator)
    models = [Linear(generator.normal(size=(3, 4))) for _ in range(candidates)]
    gone = np.arange(n) == generator.integers(n) if not units else records.units.of == records.units.of[0]
    if gone.all():
        return
    with suppress(TrainingError):  # nobody is left to train
        check_neighbours(records, gone, models, parted)


def test_a_split_by_the_records_places_is_found_out():
    """The control: every sixth record validates, so that one fewer moves all that come after it."""

    def by_place(records: Records, key: bytes) -> tuple[Records, Records]:
        place = np.arange(len(records)) % 6 == 0
        return without(records, place), without(records, ~place)

    records = make_records(n=40)
    with pytest.raises(AssertionError):
        check_neighbours(records, np.arange(40) == 3, [Linear(np.eye(3, 4))] * 2, by_place)


def test_all_records_of_a_unit_are_in_one_part_and_weigh_one_together():
    records = with_units(make_records(n=300), 40, np.random.default_rng(1))
    training, validating = parted(records, KEY)
    names = [{bytes(name) for name in part.units.names} for part in (training, validating)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == len(records.units.names)
    assert 1 <= len(names[1]) <= 20
    for part in (training, validating):
        summed = np.bincount(part.units.of, part.weights)
        assert len(summed) == len(part.units.names)
        assert np.allclose(summed, 1)
    assert validating.sums.units == of_rows(validating.X, validating.y, units=validating.units.of).units


def test_where_every_record_validates_nothing_is_trained():
    alone = make_records(n=1)
    keys = (bytes([number]) * 32 for number in range(256))
    validating = next(key for key in keys if int.from_bytes(next(iter(keyed(alone, key)))[:8], "little") % ONE_IN == 0)
    with pytest.raises(TrainingError, match="none is left to train on"):
        parted(alone, validating)


def candidates(kind: str, records: Records, folder, **given) -> tuple[Options, Job]:
    own, more = conftest.terms(kind, given)
    return own, Job(records, "m", "people", identity(records), folder / "out", folder, Unwatched(), **more)


def weights(records: Records, folder, price: int = WHOLE) -> tuple[Options, Job]:
    return candidates("weights", records, folder, price=price)


@pytest.mark.parametrize(
    ("kind", "option", "values", "more"),
    [
        ("weights", "lam", {"1": 1.0, "3": 3.0, "1e1": 10.0}, {}),
        ("dpsgd", "hidden", {"0": 0, "3": 3}, {"steps": 3, "n": 60}),
    ],
)
def test_all_candidates_together_cost_at_most_the_price_and_the_certificate_says_so(
    tmp_path, kind, option, values, more
):
    charged: list[ReleaseCertificate] = []
    made = choose_release(
        *candidates(kind, make_records(n=60), tmp_path, price=WHOLE, **more),
        option,
        values,
        words(1),
        pay=charged.append,
    )
    certificate = load_model(tmp_path / "out").certificate
    assert charged == [made]
    assert certificate == made
    choice = certificate.chosen_among
    assert choice.candidates == tuple(values)
    whole, each = WHOLE, [Cost.parse(cost).picorho for cost in choice.costs]
    assert whole * 0.999 <= certificate.price.picorho <= whole
    assert all(share <= whole // len(values) for share in each)
    assert Fraction(choice.scores_mu) ** 2 / 2 <= Cost.parse(certificate.cost).rho
    assert certificate.cost == ",".join(choice.costs)
    assert any("noisy scores" in assumption for assumption in certificate.assumptions)
    if kind == "dpsgd":
        assert certificate.records_declared == 50
        assert certificate.price.coins == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: {"scores_mu": c.scores_mu * 1.001, "scores": (0.0, 0.0)}, "cost more than training"),
        (lambda c: {"scores_mu": c.scores_mu / 3}, "grid of noise"),
        (lambda c: {"costs": ("gaussian:0.1", "gaussian:0.1")}, "does not cost"),
        (lambda c: {"costs": c.costs[:1]}, "a cost and a score for each"),
        (lambda c: {"candidates": ("1", "1")}, "each candidate once"),
    ],
)
def test_a_certificate_whose_choice_does_not_add_up_is_refused(tmp_path, change, said):
    values = {"1": 1.0, "3": 3.0}
    made = choose_release(
        *candidates("weights", make_records(), tmp_path, price=WHOLE), "lam", values, words(1), pay=paid
    )
    choice = made.chosen_among
    altered = choice.model_copy(update=change(choice))
    with pytest.raises(BundleError, match=said):
        made.model_copy(update={"chosen_among": altered}).verify()


def test_a_choice_that_is_left_out_of_the_certificate_is_missed(tmp_path):
    values = {"1": 1.0, "3": 3.0}
    made = choose_release(
        *candidates("weights", make_records(), tmp_path, price=WHOLE), "lam", values, words(1), pay=paid
    )
    with pytest.raises(BundleError, match="cost is"):
        made.model_copy(update={"chosen_among": None}).verify()


def cut(records: Records, seed: int) -> tuple[Quantiles, Cost]:
    """Features cut at quantiles, for a fifth of WHOLE, and what they cost."""
    declared = records.declaration
    made = Quantiles(lower=declared.lower, upper=declared.upper, bias=0.0)
    made = cut_at_quantiles(made, records, WHOLE // 5, WHOLE, words(seed))
    return made, Cost(made.losses)


def test_features_that_all_candidates_have_are_paid_for_beside_them(tmp_path):
    records = make_records(n=60)
    features, cost = cut(records, 1)
    kind, job = weights(records, tmp_path, WHOLE // 5 * 4)
    given = replace(job, feature_map=features, before=(CUTS.bought(cost),))
    made = choose_release(kind, given, "lam", {"1": 1.0, "3": 3.0}, words(1), pay=paid)
    assert made.price.losses[: len(cost.losses)] == cost.losses
    assert all(not set(cost.losses) & set(Cost.parse(each).losses) for each in made.chosen_among.costs)
    assert made.price.picorho <= WHOLE
    load_model(tmp_path / "out")


def test_scores_cost_no_more_than_the_candidates_without_the_features_that_all_have(tmp_path):
    """A record that validates loses these features and the scores."""
    records = make_records(n=60)
    features, cost = cut(records, 1)
    kind, job = weights(records, tmp_path, WHOLE // 5 * 4)
    given = replace(job, feature_map=features, before=(CUTS.bought(cost),))
    made = choose_release(kind, given, "lam", {"1": 1.0, "3": 3.0}, words(1), pay=paid)
    dearer = made.chosen_among.model_copy(update={"scores_mu": math.sqrt(2 * made.price.rho), "scores": (0.0, 0.0)})
    with pytest.raises(BundleError, match="cost more than training the candidates"):
        made.model_copy(update={"chosen_among": dearer}).verify()


def test_a_chosen_model_has_prediction_sets_beside(tmp_path):
    values = {"1": 1.0, "3": 3.0}
    made = choose_release(*weights(make_records(), tmp_path), "lam", values, words(1), pay=paid)
    with_sets(tmp_path / "out", tmp_path / "with-sets", make_records(n=30), "all", 6, words(2))
    assert load_model(tmp_path / "with-sets").certificate.price == made.price


def test_features_of_a_candidate_of_its_own_are_in_what_it_costs(tmp_path):
    records = make_records(n=60)

    def candidate(given: tuple[Options, Job], option: str, value: int) -> tuple[Options, Job]:
        kind, job = given
        features, cost = cut(job.records, value)
        left = job.model_price - cost.picorho
        return kind.replaced(lam=1.0), replace(job, feature_map=features, before=(CUTS.bought(cost),), price=left)

    values = {"quantiles": 1, "bins": 2}
    made = choose_release(*weights(records, tmp_path), "features", values, words(1), pay=paid, candidate=candidate)
    own = Cost(made.feature_map.losses)
    assert all(Cost.parse(each).losses[: len(own.losses)] == own.losses for each in made.chosen_among.costs)
    assert made.cost == ",".join(made.chosen_among.costs)
    assert made.price.picorho <= WHOLE
    load_model(tmp_path / "out")


def test_what_cannot_be_paid_for_leaves_no_bundle(tmp_path):
    class Refused(Exception):
        pass

    def refuse(certificate: ReleaseCertificate) -> None:
        raise Refused

    kind, job = weights(make_records(), tmp_path)
    with pytest.raises(Refused):
        choose_release(kind, job, "lam", {"1": 1.0, "3": 3.0}, words(1), pay=refuse)
    assert not job.out.exists()


def test_the_better_candidate_is_kept(tmp_path):
    """Digits: Lambda of 0.01 has noise of 141 on each logit of a row of length 1, and of 30 hardly any.

    To be as good by chance, noise would have to give 8 classes of 10, each about a tenth of the rows, their own label:
    45 x 10^-8 < 1e-6. Which records validate follows from a fresh key, and the accuracy moves with them.
    """
    digits = load_digits()
    kind, job = weights(digits.train, tmp_path, whole_picorho("rho:1"))
    given = replace(job, feature_map=identity(digits.train))
    made = choose_release(kind, given, "lam", {"0.01": 0.01, "30": 30.0}, words(3), pay=paid)
    assert made.chosen_among.chosen == "30"
    assert made.strong_convexity == 30
    found = load_model(tmp_path / "out").values(digits.held_out_rows).argmax(axis=1)
    assert np.mean(found == digits.held_out_labels) > 0.75


@pytest.mark.parametrize(
    ("count", "price", "said"),
    [(1, 10**11, "among 2 to 16"), (17, 10**12, "among 2 to 16"), (2, 5 * 10**8, "too small for 2 candidates")],
)
def test_what_cannot_be_chosen_is_refused_before_a_record_is_touched(tmp_path, count, price, said):
    def never(certificate: ReleaseCertificate) -> None:
        pytest.fail("it was charged")

    records = replace(make_records(), X=np.full((0, 4), np.nan), y=np.empty(0, dtype=np.int64))
    values = {str(lam): float(lam) for lam in range(1, count + 1)}
    with pytest.raises(TrainingError, match=said):
        choose_release(*weights(records, tmp_path, price), "lam", values, words(0), pay=never)
