"""Options: frozen values, each field declared once, beside its type.

    class Ridge(Options):
        "Ridge regression."

        lam: float = option(1.0, "Larger values mean less noise and a simpler model.", gt=0)

Flags, parameters, help, documentation and errors are made of these declarations, each front end in names of its own.
A field without a default is needed, and None stands for "by rule". What is given in a person's words, as "0.5" for a
number, is read. A value that its declaration does not allow raises `WrongOption`, which names the field.
"""

import os
import types
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from dpserve.accounting.messages import Message, named
from dpserve.training.errors import WrongOption, WrongValue

_RANGE = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"})
_LIKE = 0.6
_ENDS = ("gt", "ge", "lt", "le")


def option(
    default: Any,
    sentence: str,
    *names: str,
    unit: str | None = None,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    form: str | None = None,
    default_text: str | None = None,
    needed: str | None = None,
    **shown: Any,
) -> Any:
    """Declare a field of `Options`.

    default: `...` for none. sentence: what the field is, for whoever sets it. names: flags, if not the field's own
    name. unit: of its numbers. gt, ge, lt, le: their range. form: how a person writes a value, as NAME=PRICE.
    default_text: what stands for a default that is not a value. needed: what to give, where nothing is.
    shown: what else a command line shows of it (`dpserve.commands.command`).
    """
    more = {"names": names, "unit": unit, "form": form, "default_text": default_text, "needed": needed} | shown
    return Field(default, description=sentence, gt=gt, ge=ge, lt=lt, le=le, json_schema_extra=more)


def declared(field: FieldInfo, what: str) -> Any:
    """Return what `option` was told of a field; None for what it was not."""
    more = field.json_schema_extra
    return more.get(what) if isinstance(more, dict) else None


def option_of(options: "type[Options]", name: str, sentence: str | None = None, **shown: Any) -> Any:
    """Declare a field as other options have one of this name. sentence, shown: in the place of that one's."""
    field = options.model_fields[name]
    more: Any = field.json_schema_extra
    default = ... if field.is_required() else field.get_default()
    return Field(default, description=sentence or field.description, json_schema_extra=more | shown, **range_of(field))


def range_of(field: FieldInfo) -> dict[str, Any]:
    """Return the range of a field's numbers as `option` takes it."""
    return {end: getattr(limit, end) for limit in field.metadata for end in _ENDS if hasattr(limit, end)}


class Options(BaseModel):
    """Base of options."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False, defer_build=True
    )
    panel: ClassVar[str | None] = None
    """The section of the command line's help that these options stand in, where a field says no other."""

    def __init__(self, **given: Any) -> None:
        """Take the fields. Raises WrongOption for the first that is unknown, needed or wrong."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _fault(type(self), error) from None

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the options from a person's words for each; None, and no words, for what was not given."""
        return cls(**_given(given))

    @classmethod
    def flags(cls) -> "Mapping[str, tuple[FieldInfo, type[Options]]]":
        """Return the fields that a command line has flags for, by name, each with the class that declares it."""
        return {name: (field, cls) for name, field in cls.model_fields.items()}

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        """Take NumPy's numbers, and paths for words. A bool is an int in Python, and no number that anybody meant."""
        name = str(info.field_name)
        types_ = set(_types((field := cls.model_fields[name]).annotation))
        if isinstance(value, os.PathLike) and str in types_ and Path not in types_:
            return os.fspath(value)
        values = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, bool) for item in values) and types_ & {int, float} and bool not in types_:
            raise WrongValue(name, _requirement(field, {"int_type"}), value=value)
        plain = tuple(item.item() if getattr(item, "shape", None) == () else item for item in values)
        return plain if isinstance(value, list | tuple) else plain[0]

    def replaced(self, **changes: Any) -> Self:
        """Return the options with other values. Raises WrongOption."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that are not defaults."""
        for name, field in type(self).model_fields.items():
            if field.is_required() or getattr(self, name) != field.get_default():
                yield name, getattr(self, name)


class OneOf(Options):
    """Base of options that are one of several values: the subclasses, each with a word and the fields that it takes.

    A person chooses one by its word, or leaves that out and gives fields that one of them takes: without any, the
    first. choice: the name of the word's flag. sentence: what is chosen.
    """

    choice: ClassVar[str]
    sentence: ClassVar[str]
    word: ClassVar[str]

    @classmethod
    def members(cls) -> Mapping[str, type[Self]]:
        """Return the values' classes by their words, of the base or of any of them."""
        base: type[Any] = next(base for base in cls.__mro__ if OneOf in base.__bases__)
        return {member.word: member for member in base.__subclasses__()}

    @classmethod
    def flags(cls) -> Mapping[str, tuple[FieldInfo, type[Options]]]:
        """Return the choice, and the fields of all members: which are needed is known once one is chosen."""
        words = tuple(cls.members())
        kind: Any = Literal[words]
        choice = FieldInfo.from_annotated_attribute(kind, option(words[0], cls.sentence, panel=cls.panel))
        flags: dict[str, tuple[FieldInfo, type[Options]]] = {cls.choice: (choice, cls)}
        for member in cls.members().values():
            for name, field in member.model_fields.items():
                if field.is_required():
                    field = copy(field)
                    field.default = None
                flags.setdefault(name, (field, member))
        return flags

    @classmethod
    def of_words(cls, given: Mapping[str, Any]) -> Self:
        """Return the member that a person's words name, or that takes the most of the fields given."""
        words, members = _given(given), cls.members()
        word = words.pop(cls.choice, None)
        if word is not None and word not in list(members):
            raise WrongValue(cls.choice, f"must be one of {', '.join(members)}", value=word)
        candidates = list(members.values()) if word is None else [members[word]]
        member = max(candidates, key=lambda candidate: len(words.keys() & candidate.model_fields.keys()))
        for name in (name for name in words if name not in member.model_fields):
            takers = [
                named(f"{cls.choice}:{candidate.word}")
                for candidate in members.values()
                if name in candidate.model_fields
            ]
            raise WrongOption(name, Message("goes with {}, not {}", Message(" or ").join(takers), member.word))
        return member(**words)


