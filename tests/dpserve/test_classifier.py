"""The estimator: scikit-learn's conventions, and what privacy takes from them."""

import asyncio
import json
import pickle
import subprocess
import sys
import warnings
from contextlib import contextmanager
from itertools import count

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from typer.testing import CliRunner

from dpserve import (
    DPSGD,
    Blocks,
    BudgetExhausted,
    Client,
    Levels,
    Lineage,
    Number,
    PrivacyWarning,
    PrivateClassifier,
    Schema,
)
from dpserve.accounting.ledger import Ledger
from dpserve.accounting.ledger.embedded import EmbeddedStore
from dpserve.accounting.picorho import to_rho
from dpserve.cli import app
from dpserve.kept_fits import KeptFit
from dpserve.mechanisms.gaussian_vector import picorho_for
from dpserve.training.errors import WrongOption
from dpserve.training.export.files import exported
from dpserve.training.kinds.loading import load_model
from tests.dpserve.estimators import estimator
from tests.training.text_encoders import write_encoder

pytestmark = pytest.mark.filterwarnings("ignore::dpserve.training.errors.PrivacyWarning")
"""Accuracy on the training records is asked for in many tests. Those of the warning look for it."""

GENERATOR = np.random.default_rng(0)
SIDE = np.repeat([-1.0, 1.0], 200)
X = SIDE[:, None] * GENERATOR.uniform(0.3, 0.9, size=(400, 2))
"""Two clusters, so far apart that no noise of these tests mixes them: it is many times smaller than their sums."""
Y = np.where(SIDE > 0, "yes", "no")
FRAME = pd.DataFrame({"age": X[:, 0], "income": X[:, 1], "ok": Y}, index=range(1000, 1400))
ROWS = FRAME[["age", "income"]]
_names = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with EmbeddedStore(tmp_path_factory.mktemp("ledger")) as opened:
        yield opened.url


@pytest.fixture
def home(store, tmp_path, monkeypatch):
    """An owner's state folder, beside a ledger that is running."""
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPSERVE_LEDGER", store)
    return tmp_path


@pytest.fixture
def declared(home):
    """Parameters of an estimator on a lineage of the test's own."""
    return {
        "lineage": f"people-{next(_names)}",
        "budget": (4, 1e-6),
        "kind": "class-sums",
        "epsilon": 2,
        "delta": 1e-6,
        "bounds": (-1, 1),
        "classes": ["yes", "no"],
    }


@pytest.fixture
def spent(store):
    """Return what a lineage spent, in rho."""

    async def read(lineage):
        async with Ledger.open(store) as ledger:
            return to_rho((await ledger.lineage(lineage)).spent)

    return lambda declared: asyncio.run(read(declared["lineage"]))


@pytest.fixture
def opened(store):
    """Tell whether a lineage has an account."""

    async def read(lineage):
        async with Ledger.open(store) as ledger:
            return lineage in [each.lineage for each in await ledger.lineages()]

    return lambda lineage: asyncio.run(read(lineage))


def test_a_fitted_model_predicts_and_was_paid_for(declared, spent):
    model = estimator(**declared).fit(X, Y)
    assert is_classifier(model)
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.n_features_in_, hasattr(model, "feature_names_in_")) == (2, False)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(axis=1)])
    assert model.score(X, Y) == np.mean(model.predict(X) == Y) > 0.8
    assert model.certificate_.lineage == declared["lineage"]
    assert model.charged_rho_ == spent(declared) > 0
    assert "class-sums, paid once" in repr(model)


def test_parameters_stay_as_they_were_given(declared):
    model = estimator(**declared)
    before = {name: id(value) for name, value in model.get_params(deep=False).items()}
    model.fit(FRAME, "ok")
    assert {name: id(value) for name, value in model.get_params(deep=False).items()} == before
    assert model.set_params(epsilon=1).epsilon == 1
    assert repr(PrivateClassifier(epsilon=1)) == "PrivateClassifier(epsilon=1)"


def test_parameters_of_a_value_are_set_by_replacing_it():
    kind = DPSGD(hidden=64)
    model = PrivateClassifier(Schema(classes=["a", "b"], bounds=(0, 1)), kind=kind, lineage=Lineage("x"))
    assert model.get_params()["kind__hidden"] == 64
    model.set_params(kind__hidden=3, kind__steps=5, schema__clip=True, lineage__epsilon=2, n=7)
    assert (model.kind, kind) == (DPSGD(hidden=3, steps=5), DPSGD(hidden=64))
    assert (model.schema.clip, model.lineage.epsilon, model.n) == (True, 2.0, 7)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match=r"kind='auto' has no parameters of its own"):
        PrivateClassifier().set_params(kind__hidden=3)
    with pytest.raises(ValueError, match="hidden=-1 must be at least 0"):
        model.set_params(kind__hidden=-1)
    with pytest.raises(ValueError, match="'kin': did you mean 'kind'"):
        model.set_params(kin__hidden=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("epsilom", "did you mean 'epsilon'"),
        ("bounds", r"it is one of schema=Schema\(bounds=...\)"),
        ("lam", r"it is one of kind=Weights\(lam=...\)"),
        ("block", r"lineage=Lineage\(blocks=Blocks\(block=...\)\)"),
        ("class_weight", "a record counts once"),
        ("xyzzy", "there are schema, epsilon"),
    ],
)
def test_an_unknown_parameter_is_answered_with_what_was_meant(name, said):
    with pytest.raises(TypeError, match=said):
        PrivateClassifier(**{name: 1})
    with pytest.raises(WrongOption, match="is no option of DPSGD: did you mean `hidden`"):
        DPSGD(hiden=3)


