import json
import os
import pty
import re
import subprocess
import sys
import tomllib

import httpx
import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pytest

import dpserve
from dpserve import Client, PrivateClassifier
from dpserve.training.inputs.columns import encode_rows
from dpserve.training.kinds.head.bundle import load_bundle
from dpserve.training.kinds.loading import load_model

FIELDS = [
    {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
    {"name": "work", "type": "string", "constraints": {"enum": ["private", "state"]}},
    {"name": "born", "type": "date", "constraints": {"minimum": "1900-01-01", "maximum": "2030-01-01"}},
    {"name": "ill", "type": "integer", "categories": [{"value": 0, "label": "no"}, {"value": 1, "label": "yes"}]},
]
TRAIN = ["train", "--schema", "schema.json", "--label", "ill", "--lineage", "people", "--out", "model"]


@pytest.fixture
def table(run):
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, 300)
    frame = pd.DataFrame(
        {
            "age": age,
            "work": pd.Categorical(generator.choice(["private", "state", "secret"], 300, p=[0.5, 0.5, 0])),
            "born": pd.to_datetime("2020-01-01") - pd.to_timedelta(age * 365, unit="D"),
            "ill": (age > 50).astype(int),
        }
    )
    frame.loc[::7, "work"] = None
    frame.to_parquet(run.folder / "t.parquet")
    frame.to_csv(run.folder / "t.csv", index=False)
    (run.folder / "schema.json").write_text(json.dumps({"fields": FIELDS}))
    return frame


ANSWERS = ["--label", "ill", "--classes", "0=no,1=yes", "--bounds", "age=0:120", "--levels", "work=private,state"]
ANSWERS += ["--dates", "born=1900-01-01:2030-01-01", "--n", 300]


def asked(run, *words, answers):
    """The words of `dpserve schema init` in a terminal where these answers are typed, and its exit status."""
    terminal, its_end = pty.openpty()
    os.write(terminal, "".join(f"{answer}\n" for answer in answers).encode() + b"\x04")
    command = [sys.executable, "-m", "dpserve", "schema", "init", *words]
    done = subprocess.run(
        command,
        stdin=its_end,
        capture_output=True,
        text=True,
        cwd=run.folder,
        env=run.environment,
        timeout=60,
        check=False,
    )
    os.close(its_end)
    os.close(terminal)
    return done


@pytest.mark.parametrize(("file", "kind"), [("t.csv", "number"), ("t.parquet", "integer")])
def test_a_schema_holds_what_was_answered_and_nothing_of_the_values(run, table, file, kind):
    written = []
    for name, changed in (("a", table), ("b", table.assign(age=table.age * 2, work="elsewhere"))):
        changed.to_parquet(run.folder / "t.parquet")
        changed.to_csv(run.folder / "t.csv", index=False)
        run("schema", "init", file, *ANSWERS, "--out", f"{name}.toml")
        written.append((run.folder / f"{name}.toml").read_text())
    assert written[0] == written[1]
    content = tomllib.loads(written[0])
    assert (content["label"], content["n"], content["lineage"]) == ("ill", 300, "t")
    assert [field["type"] for field in content["fields"]] == [
        kind,
        "string",
        "date" if file == "t.csv" else "datetime",
        "string",
    ]
    assert content["fields"][0]["constraints"] == {"minimum": 0, "maximum": 120}
    assert content["fields"][3]["categories"] == [{"value": "0", "label": "no"}, {"value": "1", "label": "yes"}]


def test_an_answer_that_is_wrong_is_asked_for_again(run, table):
    answers = [
        "nobody",
        "ill",
        "0=no",
        "0=no,1=yes",
        "",
        "",
        "many",
        300,
        "",
        "120:0",
        "",
        "private,state",
        "1900-01-01:2030-01-01",
    ]
    done = asked(run, "t.csv", answers=answers)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Error: ") == 4
    run("schema", "init", "t.csv", *ANSWERS, "--out", "by-flags.toml")
    assert (run.folder / "t.toml").read_text() == (run.folder / "by-flags.toml").read_text()


def test_questions_that_are_broken_off_write_nothing(run, table):
    before = {path.name for path in run.folder.iterdir()}
    assert asked(run, "t.csv", answers=["ill"]).returncode == 1
    assert {path.name for path in run.folder.iterdir()} == before


