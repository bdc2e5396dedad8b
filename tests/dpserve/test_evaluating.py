"""`dpserve evaluate`: what it writes and charges, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.isotonic import IsotonicRegression

from dpserve.accounting.picorho import to_rho
from dpserve.commands.evaluation_plot import rising
from dpserve.training.evaluation import Evaluation
from dpserve.training.intervals import Interval
from dpserve.training.kinds.loading import load_model
from dpserve.training.roc import RocPoint

from .conftest import CommandLine

ROWS = [f"{20 + index % 60},{1000 * (index % 60)},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(120)]
HEADER = "age,income,ok\n"
TRAIN = ("train", "--data", "r.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120")
TRAIN += ("--bounds", "income=0:1e6", "--lineage", "people", "--out", "model")
SUMS = ("class-sums", "--epsilon", "2", "--delta", "1e-5")
BUDGET = ("--epsilon", "6", "--delta", "1e-5")
OPENING = ("--lineage-epsilon", "6", "--lineage-delta", "1e-5")
PRICE = ("--label", "ok", "--rho", "0.3")


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A folder with records, others that are held out, a model, and the home that it was trained in."""
    found = CommandLine(tmp_path_factory.mktemp("evaluating"))
    (found.folder / "r.csv").write_text(HEADER + "".join(ROWS))
    (found.folder / "held.csv").write_text(HEADER + "".join(row.replace(",", ".5,", 1) for row in ROWS))
    found(*TRAIN, *SUMS)
    return found.folder


@pytest.fixture
def model(run, sums):
    shutil.copytree(sums, run.folder, dirs_exist_ok=True)
    return load_model(run.folder / "model")


def spent(run):
    return {each["lineage"]: each["spent_picorho"] for each in json.loads(run("lineage", "list", "--json").stdout)}


def test_an_evaluation_is_charged_to_the_held_out_lineage_and_may_be_read_again(run, model):
    run("lineage", "set-budget", "model", *BUDGET)
    said = run("evaluate", "model", "--data", "held.csv", "--lineage", "held", *PRICE, *OPENING).stdout
    assert "the lineage people was charged" in said
    assert "the lineage held was charged epsilon = 3.265 at delta = 1e-05 for the evaluation" in said
    assert "it may be published" in said
    content = json.loads((run.folder / "model" / "evaluation.json").read_text())
    figures, *_ = content.pop("figures"), content.pop("seal")
    found = Evaluation.model_validate(content)
    assert found.model_id == model.certificate.model_id
    assert found.figures() == figures
    X = np.array([[20.5 + index % 60, 1000.0 * (index % 60)] for index in range(120)])
    y = np.array([index % 60 > 30 for index in range(120)])
    right = float((model.values(X).argmax(axis=1) == y).mean())
    assert figures["accuracy"]["estimate"] == pytest.approx(right, abs=6 * figures["accuracy"]["standard_error"])
    assert spent(run) == {"people": model.certificate.price.picorho, "held": found.law.cost.picorho}
    assert not {"held", "people"} & set(json.dumps(content).split('"'))
    # Whoever evaluates again draws again, and pays again; the model was paid for.
    run("evaluate", "model", "--data", "held.csv", "--lineage", "held", *PRICE, "--out", "again.json")
    assert spent(run) == {"people": model.certificate.price.picorho, "held": 2 * found.law.cost.picorho}
    inspected = run("inspect", "model").stdout
    assert "verified" in inspected
    assert f"evaluation {found.evaluation_id[:8]}" in inspected
    assert json.loads(run("inspect", "model", "--json").stdout)["evaluation"]["accuracy"] == figures["accuracy"]