@pytest.mark.parametrize("made", [pd.DataFrame, pl.DataFrame, pa.table])
def test_every_kind_of_table_is_fitted_and_matched_by_name(declared, made):
    columns = {name: FRAME[name].tolist() for name in FRAME}
    model = estimator(**declared).fit(made(columns), "ok")
    assert model.feature_names_in_.tolist() == ["age", "income"]
    assert model.certificate_.feature_names == ("age", "income")
    answers = model.predict_proba(made({name: columns[name] for name in ("age", "income")}))
    np.testing.assert_array_equal(model.predict_proba(made({n: columns[n] for n in ("income", "age")})), answers)
    with pytest.raises(
        ValueError, match=r"(?s)match those that were passed.*unseen at fit time:\n- x\n.*missing:\n- income"
    ):
        model.predict(made({"age": [0.0], "x": [0.0]}))


@pytest.mark.parametrize("made", [pd.DataFrame, lambda columns: pd.DataFrame(columns).to_dict("records")])
def test_rows_may_have_what_the_fit_took_beside_features(declared, made):
    columns = {name: FRAME[name].tolist() for name in FRAME} | {"pid": list(range(len(FRAME)))}
    model = estimator(**declared, id="pid").fit(pd.DataFrame(columns), "ok")
    features = {name: columns[name] for name in ("age", "income")}
    with_key = features | {"pid": columns["pid"]}
    np.testing.assert_array_equal(model.predict_proba(made(with_key)), model.predict_proba(made(features)))
    with pytest.raises(ValueError, match="unseen at fit time"):
        model.predict(made(with_key | {"other": columns["age"]}))


def test_a_file_is_read_as_the_command_reads_it(declared, home):
    FRAME.to_csv(home / "records.csv", index=False)
    model = estimator(**declared).fit(home / "records.csv", "ok")
    assert model.feature_names_in_.tolist() == ["age", "income"]
    assert model.score(ROWS, Y) > 0.8


SCHEMA = {
    "fields": [
        {"name": "age", "type": "number", "constraints": {"minimum": -1, "maximum": 1}},
        {"name": "city", "type": "string", "constraints": {"enum": ["Oslo", "Lima"], "required": True}},
        {"name": "since", "type": "date", "constraints": {"minimum": "2000-01-01", "maximum": "2030-01-01"}},
        {"name": "ok", "type": "string", "constraints": {"enum": ["yes", "no"]}},
    ],
    "fieldsMatch": "subset",
}