def test_without_a_terminal_all_that_is_missing_is_listed(run, table):
    said = run("schema", "init", "t.csv", "--classes", "no,yes", status=1).stderr
    assert all(
        option in said for option in ("--label", "--n", "age, work, born, ill", "--levels", "--dates", "--texts")
    )
    assert "--classes" not in said
    proposed = run("schema", "init", "t.csv", "--yes", *ANSWERS[:4], "--n", 300, status=1).stderr
    assert "nothing declares work: " in proposed  # the names of the others say what they are


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--classes", "well", "--levels", "nope=a,b"], ["--classes", "'nope'"]),
        (["--bounds", "age=300:0"], ["--bounds", "'age'"]),
        (["--levels", "work=private,"], ["--levels", "private,"]),
        (["--out", "s.yaml"], ["--out", ".toml"]),
        (["--label", "ill", "--unit", "ill"], ["--unit", "--label"]),
        (["--unit", "age", "--ignore", "age"], ["--ignore", "--unit"]),
        (["--levels", "work=a,b", "--texts", "work"], ["--texts", "--levels"]),
        (["--bounds", "zz=0:1"], ["--bounds", "'zz'"]),
    ],
)
def test_flags_that_contradict_the_table_or_each_other_are_named(run, table, flags, named):
    refused = run("schema", "init", "t.csv", *flags, status=1 if "nope=a,b" in flags else 2).stderr
    assert all(word in refused for word in named), refused
    assert not list(run.folder.glob("*.toml"))


def test_bounds_for_every_number_are_of_no_date_or_text(run, table):
    answers = [*ANSWERS[:4], "--bounds", "0:300", "--n", 300]
    assert "nothing declares work" in run("schema", "init", "t.parquet", *answers, status=1).stderr
    dates = ["--dates", "born=1900-01-01:2030-01-01", "--levels", "work=private,state"]
    said = run("schema", "init", "t.csv", *answers, *dates).stdout
    assert "are those of age." in " ".join(said.split())


def test_a_level_that_is_written_as_a_missing_value_is_one_in_its_column_alone(run, table):
    table.assign(age=table.age.where(table.age > 30), work=table.work.astype(object).fillna("None")).to_csv(
        run.folder / "t.csv", index=False, na_rep="None"
    )
    run("schema", "init", "t.csv", *ANSWERS, "--out", "all.toml")
    run("schema", "init", "t.csv", *ANSWERS[:6], "--levels", "work=None,private,state", *ANSWERS[8:])
    texts = [tomllib.loads((run.folder / name).read_text())["missingValues"] for name in ("all.toml", "t.toml")]
    assert texts[0] == texts[1]
    run("train", "--data", "t.csv", "--schema", "t.toml", "--epsilon", 1, "--delta", 1e-6)
    (age, work, _) = load_model(run.folder / "model").certificate.feature_map.columns
    assert ("None" in age.missing, "None" in work.missing) == (True, False)


def test_a_column_called_none_is_nobody(run, table):
    table.assign(none=1).to_csv(run.folder / "t.csv", index=False)
    answers = ["ill", "0=no,1=yes", "", "", 300, "", "", "private,state", "1900-01-01:2030-01-01", "0:1"]
    assert asked(run, "t.csv", answers=answers).returncode == 0
    content = tomllib.loads((run.folder / "t.toml").read_text())
    assert "unit" not in content
    assert "none" in {field["name"] for field in content["fields"]}


def test_the_query_of_a_url_is_not_written(run, table):
    run("schema", "init", f"file://{run.folder}/t.csv?token=secret", *ANSWERS)
    assert all("secret" not in path.read_text() for path in run.folder.glob("*.toml"))


def test_a_schema_is_not_written_over(run, table):
    before = (run.folder / "schema.json").read_text()
    assert "schema.json" in run.fails("schema", "init", "t.csv", *ANSWERS, "--out", "schema.json")
    assert (run.folder / "schema.json").read_text() == before


def test_the_columns_of_names_are_no_fields(run, table):
    table.assign(patient_id=1, key=2).to_csv(run.folder / "t.csv", index=False)
    for option in ("--unit", "--id"):
        assert "names no column" in run("schema", "init", "t.csv", *ANSWERS, option, "nobody", status=2).stderr
    run("schema", "init", "t.csv", *ANSWERS, "--yes", "--out", "s.json")
    content = json.loads((run.folder / "s.json").read_text())
    assert (content["unit"], content["id"]) == ("patient_id", "key")
    assert [field["name"] for field in content["fields"]] == ["age", "work", "born", "ill"]


