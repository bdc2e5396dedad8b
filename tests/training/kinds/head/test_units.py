"""Privacy units: all records of one more or fewer move the weights by no more than the certificate says."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dpserve.training.bundles.certificate import UNIT_ASSUMPTION, UNITS, Certificate
from dpserve.training.errors import DataError
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.schema import parse_schema
from dpserve.training.inputs.table_records import read_numbers, read_with_schema
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from tests.training.conftest import identity, make_records


def of_units(records, of):
    return replace(records, units=Units("person", np.asarray(of, dtype=np.int64)))


def without(records, dropped):
    kept = ~dropped
    return replace(
        records,
        X=records.X[kept],
        y=records.y[kept],
        source=[row for row, keep in zip(records.source, kept, strict=True) if keep],
        units=records.units and Units("person", records.units.of[kept]),
    )


def trained(records, lam, tolerance=1e-9):
    return train_head(records, Recipe("small", identity(records), lam, tolerance), "lineage-of-tests")


def cases():
    """200 sets with a unit that is far from the rest: many records alike, at a corner of the cube."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        records = make_records(
            seed, n=int(generator.integers(4, 60)), features=3, classes=int(generator.integers(2, 5))
        )
        of = generator.integers(0, int(generator.integers(2, 12)), len(records))
        unit = int(generator.choice(of))
        mine = of == unit
        records.X[mine] = generator.integers(0, 2, 3) if seed % 2 else generator.uniform(size=3)
        records.y[mine] = 0 if seed % 3 else records.y[mine]
        if not mine.all():
            yield of_units(records, of), mine, float(10 ** generator.uniform(-2, 2))


def test_no_unit_moves_the_weights_further_than_the_certificate_says():
    largest, tried = 0.0, 0
    for records, mine, lam in cases():
        whole, less = trained(records, lam), trained(without(records, mine), lam)
        moved = np.linalg.norm(whole.weights - less.weights) / whole.certificate.weight_sensitivity
        largest, tried = max(largest, moved), tried + 1
    assert tried >= 190
    assert 0.4 < largest <= 1  # the bound is tight enough to be tried by these sets


def test_without_weights_a_unit_moves_them_further():
    """The control: the same sets, each record with the weight 1."""
    assert any(
        np.linalg.norm(trained(bare, lam).weights - (other := trained(without(bare, mine), lam)).weights)
        > other.certificate.weight_sensitivity
        for records, mine, lam in cases()
        for bare in [replace(records, units=None)]
    )


def test_one_record_of_a_unit_moves_them_no_further_either():
    for number, (records, mine, lam) in enumerate(cases()):
        if number % 4:
            continue
        one = np.zeros(len(mine), dtype=np.bool_)
        one[np.argmax(mine)] = True
        whole, less = trained(records, lam), trained(without(records, one), lam)
        assert np.linalg.norm(whole.weights - less.weights) <= whole.certificate.weight_sensitivity


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(1, 10**7))
def test_the_weights_of_a_unit_add_up_to_at_most_one(count):
    weight = Fraction(float((1.0 / np.int64(count)) * (1 - 2.0**-52))) if count > 1 else Fraction(1)
    assert 1 - Fraction(1, 2**50) < count * weight <= 1
    few = Units("person", np.repeat(np.arange(3), [1, min(count, 50), 7])).weights()
    assert few[0] == 1
    assert sum(map(Fraction, few[-7:].tolist())) <= 1


def test_units_of_one_record_change_nothing(records):
    alone = of_units(records, np.arange(len(records))[::-1])
    np.testing.assert_array_equal(trained(alone, 1.0).weights, trained(records, 1.0).weights)


