"""Declarations that contradict themselves, or that no certificate could hold, are refused before any record is read."""

import pytest

from dpserve.training.errors import DataError
from dpserve.training.fields import MOST_CLASSES
from dpserve.training.inputs.records import Declaration


def declared(classes: tuple[str, ...]) -> Declaration:
    return Declaration(("a",), (0.0,), (1.0,), classes)


@pytest.mark.parametrize("classes", [(), ("one",), ("one", "one"), tuple(map(str, range(MOST_CLASSES + 1)))])
def test_classes_that_no_model_can_have_are_refused(classes):
    with pytest.raises(DataError, match="classes"):
        declared(classes)


def test_as_many_classes_as_a_certificate_holds_are_declared():
    assert len(declared(tuple(map(str, range(MOST_CLASSES)))).classes) == MOST_CLASSES