def test_an_evaluation_that_was_altered_or_does_not_follow_from_what_was_released_is_refused(run, model):
    run("lineage", "set-budget", "model", *BUDGET)
    run("evaluate", "model", "--data", "held.csv", *PRICE)
    path = run.folder / "model" / "evaluation.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written, indent=3))
    assert "evaluation" in json.loads(run("inspect", "model", "--json").stdout)
    content = {name: value for name, value in written.items() if name != "seal"}
    right = next(place for place, value in enumerate(content["released"]) if value)
    altered = [content["released"][right] * 2, *content["released"][1:]]
    for changed in ({"figures": {}}, {"released": altered}, {"mu": content["mu"] / 2}, {"model_id": "0" * 32}):
        path.write_text(json.dumps(written | changed))
        for command in ("inspect", "serve"):
            assert "was altered" in run.fails(command, "model")
    for unread in ("[]", "{", json.dumps(content)):
        path.write_text(unread)
        assert "holds no sealed evaluation" in run.fails("inspect", "model")
    content["figures"]["accuracy"]["estimate"] += 0.01
    path.write_text(json.dumps(content | {"seal": model.certificate.seal(content)}))
    assert "do not follow from what was released" in run.fails("inspect", "model")
    content["model_id"] = "0" * 32
    path.write_text(json.dumps(content | {"seal": model.certificate.seal(content)}))
    assert "is the evaluation of another model: take it away, and evaluate again" in run.fails("inspect", "model")


def test_the_model_s_lineage_pays_where_rows_were_trained_on(run, model):
    said = run.fails("evaluate", "model", "--data", "r.csv", "--lineage", "held", *PRICE, *OPENING)
    assert "60 records are in the lineage 'people' as well" in said
    assert "add --lineage people" in said
    run("evaluate", "model", "--data", "r.csv", *PRICE, *OPENING)
    assert list(spent(run)) == ["people"]


@pytest.mark.parametrize(("trained", "asked"), [(("--clip",), ()), ((), ("--clip",))])
def test_values_beyond_the_bounds_are_drawn_back_as_in_training_or_on_demand(run, trained, asked):
    (run.folder / "r.csv").write_text(HEADER + "".join(ROWS))
    (run.folder / "held.csv").write_text(HEADER + "".join(row.replace(",", "99.5,", 1) for row in ROWS))
    run(*TRAIN, *SUMS, *trained)
    run("lineage", "set-budget", "model", *BUDGET)
    if asked:
        assert "above the declared bound" in run.fails("evaluate", "model", "--data", "held.csv", *PRICE)
    run("evaluate", "model", "--data", "held.csv", *PRICE, *asked)
    assert (run.folder / "model" / "evaluation.json").exists()
    assert json.loads((run.folder / "model" / "certificate.json").read_text()).get("clips", False) is bool(trained)


def test_an_evaluation_is_written_and_charged_or_neither(run, model):
    assert "has no budget yet" in run.fails("evaluate", "model", "--data", "held.csv", *PRICE)
    said = run.fails("evaluate", "model", "--data", "held.csv", "--lineage", "held", *PRICE, *OPENING)
    assert "the lineage people pays for the model" in said
    assert "lineage set-budget" in said
    assert "--lineage-epsilon" not in said
    run("lineage", "set-budget", "model", "--rho", "0.2", "--delta", "1e-5")
    assert "nothing was charged for it" in run.fails("evaluate", "model", "--data", "held.csv", *PRICE)
    run("lineage", "set-budget", "people", "--rho", "100", "--delta", "1e-5", "--yes")
    run.fails("evaluate", "model", "--data", "held.csv", *PRICE, "--out", "nowhere/e.json")
    assert spent(run) == {"people": 0}
    assert not (run.folder / "model" / "evaluation.json").exists()


def test_rows_that_were_not_paid_for_are_not_noted_in_a_lineage(run, model):
    run("lineage", "set-budget", "model", *BUDGET)
    assert "has no budget yet" in run.fails("evaluate", "model", "--data", "held.csv", "--lineage", "hedl", *PRICE)
    run("evaluate", "model", "--data", "held.csv", "--lineage", "held", *PRICE, *OPENING)


def test_one_lineage_pays_for_model_and_evaluation_together_or_for_neither(run, model):
    price = to_rho(model.certificate.price.picorho)
    run("lineage", "set-budget", "model", "--rho", str(price + 0.2), "--delta", "1e-5")
    assert "nothing was charged for it" in run.fails("evaluate", "model", "--data", "held.csv", *PRICE)
    assert spent(run) == {"people": 0}
    run("lineage", "set-budget", "people", "--rho", "100", "--delta", "1e-5", "--yes")
    opening = ("--lineage", "held", "--lineage-epsilon", "2", "--lineage-delta", "1e-5")
    refused = run.fails("evaluate", "model", "--data", "held.csv", *PRICE, *opening)
    assert "nothing was charged for it" in refused
    assert spent(run) == {"people": 0}


UNIT_HEADER = HEADER.replace("\n", ",who\n")


