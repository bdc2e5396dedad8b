"""Training on noisy quantiles: one price for the quantiles and the model, kind by kind, and where they are refused."""

import numpy as np
import pytest

from dpserve import ClassSums
from dpserve.accounting.losses import Cost
from dpserve.audit.membership.shadow_models import OwnRecipe
from dpserve.mechanisms.gaussian_vector import LEAST_PRICE, mu_for, whole_picorho
from dpserve.training.errors import BundleError, DataError, TrainingError, WrongOption
from dpserve.training.feature_choice import QuantileFeatures
from dpserve.training.features.maps import Quantiles
from dpserve.training.features.quantiles import CELLS, QUANTILE_SHARE, makes_cells
from dpserve.training.fit import Request, fit
from dpserve.training.fitting import histograms
from dpserve.training.fitting.histograms import cut_at_quantiles
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.cuts import CUTS
from tests.seeded import Seeded
from tests.training.conftest import terms

WHOLE = whole_picorho("rho:1")
OPTIONS = {
    "class-sums": {"price": WHOLE, "n": 400},
    "weights": {"price": WHOLE, "lam": 4.0},
    "dpsgd": {"price": WHOLE, "n": 400, "steps": 20},
}
QUANTILES = QuantileFeatures()


def records(units=None, n=400):
    """Return records of two numbers, one of them skewed over bounds much too wide, of which the label follows."""
    generator = np.random.default_rng(0)
    X = np.column_stack([generator.lognormal(size=n), generator.uniform(size=n)])
    y = (X[:, 0] > 1.0).astype(np.int64)
    declaration = Declaration(("income", "share"), (0.0, 0.0), (1000.0, 1.0), ("low", "high"))
    return Records(X, y, declaration, tuple(row.tobytes() for row in X), units)


def asked(kind, features=QUANTILES, **options):
    own, more = terms(kind, OPTIONS.get(kind, {}) | options)
    return Request(name="m", lineage="l", kind=own, features=features, **more)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_model_and_its_quantiles_cost_one_price(kind, tmp_path):
    certificate = fit(records(), asked(kind), tmp_path / "m", state=tmp_path).certificate
    assert isinstance(certificate, ReleaseCertificate)
    quantiles, *others = Cost.parse(certificate.cost).losses
    assert quantiles.mu == certificate.feature_map.released.mu == mu_for(int(WHOLE * QUANTILE_SHARE))
    assert tuple(others) == certificate.cost_as_candidate("lam").losses
    assert 0.98 * WHOLE < Cost.parse(certificate.cost).picorho <= WHOLE
    assert set(CUTS.assumptions) <= set(certificate.assumptions)
    model = load_model(tmp_path / "m")
    assert model.values(records().X).argmax(axis=1).tolist() != [0] * 400


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_certificate_that_says_less_of_the_quantiles_does_not_hold(kind, tmp_path):
    certificate = fit(records(), asked(kind), tmp_path / "m", state=tmp_path).certificate
    released = certificate.feature_map.released
    cheaper = released.model_copy(update={"mu": released.mu / 2})
    for update in (None, cheaper):
        feature_map = Quantiles.model_validate(certificate.feature_map.model_dump(exclude={"released"}))
        if update is not None:
            feature_map = Quantiles.model_validate(feature_map.model_dump() | {"released": update.model_dump()})
        with pytest.raises(BundleError, match="does not hold"):
            certificate.model_copy(update={"feature_map": feature_map}).verify()


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_attacker_trains_alike_where_records_were_held_back_too(kind, tmp_path):
    """The price of a model alike is that of its training: what was counted of records held back stands beside it."""
    request = asked(kind).replaced(prediction_sets="all")
    certificate = fit(records(), request, tmp_path / "m", state=tmp_path).certificate
    assert OwnRecipe(certificate.shown_to_strangers()).trainer is not None


