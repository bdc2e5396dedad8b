"""The chain of a training: a step of someone's own in it, and certificates whose releases are others."""

from typing import ClassVar, Literal

import numpy as np
import pytest

from dpserve.accounting.disclosure import Declared
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for, whole_picorho
from dpserve.training.errors import BundleError, TrainingError, WrongOption
from dpserve.training.feature_choice import QuantileFeatures
from dpserve.training.features.maps import Identity
from dpserve.training.fields import Several
from dpserve.training.fit import Request, fit
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds import registry
from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate
from dpserve.training.kinds.class_sums.kind import ClassSums, ClassSumsKind
from dpserve.training.kinds.class_sums.steps import TOTALS
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.certificate import WeightsCertificate
from dpserve.training.kinds.weights.kind import Weights
from dpserve.training.kinds.weights.steps import WEIGHTS
from dpserve.training.pay_once.chain import FeatureStep, ModelStep, PublicNumbers, divided
from tests.changed_releases import with_mu

WHOLE = whole_picorho("rho:1")


class Clip(FeatureStep):
    """The mean length of rows, with noise, as the length that longer rows are clipped to.

    A record adds its row's length, at most 1, to a sum of them: mu-GDP. The declared number divides it.
    """

    name = "clip"

    def share(self, price, declaration, feature_map):
        """Return a tenth."""
        return price // 10

    def run(self, records, feature_map, share, price, randomness):
        """Return the map with the length."""
        steps = np.floor(np.minimum(np.linalg.norm(records.X, axis=1), 1.0) * 2**28)
        law = GaussianVector(mu_for(share), 1, 1.0)
        (total,) = law.release(np.array([steps.sum() / 2**28]), randomness)
        length = min(max(total / 300, 0.1), 0.9)
        changed = Identity(lower=feature_map.lower, upper=feature_map.upper, clip_norm=length, bias=0.0)
        return changed, self.bought(law.cost)

    def is_needed_by(self, certificate):
        """Return that a model of this kind has it."""
        return True

    def cost(self, mu, certificate):
        """Return the cost."""
        return GaussianVector(mu, 1, 1.0).cost


CLIP = Clip()


class ClippedCertificate(ClassSumsCertificate):
    """Class sums of rows that were clipped."""

    STEPS = (CLIP, *ClassSumsCertificate.STEPS)
    release: Declared[Literal["clipped-sums"]] = "clipped-sums"
    assumptions: Declared[Several[str]] = ClassSumsCertificate.ASSUMPTIONS


class ClippedSums(ClassSums):
    """The options of such sums."""


class ClippedKind(ClassSumsKind):
    """Class sums with one more step."""

    name = "clipped-sums"
    options = ClippedSums
    certificate_type = ClippedCertificate


@pytest.fixture
def clipped(monkeypatch):
    kinds = {**registry.all_kinds(), "clipped-sums": ClippedKind()}
    monkeypatch.setattr(registry, "_kinds", kinds)


def records(n=300):
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(n, 3))
    declaration = Declaration(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3, ("low", "high"))
    return Records(X, (X[:, 0] > 0.5).astype(np.int64), declaration, tuple(row.tobytes() for row in X))


def trained(tmp_path, kind):
    request = Request(name="m", lineage="l", kind=kind, price=WHOLE)
    return fit(records(), request, tmp_path / "model", state=tmp_path / "state").certificate


