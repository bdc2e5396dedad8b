"""Reading the owner's declared classes: `no,yes`, or `0=no,1=yes` where the records hold other values."""

from collections.abc import Sequence

from training.errors import DataError


def parse_classes(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes' names, and what each is called in the records, from NAME or VALUE=NAME between commas.

    Raises DataError for a name without text.
    """
    pairs = []
    for word in text.split(","):
        value, equals, name = (part.strip() for part in word.partition("="))
        if not value or (equals and not name):
            raise DataError(f"classes are written NAME,NAME or VALUE=NAME,VALUE=NAME, not {text!r}")
        pairs.append((name or value, value))
    return tuple(name for name, _ in pairs), tuple(value for _, value in pairs)


def values_of(classes: Sequence[str], text: str | None) -> tuple[str, ...]:
    """Return what each of a model's classes is called in other records. text: as `parse_classes` takes it; None: so.

    Raises DataError for text that names other classes than the model's.
    """
    if text is None:
        return tuple(classes)
    names, values = parse_classes(text)
    if sorted(names) != sorted(classes):
        raise DataError(f"the model's classes are {', '.join(classes)}, not {', '.join(names)}")
    return tuple(values[names.index(name)] for name in classes)