def test_the_certificate_says_what_neighbouring_is(tmp_path, records):
    head = trained(of_units(records, np.arange(len(records)) // 3), 1.0)
    certificate = save_bundle(tmp_path / "model", head)
    assert (certificate.neighbouring, certificate.unit) == (UNITS, "person")
    assert certificate.assumptions[0] == UNIT_ASSUMPTION
    assert load_bundle(tmp_path / "model").certificate == certificate
    assert trained(records, 1.0).certificate.unit is None


@pytest.mark.parametrize("changes", [{"unit": None}, {"neighbouring": "add or remove one record"}])
def test_a_certificate_that_names_no_unit_protects_none(records, changes):
    said = trained(of_units(records, np.arange(len(records)) // 3), 1.0).certificate.model_dump() | changes
    with pytest.raises(ValidationError, match="differ by a unit where a column of units is named"):
        Certificate.model_validate(said)


OPTIONS = {"label": "ok", "classes": ["no", "yes"], "bounds": ["0:9"], "unit": "who"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_names_the_units_and_is_no_feature(tmp_path, kind):
    frame = pd.DataFrame({"who": ["012", "12", "b", "012"], "x": [1, 2, 3, 4], "ok": ["no", "yes", "no", "no"]})
    path = tmp_path / f"t.{kind}"
    (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False)
    records = read_numbers(path, **OPTIONS)
    assert records.declaration.feature_names == ("x",)
    assert records.units.column == "who"
    assert records.units.of.tolist() == [0, 1, 2, 0]


def test_a_unit_keeps_its_number_in_all_batches(tmp_path):
    who = np.arange(50_000) % 700
    pd.DataFrame({"who": who, "x": 1.0, "ok": "no"}).to_parquet(tmp_path / "t.parquet", index=False)
    assert read_numbers(tmp_path / "t.parquet", **OPTIONS).units.of.tolist() == who.tolist()


def test_integers_beside_missing_values_are_names_as_integers_are(tmp_path):
    frame = pd.DataFrame({"who": [7.0, 8.0, 7.0], "x": 1.0, "ok": "no"})
    units, of_integers = (read_numbers(each, **OPTIONS).units for each in (frame, frame.astype({"who": int})))
    assert units.of.tolist() == [0, 1, 0]
    assert units.names.tobytes() == of_integers.names.tobytes()


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ([7.0, np.nan], "row 1, column 'who': the record has no unit's name"),
        ([7.0, 7.5], r"row 1, column 'who': 7\.5 names no unit: use texts or integers below 2\^53"),
        ([7.0, 2.0**53], "row 1, column 'who': 9.0072e\\+15 names no unit"),
        (np.array([7, 8], np.float32), "column 'who': holds float, which names no unit"),
    ],
)
def test_numbers_that_name_no_unit_are_refused(who, said):
    with pytest.raises(DataError, match=said):
        read_numbers(pd.DataFrame({"who": who, "x": 1.0, "ok": "no"}), **OPTIONS)


@pytest.mark.parametrize("own", [[], [{"name": "who", "type": "string", "text": {}, "missingValues": ["?"]}]])
def test_what_stands_for_a_missing_value_names_no_unit(own):
    fields = [
        {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 9}},
        {"name": "ok", "type": "string", "constraints": {"enum": ["no", "yes"]}},
        *own,
    ]
    schema = parse_schema({"missingValues": ["", "NA"], "fields": fields})
    frame = pd.DataFrame({"who": ["a", "?" if own else "NA"], "x": 1.0, "ok": "no"})
    with pytest.raises(DataError, match="row 1, column 'who': the record has no unit's name"):
        read_with_schema(frame, schema, "ok", unit="who")


MARKERS = [
    "NA",
    "nan",
    "NaN",
    "null",
    "NULL",
    "None",
    "none",
    "N/A",
    "#N/A",
    "#n/a n/a",
    "-",
    "?",
    " na ",
    "<NA>",
    "NaT",
    "n.a",
    "n. a.",
    "inf",
    "-Infinity",
    "\u200b",
    "NA\u200b",
    "\u3164",
    "\u2014",
    "...",
]


@pytest.mark.parametrize("marker", [*MARKERS, "", r"\N"])
def test_a_marker_of_missing_values_names_no_unit_in_a_csv_file(tmp_path, marker):
    (tmp_path / "t.csv").write_text(f"who,x,ok\nann,1,no\n{marker},2,no\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3, column 'who': the record has no unit's name.*leave out"):
        read_numbers(tmp_path / "t.csv", **OPTIONS)


@pytest.mark.parametrize("marker", MARKERS)
def test_nor_in_any_other_table(tmp_path, marker):
    frame = pd.DataFrame({"who": ["ann", marker], "x": 1.0, "ok": "no"})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    frame.to_feather(tmp_path / "t.feather")
    tables = [
        frame,
        frame.astype({"who": "category"}),
        pa.Table.from_pandas(frame),
        pl.DataFrame(frame.to_dict("list")),
    ]
    for source in (*tables, tmp_path / "t.parquet", tmp_path / "t.feather"):
        with pytest.raises(DataError, match="row 1, column 'who': the record has no unit's name"):
            read_numbers(source, **OPTIONS)


def test_names_that_hold_a_marker_are_names():
    names = ["nana", "N", "no", "0", "null-7", "ann-"]
    units = read_numbers(pd.DataFrame({"who": names, "x": 1.0, "ok": "no"}), **OPTIONS).units
    assert units.of.tolist() == list(range(len(names)))


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        ("who,x,ok\na,1,no\n,2,no\n", {}, "line 3, column 'who': the record has no unit's name"),
        ("x,ok\n1,no\n", {}, "has no column 'who'"),
        ("who,x,ok\na,1,no\n", {"unit": "ok"}, "cannot name both the classes and the units"),
    ],
)
def test_a_record_without_a_unit_is_refused(tmp_path, text, changes, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        read_numbers(tmp_path / "t.csv", **OPTIONS | changes)