@pytest.mark.usefixtures("clipped")
def test_a_step_of_someones_own_is_bought_listed_composed_and_read_back(tmp_path):
    certificate = trained(tmp_path, ClippedSums())
    assert [release.name for release in certificate.releases] == ["clip", "centre", "sums", "calibration"]
    assert certificate.mu_of(CLIP) == mu_for(WHOLE // 10)
    assert 0.99 * WHOLE < certificate.price.picorho <= WHOLE
    assert set(certificate.shown_to_strangers()["feature_map"]) == {"kind", "lower", "upper"}
    assert "clip_norm" in certificate.public()["feature_map"]
    model = load_model(tmp_path / "model")
    assert model.certificate.feature_map.clip_norm < 1
    assert np.isfinite(model.values(records(9).X)).all()


@pytest.mark.usefixtures("clipped")
def test_a_certificate_without_a_step_that_the_model_needs_does_not_hold(tmp_path):
    with pytest.raises(BundleError, match="no release of clip"):
        with_mu(trained(tmp_path, ClippedSums()), "clip", 0.0).verify()


@pytest.mark.usefixtures("clipped")
@pytest.mark.parametrize(
    ("asked", "field", "step"),
    [
        ({"features": QuantileFeatures()}, "features", "quantiles"),
        ({"prediction_sets": "all"}, "prediction_sets", "counts"),
    ],
)
def test_what_a_kind_has_no_step_for_is_refused_before_a_record_is_noted(tmp_path, asked, field, step, monkeypatch):
    steps = tuple(each for each in ClippedCertificate.STEPS if each.name != step)
    monkeypatch.setattr(ClippedCertificate, "STEPS", steps)
    request = Request(name="m", lineage="l", kind=ClippedSums(), price=WHOLE, **asked)
    with pytest.raises(WrongOption, match=f"needs a step '{step}', and a training of clipped-sums has none") as refused:
        fit(records(), request, tmp_path / "model", state=tmp_path / "state")
    assert refused.value.field == field
    assert not (tmp_path / "state").exists()


class Count(ModelStep):
    """The noisy number of records: one more or less moves it by 1. mu-GDP."""

    name = "count"
    is_needed = True
    seen: ClassVar[list[float]] = []

    def share(self, price, numbers):
        """Return a tenth."""
        return price // 10

    def cost(self, mu, certificate):
        """Return the cost."""
        return GaussianVector(mu, 1, 1.0).cost

    def run(self, state, release, randomness):
        """Return the state as it was."""
        self.seen.extend(GaussianVector(release.mu, 1, 1.0).release(np.array([float(len(state.records))]), randomness))
        return state


def test_a_step_of_a_model_needs_nothing_but_its_name_in_the_chain(tmp_path, monkeypatch):
    before, *others = ClassSumsCertificate.STEPS
    monkeypatch.setattr(ClassSumsCertificate, "STEPS", (before, Count(), *others))
    certificate = trained(tmp_path, ClassSums())
    assert [release.name for release in certificate.releases] == ["count", "centre", "sums", "calibration"]
    assert len(Count.seen) == 1
    assert 0.99 * WHOLE < certificate.price.picorho <= WHOLE
    assert load_model(tmp_path / "model").certificate == certificate


def test_two_steps_cannot_both_take_all_that_others_leave():
    numbers = PublicNumbers(2, Identity(lower=(0.0,), upper=(1.0,), clip_norm=1.0, bias=0.0))
    with pytest.raises(ValueError, match="sums and weights each take all that other steps leave"):
        divided((TOTALS, WEIGHTS), WHOLE, numbers)


class UnprovenSums(ClassSums):
    """The options of such sums."""


class UnprovenKind(ClassSumsKind):
    """Class sums whose certificate says that they cost less."""

    name = "unproven-sums"
    options = UnprovenSums

    def train(self, job, options):
        """Return another certificate than was sealed."""
        return super().train(job, options).model_copy(update={"cost": "gaussian:0.1"})


def test_a_model_that_its_own_certificate_refuses_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_kinds", {**registry.all_kinds(), "unproven-sums": UnprovenKind()})
    with pytest.raises(TrainingError, match="no proof, and was not kept"):
        trained(tmp_path, UnprovenSums())
    assert not (tmp_path / "model").exists()


def test_releases_in_another_order_or_twice_or_of_other_records_do_not_hold(tmp_path):
    certificate = trained(tmp_path, Weights(lam=4.0))
    assert isinstance(certificate, WeightsCertificate)
    first, *others = certificate.releases
    beside = first.model_copy(update={"part": "held back"})
    for releases in ((*others, first), (first, first, *others), (beside, *others), ()):
        with pytest.raises(BundleError, match="does not hold"):
            certificate.model_copy(update={"releases": releases}).verify()


@pytest.mark.parametrize("cost", ["claimed-gaussian:0.5", "laplace:0.5", "gaussian:0.5,gaussian:0.5", "sgm:1.0:0.1"])
def test_a_release_of_another_law_than_its_steps_does_not_hold(tmp_path, cost):
    certificate = trained(tmp_path, Weights(lam=4.0))
    first, *others = certificate.releases
    made = certificate.model_copy(update={"releases": (first.model_copy(update={"cost": cost}), *others)})
    made = made.model_copy(update={"cost": str(made.whole_cost())})
    with pytest.raises(BundleError, match="does not hold"):
        made.verify()


def test_a_certificate_costs_what_its_releases_cost(tmp_path):
    certificate = trained(tmp_path, Weights(lam=4.0))
    assert certificate.price == Cost(tuple(loss for each in certificate.releases for loss in each.price.losses))
    with pytest.raises(BundleError, match="cost is"):
        certificate.model_copy(update={"cost": certificate.releases[0].cost}).verify()
