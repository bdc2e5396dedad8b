"""The options of a kind of model: frozen values whose fields are declared once.

A field's annotation holds its type and its `Declared`: one sentence, unit, range, and how a person's words become its
value. Command lines, estimators, help and errors are made of these declarations, each in names of its own:

    @dataclass(frozen=True, kw_only=True)
    class RidgeOptions(Options):
        lam: Annotated[float, Declared("Larger values mean less noise and a simpler model.", above=0)]

A field without a default is needed. `None` stands for "by rule".
"""

import dataclasses
import functools
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from dpserve.accounting.messages import message_of
from dpserve.training.errors import TrainingError, WrongOption, WrongValue

NEEDED = dataclasses.MISSING
"""The default of a field that has none."""


@dataclass(frozen=True)
class Declared:
    """The declaration of a field, for help, documentation, ranges and errors.

    sentence: what the field is, for whoever sets it. unit: of its numbers. above, least, below, most: the range of its
    numbers, exclusive and inclusive, of every one where there are several. lengths: how many values there may be;
    None for any number of them. default_text: what None stands for.
    needed_text: what to give, where nothing is. form: how a person writes it, as NAME=PRICE. read: makes the value of
    a person's words, a string, or strings where there are several; raises WrongOption, or ValueError or TrainingError
    with a sentence that has the words. write: its inverse.
    """

    sentence: str
    unit: str | None = None
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    lengths: tuple[int, ...] | None = None
    default_text: str | None = None
    needed_text: str | None = None
    form: str | None = None
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None

    @property
    def range_text(self) -> str | None:
        """The range in words; None for any number."""
        ends = {"above": self.above, "at least": self.least, "below": self.below, "at most": self.most}
        return " and ".join(f"{word} {_shown(end)}" for word, end in ends.items() if end is not None) or None

    def contains(self, number: float) -> bool:
        """Tell whether a number is finite and within the range."""
        return (
            math.isfinite(number)
            and (self.above is None or number > self.above)
            and (self.least is None or number >= self.least)
            and (self.below is None or number < self.below)
            and (self.most is None or number <= self.most)
        )


@dataclass(frozen=True)
class OptionField:
    """One field of a kind's options. type: `int`, `float`, `str`, or `tuple[int, ...]`, without None.

    words: all that a string may be, where that is listed. default: `NEEDED` for none.
    """

    name: str
    type: Any
    words: tuple[str, ...]
    optional: bool
    default: Any
    declared: Declared

    @property
    def is_needed(self) -> bool:
        """Whether there is no model without it."""
        return self.default is NEEDED

    @property
    def is_several(self) -> bool:
        """Whether a person gives it several times."""
        return get_origin(self.type) is tuple

    def value_of(self, given: Any) -> Any:
        """Return what was given as a value of this field. Raises WrongOption, saying what would do."""
        if given is None and self.optional:
            return None
        in_words = isinstance(given, str) or (self.declared.lengths is None and _is_words(given))
        if self.declared.read is not None and in_words:
            try:
                return self._checked(self.declared.read(given))
            except WrongOption:
                raise
            except (TrainingError, ValueError, ArithmeticError) as error:
                raise WrongOption(self.name, message_of(error), value=given) from error
        return self._checked(given)

    def _checked(self, given: Any) -> Any:
        if get_origin(self.type) is tuple:
            (kind, *_) = get_args(self.type)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise self._wrong(given, "must be several values")
            if (lengths := self.declared.lengths) is not None and len(given) not in lengths:
                raise self._wrong(given, f"must be {' or '.join(map(str, lengths))} values")
            return tuple(self._one(each, kind) for each in given)
        return self._one(given, self.type)

    def words_of(self, value: Any) -> list[str]:
        """Return a value in a person's words, each to be given by itself: what a command line takes."""
        words = value if self.declared.write is None or _is_words(value) else self.declared.write(value)
        several = isinstance(words, Sequence) and not isinstance(words, str)
        return [str(each) for each in words] if several else [str(words)]

    def _one(self, given: Any, kind: Any) -> Any:
        if kind is str:
            given = os.fspath(given) if isinstance(given, os.PathLike) else given
            if not isinstance(given, str) or (self.words and given not in self.words):
                raise self._wrong(given, f"must be one of {', '.join(self.words)}" if self.words else "must be a word")
            return given
        try:
            # A bool is an int in Python, and no number that anybody meant.
            number = None if isinstance(given, bool) else kind(given)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or (kind is int and number != _float(given)):
            raise self._wrong(given, f"must be a{' whole' if kind is int else ''} number")
        if not self.declared.contains(number):
            raise self._wrong(given, f"must be {self.declared.range_text or 'finite'}")
        return number

    def _wrong(self, given: Any, reason: str) -> WrongValue:
        return WrongValue(self.name, reason, value=given)


def _shown(number: float) -> str:
    short = f"{number:g}"
    return str(int(number)) if number == int(number) and ("e" not in short or float(short) != number) else short


def _is_words(given: Any) -> bool:
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return isinstance(given, str) or (several and len(given) > 0 and all(isinstance(each, str) for each in given))


def _float(given: Any) -> float | None:
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of a kind's options: each field is checked against its declaration when the value is made."""

    def __post_init__(self) -> None:
        """Raise WrongOption for a value that its declaration does not allow."""
        for name, field in fields_of(type(self)).items():
            object.__setattr__(self, name, field.value_of(getattr(self, name)))

    @classmethod
    def from_given(cls, given: Mapping[str, Any]) -> Self:
        """Return the options from what was given by name. Raises WrongOption for what is unknown, needed or wrong."""
        fields = fields_of(cls)
        for name in given:
            if name not in fields:
                raise WrongOption(name, "is no option of this kind of model", value=given[name])
        for name, field in fields.items():
            if field.is_needed and given.get(name) is None:
                text = field.declared.needed_text or field.declared.sentence
                raise WrongOption(name, "is needed", remedy=text)
        return cls(**given)


def fields_of(options: type[Options]) -> Mapping[str, OptionField]:
    """Return the fields of a kind's options by name, in their order."""
    return _fields_of(cast(Any, options))


@functools.cache
def _fields_of(options: Any) -> Mapping[str, OptionField]:
    hints = get_type_hints(options, include_extras=True)
    return {field.name: _field(field, hints[field.name]) for field in dataclasses.fields(options)}


def _field(field: "dataclasses.Field[Any]", hint: Any) -> OptionField:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"the option {field.name} has no declaration: annotate it with Annotated[TYPE, Declared(...)]")
    kind, declared = get_args(hint)
    kinds = [each for each in get_args(kind) if each is not types.NoneType]
    optional = get_origin(kind) in (Union, types.UnionType)
    kind = kinds[0] if optional else kind
    words = get_args(kind) if get_origin(kind) is Literal else ()
    return OptionField(field.name, str if words else kind, words, optional, field.default, declared)