def _given(words: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in words.items() if value is not None and value != []}


def _size(annotation: Any) -> int:
    """Return how many values a tuple of an annotation has; 0 where that is not said."""
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return 0 if Ellipsis in parts else len(parts)
    return max(map(_size, parts), default=0)


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of, without None and its limits."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _types(parts[0])
    elif origin is Literal:
        yield str
    elif parts:
        yield from {origin} & {tuple}
        for part in parts:
            yield from _types(part)
    elif isinstance(annotation, type) and annotation is not types.NoneType:
        yield annotation


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        for metadata in annotation.__metadata__:
            yield from metadata.metadata if isinstance(metadata, FieldInfo) else (metadata,)
    for part in get_args(annotation):
        yield from _metadata(part)


def is_several(field: FieldInfo) -> bool:
    """Return whether a field's value is several of any number, which a person gives one by one."""
    parts = get_args(field.annotation) if get_origin(field.annotation) in (Union, types.UnionType) else ()
    return any(get_origin(part) is tuple and get_args(part)[1:] == (...,) for part in (field.annotation, *parts))


def is_number(field: FieldInfo) -> bool:
    """Return whether a field is a number, or several."""
    return bool(set(_types(field.annotation)) & {int, float}) and not declared(field, "form")


def words_of(field: FieldInfo) -> tuple[str, ...]:
    """Return all that a field's value may be, where that is listed."""
    parts = (field.annotation, *get_args(field.annotation))
    return next((get_args(part) for part in parts if get_origin(part) is Literal), ())


def limits(field: FieldInfo) -> dict[str, Any]:
    """Return the range of a field's numbers, by the words for its ends."""
    ends: dict[str, Any] = {}
    for limit in (*field.metadata, *_metadata(field.annotation)):
        match limit:
            case Gt():
                ends["above"] = limit.gt
            case Ge():
                ends["at least"] = limit.ge
            case Lt():
                ends["below"] = limit.lt
            case Le():
                ends["at most"] = limit.le
    return ends


def range_text(field: FieldInfo) -> str | None:
    """Return the range of a field's numbers in words; None for any number."""
    return " and ".join(f"{word} {_shown(end)}" for word, end in limits(field).items()) or None


def default_text(field: FieldInfo) -> str | None:
    """Return a field's default as help and documentation show it; None for one that is needed."""
    if field.is_required():
        return None
    value = field.get_default()
    if text := declared(field, "default_text"):
        return str(text)
    if isinstance(value, bool):
        return "on" if value else None
    if value is None or value in ((), []):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def unknown_name(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that asks whether another name was meant; empty where none is like it."""
    close = get_close_matches(name, list(names), 1, _LIKE)
    return Message(": did you mean {}?", named(close[0])) if close else ""


def _shown(number: float) -> str:
    short = f"{number:g}"
    return str(int(number)) if number == int(number) and ("e" not in short or float(short) != number) else short


def _fault(options: type[Options], error: ValidationError) -> WrongOption:
    """Return the first of pydantic's errors in words of our own."""
    errors = error.errors(include_url=False)
    first = errors[0]
    if isinstance(given := first["input"], list | tuple) and len(given) == 1:
        (given,) = given
    if isinstance(raised := first.get("ctx", {}).get("error"), WrongOption):
        return raised
    name = str(first["loc"][0]) if first["loc"] else options.__name__
    if first["type"] == "extra_forbidden":
        meant = unknown_name(name, options.model_fields)
        return WrongOption(name, Message("is no option of {}{}", options.__name__, meant), value=given)
    field = options.model_fields.get(name)
    if field is not None and first["type"] == "missing" and len(first["loc"]) == 1:
        return WrongOption(name, "is needed", remedy=declared(field, "needed") or field.description)
    if field is None or first["type"] == "value_error":
        text = first["msg"].removeprefix("Value error, ")
        return (WrongValue if text.startswith("must ") else WrongOption)(name, text, value=given)
    of_field = {error["type"] for error in errors if error["loc"][:1] == first["loc"][:1]}
    several = [error for error in errors if error["loc"][:1] == first["loc"][:1] and error["type"] in _RANGE]
    return WrongValue(name, _requirement(field, of_field), value=several[0]["input"] if several else given)


def _requirement(field: FieldInfo, faults: set[str]) -> str:
    """Return what a field's value must be."""
    if faults & _RANGE:
        return f"must be {range_text(field) or 'finite'}"
    if words := words_of(field):
        return f"must be one of {', '.join(words)}"
    if form := declared(field, "form"):
        return f"must be {form}"
    types_ = set(_types(field.annotation))
    if types_ & {int, float} and any(fault.startswith(("int_", "float_")) for fault in faults):
        return f"must be a{'' if float in types_ else ' whole'} number"
    if faults & {"tuple_type", "list_type", "too_short", "too_long", "missing"}:
        size = _size(field.annotation)
        return f"must be {size} values" if size else "must be several values"
    return "must be true or false" if bool in types_ else "must be a word"