def answered_elsewhere(bundle, rows):
    """Answers to rows by name in another process, which has read nothing but the bundle."""
    asked = (
        "import json, sys; from pathlib import Path; from dpserve.training.inputs.columns import encode_rows; "
        "from dpserve.training.kinds.loading import load_model; model = load_model(Path(sys.argv[1])); "
        "print(model.values(encode_rows(model.certificate.columns, json.loads(sys.argv[2]))).tolist())"
    )
    command = [sys.executable, "-c", asked, str(bundle), json.dumps(rows)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_texts_may_be_encoded_by_an_encoder_which_lies_in_the_bundle(declared, home):
    text = {"name": "said", "type": "string", "text": {"encoder": str(write_encoder(home / "tiny"))}}
    schema = {"fields": [text, {"name": "ok", "type": "string", "constraints": {"enum": ["yes", "no"]}}]}
    declared |= {"columns": schema, "bounds": None, "classes": None, "epsilon": 4}
    table = pd.DataFrame({"said": ["a good cat", "bad dogs"] * 400, "ok": ["yes", "no"] * 400})
    model = estimator(**declared).fit(table, "ok")
    rows = [{"said": "a good cat"}, {"said": "bad dogs"}, {"said": None}]
    answers = model.predict_proba(rows)
    assert model.predict(rows).tolist()[:2] == ["yes", "no"]
    model.save(home / "bundle")
    elsewhere = np.array(answered_elsewhere(home / "bundle", rows))[:, ::-1]  # whose classes are in another order
    np.testing.assert_allclose(elsewhere, answers, rtol=1e-9)
    said = CliRunner().invoke(app, ["inspect", str(home / "bundle")]).output
    assert "texts' encoder, declared public" in said
    assert "tiny, SHA-256" in said
    content = exported(load_model(home / "bundle"), "safetensors").content
    assert load_model(home / "bundle").certificate.columns[0].encoder.model_sha256.encode() in content


def test_a_schema_declares_every_column(declared):
    table = FRAME.assign(city=["Oslo", "Lima"] * 200, since=pd.Timestamp("2020-02-03"), note="of no use")
    table.loc[1000, "age"] = None
    declared |= {"columns": SCHEMA, "bounds": None, "classes": None}
    model = estimator(**declared).fit(table, "ok")
    assert model.feature_names_in_.tolist() == ["age", "city", "since"]
    assert model.n_features_in_ == 3
    frame = table[["since", "age", "city"]]
    answers = model.predict_proba(frame)
    assert answers.shape == (400, 2)
    by_name = [{"age": None, "city": "Oslo", "since": "2020-02-03"}]
    np.testing.assert_array_equal(model.predict_proba(by_name), answers[:1])
    with pytest.raises(ValueError, match="'Rome' is not one of Oslo, Lima"):
        model.predict([{"age": 0.5, "city": "Rome", "since": None}])
    with pytest.raises(ValueError, match="must be a data frame"):
        model.predict(np.zeros((1, 3)))
    apart = estimator(**declared | {"epsilon": 1, "again": True}).fit(table.drop(columns="ok"), table["ok"])
    assert apart.classes_.tolist() == ["no", "yes"]
    # Rows that were picked have an index, which is no column.
    np.testing.assert_array_equal(model.predict_proba(frame.iloc[[7, 3]]), answers[[7, 3]])


def test_many_classes_of_many_booleans_get_class_sums_by_rule(declared):
    rng = np.random.default_rng(0)
    groups = np.arange(400) % 10
    words = pd.DataFrame(rng.random((10, 130))[groups] > 0.5).add_prefix("word")
    schema = {"fields": [{"name": name, "type": "boolean"} for name in words], "fieldsMatch": "subset"}
    declared |= {"kind": "auto", "columns": schema, "bounds": None, "classes": [f"g{each}" for each in range(10)]}
    model = estimator(**declared, n=400).fit(words, np.array([f"g{each}" for each in groups]))
    assert (model.certificate_.release, model.certificate_.feature_map.kind) == ("class-sums", "identity")


LABELS = {
    "booleans": (Y == "yes", None, [False, True]),
    "booleans of pandas": (pd.Series(Y == "yes", dtype="boolean"), None, [False, True]),
    "integers": ((Y == "yes").astype(int), [0, 1], [0, 1]),
    "integers with names": ((Y == "yes").astype(int), {1: "well", 0: "ill"}, [0, 1]),
    "numbers": ((Y == "yes").astype(float), [0, 1], [0, 1]),
    "numbers written as such": ((Y == "yes").astype(float), [0.0, 1.0], [0.0, 1.0]),
    "texts": (Y, ["yes", "no"], ["no", "yes"]),
    "categories": (pd.Series(pd.Categorical(Y)), ["yes", "no"], ["no", "yes"]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_classes_are_the_values_of_y_beside_a_schema_of_the_features(declared, kind):
    y, classes, values = LABELS[kind]
    features = {"fields": SCHEMA["fields"][:1], "fieldsMatch": "subset"}
    declared |= {"columns": features, "bounds": None, "classes": classes}
    model = estimator(**declared).fit(FRAME, y)
    assert model.classes_.tolist() == values
    assert type(model.classes_.tolist()[0]) is type(values[0])
    assert model.score(FRAME[["age"]], y) == np.mean(model.predict(FRAME[["age"]]) == np.asarray(y)) > 0.6


@pytest.mark.parametrize("kind", ["booleans", "booleans of pandas", "texts"])
def test_classes_are_the_values_of_a_column_that_the_schema_describes(declared, kind):
    y, _, values = LABELS[kind]
    of_y = {"type": "boolean"} if values[0] is False else {"type": "string", "constraints": {"enum": ["yes", "no"]}}
    content = {"fields": [SCHEMA["fields"][0], {"name": "ok", **of_y}], "fieldsMatch": "subset"}
    declared |= {"columns": content, "bounds": None, "classes": None}
    model = estimator(**declared).fit(FRAME.reset_index(drop=True).assign(ok=y), "ok")
    assert model.classes_.tolist() == values
    assert model.score(FRAME[["age"]], y) > 0.6


def test_what_y_may_be_is_declared_and_by_one_thing(declared):
    declared |= {"bounds": None, "classes": None, "columns": {"fields": SCHEMA["fields"][:1], "fieldsMatch": "subset"}}
    with pytest.raises(ValueError, match="declare the classes of y"):
        estimator(**declared).fit(FRAME[["age"]], (Y == "yes").astype(int))
    declared |= {"columns": SCHEMA, "classes": ["yes", "no"]}
    with pytest.raises(ValueError, match="leave classes= out"):
        estimator(**declared).fit(FRAME, "ok")


def test_weights_are_refused_with_the_reason(declared, home):
    with pytest.raises(ValueError, match="a record counts once"):
        estimator(**declared).fit(FRAME, "ok", sample_weight=np.ones(len(FRAME)))
    with pytest.raises(TypeError, match="a record counts once"):
        estimator(**declared, class_weight="balanced")
    with pytest.raises(TypeError, match="unexpected"):
        estimator(**declared).fit(FRAME, "ok", weight=1)
    assert not (home / "home" / "trained").exists()


def test_a_model_whose_answers_are_paid_for_one_by_one_answers_nothing_here(declared, home):
    head = {"kind": "head", "lam": 5.0}
    model = estimator(**declared | head | {"epsilon": None, "delta": None}).fit(X, Y)
    with pytest.raises(ValueError, match="serve the bundle with 'dpserve serve'"):
        model.predict(X)
    assert model.charged_rho_ == 0
    assert load_model(model.save(home / "bundle")).certificate == model.certificate_
    assert "each answer is paid for" in repr(model)
    model.fit(X, Y)  # which costs nothing
    with pytest.raises(ValueError, match="epsilon= is for models that are paid for once"):
        estimator(**declared | head).fit(X, Y)


class TestRefits:
    """Each fit is a release: none happens without a word."""

    def test_the_same_fit_again_is_the_model_that_was_paid_for(self, declared, spent):
        model = estimator(**declared).fit(X, Y)
        once = spent(declared)
        before = model.predict_proba(X)
        order = np.random.default_rng(1).permutation(len(X))
        without_budget = estimator(**declared | {"budget": None})  # as where the owner has raised it since
        for again in (model, estimator(**declared), without_budget):
            again.fit(X[order], Y[order])
            assert (again.charged_rho_, spent(declared)) == (0, once)
            np.testing.assert_array_equal(again.predict_proba(X), before)

    @pytest.mark.parametrize("changed", [{"epsilon": 1}, {"name": "other"}, {"bounds": (-2, 2)}, {"canaries": 64}])
    def test_other_options_for_the_same_records_are_asked_about(self, declared, spent, changed):
        estimator(**declared).fit(X, Y)
        once = spent(declared)
        with pytest.raises(ValueError, match=r"charge the lineage again: say so with again=True"):
            estimator(**declared | changed).fit(X, Y)
        with pytest.raises(ValueError, match=r"again=True"):
            estimator(**declared).fit(X[1:], Y[1:])  # some of the records
        assert spent(declared) == once
        estimator(**declared | changed | {"epsilon": 0.5, "again": True}).fit(X, Y)
        assert spent(declared) > once

    def test_the_same_records_in_another_form_are_the_same_fit(self, declared, spent):
        named = declared | {"bounds": {"age": (-1, 1), "income": (-1, 1)}, "label": "ok"}
        estimator(**named).fit(FRAME, "ok")
        once = spent(declared)
        with no_privacy_warning():
            for rows, y in ((ROWS, FRAME["ok"]), (ROWS, Y), (X, Y)):
                assert estimator(**named).fit(rows, y).charged_rho_ == 0
        with pytest.warns(PrivacyWarning, match="of none of these records.*x0 and so on in an array"):
            estimator(**declared | {"epsilon": 1}).fit(X, Y)
        assert spent(declared) > once

    def test_a_fit_that_was_not_paid_for_is_no_fit(self, declared, spent, home):
        """A refused fit keeps nothing, and a smaller one of the records is their first."""
        with pytest.raises(BudgetExhausted):
            estimator(**declared | {"epsilon": 5}).fit(X, Y)
        assert not list((home / "home" / "fits").rglob("certificate.json"))
        assert estimator(**declared).fit(X, Y).charged_rho_ == spent(declared) > 0

    def test_a_fit_that_ended_before_it_was_charged_is_charged_when_it_is_asked_for_again(
        self, declared, spent, opened, monkeypatch
    ):
        def killed(*_):
            raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr(KeptFit, "drop", lambda *_: None)
            patched.setattr("dpserve.classifier.charge_model", killed)
            with pytest.raises(SystemExit):
                estimator(**declared).fit(X, Y)
        assert not opened(declared["lineage"])
        model = estimator(**declared).fit(X, Y)
        assert model.charged_rho_ == spent(declared) > 0

    def test_the_cost_is_known_before_and_charges_nothing(self, declared, spent, opened):
        model = estimator(**declared)
        cost = model.cost()
        assert not opened(declared["lineage"])
        assert (cost.epsilon, cost.delta, cost.is_paid) == (2, 1e-6, True)
        model.fit(X, Y)
        assert cost.rho == pytest.approx(spent(declared))
        left = estimator(**declared | {"epsilon": 3.9}).cost()
        assert left.left_rho[""] == pytest.approx(cost.left_rho[""] - cost.rho)
        assert not left.is_paid
        with pytest.raises(ValueError, match="epsilon= is needed"):
            estimator(**declared | {"epsilon": None, "delta": None}).cost()

    def test_a_delta_that_protects_few_is_warned_of(self, declared):
        with pytest.warns(PrivacyWarning, match=r"delta=0.5 is above 0.0025, which is 1 / n=: .* about 200 records"):
            estimator(**declared | {"delta": 0.5, "n": 400}).cost()
        with no_privacy_warning():
            estimator(**declared | {"n": 400}).cost()

    def test_a_clone_is_not_fitted(self, declared):
        copied = clone(estimator(**declared))
        assert copied.get_params() == estimator(**declared).get_params()
        for made in (copied, clone(copied), pickle.loads(pickle.dumps(copied))):
            with pytest.raises(ValueError, match="This is a clone, as a search or a cross-validation makes one"):
                made.fit(X, Y)

    def test_a_search_spends_nothing(self, declared, home):
        search = GridSearchCV(estimator(**declared), {"epsilon": [0.5, 1]}, cv=2)
        with pytest.raises(ValueError, match="This is a clone"):
            search.fit(X, Y)
        assert not (home / "home" / "trained").exists()

    def test_a_pipeline_fits_the_classifier_it_was_given(self, declared, spent):
        pipeline = make_pipeline(FunctionTransformer(np.negative), estimator(**declared)).fit(X, Y)
        assert pipeline.predict(X).shape == (400,)
        assert spent(declared) > 0

    def test_every_fit_is_charged_where_the_owner_says_so(self, declared, spent):
        model = estimator(**declared | {"epsilon": 1, "again": True}).fit(X, Y)
        again = clone(model).fit(X, Y)
        assert spent(declared) == pytest.approx(2 * model.charged_rho_)
        assert again.certificate_.model_id != model.certificate_.model_id
        assert not np.array_equal(again.predict_proba(X), model.predict_proba(X))


@contextmanager
def no_privacy_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        yield


class TestWhatNoBudgetCovers:
    """The owner hears of steps beside the model that use the records, where they can be seen."""

    @pytest.mark.parametrize(
        ("steps", "said"),
        [
            ((StandardScaler(),), "the steps 'standardscaler' of the pipeline"),
            ((SimpleImputer(), FunctionTransformer(), StandardScaler()), "'simpleimputer', 'standardscaler'"),
            ((make_column_transformer((StandardScaler(), [0]), remainder="passthrough"),), "'columntransformer'"),
        ],
    )
    def test_a_pipelines_steps_that_learn_from_the_records_are_named(self, declared, steps, said):
        last = make_pipeline("passthrough", estimator(**declared | {"bounds": (-9, 9)}))
        with pytest.warns(PrivacyWarning, match=said):
            make_pipeline(*steps, last).fit(X, Y)

    def test_a_pipelines_steps_that_learn_nothing_are_fine(self, declared):
        steps = (FunctionTransformer(), Normalizer(), make_column_transformer((FunctionTransformer(), [0, 1])))
        with no_privacy_warning():
            make_pipeline(*steps, estimator(**declared)).fit(X, Y)

    def test_a_clones_fit_is_one_whose_use_no_budget_covers(self, declared, spent):
        made = estimator(**declared | {"epsilon": 0.5, "again": True})
        with pytest.warns(PrivacyWarning, match="they choose by exact scores"):
            GridSearchCV(made, {"schema__clip": [False, True]}, cv=2).fit(X, Y)
        once = spent(declared)
        for fitted in (
            lambda: CalibratedClassifierCV(made, cv=2).fit(X, Y),
            lambda: cross_val_predict(made, X, Y, cv=2),
        ):
            with pytest.warns(PrivacyWarning, match="fit calibrators to exact labels"):
                fitted()
        assert spent(declared) > once
        with no_privacy_warning():
            made.fit(X, Y)

    def test_an_exact_score_on_records_is_named(self, declared, home):
        model = estimator(**declared).fit(FRAME, "ok")
        apart = estimator(**declared | {"epsilon": 1, "classes": {1: "yes", 0: "no"}, "again": True})
        apart.fit(ROWS, (Y == "yes").astype(int))
        loaded = PrivateClassifier.load(
            estimator(**declared | {"epsilon": 1, "again": True}).fit(X, Y).save(home / "bundle")
        )
        numbers = (Y == "yes").astype(int)
        for known, rows, y in ((apart, ROWS, numbers), (loaded, X, Y)):
            with pytest.warns(PrivacyWarning, match="400 of the 400 rows are records of the lineage 'people"):
                known.score(rows, y)
        with pytest.warns(PrivacyWarning, match="rows are records"):
            permutation_importance(apart, ROWS[::2], numbers[::2], n_repeats=1, random_state=0)
        with no_privacy_warning():
            model.score(ROWS * 0.99, Y)
            assert model.predict(ROWS).shape == (400,)


class TestMissingValues:
    """The value of a missing value is declared, and is the same in training and in every row that is asked."""

    HOLES = np.where(np.arange(800).reshape(400, 2) % 14 == 0, np.nan, X)

    @pytest.mark.parametrize(
        ("made", "missing"),
        [(np.asarray, 0.25), (pd.DataFrame, "level"), (pl.DataFrame, {"x0": 0.25}), (np.asarray, {"x0": "level"})],
    )
    def test_it_is_declared_by_a_value_or_as_a_level(self, declared, made, missing):
        table = self.HOLES if made is np.asarray else made({"x0": self.HOLES[:, 0], "x1": self.HOLES[:, 1]})
        model = estimator(**declared, missing=missing).fit(table, Y)
        assert model.n_features_in_ == 2
        answers = model.predict_proba(table)
        by_name = [{"x0": None, "x1": float(X[0, 1])}]
        np.testing.assert_array_equal(model.predict_proba(by_name), answers[:1])
        counted = [by_name[0] | {"x0": 0.25}]
        is_level = missing == "level" or missing == {"x0": "level"}
        assert np.array_equal(model.predict_proba(counted), answers[:1]) != is_level
        if isinstance(missing, dict):
            with pytest.raises(ValueError, match="a value is required"):
                model.predict([{"x0": 0.5, "x1": None}])

    def test_without_it_a_missing_value_is_refused_with_what_to_do(self, declared):
        with pytest.raises(ValueError, match=r"contains NaN.*Schema\(missing=...\) declares"):
            estimator(**declared).fit(self.HOLES, Y)
        with pytest.raises(ValueError, match=r"(?s)a value is required.*Schema\(missing=\{COLUMN: VALUE\}\)"):
            estimator(**declared).fit(pd.DataFrame(self.HOLES, columns=["a", "b"]), Y)
        model = estimator(**declared).fit(X, Y)
        with pytest.raises(ValueError, match=r"contains NaN.*Schema\(missing=...\) declares"):
            model.predict(self.HOLES)

    def test_it_takes_the_place_of_what_a_schema_says(self, declared):
        table = FRAME.assign(city=["Oslo", "Lima"] * 200, since=pd.Timestamp("2020-02-03"))
        table.loc[1000, ["age", "since"]] = None
        declared |= {"columns": SCHEMA, "bounds": None, "classes": None}
        model = estimator(**declared, missing={"age": -0.5, "since": "2020-02-03"}).fit(table, "ok")
        row = {"age": None, "city": "Oslo", "since": None}
        counted = {"age": -0.5, "city": "Oslo", "since": "2020-02-03"}
        np.testing.assert_array_equal(model.predict_proba([row]), model.predict_proba([counted]))
        with pytest.raises(ValueError, match=r"Schema\(missing={age: 7}\): 7\.0 is above the declared bound 1"):
            estimator(**declared, missing={"age": 7}).fit(table, "ok")


class TestTheAccount:
    """A model that the lineage's account does not pay for leaves nothing."""

    def test_without_one_nothing_is_trained(self, declared, home):
        with pytest.raises(ValueError, match=r"has no budget yet.*Lineage\(NAME, epsilon=, delta=\)"):
            estimator(**declared | {"budget": None}).fit(X, Y)
        assert not (home / "home" / "trained").exists()

    def test_another_budget_than_it_has_is_refused(self, declared):
        estimator(**declared).fit(X, Y)
        with pytest.raises(ValueError, match=r"has another budget already; leave Lineage\("):
            estimator(**declared | {"budget": (5, 1e-6)}).fit(-X, Y)

    def test_a_fit_that_it_does_not_pay_for_leaves_no_model(self, declared, spent):
        estimator(**declared | {"epsilon": 3}).fit(X, Y)
        once = spent(declared)
        model = estimator(**declared | {"epsilon": 3, "again": True})
        with pytest.raises(BudgetExhausted, match="nothing was charged") as refused:
            model.fit(X, Y)
        assert refused.value.scope == "lineage"
        assert refused.value.cost > refused.value.remaining > 0
        assert spent(declared) == once
        with pytest.raises(NotFittedError):
            model.predict(X)

    def test_a_fit_that_fails_opens_none(self, declared, opened):
        for wrong, error in (
            ({"epsilon": 5}, BudgetExhausted),
            ({"budget": (4, 1e-300)}, ValueError),
            ({"bounds": (-0.001, 0.001)}, ValueError),
        ):
            with pytest.raises(error):
                estimator(**declared | wrong).fit(X, Y)
            assert not opened(declared["lineage"]), wrong
        estimator(**declared).fit(X, Y)
        others = declared | {"lineage": f"others-{next(_names)}"}
        with pytest.raises(ValueError, match="as well"):
            estimator(**others).fit(X, Y)
        assert not opened(others["lineage"])

    def test_what_others_spent_meanwhile_counts(self, declared, spent, monkeypatch):
        """The check before training is a courtesy: the charge after it decides."""

        estimator(**declared | {"epsilon": 3}).fit(X, Y)
        once = spent(declared)
        monkeypatch.setattr("dpserve.classifier.check_account", lambda *_: None)
        model = estimator(**declared | {"epsilon": 3, "again": True})
        with pytest.raises(BudgetExhausted, match="nothing was charged"):
            model.fit(X, Y)
        assert not hasattr(model, "certificate_")
        assert spent(declared) == once


def held_out(*months, sign=1.0):
    """A hundred records of each month, each with a person: two clusters again."""
    side = np.tile([-1.0, 1.0], 50 * len(months))
    numbers = sign * side[:, None] * np.random.default_rng(len(months)).uniform(0.3, 0.9, size=(len(side), 2))
    named = [(month, index) for month in months for index in range(100)]
    own = {"who": [f"{month}/{index}" for month, index in named]}
    own["day"] = [f"{month}-{1 + index % 28:02}" for month, index in named]
    return pd.DataFrame(
        {"age": numbers[:, 0], "income": numbers[:, 1], "ok": np.where(side * sign > 0, "yes", "no")} | own
    )


ONE = {"epsilon": 1.0, "delta": 1e-6}
"""The price of an evaluation in these tests."""


class TestEvaluations:
    """Figures as `dpserve evaluate` releases them, of rows in memory."""

    def test_it_has_noise_is_charged_to_the_held_out_lineage_and_is_saved_with_the_model(self, declared, spent, home):
        model = estimator(**declared).fit(FRAME, "ok")
        paid, held = spent(declared), f"held-{next(_names)}"
        rows = held_out("2026-09")
        evaluation = model.evaluate(
            rows[["income", "age"]], rows["ok"], lineage=Lineage(held, epsilon=4, delta=1e-6), **ONE
        )
        assert spent(declared) == paid
        cost = evaluation.law.cost.picorho
        assert spent({"lineage": held}) == to_rho(cost)
        assert 0.999 < cost / picorho_for(1.0, 1e-6) <= 1
        assert evaluation.accuracy.lower < 1 == evaluation.accuracy.upper
        assert evaluation.confusion[0][0].estimate % 1 != 0  # so it was not counted exactly
        assert evaluation.roc is not None
        assert "accuracy=Interval(" in repr(evaluation)
        assert "released" not in repr(evaluation)
        model.save(home / "bundle")
        inspected = CliRunner().invoke(app, ["inspect", str(home / "bundle"), "--json"])
        assert inspected.exit_code == 0
        assert json.loads(inspected.stdout)["evaluation"]["evaluation_id"] == evaluation.evaluation_id
        # An array without names, a file, and fewer parts.
        array = rows[["age", "income"]].to_numpy()
        fewer = model.evaluate(array, rows["ok"], lineage=held, report=["accuracy"], **ONE)
        assert (fewer.parts, fewer.log_loss) == (("accuracy",), None)
        rows[["age", "income", "ok"]].to_csv(home / "held.csv", index=False)
        loaded = PrivateClassifier.load(home / "bundle")
        assert loaded.evaluate(home / "held.csv", "ok", lineage=held, **ONE).records.upper > 100

    def test_values_of_y_are_those_of_the_training(self, declared):
        model = estimator(**declared | {"classes": {"0": "no", "1": "yes"}})
        model.fit(X, (Y == "yes").astype(int))
        confusion = model.evaluate(X, (Y == "yes").astype(int), **ONE).confusion
        assert confusion[0][0].estimate > 150 > 50 > confusion[0][1].estimate

    def test_records_of_another_lineage_are_refused_and_not_charged(self, declared, opened):
        model = estimator(**declared).fit(FRAME, "ok")
        others = {"lineage": Lineage(f"others-{next(_names)}", epsilon=4, delta=1e-6)}
        with pytest.raises(ValueError, match=r"trained on, or evaluated on, elsewhere.*add lineage="):
            model.evaluate(FRAME, "ok", **others, **ONE)
        assert not opened(others["lineage"].name)

    def test_what_an_account_does_not_pay_for_is_refused_and_charges_nothing(self, declared, spent, opened, home):
        model = estimator(**declared).fit(FRAME, "ok")
        paid = spent(declared)
        with pytest.raises(BudgetExhausted, match="nothing was charged for it") as refused:
            model.evaluate(FRAME, "ok", epsilon=4, delta=1e-6)
        assert refused.value.scope == "lineage"
        assert refused.value.cost > refused.value.remaining > 0
        assert spent(declared) == paid
        with pytest.raises(BudgetExhausted):
            model.evaluate(
                held_out("2026-09")[["age", "income", "ok"]],
                "ok",
                lineage=Lineage("poor", epsilon=0.5, delta=1e-6),
                **ONE,
            )
        assert not opened("poor")
        model.save(home / "bundle")
        assert not (home / "bundle" / "evaluation.json").exists()

    def test_a_model_of_units_in_blocks_is_evaluated_by_units_and_their_blocks_pay(self, declared, store):
        by_month = {"block": "day", "block_by": "month"}
        own = declared | {"unit": "who"}
        model = estimator(**own, **by_month, blocks="2026-09,2026-10").fit(held_out("2026-09", "2026-10"), "ok")

        def paying(budget=None, **blocks):
            terms = {"epsilon": 4, "delta": 1e-6} if budget else {}
            return {"lineage": Lineage(own["lineage"], blocks=Blocks(**blocks), **terms)}

        async def read():
            async with Ledger.open(store) as ledger:
                return {each.block: to_rho(each.spent) for each in await ledger.blocks(own["lineage"])}

        paid = asyncio.run(read())
        assert set(paid) == {"2026-09", "2026-10"}
        new = held_out("2026-11")
        with pytest.raises(ValueError, match=r"block 2026-11 .* has no budget yet.*Lineage\(epsilon=\)"):
            model.evaluate(new, "ok", **paying(**by_month, blocks="2026-11"), **ONE)
        with pytest.raises(ValueError, match="no budget but its blocks', and those that the held-out rows lie in pay"):
            model.evaluate(new, "ok", **ONE)
        with pytest.raises(ValueError, match="100 units of the block 2026-11 are in the block 2026-09, too"):
            model.evaluate(held_out("2026-09"), "ok", **paying(budget=True, block_name="2026-11"), **ONE)
        found = model.evaluate(new, "ok", **paying(budget=True, **by_month, blocks="2026-11"), **ONE)
        assert asyncio.run(read()) == paid | {"2026-11": to_rho(found.law.cost.picorho)}
        assert (found.unit, found.in_blocks) == ("who", True)
        one = model.evaluate(new.drop(columns="day"), "ok", **paying(block_name="2026-11"), **ONE)
        assert asyncio.run(read()) == paid | {"2026-11": 2 * to_rho(one.law.cost.picorho)}

    def test_a_model_whose_answers_are_paid_for_one_by_one_has_none(self, declared):
        model = estimator(**declared | {"kind": "head", "epsilon": None, "delta": None, "lam": 1.0}).fit(FRAME, "ok")
        with pytest.raises(ValueError, match="one by one"):
            model.evaluate(FRAME, "ok", **ONE)
        with pytest.raises(NotFittedError):
            estimator(**declared).evaluate(FRAME, "ok", **ONE)


class TestBundles:
    """A saved bundle is the one that the command writes."""

    def test_a_saved_model_is_served_at_no_further_cost(self, run, monkeypatch):
        monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
        monkeypatch.delenv("DPSERVE_LEDGER", raising=False)
        declared = {"lineage": "people", "budget": (4, 1e-6), "kind": "class-sums", "epsilon": 2}
        declared |= {"delta": 1e-6, "bounds": (-1, 1), "classes": ["yes", "no"]}
        model = estimator(**declared).fit(FRAME, "ok")
        bundle = model.save(run.folder / "bundle")
        assert (bundle.stat().st_mode & 0o777, (bundle / "certificate.json").stat().st_mode & 0o777) == (0o700, 0o600)
        with pytest.raises(ValueError, match=r"exists already, and is never overwritten: name a new one with path="):
            model.save(bundle)
        process, address = run.start(bundle, "--port", 0)
        key = run("clients", "add", "alice", "--epsilon", 4, "--delta", 1e-6).stdout.strip()
        with Client(address, key, sorted_classes=True) as client:
            np.testing.assert_allclose(client.predict_proba(ROWS[:5]), model.predict_proba(ROWS[:5]), rtol=1e-13)
        process.terminate()
        process.communicate(timeout=60)
        shown = run("lineage", "list", "--json").stdout
        assert f'"spent_picorho": {round(model.charged_rho_ * 1e12)}' in shown

    def test_a_loaded_model_answers_the_same_and_is_charged_once(self, declared, spent, home):
        model = estimator(**declared).fit(FRAME, "ok")
        once = spent(declared)
        again = PrivateClassifier.load(model.save(home / "bundle"))
        np.testing.assert_array_equal(again.predict_proba(ROWS), model.predict_proba(ROWS))
        assert again.feature_names_in_.tolist() == ["age", "income"]
        assert (again.charged_rho_, spent(declared)) == (0, once)
        with pytest.raises(ValueError, match="is not a bundle"):
            PrivateClassifier.load(home)

    def test_what_was_never_paid_for_is_paid_for_when_it_is_loaded(self, declared, spent, home, run):
        FRAME.to_csv(run.folder / "records.csv", index=False)
        words = ["--data", "records.csv", "--label", "ok", "--classes", "yes,no", "--bounds", "-1:1"]
        price = ["--epsilon", "2", "--delta", "1e-6"]
        run("train", "class-sums", *words, *price, "--lineage", declared["lineage"], "--out", "model")
        with pytest.raises(ValueError, match="has no budget"):
            PrivateClassifier.load(run.folder / "model")
        estimator(**declared | {"epsilon": 1}).fit(X[::2], Y[::2])  # opens it
        before = spent(declared)
        assert PrivateClassifier.load(run.folder / "model").charged_rho_ == pytest.approx(spent(declared) - before)
        assert spent(declared) > before

    def test_a_fitted_one_is_pickled_whole(self, declared):
        model = estimator(**declared).fit(X, Y)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))


LEVELS = {"age": Number(-1, 1), "income": Levels("Oslo", "Rome")}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lineage": None}, r"lineage= is needed: Lineage\("),
        ({"classes": None}, r"Schema\(classes=\) is needed"),
        (
            {"bounds": None, "classes": None, "lineage": None, "epsilon": None, "delta": None, "kind": "auto"},
            r"(?s)classes=.*age, income: give .*Number\(.*lineage=.*epsilon=.*n=.*schema init FILE",
        ),
        (
            {"delta": None, "lineage": None, "budget": None, "kind": "auto"},
            r"(?s)lineage=.*delta= is needed.*n= is needed",
        ),
        ({"bounds": {"age": (-1, 1)}}, r"nothing declares income: give Schema\(columns=\{COLUMN: Number\("),
        ({"bounds": "-1:1"}, r"Schema\(bounds='-1:1'\) must be \(LOW, HIGH\)"),
        ({"bounds": (0, 1)}, r"(?s)'age': .* is below the declared bound 0.*Schema\(clip=\) clips"),
        ({"classes": ["yes", "maybe"]}, "'no' is not one of yes, maybe"),
        ({"columns": SCHEMA, "classes": None}, r"Schema\(bounds=\) is for a table without"),
        ({"epsilon": None}, "epsilon= is needed beside delta="),
        ({"delta": None}, "delta= is needed beside epsilon="),
        ({"epsilon": 1e-3}, "the epsilon of a pay-once model must lie between 0.103 and"),
        ({"columns": LEVELS, "bounds": None}, r"(?s)Rome.*Levels\(..., unknown='coordinate'\) takes any other"),
        ({"kind": "auto"}, "n= is needed.*a number that may be public"),
        ({"kind": "dpsgd"}, "n= is needed.*a number that may be public"),
        ({"ignore": ["age", "x"]}, "no column 'x'"),
    ],
)
def test_what_is_missing_or_wrong_is_said_in_python_and_costs_nothing(declared, home, changed, said):
    with pytest.raises(ValueError, match=said) as refused:
        estimator(**declared | changed).fit(FRAME.assign(whose="me") if "unit" in changed else FRAME, "ok")
    assert "--" not in str(refused.value)
    assert not (home / "home" / "trained").exists()