@pytest.fixture
def of_units(run):
    """A model of 20 people with 6 records each; other records of theirs, and records of others."""
    people = [row.replace("\n", f",p{index // 6}\n") for index, row in enumerate(ROWS)]
    (run.folder / "r.csv").write_text(UNIT_HEADER + "".join(people))
    (run.folder / "same.csv").write_text(UNIT_HEADER + "".join(row.replace(",", ".5,", 1) for row in people))
    others = "".join(row.replace(",", ".5,", 1).replace(",p", ",q") for row in people)
    (run.folder / "others.csv").write_text(UNIT_HEADER + others)
    run(*TRAIN, *SUMS, "--unit", "who")
    run("lineage", "set-budget", "model", *BUDGET)
    return load_model(run.folder / "model")


def test_people_who_were_trained_on_are_found_among_the_held_out_rows(run, of_units):
    """173 of 174 people of held-out rows were in training, with other records, and were taken for new ones."""
    (run.folder / "nameless.csv").write_text(HEADER + "".join(ROWS))
    assert "no column 'who'" in run.fails("evaluate", "model", "--data", "nameless.csv", *PRICE)
    said = run.fails("evaluate", "model", "--data", "same.csv", "--lineage", "held", *PRICE, *OPENING)
    assert "20 units" in said
    assert "--lineage people" in said
    run("lineage", "set-budget", "model", *BUDGET, "--yes")
    run("evaluate", "model", "--data", "same.csv", *PRICE)
    assert list(spent(run)) == ["people"]


def test_an_evaluation_of_units_counts_each_once_and_its_lineage_keeps_them(run, of_units):
    run("evaluate", "model", "--data", "others.csv", "--lineage", "held", *PRICE, *OPENING)
    shown = json.loads(run("inspect", "model", "--json").stdout)["evaluation"]
    assert shown["unit"] == "who"
    assert "all records of one unit" in shown["assumptions"][0]
    assert shown["records"]["estimate"] == pytest.approx(20, abs=6 * shown["records"]["standard_error"])
    units = {each["lineage"]: each["unit"] for each in json.loads(run("lineage", "list", "--json").stdout)}
    assert units == {"people": "who", "held": "who"}
    records = [each if each != "people" else "held" for each in TRAIN]
    (run.folder / "r.csv").write_text(HEADER + "".join(row.replace(",", ".7,", 1) for row in ROWS))
    said = run.fails(*[each if each != "model" else "other" for each in records], *SUMS)
    assert "the lineage held protects all records with one value of 'who'" in said


def test_an_evaluation_is_drawn_with_what_it_reports(run, model):
    """Two classes and no prediction sets: calibration and ROC, side by side."""
    asked = ("evaluate", "model", "--data", "held.csv", *PRICE)
    wrong = run(*asked, *OPENING, "--report", "accuracy", "--plot", "e.png", status=2)
    assert "none of these is reported" in wrong.stderr
    assert "has no budget yet" in run.fails(*asked, "--plot", "e.png")
    run(*asked, *OPENING, "--plot", "e.png")
    image = Image.open(run.folder / "e.png")
    assert image.size == (840, 420)
    assert len(image.convert("L").getcolors()) > 10


def test_the_drawn_roc_rises_although_noisy_points_do_not():
    """Isotonic regression by scikit-learn is the oracle; the points zigzag and come in another order."""
    thresholds = np.linspace(0.95, 0.05, 16)
    noise = np.random.default_rng(5).normal(0, 0.08, (2, 16))
    rates = np.array([(1 - thresholds) ** 2, np.sqrt(1 - thresholds)]) + noise
    assert (np.diff(rates) < 0).any(axis=1).all()
    points = [
        RocPoint(threshold=each, false_positives=around(false), true_positives=around(true))
        for each, false, true in zip(thresholds, *rates, strict=True)
    ]
    drawn = rising([points[place] for place in np.random.default_rng(6).permutation(16)])
    for found, noisy in zip(drawn, rates, strict=True):
        assert (np.diff(found) >= 0).all()
        assert found == pytest.approx(IsotonicRegression(y_min=0, y_max=1).fit_transform(range(16), noisy))


def around(value):
    return Interval(estimate=value, standard_error=0.08, lower=max(value - 0.16, 0), upper=min(value + 0.16, 1))
