import pytest

from dpserve.training.errors import DataError
from dpserve.training.inputs.declared import parse_classes, values_of


def test_names_stand_for_themselves_unless_a_value_is_given():
    assert parse_classes("no, yes") == (("no", "yes"), ("no", "yes"))
    assert parse_classes("0=well,1=ill, 9") == (("well", "ill", "9"), ("0", "1", "9"))


@pytest.mark.parametrize("text", ["no,", "0=", "=well,1=ill"])
def test_classes_without_a_value_or_a_name_are_refused(text):
    with pytest.raises(DataError, match="NAME,NAME or VALUE=NAME"):
        parse_classes(text)


def test_values_are_found_in_the_order_of_a_models_classes():
    assert values_of(("well", "ill"), "1=ill,0=well") == ("0", "1")
    assert values_of(("well", "ill"), None) == ("well", "ill")
    with pytest.raises(DataError, match="the model's classes are well, ill, not well, sick"):
        values_of(("well", "ill"), "0=well,1=sick")
