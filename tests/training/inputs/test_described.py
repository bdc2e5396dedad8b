"""Columns and classes that contradict themselves are refused where they are written."""

import pytest

from dpserve.training.errors import WrongOption
from dpserve.training.inputs.described import Date, Datetime, Integer, Levels, Number, Schema


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Number(120, 0), "maximum"),
        (lambda: Integer(3, 3), "maximum"),
        (lambda: Levels("a", "a"), "levels"),
        (lambda: Date("yesterday", "2020-01-01"), "minimum"),
        (lambda: Date("2021-01-01", "2020-01-01"), "maximum"),
        (lambda: Datetime("2021-01-01T10:00", "2021-01-01T09:00"), "maximum"),
        (lambda: Schema(classes=["no", "no"]), "classes"),
        (lambda: Schema(classes={"0": "no", "1": "no"}), "classes"),
        (lambda: Schema(classes=["no"]), "classes"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(make, field):
    with pytest.raises(WrongOption) as refused:
        make()
    assert refused.value.field == field


def test_levels_may_stand_in_a_list():
    assert Levels(["a", "b"]) == Levels("a", "b")
