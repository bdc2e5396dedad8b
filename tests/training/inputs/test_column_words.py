import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.column_words import (
    column_in_words,
    column_proposed,
    id_proposed,
    label_proposed,
    unit_proposed,
)
from dpserve.training.inputs.described import Boolean, Date, Datetime, Integer, Levels, Number, Text


@pytest.mark.parametrize(
    ("words", "storage", "column"),
    [
        ("0:120", None, Number(0, 120)),
        (" -1e3:.5 ", "integer", Integer(-1000, 0.5)),
        ("no, yes", "string", Levels("no", "yes")),
        ("2020-01-01:2030-12-31", None, Date("2020-01-01", "2030-12-31")),
        ("2020-01-01:2030-12-31", "datetime", Datetime("2020-01-01", "2030-12-31")),
        ("2020-01-01T08:30:2030-12-31T17:00", None, Datetime("2020-01-01T08:30", "2030-12-31T17:00")),
        ("boolean", "boolean", Boolean()),
        ("text", None, Text()),
    ],
)
def test_words_describe_a_column(words, storage, column):
    assert column_in_words(words, storage) == column


@pytest.mark.parametrize("words", ["", "yes", "0", "0:", "a:b", "120:0", "no,no", "2030-01-01:2020-01-01", "nan:1"])
def test_words_that_describe_none_are_refused(words):
    with pytest.raises(DataError):
        column_in_words(words)


@pytest.mark.parametrize(
    ("name", "storage", "proposed"),
    [
        ("age", None, "0:120"),
        ("patientAge", "integer", "0:120"),
        ("age", "string", None),
        ("sex", None, "female,male"),
        ("dob", None, "1900-01-01:2100-01-01"),
        ("admission_date", "string", "1900-01-01:2100-01-01"),
        ("seen", "datetime", "1900-01-01:2100-01-01"),
        ("smoker", "boolean", "boolean"),
        ("order_id", None, "ignore"),
        ("pressure", None, None),
        ("", "number", None),
    ],
)
def test_a_proposal_follows_from_name_and_type_and_describes_a_column(name, storage, proposed):
    assert column_proposed(name, storage) == proposed
    if proposed not in (None, "ignore"):
        column_in_words(proposed, storage)


def test_roles_are_proposed_by_name():
    names = ["age", "customer_id", "record_id", "outcome", "patient"]
    assert (label_proposed(names), unit_proposed(names), id_proposed(names)) == ("outcome", "customer_id", "record_id")
    assert (label_proposed(["a"]), unit_proposed(["patients seen"]), id_proposed(["paid"])) == (None, None, None)