def test_a_budget_is_checked_before_records_are_noted(declared, home):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the cause has the type and the field
        estimator(**declared | {"budget": (-1, 1e-6)}).fit(FRAME, "ok")
    assert isinstance(refused.value.__cause__, WrongOption)
    assert refused.value.__cause__.field == "lineage_epsilon"
    assert not (home / "home" / "trained").exists()


def test_a_fit_prints_nothing(declared, capfd):
    estimator(**declared).fit(FRAME, "ok")
    assert capfd.readouterr().out == ""


def test_a_model_without_prediction_sets_says_how_to_get_them(declared):
    model = estimator(**declared).fit(X, Y)
    with pytest.raises(ValueError, match=r"no records were held back for them\. Fit it with prediction_sets='all'"):
        model.predict_set(X)


def test_values_beyond_the_bounds_are_clipped_on_demand(declared):
    model = estimator(**declared | {"bounds": (0, 1), "clip": True}).fit(FRAME, "ok")
    assert model.certificate_.feature_map.lower == (0.0, 0.0)
    within = FRAME[["age", "income"]].clip(0, 1)
    np.testing.assert_array_equal(model.predict_proba(FRAME[["age", "income"]]), model.predict_proba(within))


def test_it_works_where_an_event_loop_runs(declared):
    async def fitted():
        return estimator(**declared).fit(X, Y)

    assert asyncio.run(fitted()).score(X, Y) > 0.8


