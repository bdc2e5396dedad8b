"""Declarations that contradict themselves, or that no certificate could hold, are refused before any record is read."""

import numpy as np
import pytest

from dpserve.training.errors import DataError
from dpserve.training.fields import MOST_CLASSES
from dpserve.training.inputs.records import Declaration, Records, check_declared


def declared(classes: tuple[str, ...]) -> Declaration:
    return Declaration(("a",), (0.0,), (1.0,), classes)


@pytest.mark.parametrize("classes", [(), ("one",), ("one", "one"), tuple(map(str, range(MOST_CLASSES + 1)))])
def test_classes_that_no_model_can_have_are_refused(classes):
    with pytest.raises(DataError, match="classes"):
        declared(classes)


def test_as_many_classes_as_a_certificate_holds_are_declared():
    assert len(declared(tuple(map(str, range(MOST_CLASSES)))).classes) == MOST_CLASSES


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.01, 1.01])
def test_records_that_no_table_was_read_for_are_held_to_their_bounds(value):
    X = np.full((20_000, 1), 0.5)
    records = Records(X, np.zeros(len(X), np.int64), declared(("x", "y")), ())
    check_declared(records)
    X[19_999] = value
    with pytest.raises(DataError, match="record 19999, column 'a'"):
        check_declared(records)
