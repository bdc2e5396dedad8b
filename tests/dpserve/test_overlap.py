"""Records that are written otherwise are recognised by every command that reads rows."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpserve.accounting.messages import spelled
from dpserve.cli import app
from dpserve.training.errors import TrainingError
from dpserve.wording import as_flag
from tests.dpserve.estimators import estimator

GENERATOR = np.random.default_rng(0)
N = 300
MILES = GENERATOR.uniform(0, 60, N)
FRAME = pd.DataFrame(
    {
        "person": [f"p{index}" for index in range(N)],
        "miles": MILES,
        "age": GENERATOR.integers(18, 90, N),
        "pressure": GENERATOR.uniform(60, 200, N).round(1),
        "ok": np.where(MILES > 30, "yes", "no"),
    }
)
BOUNDS = ("--bounds", "miles=0:60", "--bounds", "age=0:120", "--bounds", "pressure=50:250")
CLASSES = ("--classes", "no,yes")
TRAIN = ("train", "--label", "ok", "--ignore", "person", *CLASSES, *BOUNDS, "head", "--lam", "1")
NAMELESS = FRAME.drop(columns="person")
TRAIN_NAMELESS = tuple(word for word in TRAIN if word not in ("--ignore", "person"))


class Owner:
    def __init__(self, folder, monkeypatch):
        self.folder = folder
        monkeypatch.setenv("DPSERVE_HOME", str(folder / "home"))
        monkeypatch.setenv("COLUMNS", "300")

    def __call__(self, frame, *arguments, option="--data", kind="csv"):
        path = self.folder / f"rows.{kind}"
        (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False)
        return CliRunner().invoke(app, [*map(str, arguments), option, str(path)])

    def trained(self, frame, *arguments, lineage="people"):
        out = self.folder / f"model-{len(list(self.folder.iterdir()))}"
        done = self(frame, *arguments, "--lineage", lineage, "--out", out)
        assert done.exit_code == 0, done.output + str(done.exception)
        return out


@pytest.fixture
def owner(tmp_path, monkeypatch):
    return Owner(tmp_path, monkeypatch)


def test_private_rows_are_not_taken_as_public_ones(owner):
    owner.trained(NAMELESS, *TRAIN_NAMELESS)
    budget = ("--epsilon", "3", "--delta", "1e-6", "--label", "ok")
    done = owner(NAMELESS[::2], "plan", *budget, "--classes", "no,yes", *BOUNDS, option="--public", kind="parquet")
    assert "holds private records of the lineage 'people'" in str(done.exception)
    chosen = [word for word in TRAIN_NAMELESS if word not in ("head", "--lam", "1")] + [
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
    ]
    chosen += ["--n", "300", "--lineage", "people", "--out", str(owner.folder / "chosen")]
    NAMELESS[::2].to_csv(owner.folder / "public.csv", index=False)
    done = owner(NAMELESS, *chosen, "--public", str(owner.folder / "public.csv"))
    assert "public.csv holds private records of the lineage 'people'" in str(done.exception)


def test_an_id_is_no_feature_and_every_record_has_one(owner):
    done = owner(
        FRAME.assign(person=["", *FRAME["person"][1:]]), *TRAIN, "--id", "person", "--lineage", "people", "--out", "m"
    )
    assert "line 2, column 'person': the record has no id" in str(done.exception)
    model = estimator(
        lineage="people",
        kind="head",
        lam=1.0,
        id="person",
        classes=["no", "yes"],
        bounds={"miles": (0, 60), "age": (0, 120), "pressure": (50, 250)},
    ).fit(FRAME, "ok")
    assert model.certificate_.feature_names == ("miles", "age", "pressure")
    assert model.n_features_in_ == 3
    done = owner(FRAME[::2].assign(miles=1), *TRAIN, "--id", "person", "--lineage", "others", "--out", "m")
    assert "150 units are in the lineage 'people'" in str(done.exception)


def test_names_are_the_same_however_a_number_is_written(owner):
    people = FRAME.assign(person=range(N))
    owner.trained(people, *TRAIN, "--unit", "person")
    other = FRAME.assign(person=[f"{index}.0" for index in range(N)], miles=60 - FRAME["miles"])
    done = owner(other, *TRAIN, "--unit", "person", "--lineage", "others", "--out", owner.folder / "others")
    assert "300 units are in the lineage 'people'" in str(done.exception)


def test_the_advice_for_an_overlap_leads_somewhere_and_never_in_a_circle(owner):
    """Whoever follows it is not refused again with the name that it came from."""
    accepted = "--overlapping-lineage-is-accepted"
    halves = FRAME[:150], FRAME[150:]
    owner.trained(halves[0], *TRAIN, lineage="first")
    refused = owner(halves[0], *TRAIN, "--lineage", "typo", "--out", owner.folder / "typo")
    assert "--lineage first" in spelled(refused.exception, as_flag)
    owner.trained(halves[0], *TRAIN, lineage="first")
    owner.trained(halves[1], *TRAIN, lineage="second")
    for name in ("first", "second", "third"):
        refused = owner(FRAME, *TRAIN, "--lineage", name, "--out", owner.folder / name)
        said = spelled(refused.exception, as_flag)
        assert isinstance(refused.exception, TrainingError)
        assert "--lineage" not in said
        assert accepted in said
    owner.trained(FRAME, *TRAIN, accepted, lineage="first")


def test_an_evaluation_of_rows_of_two_lineages_names_neither(owner):
    released = [word for word in TRAIN_NAMELESS if word not in ("head", "--lam", "1")]
    priced = ("class-sums", "--epsilon", "2", "--delta", "1e-5")
    model = owner.trained(NAMELESS[:100], *released, *priced)
    owner.trained(NAMELESS[100:200], *released, *priced, lineage="others")
    evaluate = ("evaluate", model, "--label", "ok", "--rho", "0.1", "--out", owner.folder / "evaluation.json")
    both = owner(NAMELESS[50:150], *evaluate, "--lineage", "held", "--lineage-epsilon", "6", "--lineage-delta", "1e-5")
    assert "'others'" in str(both.exception)
    assert "--lineage" not in spelled(both.exception, as_flag)
    one = owner(NAMELESS[100:150], *evaluate, "--lineage", "held", "--lineage-epsilon", "6", "--lineage-delta", "1e-5")
    assert "--lineage others" in spelled(one.exception, as_flag)
