"""A lineage's privacy unit, wherever a model meets it: in training, serving, leaving and explaining."""

import json

import pandas as pd
import pytest

from tests.dpserve.estimators import estimator

HEADER = "age,income,person,ok\n"


def rows(people, first=0):
    """24 records of each person, a label each."""
    return HEADER + "".join(
        f"{20 + index % 60},{first + index},p{first + index // 24},{'yes' if index % 2 else 'no'}\n"
        for index in range(24 * people)
    )


TRAIN = ("train", "--label", "ok", "--classes", "no,yes", "--bounds", "income=0:1e6", "head", "--lam", "1")
AGE = ("--bounds", "age=0:120")
BY_PERSON = (*TRAIN, *AGE, "--unit", "person")
BY_RECORD = (*TRAIN, *AGE, "--ignore", "person")
BY_AGE = (*TRAIN, "--ignore", "person", "--unit", "age")
BUDGET = ("--epsilon", "3", "--delta", "1e-6", "--price", "rho:0.001")
SUMS = ("class-sums", "--rho", "0.1")
"""In place of --lam 1."""


@pytest.fixture
def people(run):
    (run.folder / "a.csv").write_text(rows(6))
    (run.folder / "b.csv").write_text(rows(6, first=100))
    return run


def forget_trained(run):
    """Leave what a machine has that did not train: the ledger alone."""
    for path in sorted((run.folder / "home").rglob("*"), reverse=True):
        if {"trained", "blocks"} & set(path.parts):
            path.rmdir() if path.is_dir() else path.unlink()


def without_lam(arguments):
    return tuple(each for each in arguments if each not in ("head", "--lam", "1"))


def test_one_lineage_trains_models_of_one_unit(people):
    """A person with 24 records was found with a true positive rate of 0.979 where 0.054 was stated for one unit."""
    people(*BY_PERSON, "--data", "a.csv", "--lineage", "l", "--out", "m")
    for arguments in (BY_RECORD, BY_AGE):
        for data in ("a.csv", "b.csv"):
            said = people.fails(*arguments, "--data", data, "--lineage", "l", "--out", "other")
            assert "'person'" in said
            assert "`unit`" in said
    assert not (people.folder / "other").exists()
    people(*BY_PERSON, "--data", "b.csv", "--lineage", "l", "--out", "second")


def test_a_bundle_of_another_unit_is_served_from_no_ledger_of_the_lineage(people):
    people(*BY_PERSON, "--data", "a.csv", "--lineage", "l", "--out", "m")
    forget_trained(people)
    people(*without_lam(BY_RECORD), *SUMS, "--data", "b.csv", "--lineage", "l", "--name", "sums", "--out", "sums")
    process, _, _ = people.start_and_read("m", *BUDGET)
    process.terminate()
    process.communicate(timeout=60)
    for arguments in (("serve", "sums"), ("export", "sums", "--to", "safetensors"), ("explain", "--bundle", "sums")):
        assert "the lineage l protects all records with one value of 'person'" in people.fails(*arguments)
    assert json.loads(people("explain", "--lineage", "l", "--json").stdout)["explanation"]["unit"] == "person"
    (account,) = json.loads(people("lineage", "list", "--json").stdout)
    assert (account["spent_picorho"], account["unit"]) == (0, "person")


def test_what_a_lineage_does_not_pay_for_settles_no_unit(people):
    people(*without_lam(BY_RECORD), *SUMS, "--data", "a.csv", "--lineage", "l", "--out", "small")
    forget_trained(people)
    dear = ("class-sums", "--rho", "1")
    people(*without_lam(BY_PERSON), *dear, "--data", "b.csv", "--lineage", "l", "--out", "dear")
    people("lineage", "set-budget", "small", "--rho", "0.5", "--delta", "1e-6")
    for refused in (("export", "dear", "--to", "safetensors"), ("serve", "dear"), ("serve", "small", "dear")):
        people.fails(*refused)
        (account,) = json.loads(people("lineage", "list", "--json").stdout)
        assert (account["spent_picorho"], account["unit"]) == (0, None)
    people("export", "small", "--to", "safetensors")
    (account,) = json.loads(people("lineage", "list", "--json").stdout)
    assert (account["spent_picorho"], account["unit"]) == (10**11, "")


def test_an_estimator_of_another_unit_is_not_fitted(people, monkeypatch, tmp_path):
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path / "of-python"))
    declared = {
        "lineage": "l",
        "epsilon": 1,
        "delta": 1e-6,
        "kind": "class-sums",
        "classes": ["no", "yes"],
        "budget": (6, 1e-6),
    }
    frame, other = (pd.read_csv(people.folder / name) for name in ("a.csv", "b.csv"))
    bounds = {"age": (0, 120), "income": (0, 1e6)}
    first = estimator(**declared, bounds=bounds, unit="person").fit(frame, "ok")
    again = estimator(**declared, bounds=bounds, unit="person", again=True).fit(other, "ok")
    assert first.charged_rho_ == again.charged_rho_ > 0
    for unit, ignore in ((None, ["person"]), ("age", ["person"])):
        limits = {name: each for name, each in bounds.items() if name != unit}
        with pytest.raises(ValueError, match="the lineage l protects"):
            estimator(**declared, bounds=limits, unit=unit, ignore=ignore, again=True).fit(other, "ok")


def test_a_budget_plans_for_units(people):
    budget = ("--epsilon", "4", "--delta", "1e-5", "--n", "6", "--lineage", "l")
    said = people(*without_lam(BY_PERSON), "--data", "a.csv", *budget, "--out", "m").stdout
    assert "n = 6 and C = 2" in " ".join(said.split())
    assert json.loads(people("inspect", "m", "--json").stdout)["unit"] == "person"


def test_a_model_of_a_schema_protects_units_by_a_column_that_the_schema_lacks(people):
    schema = {
        "fields": [
            {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
            {"name": "income", "type": "number", "constraints": {"minimum": 0, "maximum": 1000000}},
            {"name": "ok", "type": "string", "constraints": {"enum": ["no", "yes"]}},
        ]
    }
    (people.folder / "schema.json").write_text(json.dumps(schema))
    trained = people(
        *("train", "--data", "b.csv", "--label", "ok", "--schema", "schema.json", "--unit", "person"),
        *("--rho", "0.5", "--n", "200", "--lineage", "l", "--out", "m"),
    )
    assert "Wrote the bundle m" in trained.stdout


def test_a_schema_that_describes_a_column_of_people_is_answered_with_the_option_for_it(people):
    fields = [
        {"name": "person", "type": "string"},
        {"name": "ok", "type": "string", "constraints": {"enum": ["a", "b"]}},
    ]
    (people.folder / "schema.json").write_text(json.dumps({"fields": fields}))
    asked = ("plan", "--schema", "schema.json", "--label", "ok", "--n", "99", "--rho", "1", "--delta", "1e-6")
    said = people(*asked, status=1).stderr
    assert "take its field out, and name the column with --unit, --id or --ignore" in " ".join(said.split())
