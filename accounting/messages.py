"""Messages that name options without saying how a person writes them.

A command line calls an option `--records-declared`, Python calls it `records_declared=`, a configuration file otherwise
again. So a message of this floor or one above it holds the option's name as a part of its own, and each front end words
that part:

    raise ValueError("there is no such device: leave " + OptionName("device") + " out")
    message_of(error).worded(lambda option: f"--{option.name}")
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Form = str | tuple[str, ...] | Mapping[str, "Form"] | None
"""The value to give: a word, several joint ones, or one by name, as {"COLUMN": ("LOW", "HIGH")}. None is not said."""


@dataclass(frozen=True)
class OptionName:
    """An option in a message. name: in Python, `records_declared`. form: what to give, where the message says it."""

    name: str
    form: Form = None

    def __add__(self, other: "Wording") -> "Message":
        """Return a message that begins with the option."""
        return Message((self,)) + other

    def __radd__(self, other: "Wording") -> "Message":
        """Return a message that ends with the option."""
        return other + Message((self,))

    def __hash__(self) -> int:
        """Return the name's hash: a form may be a mapping, which has none."""
        return hash(self.name)

    def __str__(self) -> str:
        """Return the name between backticks, for whoever does not word it."""
        return f"`{self.name}`"


@dataclass(frozen=True)
class Message:
    """A text for a person, in parts: texts and options."""

    parts: tuple[str | OptionName, ...]

    def __add__(self, other: "Wording") -> "Message":
        """Return this message and what follows it."""
        return Message((*self.parts, *_parts(other)))

    def __radd__(self, other: "Wording") -> "Message":
        """Return this message after what comes before it."""
        return Message((*_parts(other), *self.parts))

    def worded(self, word: Callable[[OptionName], str]) -> str:
        """Return the text, with each option as a front end writes it."""
        return "".join(part if isinstance(part, str) else word(part) for part in self.parts)

    def __str__(self) -> str:
        """Return the text with the options' names as they are."""
        return self.worded(str)


Wording = str | OptionName | Message


def _parts(words: Wording) -> tuple[str | OptionName, ...]:
    return words.parts if isinstance(words, Message) else (words,)


def message(words: Wording) -> Message:
    """Return words as a message."""
    return Message(_parts(words))


def joined(messages: Iterable[Wording], between: str) -> Message:
    """Return one message of several, with a text between each two."""
    parts: Sequence[tuple[str | OptionName, ...]] = [_parts(each) for each in messages]
    return Message(tuple(part for place, each in enumerate(parts) for part in ((between,) * bool(place) + each)))


def message_of(error: BaseException) -> Message:
    """Return what an error says: the message that it was made with, or its text."""
    made = error.args[0] if error.args else None
    return message(made if isinstance(made, Message | OptionName) else str(error))
