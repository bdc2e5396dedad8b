import json
import math
from datetime import date, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpserve.training.errors import DataError
from dpserve.training.features.maps import Fourier, Identity
from dpserve.training.inputs.columns import (
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    RowRefused,
    TextColumn,
    TimeColumn,
    blocks_of,
    columns_from,
    coordinates_of,
    encode_rows,
    usual_norm,
    with_missing,
)
from tests.training.features.lengths import squared_length

TEXT = st.text(st.characters(exclude_characters="\0"), max_size=60)
AGE = NumberColumn(name="age", kind="integer", minimum=0, maximum=120)
PAY = NumberColumn(name="pay", minimum=-1e3, maximum=1e6, required=True)
SMOKES = BooleanColumn(name="smokes")
WORK = LevelsColumn(name="work", levels=("private", "state", "1"), unknown="coordinate")
BORN = TimeColumn(name="born", kind="date", minimum="1900-01-01", maximum="2030-12-31", parts=("time", "month"))
SEEN = TimeColumn(
    name="seen",
    kind="datetime",
    minimum="2000-01-01",
    maximum="2030-12-31T23:59:59",
    parts=("time", "month", "weekday", "hour"),
)
NOTE = TextColumn(name="note", buckets=16)
COLUMNS = (AGE, PAY, SMOKES, WORK, BORN, SEEN, NOTE)
NAMES, LOWER, UPPER = coordinates_of(COLUMNS)
ROW = {
    "age": 39,
    "pay": 1000.5,
    "smokes": True,
    "work": "state",
    "born": "1987-02-28",
    "seen": "2024-02-29T23:30:00",
    "note": "Good, good news",
}
LENGTH = usual_norm(COLUMNS)
MAPS = (
    Identity(lower=LOWER, upper=UPPER, clip_norm=LENGTH, bias=0.1, columns=COLUMNS),
    Fourier(
        lower=LOWER, upper=UPPER, clip_norm=LENGTH, bias=0.0, random_features=50, bandwidth=0.5, seed=1, columns=COLUMNS
    ),
)

rows = st.fixed_dictionaries(
    {
        "age": st.none() | st.integers(0, 120),
        "pay": st.floats(-1e3, 1e6),
        "smokes": st.none() | st.booleans() | st.sampled_from(["true", "0"]),
        "work": st.none() | st.sampled_from(["private", "state", 1, "1.0"]) | TEXT,
        "born": st.none() | st.dates(date(1900, 1, 1), date(2030, 12, 31)).map(str),
        "seen": st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)).map(datetime.isoformat),
        "note": st.none() | TEXT,
    }
)

TEXT = st.text(st.characters(exclude_characters="\0"), max_size=60)


def encoded(**changes):
    return dict(zip(NAMES, encode_rows(COLUMNS, [ROW | changes])[0].tolist(), strict=True))


def test_every_value_is_where_its_name_says():
    found = encoded()
    hot = {name for name, value in found.items() if value == 1}
    assert hot == {
        "smokes",
        "work=state",
        "born in February",
        "seen in February",
        "seen in Thursday",
        "seen in 23h",
    }
    assert (found["age"], found["pay"], found["born"]) == (39, 1000.5, (date(1987, 2, 28) - date(1970, 1, 1)).days)
    assert found["seen"] == (date(2024, 2, 29) - date(1970, 1, 1)).days + 23.5 / 24


def test_an_undeclared_level_has_a_coordinate_where_it_is_accepted():
    assert encoded(work="abroad")["work is another"] == 1
    with pytest.raises(RowRefused, match=r"row 0, column 'work': 'abroad' is not one of private, state"):
        encode_rows([WORK.model_copy(update={"unknown": "refuse"})], [{"work": "abroad"}])


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.00"])
def test_a_number_is_the_level_that_is_written_as_an_equal_number(value):
    assert encoded(work=value)["work=1"] == 1