def test_a_schema_alone_trains_plans_and_evaluates(run, table, monkeypatch):
    """Two commands lead from a table to a model, on the command line and in Python."""
    for name, start in (("t.csv", 0), ("held.csv", 300)):
        rows = table.assign(key=np.arange(start, start + 300), note="ein schöner Tag", höhe=2)
        rows.to_csv(run.folder / name, index=False, encoding="latin-1")
    run("schema", "init", "t.csv", *ANSWERS, "--bounds", "höhe=0:9", "--yes")
    price = ("--epsilon", 1, "--delta", 1e-6)
    run("train", "--data", "t.csv", "--schema", "t.toml", *price)
    certificate = load_model(run.folder / "model").certificate
    assert [column.kind for column in certificate.feature_map.columns] == ["number", "levels", "date", "text", "number"]
    assert (certificate.lineage, certificate.classes) == ("t", ("no", "yes"))
    assert "--schema t.toml" in run("plan", "--data", "t.csv", "--schema", "t.toml", *price).stdout
    opening = ("--lineage", "held", "--lineage-epsilon", 1, "--lineage-delta", 1e-6)
    run("lineage", "set-budget", "model", "--epsilon", 2, "--delta", 1e-6)
    said = run("evaluate", "model", "--data", "held.csv", "--schema", "t.toml", *opening, *price).stdout
    assert "area below the ROC curve of yes" in said
    monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
    classifier = PrivateClassifier(run.folder / "t.toml", epsilon=0.5, delta=1e-6)
    assert classifier.fit(run.folder / "t.csv").certificate_.lineage == "t"
    assert dpserve.plan(run.folder / "t.toml", epsilon=1, delta=1e-6).reason


def test_the_same_records_in_another_file_are_noticed(run, table):
    frame = table.assign(born=table.born.dt.strftime("%Y-%m-%d"))
    frame.to_parquet(run.folder / "t.parquet")
    frame.to_csv(run.folder / "t.csv", index=False)
    run(*TRAIN, "--data", "t.parquet", "head", "--lam", "1")
    again = [*TRAIN[:-3], "others", "--out", "other"]
    said = run(*again, "--data", "t.csv", "head", "--lam", "1", status=1).stderr
    assert re.search(r"Of the (\d+) records of the lineage 'others', \1 records are in the lineage 'people'", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--classes", "no,yes"], "takes the place of --classes"),
        (["--bounds", "0:1"], "takes the place of --bounds"),
        (["--data", "digits"], "describes a table of your own"),
    ],
)
def test_a_schema_takes_the_place_of_other_declarations(run, table, arguments, said):
    data = [] if "--data" in arguments else ["--data", "t.csv"]
    assert said in run(*TRAIN, *data, "head", "--lam", "1", *arguments, status=2).stderr


def test_what_does_not_fit_is_said_at_once_and_nothing_is_written(run, table):
    table.assign(age=table.age + 100, work="abroad", ill=None).to_csv(run.folder / "t.csv", index=False)
    lines = run(*TRAIN, "--data", "t.csv", "head", "--lam", "1", status=1).stderr.splitlines()
    assert [line.partition("column ")[2].split(":")[0] for line in lines[:3]] == ["'age'", "'work'", "'ill'"]
    assert not (run.folder / "model").exists()
    assert not (run.folder / "home").exists()


