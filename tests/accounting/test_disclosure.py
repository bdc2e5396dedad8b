"""The types that say what a field may follow from: no class without them, and nothing shown beyond them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import msgspec
import pytest
from pydantic import BaseModel, ValidationError, computed_field

from dpserve.accounting.disclosure import (
    DECLARED,
    PRIVATE,
    Asked,
    Declared,
    Disclosed,
    DisclosedModel,
    Private,
    Reader,
    Released,
    disclosed_fields,
    shown,
)


class Inner(Disclosed, BaseModel):
    """A part of a model."""

    NOTED: ClassVar[str] = "of the class"

    width: Declared[int] = 3
    cuts: Annotated[tuple[int, ...], Released("cuts")] = (1, 2)
    digest: Private[str] = "d"


class Outer(Disclosed, BaseModel):
    """A model."""

    name: Declared[str] = "m"
    asked: Asked[int] = 7
    inner: Declared[Inner] = Inner()
    several: Declared[tuple[Inner, ...]] = (Inner(width=4),)
    by_name: Declared[dict[str, Inner]] = {"a": Inner(width=5)}
    hidden: Private[Inner] = Inner(width=6)


@pytest.mark.parametrize("base", [BaseModel, msgspec.Struct, object])
@pytest.mark.parametrize("annotation", [int, "Declared[int]", Annotated[int, DECLARED, PRIVATE]])
def test_a_field_without_one_type_cannot_be_written(base, annotation):
    with pytest.raises(TypeError, match="records"):
        type("Leaving", (Disclosed, base), {"__annotations__": {"records": annotation}})


def test_what_inherits_from_it_cannot_either():
    with pytest.raises(TypeError, match="Below"):
        type("Below", (Inner,), {"__annotations__": {"records": int}, "records": 3})


def test_a_dataclass_has_types_too():
    @dataclass(frozen=True)
    class Report(Disclosed):
        found: Private[float]

    assert [(field.path, field.disclosure) for field in disclosed_fields(Report)] == [(("found",), PRIVATE)]


@pytest.mark.parametrize(
    ("reader", "names", "inner"),
    [
        (Reader.STRANGER, {"name", "asked", "inner", "several", "by_name"}, {"width"}),
        (Reader.CLIENT, {"name", "asked", "inner", "several", "by_name"}, {"width", "cuts"}),
        (Reader.OWNER, set(Outer.model_fields), set(Inner.model_fields)),
    ],
)
def test_a_reader_is_shown_what_its_types_allow_wherever_it_lies(reader, names, inner):
    seen = shown(Outer(), reader)
    assert set(seen) == names
    assert set(seen["inner"]) == set(seen["several"][0]) == set(seen["by_name"]["a"]) == inner
    assert (seen["several"][0]["width"], seen["by_name"]["a"]["width"]) == (4, 5)


def test_an_inherited_field_is_not_shown_to_more():
    with pytest.raises(TypeError, match="cuts"):
        type("Below", (Inner,), {"__annotations__": {"cuts": Declared[tuple[int, ...]]}})
    type("Below", (Inner,), {"__annotations__": {"cuts": Private[tuple[int, ...]]}})


def test_neither_fields_of_another_base_nor_members_without_a_field_go_by():
    class Plain(BaseModel):
        records: int = 3

    with pytest.raises(TypeError, match="records"):
        type("Both", (Plain, Disclosed), {})
    with pytest.raises(TypeError, match="no field"):
        type("Open", (Disclosed, BaseModel), {"model_config": {"extra": "allow"}})


def test_what_follows_from_a_field_without_a_type_of_its_own_is_shown_to_nobody():
    class Computed(Disclosed, BaseModel):
        records: Private[int] = 7

        @computed_field
        def squared(self) -> int:
            return self.records**2

    @dataclass(frozen=True)
    class Report(Disclosed):
        found: Private[float]

    class Around(Disclosed, BaseModel):
        inner: Declared[Report]

    for value in (Computed(), Around(inner=Report(0.5))):
        with pytest.raises(TypeError):
            shown(value, Reader.STRANGER)


def test_what_has_no_types_is_shown_to_nobody():
    class Untyped(BaseModel):
        records: int = 3

    class Around(Disclosed, BaseModel):
        inner: Declared[Untyped] = Untyped()

    with pytest.raises(TypeError, match="Untyped"):
        shown(Around(), Reader.OWNER)


def test_a_field_within_another_is_seen_by_no_more_than_that_one():
    found = {".".join(field.path): field.disclosure for field in disclosed_fields(Outer)}
    assert found["inner.width"] == DECLARED
    assert found["hidden.width"] == found["hidden.cuts"] == PRIVATE
    assert found["several.cuts"] == found["by_name.cuts"] == Released("cuts")
    assert len(found) == 6 + 4 * 3


def test_a_class_within_itself_is_listed_once():
    class Tree(Disclosed, BaseModel):
        leaf: Declared[int] = 0
        below: Declared["tuple[Inner, ...]"] = ()

    assert len([*disclosed_fields(Tree)]) == 2 + 3


def test_a_model_that_leaves_stays_as_it_is_and_is_validated_from_its_first_use_on():
    class Leaving(DisclosedModel):
        name: Declared[str]

    assert not Leaving.__pydantic_complete__
    left = Leaving(name="m")
    assert Leaving.__pydantic_complete__
    with pytest.raises(ValidationError):
        left.name = "n"