@pytest.mark.parametrize("value", [None, "", " "])
def test_a_missing_value_has_a_coordinate_and_nothing_else(value):
    found = encoded(age=value, smokes=value, work=value, born=value, seen=value, note=value)
    assert {name for name, value in found.items() if value == 1} == {
        f"{column.name} is missing" for column in COLUMNS if column is not PAY
    }
    at_the_lower_bound = dict(zip(NAMES, LOWER, strict=True))
    assert {name: value for name, value in found.items() if "missing" not in name and name != "pay"} == {
        name: value for name, value in at_the_lower_bound.items() if "missing" not in name and name != "pay"
    }


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (AGE.model_copy(update={"if_missing": 40.0}), 40),
        (SMOKES.model_copy(update={"if_missing": True}), "true"),
        (WORK.model_copy(update={"if_missing": "state"}), "state"),
        (WORK.model_copy(update={"if_missing": "of no kind"}), "another one"),
        (SEEN.model_copy(update={"if_missing": "2001-02-03T04:05:06"}), "2001-02-03T04:05:06"),
    ],
)
def test_a_missing_value_may_count_as_a_declared_one(column, value):
    missing = [{column.name: each} for each in (None, "", float("nan"))]
    given = encode_rows((column,), [{column.name: value}])
    assert not any("is missing" in name for name, _, _ in column.coordinates)
    np.testing.assert_array_equal(encode_rows((column,), missing), np.repeat(given, 3, axis=0))
    assert columns_from([column.model_dump()]) == (column,)
    assert str(column.if_missing) in json.dumps(column.json_schema())


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (["age=130"], r"`missing`: 130.0 is above the declared bound 120"),
        (["age=1.5"], "`missing`: 1.5 is not an integer"),
        (["age=nan"], "is not a finite number"),
        (["smokes=perhaps"], "'perhaps' is not one of true"),
        (["note=nothing"], "a text that is missing has a coordinate of its own"),
        (["height=3"], "there is no such column; the columns are age, pay"),
        (["age=3", "age=4"], "is given twice for age"),
        (["level", "3"], "is given twice for every column"),
    ],
)
def test_a_declaration_of_missing_values_that_does_not_fit_is_refused(declared, said):
    with pytest.raises(DataError, match=said):
        with_missing(COLUMNS, declared)


def test_missing_values_are_declared_by_column_or_for_all():
    found = with_missing((AGE, PAY, SMOKES), ["age=40", "level"])
    assert [column.if_missing for column in found] == [40.0, None, None]
    assert [column.marks_missing for column in found] == [False, True, True]
    again = with_missing(found, ["age=level"])
    assert again[0] == AGE
    odd = NumberColumn(name="a=b", minimum=0, maximum=9)
    assert with_missing((odd,), ["a=b=5"])[0].if_missing == 5.0


def test_times_with_an_offset_are_taken_to_utc():
    assert encoded(seen="2024-03-01T01:30:00+02:00") == encoded(seen="2024-02-29T23:30:00Z") == encoded()


def test_a_text_counts_its_words_and_pairs_of_words():
    block = np.array([value for name, value in encoded(note="good GOOD news").items() if "#" in name])
    # "good" twice, "news", "good good" and "good news" once each, unless two of them share a coordinate.
    assert math.isclose(np.linalg.norm(block), 1, rel_tol=1e-15)
    assert block.max() in {2 / math.sqrt(7), 3 / math.sqrt(11), 3 / math.sqrt(10)}


def test_the_hash_of_a_text_never_changes():
    """Every bundle relies on it."""
    column = TextColumn(name="t", buckets=2**18, lengths=(1, 1), required=True)
    X = encode_rows([column], [{"t": word} for word in ("good", "GOOD", "Ärger")])
    assert [int(np.flatnonzero(row)[0]) for row in X] == [73686, 73686, 94778]


