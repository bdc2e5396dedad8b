"""Records that are written otherwise are recognised by every command that reads rows."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from accounting.messages import message_of
from dpserve import PrivateClassifier
from dpserve.cli import app
from dpserve.wording import as_flag
from training.errors import TrainingError

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
TRAIN = ("train", "--label", "ok", "--ignore", "person", *CLASSES, *BOUNDS, "--lam", "1")


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


def test_a_table_that_is_written_otherwise_is_refused_in_another_lineage(owner):
    owner.trained(FRAME, *TRAIN)
    kilometres = FRAME.assign(miles=(FRAME["miles"] * 1.609344).round(4))
    numbers = FRAME.astype({"miles": np.float32, "pressure": np.float32})
    kept = [word for word in TRAIN if word not in ("--ignore", "person")]
    elsewhere = {
        "a column more": (FRAME.assign(note="x"), [*TRAIN, "--ignore", "note"], {}),
        "a column less": (FRAME.drop(columns="person"), kept, {}),
        "kilometres": (kilometres, [word.replace("miles=0:60", "miles=0:96.56064") for word in TRAIN], {}),
        "32 bits": (numbers.drop(columns="person"), kept, {"kind": "parquet"}),
        "a label renamed": (
            FRAME.rename(columns={"ok": "well"}),
            [word.replace("ok", "well") if word == "ok" else word for word in TRAIN],
            {},
        ),
        "a label recoded": (
            FRAME.assign(ok=(FRAME["ok"] == "yes").astype(int), extra=1),
            [*[word.replace("no,yes", "0=no,1=yes") for word in TRAIN], "--ignore", "extra"],
            {},
        ),
    }
    for what, (frame, arguments, more) in elsewhere.items():
        done = owner(frame, *arguments, "--lineage", "others", "--out", owner.folder / "others", **more)
        said = str(done.exception)
        assert "300 of 300 rows are equal to rows there in all columns that are used" in said, (what, said)
        assert "more than chance explains" in said, what
    assert not (owner.folder / "others").exists()


def test_private_rows_are_not_taken_as_public_ones(owner):
    owner.trained(FRAME, *TRAIN)
    without = FRAME.drop(columns="person").assign(miles=FRAME["miles"].astype(np.float32))
    budget = ("--epsilon", "3", "--delta", "1e-6", "--label", "ok")
    done = owner(without, "plan", *budget, "--class-names", "no,yes", *BOUNDS, option="--public", kind="parquet")
    assert "holds private records of the lineage 'people'" in str(done.exception)
    chosen = [word for word in TRAIN if word not in ("--lam", "1")] + ["--budget", "epsilon:1@1e-5"]
    chosen += ["--records-declared", "300", "--lineage", "people", "--out", str(owner.folder / "chosen")]
    without.assign(person=1).to_csv(owner.folder / "public.csv", index=False)
    done = owner(FRAME, *chosen, "--public", str(owner.folder / "public.csv"))
    assert "public.csv holds private records of the lineage 'people'" in str(done.exception)


def test_a_part_of_the_private_rows_is_not_taken_as_public_by_chance(owner):
    owner.trained(FRAME, *TRAIN)
    recoded = FRAME[:30].assign(ok=(FRAME["ok"] == "yes").astype(int)).drop(columns="person")
    words = ("--epsilon", "3", "--delta", "1e-6", "--label", "ok", "--class-names", "0=no,1=yes", *BOUNDS)
    done = owner(recoded, "plan", *words, option="--public")
    assert "30 of 30 rows are equal to rows there" in str(done.exception)
    few = FRAME.assign(miles=15.0, age=FRAME["age"] % 2, pressure=100)
    owner.trained(few, *TRAIN, "--overlapping-lineage-is-accepted", lineage="few")
    words = ("no,yes" if word == "0=no,1=yes" else word for word in words)
    words = list(words)
    done = owner(few.drop(columns="person"), "plan", *words, option="--public")
    said = " ".join(str(done.exception).split())
    assert "each of the 300 rows of" in said
    assert "They may be other people's with the same values" in said
    assert "Give more public rows" in said
    done = owner(few.drop(columns="person")[:1], "plan", *words, option="--public")
    assert str(done.exception).startswith("the row of")


def test_households_and_keys_tell_nothing_apart(owner):
    homes = FRAME.assign(household=[f"h{index // 3}" for index in range(N)])
    by_home = [*TRAIN, "--unit", "household"]
    owner.trained(homes, *by_home)
    keyed = [word if word != "--ignore" else "--id" for word in TRAIN]
    done = owner(FRAME[6:9], *keyed, "--lineage", "others", "--out", owner.folder / "others")
    assert "3 of 3 rows are equal to rows there" in str(done.exception)
    assert "more than chance explains" in str(done.exception)


def test_rows_that_were_trained_on_are_not_held_out_without_their_ids(owner):
    released = [word for word in TRAIN if word not in ("--lam", "1")]
    model = owner.trained(FRAME, *released, "--release", "class-sums", "--price", "epsilon:2@1e-5")
    words = (
        "evaluate",
        model,
        "--label",
        "ok",
        "--price",
        "rho:0.3",
        "--lineage",
        "held",
        "--rho",
        "1",
        "--delta",
        "1e-5",
    )
    done = owner(FRAME.drop(columns="person"), *words)
    assert "300 of 300 rows are equal to rows there" in str(done.exception)
    assert "--lineage people" in message_of(done.exception).worded(as_flag)


def test_an_id_tells_people_with_equal_rows_apart(owner):
    few = FRAME.assign(miles=15.0, age=FRAME["age"] % 2, pressure=100)
    others = few.assign(person=[f"q{index}" for index in range(N)])
    ids = [word if word != "--ignore" else "--id" for word in TRAIN]
    owner.trained(few, *ids)
    done = owner(others, *TRAIN, "--lineage", "others", "--out", owner.folder / "others")
    assert "Chance can explain that many" in str(done.exception)
    assert "`id`" in str(done.exception)
    owner.trained(others, *ids, lineage="others")
    again = owner(others.assign(age=1), *ids, "--lineage", "third", "--out", owner.folder / "third")
    assert "300 units are in the lineage 'others'" in str(again.exception)


def test_an_id_is_no_feature_and_every_record_has_one(owner):
    done = owner(
        FRAME.assign(person=["", *FRAME["person"][1:]]), *TRAIN, "--id", "person", "--lineage", "people", "--out", "m"
    )
    assert "line 2, column 'person': the record has no id" in str(done.exception)
    model = PrivateClassifier(
        lineage="people",
        release=None,
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
    assert "--lineage first" in message_of(refused.exception).worded(as_flag)
    owner.trained(halves[0], *TRAIN, lineage="first")
    owner.trained(halves[1], *TRAIN, lineage="second")
    for name in ("first", "second", "third"):
        refused = owner(FRAME, *TRAIN, "--lineage", name, "--out", owner.folder / name)
        said = message_of(refused.exception).worded(as_flag)
        assert isinstance(refused.exception, TrainingError)
        assert "--lineage" not in said
        assert accepted in said
    owner.trained(FRAME, *TRAIN, accepted, lineage="first")


def test_an_evaluation_of_rows_of_two_lineages_names_neither(owner):
    released = [word for word in TRAIN if word not in ("--lam", "1")]
    priced = ("--release", "class-sums", "--price", "epsilon:2@1e-5")
    model = owner.trained(FRAME[:100], *released, *priced)
    owner.trained(FRAME[100:200], *released, *priced, lineage="others")
    evaluate = ("evaluate", model, "--label", "ok", "--price", "rho:0.1", "--out", owner.folder / "evaluation.json")
    rows = FRAME.drop(columns="person")
    both = owner(rows[50:150], *evaluate, "--lineage", "held", "--epsilon", "6", "--delta", "1e-5")
    assert "'others'" in str(both.exception)
    assert "--lineage" not in message_of(both.exception).worded(as_flag)
    one = owner(rows[100:150], *evaluate, "--lineage", "held", "--epsilon", "6", "--delta", "1e-5")
    assert "--lineage others" in message_of(one.exception).worded(as_flag)
