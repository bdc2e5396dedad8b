"""A table whose columns are of several types, declared column by column: in Python, and in words of a command."""

import json

import numpy as np
import pandas as pd
import pytest

from dpserve import (
    DPSGD,
    Boolean,
    Date,
    Integer,
    Levels,
    Lineage,
    Number,
    PrivacyWarning,
    PrivateClassifier,
    Schema,
    Text,
    plan,
)
from dpserve.training.errors import DataError, WrongOption

GENERATOR = np.random.default_rng(0)
RECORDS = 600
AGE = GENERATOR.integers(0, 120, RECORDS)
FRAME = pd.DataFrame(
    {
        "age": AGE,
        "ward": GENERATOR.choice(["A", "B"], RECORDS),
        "seen": (pd.Timestamp("2021-01-01") + pd.to_timedelta(GENERATOR.integers(0, 900, RECORDS), "D")).date,
        "outcome": np.where(AGE > 60, "ill", "well"),
    }
)
SCHEMA = Schema(
    label="outcome",
    classes=["well", "ill"],
    columns={"age": Number(0, 120), "ward": Levels("A", "B"), "seen": Date("2020-01-01", "2030-12-31")},
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))


def test_a_table_is_fitted_by_the_types_of_its_columns(home):
    lineage = Lineage("patients", epsilon=9, delta=1e-6)
    model = PrivateClassifier(SCHEMA, epsilon=8, delta=1e-6, lineage=lineage, n=RECORDS, kind="class-sums")
    model.fit(FRAME)
    with pytest.warns(PrivacyWarning, match="600 of the 600 rows are records"):  # also where the classes came apart
        assert model.score(FRAME.drop(columns="outcome"), FRAME["outcome"]) > 0.9
    other = FRAME.replace({"ward": {"B": "C"}})
    with pytest.raises(ValueError, match="ward"):
        PrivateClassifier(SCHEMA, epsilon=1, delta=1e-6, lineage="others", n=RECORDS).fit(other)


def test_the_index_of_a_frame_is_no_column(home):
    lineage = Lineage("patients", epsilon=9, delta=1e-6)
    model = PrivateClassifier(SCHEMA, epsilon=8, delta=1e-6, lineage=lineage, n=RECORDS, kind="class-sums")
    fits = {
        model.fit(frame).certificate_.model_id  # the same records are the same fit
        for frame in (
            FRAME,
            FRAME.sample(frac=1, random_state=0).query("age >= 0"),
            FRAME.rename_axis("k"),
            FRAME.set_index(pd.MultiIndex.from_arrays([AGE, range(RECORDS)], names=["age", None])),
            FRAME.set_axis(FRAME["ward"] + AGE.astype(str)),
        )
    }
    assert len(fits) == 1


def test_every_type_of_a_column_is_one_of_a_schemas_file(tmp_path):
    types = {
        "age": Integer(0, 120),
        "smokes": Boolean(),
        "ward": Levels("A", unknown="coordinate"),
        "note": Text(buckets=64),
    }
    fields = [one.field(name) for name, one in types.items()]
    (tmp_path / "schema.json").write_text(json.dumps({"fields": fields}))
    described = Schema(columns=types).table
    assert described == Schema(columns=tmp_path / "schema.json").table == Schema(columns={"fields": fields}).table
    assert tuple(each.name for each in described.columns) == ("age", "smokes", "ward", "note")
    with pytest.raises(WrongOption, match="did you mean `buckets`"):
        Text(bucket=3)


def test_a_command_declares_categories_and_dates_without_a_file(run, tmp_path):
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    words = ["train", "class-sums", "--data", "patients.csv", "--label", "outcome", "--classes", "well,ill"]
    words += ["--bounds", "age=0:120", "--levels", "ward=A,B", "--lineage", "patients", "--out", "model"]
    words += ["--epsilon", 8, "--delta", 1e-6, "--n", RECORDS]
    run(*words, "--dates", "seen=2020-01-01:2030-12-31")
    assert json.loads(run("inspect", "model", "--json").stdout)["release"] == "class-sums"
    wrong = run(*words, "--dates", "seen=2030-12-31:2020-01-01", "--out", "other", status=2).stderr
    assert "--dates" in wrong
    assert "must be after 2030-12-31" in wrong
    wrong = run(*words, "--dates", "seen=2020-01-01:2030-12-31", "--levels", "ward", "--out", "other", status=2).stderr
    assert "--levels" in wrong


def test_what_no_flag_declares_is_declared_in_a_file(run, tmp_path):
    FRAME.assign(seen="20.06.2024").to_csv(tmp_path / "patients.csv", index=False)
    words = ["train", "class-sums", "--data", "patients.csv", "--label", "outcome", "--lineage", "patients"]
    words += ["--epsilon", 8, "--delta", 1e-6, "--n", RECORDS, "--bounds", "age=0:120"]
    dates = ["--dates", "seen=2020-01-01:2030-12-31"]
    refused = run(*words, *dates, "--levels", "ward=A", "--classes", "well,ill", status=1).stderr
    assert refused.count("dpserve schema init") == 2  # for the pattern, and for other levels
    assert "--classes" in run(*words, *dates, "--levels", "ward=A,B", "--classes", "well", status=2).stderr
    numbers = ["--bounds", "ward=0:1", "--bounds", "seen=0:1", "--classes", "well,ill"]
    assert "--levels COLUMN=A,B" in run(*words, *numbers, status=1).stderr


def test_a_plan_is_made_without_records_and_can_be_fitted(home):
    found = plan(SCHEMA, n=20_000, epsilon=1, delta=1e-6)
    assert "20" in found.reason
    model = PrivateClassifier(
        SCHEMA, epsilon=1, delta=1e-6, lineage="patients", n=20_000, kind=found.kind, features=found.features
    )
    assert model.get_params()["kind"] == found.kind
    assert model.cost().rho > 0
    with pytest.raises(DataError, match="label"):
        plan(Schema(columns={"age": Number(0, 120)}), n=20_000, epsilon=1, delta=1e-6)
    assert plan(Schema(classes=["a", "b"], bounds=(0, 1)), n=20_000, epsilon=1, delta=1e-6).kind == DPSGD()