@pytest.mark.parametrize("feature_map", MAPS, ids=lambda feature_map: feature_map.kind)
@settings(max_examples=100, derandomize=True, deadline=None)
@given(row=rows)
def test_no_row_is_longer_than_its_bounds_allow(feature_map, row):
    X = encode_rows(COLUMNS, [row])
    assert ((np.array(LOWER) <= X) & (np.array(UPPER) >= X)).all()
    u = (X - np.array(LOWER)) / (np.array(UPPER) - np.array(LOWER))
    for column, block in blocks_of(COLUMNS, u):
        assert np.square(block).sum() <= column.groups * (1 + 2.0**-50)
    assert np.square(u).sum() <= sum(column.groups for column in COLUMNS) * (1 + 2.0**-50)
    phi = feature_map(X, feature_map.public_tensors())
    assert squared_length(phi[0]) <= 1


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(rows, min_size=2, max_size=6))
def test_a_row_has_the_same_bits_alone_and_among_others(several):
    together = encode_rows(COLUMNS, several)
    for index, row in enumerate(several):
        assert encode_rows(COLUMNS, [row]).tobytes() == together[index].tobytes()
    for feature_map in MAPS:
        tensors = feature_map.public_tensors()
        phi = feature_map(together, tensors)
        for index in range(len(several)):
            assert feature_map(together[index : index + 1], tensors).tobytes() == phi[index].tobytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": 1.5}, "'age': 1.5 is not an integer"),
        ({"age": "old"}, "'age': 'old' is not a number"),
        ({"age": 121}, "'age': 121 is above the declared bound 120"),
        ({"age": "1_0"}, "'age': '1_0' is not a number"),
        ({"age": [1]}, "'age': .1. is not a number"),
        ({"pay": None}, "'pay': a value is required"),
        ({"pay": "inf"}, "'pay': inf is not a finite number"),
        ({"pay": 10**400}, "'pay': 1000.* is not a number"),
        ({"smokes": "perhaps"}, "'smokes': 'perhaps' is not one of true"),
        ({"born": "1987-02-30"}, "'born': '1987-02-30' is no date that there is"),
        ({"born": "28.2.1987"}, "'born': '28.2.1987' is no date, as 2026-01-31 is"),
        ({"born": "1899-12-31"}, "'born': '1899-12-31' is below the declared bound 1900-01-01"),
        ({"born": 3}, "'born': 3 is no date"),
        ({"note": 3.5}, "'note': 3.5 is not a text"),
        ({"note": "x" * 100_001}, "'note': a text of 100,001 characters is longer than 100,000"),
        ({"agee": 3}, "row 1, column 'agee' is unknown; the model takes age, pay"),
    ],
)
def test_the_first_row_and_column_that_do_not_fit_are_named(changes, said):
    with pytest.raises(RowRefused, match=said) as refusal:
        encode_rows(COLUMNS, [ROW, ROW | changes])
    assert refusal.value.row == 1


def test_all_that_does_not_fit_in_the_first_row_is_said_at_once():
    wrong = {name: value for name, value in ROW.items() if name not in ("age", "smokes")}
    wrong |= {"noet": 1, "pay": "much", "born": 3}
    with pytest.raises(RowRefused) as refusal:
        encode_rows(COLUMNS, [ROW, wrong, ROW | {"pay": "little"}])
    assert refusal.value.row == 1
    said = str(refusal.value).split("; ")
    assert said[:2] == ["row 1, columns 'age', 'smokes' are missing", "null stands for a missing value"]
    assert said[2] == "column 'noet' is unknown"
    assert [each.partition(":")[0] for each in said[4:]] == ["column 'pay'", "column 'born'"]


def test_a_value_before_the_row_with_the_wrong_names_is_refused_first():
    with pytest.raises(RowRefused, match=r"^row 0, column 'born': 3 is no date[^;]*$"):
        encode_rows(COLUMNS, [ROW | {"born": 3}, {}])
    with pytest.raises(RowRefused, match=r"^row 1, column 'age': 121 is above [^;]*$"):
        encode_rows(COLUMNS, [ROW, ROW | {"age": 121}, ROW | {"age": "old", "born": 3}])


def test_a_refusal_is_of_bounded_length():
    columns = tuple(COLUMNS[0].model_copy(update={"name": f"c{index}"}) for index in range(1000))
    for row in ({}, {f"{'x' * 1000}{index}": 1 for index in range(1000)}, {f"c{index}": "a" for index in range(1000)}):
        with pytest.raises(RowRefused) as refusal:
            encode_rows(columns, [row])
        assert len(str(refusal.value)) < 2000


def test_columns_come_back_from_what_a_certificate_says():
    said = json.loads(MAPS[0].model_dump_json())
    assert columns_from(said["columns"]) == COLUMNS
    assert Identity.model_validate(said) == MAPS[0]


def test_a_map_whose_bounds_are_not_its_columns_is_refused():
    with pytest.raises(ValueError, match="bounds are not those of the columns"):
        Identity(lower=LOWER, upper=(*UPPER[:-1], 2.0), clip_norm=1.0, bias=0.0, columns=COLUMNS)
