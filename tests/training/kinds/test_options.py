"""Options of kinds of models: each value is held to its declaration, whoever gives it."""

import dataclasses
from typing import Annotated

import pytest

from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.kinds.class_sums.kind import ClassSumsKind
from dpserve.training.kinds.options import Declared, Options, fields_of
from dpserve.training.kinds.registry import all_kinds, default_kind, kind_named, register, takers, trainable_kinds

PRICE = 10**11
GIVEN = {
    "class-sums": {"price": PRICE},
    "weights": {"price": PRICE},
    "dpsgd": {"price": PRICE, "records_declared": 100},
    "head": {},
    "published": {},
}


def test_every_kind_has_options_here():
    assert set(GIVEN) == set(all_kinds())


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_declared_is_whole(name):
    for field in kind_named(name).fields.values():
        assert field.declared.sentence.endswith(".")
        assert field.default is None or field.is_needed or field.value_of(field.default) == field.default
        if field.declared.read is not None:
            assert field.declared.write is not None


@pytest.mark.parametrize("name", GIVEN)
def test_each_number_beyond_its_range_is_refused_by_name(name):
    kind = kind_named(name)
    for field in kind.fields.values():
        below = [end for end in (field.declared.above, field.declared.least) if end is not None]
        for end in below:
            value = (end - 1,) if field.is_several else end - 1
            with pytest.raises(WrongOption) as refused:
                kind.options.from_given(GIVEN[name] | {field.name: value})
            assert refused.value.field == field.name


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("head", "lam", "x"),
        ("head", "lam", float("nan")),
        ("head", "lam", float("inf")),
        ("head", "lam", True),
        ("head", "objective", "product"),
        ("dpsgd", "steps", 0),
        ("dpsgd", "steps", 2.5),
        ("dpsgd", "hidden", 3),
        ("dpsgd", "hidden", "3"),
        ("dpsgd", "hidden", [2, -1]),
        ("dpsgd", "sampling_rate", 1.5),
        ("dpsgd", "activation", "sine"),
        ("dpsgd", "records_declared", 0),
        ("dpsgd", "price", "epsilon:1"),
        ("dpsgd", "price", "rho:99"),
        ("published", "epochs", 0),
        ("class-sums", "width", 3),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, field, value):
    with pytest.raises(WrongOption) as refused:
        kind_named(name).options.from_given(GIVEN[name] | {field: value})
    assert refused.value.field == field
    assert refused.value.reason is not None


def test_a_price_is_read_from_a_persons_words_and_written_as_such():
    whole = kind_named("dpsgd").options.from_given({"price": "rho:0.1", "records_declared": 9})
    assert whole.price == 10**11
    assert fields_of(type(whole))["price"].words_of(whole.price) == ["rho:0.1"]
    for words in ("x", "rho:100", "epsilon:1"):
        with pytest.raises(WrongOption) as refused:
            fields_of(type(whole))["price"].value_of(words)
        assert (refused.value.field, refused.value.value) == ("price", words)
        assert str(refused.value).count(", not ") < 2


def test_choices_of_the_convexified_objective_go_together():
    options = kind_named("head").options
    assert options.from_given({"lam": 1, "alpha": 0.5, "least_records": 9, "objective": "convexified"}).convexity
    for given, field in (
        ({"alpha": 0.5}, "alpha"),
        ({"least_records": 5}, "least_records"),
        ({"objective": "convexified", "least_records": 5}, "alpha"),
        ({"objective": "convexified", "alpha": 0.5}, "least_records"),
    ):
        with pytest.raises(WrongOption) as refused:
            options.from_given({"lam": 1} | given)
        assert refused.value.field == field
    assert kind_named("head").lack("units", {"objective": "convexified"}) is not None
    assert kind_named("head").lack("units", {}) is None


def test_options_cannot_be_changed():
    made = kind_named("head").options(lam=1)
    assert made.lam == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.lam = 2


def test_an_option_without_a_declaration_is_a_mistake_of_the_kind():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Bare(Options):
        width: int

    with pytest.raises(TypeError, match="width"):
        fields_of(Bare)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Whole(Options):
        width: Annotated[int, Declared("The width.", least=1)] = 1

    assert Whole(width=3).width == 3


def test_one_name_has_one_kind():
    register(kind_named("class-sums"))
    with pytest.raises(TrainingError, match="rename one"):
        register(ClassSumsKind())


def test_kinds_are_found_by_what_they_take():
    assert default_kind().name == "head"
    assert {kind.name for kind in takers("lam")} == {"head", "weights"}
    assert set(trainable_kinds()) == set(GIVEN) - {"published"}