def test_units_are_protected_as_a_whole(tmp_path):
    units = Units("who", np.arange(400) // 4, np.arange(1600, dtype=np.uint8).reshape(100, 16))
    for kind in OPTIONS:
        certificate = fit(records(units), asked(kind), tmp_path / kind, state=tmp_path / f"{kind}-state").certificate
        assert certificate.unit == "who"
        assert Cost.parse(certificate.cost).picorho <= WHOLE


def test_strangers_are_not_shown_the_cuts(tmp_path):
    certificate = fit(records(), asked("class-sums"), tmp_path / "m", state=tmp_path).certificate
    shown = certificate.shown_to_strangers()["feature_map"]["released"]
    assert "cuts" not in shown
    assert shown["mu"] == certificate.feature_map.released.mu
    assert certificate.public()["feature_map"]["released"]["cuts"]


def test_even_cuts_cost_nothing(tmp_path):
    even = QuantileFeatures(quantile_share=0.0)
    certificate = fit(records(), asked("weights", even), tmp_path / "m", state=tmp_path).certificate
    assert certificate.feature_map.released is None
    assert certificate.feature_map.cuts[0] == tuple(part / 32 for part in range(1, 32))
    assert certificate.release_of(CUTS) is None


def test_a_head_cannot_have_quantiles(tmp_path):
    with pytest.raises(WrongOption) as refused:
        fit(records(), asked(None, lam=1.0), tmp_path / "m", state=tmp_path)
    assert refused.value.field == "features"
    assert not (tmp_path / "m").exists()


def test_a_price_per_answer_covers_no_quantiles():
    cut = cut_at_quantiles(
        Quantiles(lower=(0.0, 0.0), upper=(1000.0, 1.0), bias=0.0), records(), WHOLE, WHOLE, Seeded(1)
    )
    head = train_head(records(), Recipe("m", cut, 1.0), "l")
    with pytest.raises(BundleError, match="does not cover"):
        head.certificate.verify()


@pytest.mark.parametrize(
    ("features", "asked_for", "wrong"),
    [
        (QUANTILES, {"kind": ClassSums(), "price": LEAST_PRICE * 2 - 1}, "quantile_share"),
        (QUANTILES, {"n": 400, "price": WHOLE}, "kind"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(features, asked_for, wrong, tmp_path):
    with pytest.raises(WrongOption) as refused:
        fit(records(), Request(name="m", lineage="l", features=features, **asked_for), tmp_path / "m", state=tmp_path)
    assert refused.value.field == wrong


@pytest.mark.parametrize("bounds", [(0.0, np.inf), (1.0, 1.0), (np.nan, 1.0), (-1e308, 1e308)])
def test_bounds_that_make_no_histogram_are_refused_by_the_columns_name(bounds):
    with pytest.raises(DataError, match="'income'"):
        Declaration(("income",), (bounds[0],), (bounds[1],), ("low", "high"))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e-320), (1e16, 1e16 + 10), (-1e-320, 1e-320)])
def test_a_range_of_fewer_doubles_than_cells_buys_no_counts(low, high, tmp_path, monkeypatch):
    monkeypatch.setattr(histograms, "counts_of", lambda *_: pytest.fail("records were counted"))
    X = np.random.default_rng(0).choice([low, high], size=(400, 1))
    declaration = Declaration(("dose",), (low,), (high,), ("low", "high"))
    given = Records(X, (X[:, 0] == high).astype(np.int64), declaration, tuple(map(bytes, X)), None)
    with pytest.raises(TrainingError, match="bounds of 'dose' make no histogram"):
        fit(given, asked("weights"), tmp_path / "m", state=tmp_path)


def test_a_range_has_a_double_for_each_cell_or_not():
    assert makes_cells(1.0, 1.0 + CELLS * 2.0**-52)
    assert not makes_cells(1.0, 1.0 + (CELLS - 1) * 2.0**-52)
    assert makes_cells(-1.0 - CELLS * 2.0**-52, -1.0)
    assert makes_cells(-1.0, 1.0)
    tiny = 5e-324
    assert makes_cells(-tiny * (CELLS // 2), tiny * (CELLS // 2))
    assert not makes_cells(-tiny * (CELLS // 2 - 1), tiny * (CELLS // 2))
