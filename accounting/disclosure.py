"""The facts that each field of what leaves may follow from, as a part of the field's type.

    class Reply(Disclosed, Struct):
        model: Declared[str]
        remaining: Asked[float]
        probabilities: Annotated[list[float], Released("answer")]

- Declared: what the owner declared, and coins that no record has a say in. Everybody may see it.
- Asked: requests, what was charged for them, the clock and the machine. Whoever asked may see it, and the owner.
- Released: a release of the records, as well. Whoever has paid for that release may see it.
- Private: the records. Only their owner may see it, or whoever holds the records that an audit compares.

A class of `Disclosed` cannot be made with a field that has none of these types. `shown` is how a value is shown to
somebody: it leaves out what that reader may not see. `disclosed_fields` lists the fields of a class, those of what
lies in it as well.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict


class Reader(IntEnum):
    """Who reads, from those who may see least: each may see what the ones before may."""

    STRANGER = 0
    """Whoever has paid for nothing: somebody without a key, or a client before the first answer."""
    CLIENT = 1
    """Whoever has paid for the release that is shown."""
    OWNER = 2
    """Whoever has the records."""


@dataclass(frozen=True)
class Disclosure:
    """The facts that a field may follow from. least: the reader who may see it and sees least.

    release: which release, by its name; empty for the other types.
    """

    name: str
    least: Reader
    release: str = ""

    def __str__(self) -> str:
        """Return its name, with the release."""
        return f"{self.name}: {self.release}" if self.release else self.name


DECLARED = Disclosure("declared", Reader.STRANGER)
ASKED = Disclosure("asked", Reader.STRANGER)
PRIVATE = Disclosure("private", Reader.OWNER)

T = TypeVar("T")

Declared = Annotated[T, DECLARED]
Asked = Annotated[T, ASKED]
Private = Annotated[T, PRIVATE]


def Released(release: str) -> Disclosure:  # noqa: N802 - stands where a type does
    """Return the type of what follows from a release, by its name: `Annotated[float, Released("counts")]`."""
    return Disclosure("released", Reader.CLIENT, release)


class Disclosed:
    """Base of whatever leaves: each field of a subclass, a model, a struct or a dataclass, has a `Disclosure`."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError for a field without a type of disclosure, with two, or with one that shows it to more.

        Those that are inherited are looked at, too, and members that no field describes are refused.
        """
        super().__init_subclass__(**options)
        if getattr(cls, "model_config", {}).get("extra") == "allow":
            raise TypeError(f"{cls.__name__} takes members that no field describes")
        narrowest: dict[str, Disclosure] = {}
        for each in reversed(cls.__mro__):
            for name, disclosure in _own(each):
                if disclosure.least < narrowest.get(name, disclosure).least:
                    raise TypeError(
                        f"{cls.__name__}.{name} is {disclosure}, and {narrowest[name]} where it is inherited"
                    )
                narrowest[name] = disclosure


def _own(cls: type) -> Iterator[tuple[str, Disclosure]]:
    """Yield the fields that a class itself has. Raises TypeError for one without a type of disclosure, or with two."""
    annotations: Mapping[str, Any] = inspect.get_annotations(cls)
    for name, annotation in annotations.items():
        if name.startswith("_") or get_origin(annotation) is ClassVar:
            continue
        match _disclosures(annotation):
            case [disclosure]:
                yield name, disclosure
            case _:
                raise TypeError(f"{cls.__name__}.{name} needs one type: Declared, Asked, Released or Private")


def _disclosures(annotation: object) -> list[Disclosure]:
    """Return the types of disclosure that a field's annotation has."""
    return [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Disclosure)]


class DisclosedModel(Disclosed, BaseModel):
    """Base of models that leave. What validates one is made at its first use: a process never uses most of them."""

    model_config = ConfigDict(frozen=True, defer_build=True)


@dataclass(frozen=True)
class DisclosedField:
    """A field of what leaves. path: of names, from the class down."""

    path: tuple[str, ...]
    disclosure: Disclosure


def disclosed_fields(leaving: type[Disclosed]) -> Iterator[DisclosedField]:
    """Yield the fields of a class, and of the classes in them: a class that lies within itself once."""
    return _fields(leaving, DisclosedField((), DECLARED), frozenset())


def _fields(leaving: type, around: DisclosedField, seen: frozenset[type]) -> Iterator[DisclosedField]:
    """Yield the fields of a class that lies in the field `around`: none may be seen by more than may see that one."""
    for name, annotation in _annotations(leaving).items():
        (own,) = _disclosures(annotation)
        field = DisclosedField((*around.path, name), max(own, around.disclosure, key=lambda each: each.least))
        yield field
        for inner in _classes(annotation):
            if inner not in seen:
                yield from _fields(inner, field, seen | {inner})


def _annotations(leaving: type) -> Mapping[str, Any]:
    """Return each field's annotation, those that are inherited among them."""
    hints = get_type_hints(leaving, include_extras=True)
    return {name: hint for name, hint in hints.items() if _disclosures(hint)}


def _classes(annotation: object) -> Iterator[type]:
    """Yield the classes of `Disclosed` that an annotation names, in whatever list or union."""
    if isinstance(annotation, type) and issubclass(annotation, Disclosed):
        yield annotation
    for inner in get_args(annotation):
        yield from _classes(inner)


def shown(value: BaseModel, reader: Reader) -> dict[str, Any]:
    """Return what a reader may see of a model, ready for JSON. Raises TypeError for what is not `Disclosed`.

    A serialiser of the class's own is trusted to write its fields under their names, and each by itself.
    """
    return value.model_dump(mode="json", exclude=_hidden(value, reader))


def _hidden(value: BaseModel, reader: Reader) -> dict[Any, Any]:
    """Return what pydantic leaves out for a reader: True for a field, or the same of what lies in it."""
    if not isinstance(value, Disclosed) or type(value).model_computed_fields:
        raise TypeError(f"{type(value).__name__} does not say of each field what it follows from")
    hidden: dict[Any, Any] = {}
    for name, field in type(value).model_fields.items():
        (disclosure,) = (each for each in field.metadata if isinstance(each, Disclosure))
        inner = True if disclosure.least > reader else _hidden_within(getattr(value, name), reader)
        if inner:
            hidden[name] = inner
    return hidden


def _hidden_within(value: object, reader: Reader) -> dict[Any, Any] | bool:
    if isinstance(value, BaseModel):
        return _hidden(value, reader)
    if isinstance(value, tuple | list):
        each = {place: _hidden_within(one, reader) for place, one in enumerate(value)}
    elif isinstance(value, Mapping):
        each = {place: _hidden_within(one, reader) for place, one in value.items()}
    elif isinstance(value, Disclosed):
        raise TypeError(f"{type(value).__name__} is no model, of which parts could be left out")
    else:
        return False
    return {place: inner for place, inner in each.items() if inner}