def test_a_client_asks_by_name(run, table):
    run(*TRAIN, "--data", "t.csv", "head", "--lam", "1")
    process, address = run.start("model", "--port", 0, "--epsilon", 3, "--delta", 1e-6, "--price", "rho:0.001")
    try:
        key = run("clients", "add", "alice", "--rho", 0.1, "--delta", 1e-6).stdout.strip()
        frame = table[["born", "work", "age"]].iloc[:3]
        rows = [
            {"age": int(row.age), "work": None if pd.isna(row.work) else row.work, "born": str(row.born.date())}
            for row in frame.itertuples()
        ]
        with Client(address, key) as client:
            answers = client.predict_proba(rows)
            np.testing.assert_array_equal(client.predict_proba(frame), answers)
            np.testing.assert_array_equal(client.predict_proba(pl.from_pandas(frame)), answers)
            with pytest.raises(ValueError, match="row 1, column 'work': 'abroad' is not one of private, state"):
                client.predict_proba([rows[0], rows[1] | {"work": "abroad"}])
            with pytest.raises(ValueError, match="yet now missing:\n- work"):
                client.predict_proba(frame.drop(columns="work"))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_what_missing_values_count_as_is_declared_without_a_schema(run):
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, 300)
    frame = pd.DataFrame(
        {"age": age.astype(float), "pressure": generator.normal(130, 20, 300).round(), "ill": age > 50}
    )
    frame.loc[::7, "age"] = None
    frame.to_csv(run.folder / "t.csv", index=False)
    words = ["train", "--data", "t.csv", "--label", "ill", "--classes", "false=no,true=yes", "--lineage", "people"]
    words += ["--bounds", "age=0:120", "--bounds", "pressure=0:300", "head", "--lam", "1", "--out", "model"]
    assert "--missing COLUMN=VALUE" in run.fails(*words)
    assert "above the declared bound 120" in run.fails(*words, "--missing", "age=130")
    run(*words, "--missing", "age=40")
    columns = load_bundle(run.folder / "model").certificate.feature_map.columns
    row = {"age": None, "pressure": 120}
    np.testing.assert_array_equal(encode_rows(columns, [row]), encode_rows(columns, [row | {"age": 40}]))


