"""Messages that name options without saying how a person writes them.

A command line calls an option `--prediction-sets`, Python calls it `prediction_sets=`. So a message of this floor or
one above it holds the option's name between braces, and what was filled in otherwise is given apart from the text:

    raise ValueError(Message("there is no device {!r}: leave {device} out, or give {encoding:windows-1252}", given))
    spelled(error, lambda name, form: f"--{name} {form}")

A brace of a value is therefore never taken for an option's, whatever a person wrote. A text that is no `Message` names
no options, and is shown as it is.
"""

import string
from collections.abc import Callable, Iterable
from typing import Any, Self

Spelling = Callable[[str, str], str]
"""A front end's way of writing an option. It takes the name and the form of the value, as COLUMN=LOW:HIGH, or ""."""


class Message(str):
    """A text for a person that names options. As a string it has them between backticks: `prediction_sets`.

    template: the text, in which `{name}` and `{name:FORM}` are options, and `{}` takes the next value, as in
    `str.format`. values: what is filled in; messages among them keep their options.
    """

    template: str
    values: tuple[object, ...]

    def __new__(cls, template: str, /, *values: object) -> Self:
        """Take the text and what is filled in."""
        made = super().__new__(cls, _filled(template, values, _in_backticks))
        made.template, made.values = template, values
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return what makes an equal message, in another process too."""
        return (self.template, *self.values)

    def join(self, texts: Iterable[str], /) -> "Message":
        """Return one message of several, with this one between each two."""
        parts = [part for text in texts for part in (self, text)][1:]
        return Message("{}" * len(parts), *parts)


def named(option: str) -> Message:
    """Return an option as a message, where its name is known only as the program runs."""
    return Message("{" + option + "}")


def spelled(subject: BaseException | str, spelling: Spelling) -> str:
    """Return a message, or what an error says, with each option as a front end writes it."""
    text = subject if isinstance(subject, str) else message_of(subject)
    return _filled(text.template, text.values, spelling) if isinstance(text, Message) else text


def message_of(error: BaseException) -> str:
    """Return what an error says, as the message that it was made with."""
    return error.args[0] if error.args and isinstance(error.args[0], Message) else str(error)


def _in_backticks(name: str, _: str) -> str:
    return f"`{name}`"


def _filled(template: str, values: Iterable[object], spelling: Spelling) -> str:
    given = [spelled(value, spelling) if isinstance(value, Message) else value for value in values]
    return string.Formatter().vformat(template, given, _Options(spelling))


class _Options(dict[str, "_Spelled"]):
    """The options by any name."""

    def __init__(self, spelling: Spelling) -> None:
        super().__init__()
        self._spelling = spelling

    def __missing__(self, name: str) -> "_Spelled":
        return _Spelled(name, self._spelling)


class _Spelled:
    """An option to be filled in: what stands behind its colon is the form of its value."""

    def __init__(self, name: str, spelling: Spelling) -> None:
        self._name, self._spelling = name, spelling

    def __format__(self, form: str) -> str:
        return self._spelling(self._name, form)