NOISE = "noise decides: two fits are two releases, and differ"
DECLARED = "classes are declared, and are not those that happen to occur"
REFUSED = {
    "check_classifier_data_not_an_array": NOISE,
    "check_supervised_y_2d": NOISE,
    "check_fit_idempotent": NOISE,
    "check_classifiers_one_label": NOISE + ", and of classes that do not occur one may win",
    "check_classifiers_classes": DECLARED,
    "check_classifiers_train": DECLARED,
}


def test_scikit_learn_finds_nothing_but_what_privacy_takes(declared):
    more = {"budget": (1000, 1e-6), "bounds": (-300, 300), "classes": range(4), "again": True}
    found = check_estimator(estimator(**declared | more), expected_failed_checks=REFUSED, on_skip=None)
    failed = {each["check_name"] for each in found if each["status"] == "xfail"}
    assert {name for name, why in REFUSED.items() if why == DECLARED} <= failed
    assert len([each for each in found if each["status"] == "passed"]) > 40


def test_records_and_rows_of_a_wrong_form_are_answered_in_words(declared, opened):
    unfitted = estimator(**declared)
    for records in (FRAME.iloc[0].to_dict(), FRAME.to_dict("records")):
        for y in ("ok", Y[: len(records)]):
            with pytest.raises(ValueError, match=r"of mappings make one, as pandas\.DataFrame\(X\)"):
                unfitted.fit(records, y)
    with pytest.raises(ValueError, match="no column 'okay'"):
        unfitted.fit(FRAME, "okay")
    assert not opened(declared["lineage"])
    fields = [{"name": name, "type": "number", "constraints": {"minimum": -1, "maximum": 1}} for name in ROWS]
    fields += [{"name": "ok", "type": "string", "constraints": {"enum": ["no", "yes"]}}]
    numbers = unfitted.fit(FRAME, "ok")
    by_schema = estimator(
        **declared
        | {"lineage": f"people-{next(_names)}", "bounds": None, "classes": None, "columns": {"fields": fields}},
        overlapping_lineage_is_accepted=True,
    ).fit(FRAME, "ok")
    for model in (numbers, by_schema):
        for ask in (model.predict, model.predict_proba):
            with pytest.raises(ValueError, match=r"X is a mapping.*ask with a list of rows, \[X\]"):
                ask(ROWS.iloc[0].to_dict())
        assert model.predict([ROWS.iloc[0].to_dict()]).shape == (1,)


@pytest.mark.parametrize("missing", [pd.NA, None, np.nan])
def test_a_label_that_is_missing_is_refused_or_its_record_left_out(declared, missing):
    """In a Series of nullable booleans, and in an array of objects."""
    labels = pd.Series(Y == "yes", dtype=object)
    labels[3] = missing
    for y in (labels.astype("boolean"), labels.to_numpy()):
        with pytest.raises(ValueError, match=r"(NaN|is missing).*unlabelled='leave-out'\) leaves out the records"):
            estimator(**declared | {"classes": ["false", "true"]}).fit(ROWS, y)
    model = estimator(**declared | {"classes": ["false", "true"]}, unlabelled="leave-out")
    assert model.fit(ROWS, labels.astype("boolean")).classes_.tolist() == [False, True]
    again = {"classes": ["false", "true"], "again": True, "unlabelled": "leave-out", "epsilon": 1}
    assert estimator(**declared | again).fit(ROWS, labels.to_numpy()).score(ROWS, Y == "yes") > 0.8