def test_a_head_protects_all_records_of_a_unit(run, table):
    table.assign(person=np.arange(300) // 3).to_csv(run.folder / "t.csv", index=False)
    done = run(*TRAIN, "--data", "t.csv", "--unit", "person", "head", "--lam", "1")
    assert "add or remove all records of one unit" in done.stdout
    assert "records with one value of 'person': a person with many rows is one" in run("inspect", "model").stdout
    run("lineage", "set-budget", "model", "--rho", 1, "--delta", 1e-6)
    of_units = run("explain", "--bundle", "model").stdout
    assert "what its limit means for one unit" in of_units
    assert "adding or removing all records of one unit" in " ".join(of_units.split())
    assert "is of the lineage 'people'" in run.fails("explain", "--bundle", "model", "--lineage", "others")


@pytest.mark.slow
def test_an_attack_decides_about_units_where_the_model_protects_them(run, table):
    day = table.born + pd.to_timedelta(np.arange(300), unit="D")  # no row comes twice
    persons = table.assign(person=np.arange(300) // 3, born=day)
    for name, some in (("t.csv", persons.person % 2 == 0), ("others.csv", persons.person % 2 == 1)):
        persons[some].to_csv(run.folder / name, index=False)
    run(*TRAIN, "--data", "t.csv", "--unit", "person", "head", "--lam", "1")
    read = ["--label", "ill", "--class-names", "0=no,1=yes", "--members", "t.csv", "--non-members"]
    attack = ["attack", "model", "--shadow-models", 2, *read]
    done = run(*attack, "others.csv")
    assert "asking about 50 of 50 members and 50 of 50 non-members, who have" in " ".join(done.stderr.split())
    assert "on units, each all records of one 'person'" in " ".join(done.stdout.split())
    persons.to_csv(run.folder / "both.csv", index=False)
    assert (
        "50 values of 'person' are among the members and the non-members" in run(*attack, "both.csv", status=1).stderr
    )
    assert "digits have no column of units" in run.fails("attack", "model", "--data", "digits")


def test_everything_that_is_missing_or_wrong_is_told_at_once(run, table):
    """In the options, in the schema's fields, and in the records."""
    words = ["train", "--label", "ill", "--out", "model", "dpsgd", "--rho", "0.1"]
    (run.folder / "model").mkdir()
    broken = [{"name": "age", "type": "integer"}, {"name": "work", "type": "string"}, *FIELDS[2:]]
    (run.folder / "broken.json").write_text(json.dumps({"fields": broken}))
    schema = run(*words, "--data", "t.csv", "--schema", "broken.json", status=1).stderr
    table.assign(age=-1, born="today").to_csv(run.folder / "t.csv", index=False)
    records = run(*words, "--data", "t.csv", "--schema", "schema.json", status=1).stderr
    for said in (schema, records):
        assert "--lineage is needed" in said
        assert "model exists already" in said
        assert "--n is needed" in said
    assert "age" in schema
    assert "work" in schema
    assert "age" in records
    assert "born" in records


@pytest.mark.parametrize(
    ("command", "price"),
    [
        (["train", "--epsilon", 1], "--delta"),
        (["train", "--bounds", "tmp=0:50"], "--epsilon"),
        (["plan"], "--epsilon"),
        (["plan", "--delta", 1e-6, "--bounds", "tmp=0:50"], "--epsilon"),
        (["plan", "--retrain", "month", "--epsilon", 1], "--delta"),
    ],
)
def test_what_is_missing_is_told_at_once_where_some_is_given(run, table, command, price):
    said = run(*command, "--data", "t.csv", status=1).stderr
    needed = {line.removeprefix("dpserve: ").partition(" is needed")[0] for line in said.splitlines()}
    assert {"--label", "--classes", "--n", price} <= needed
    assert "--lineage" in needed or command[0] == "plan"
    assert "nothing declares age, work, born, ill" in said
    assert "dpserve schema init t.csv" in said
    assert "no column 'tmp'" in said or "tmp=0:50" not in command


def test_a_spreadsheet_with_several_sheets_is_declared_by_the_one_that_is_named(run):
    book = openpyxl.Workbook()
    book.active.title = "Leute"
    for row in [["größe", "ill"], [171, "no"], [180, "yes"]]:
        book.active.append(row)
    book.create_sheet("Notizen").append(["x"])
    book.save(run.folder / "staff.xlsx")
    answers = ("--label", "ill", "--classes", "no,yes", "--bounds", "50:250", "--n", 2)
    refused = run.fails("schema", "init", "staff.xlsx", *answers)
    assert "has the sheets 'Leute', 'Notizen': name the one to read, with --sheet" in refused
    said = run("schema", "init", "staff.xlsx", *answers, "--sheet", "Leute", "--out", "leute.json").stdout
    assert "--sheet Leute" in said.partition("Next: ")[2]
    written = (run.folder / "leute.json").read_text("utf-8")
    assert '"name": "größe"' in written  # as a person reads it


def test_an_offices_file_is_declared_trained_on_and_asked_about(run):
    """Its signs and dates go with the model, and a spreadsheet of the same records is found to be the same."""
    rows = [
        (20 + n % 60, n * 37.25, f"{1 + n % 28:02}.{1 + n % 12:02}.2022", "jä" if n % 60 > 30 else "nö")
        for n in range(200)
    ]
    lines = [f"{age};{x:,.2f}".translate(str.maketrans(",.", ".,")) + f";{day};{label}" for age, x, day, label in rows]
    (run.folder / "de.csv").write_text("\n".join(["age;pay;day;ok", *lines, "30;1,00;01.01.2022;"]) + "\n", "latin-1")
    answers = ("--label", "ok", "--classes", "nö,jä", "--bounds", "age=0:120", "--bounds", "pay=0:1e4", "--n", 200)
    run(
        "schema",
        "init",
        "de.csv",
        *answers,
        "--dates",
        "day=2022-01-01:2023-01-01",
        "--decimal",
        ",",
        "--out",
        "s.json",
    )
    assert json.loads((run.folder / "s.json").read_text())["encoding"] == "windows-1252"
    train = ("train", "--schema", "s.json", "head", "--lam", "1", "--unlabelled", "leave-out")
    run(*train, "--data", "de.csv", "--lineage", "people", "--out", "model")
    book = openpyxl.Workbook()
    for row in [("age", "pay", "day", "ok"), *rows]:
        book.active.append(row)
    book.save(run.folder / "t.xlsx")
    assert "people" in run.fails(*train, "--data", "t.xlsx", "--lineage", "others", "--out", "other")
    certificate = json.loads(run("inspect", "model", "--json").stdout)
    columns = {each["name"]: each for each in certificate["feature_map"]["columns"]}
    assert (columns["pay"]["decimal"], columns["pay"]["group"], columns["day"]["pattern"]) == (",", ".", "%d.%m.%Y")
    process, address = run.start("model", "--port", 0, "--rho", 0.1, "--delta", 1e-6)
    key = run("clients", "add", "alice", "--rho", 0.1, "--delta", 1e-6).stdout.strip()
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as http:
        written = {"age": 30, "pay": "1.234,50", "day": "06.10.2022"}
        answers = [
            http.post("/predict", json={"instances": [row]})
            for row in (written, written | {"pay": 1234.5, "day": "2022-10-06"}, written | {"pay": "1.5"})
        ]
    assert [each.status_code for each in answers] == [200, 200, 422]
    assert answers[0].json()["predictions"] == answers[1].json()["predictions"]
    process.terminate()
    process.communicate(timeout=60)
