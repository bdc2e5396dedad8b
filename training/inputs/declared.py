"""Reading what the owner declares.

Classes: `no,yes`, or `0=no,1=yes` where the records hold other values. Bounds: `0:16` for all features, `age=17:90` for
one.
"""

from collections.abc import Sequence

from accounting.messages import OptionName
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
    value_of = dict(zip(names, values, strict=True))
    return tuple(value_of[name] for name in classes)


def parse_bounds(texts: Sequence[str], feature_names: Sequence[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and the upper bounds of every feature, in the order of `feature_names`.

    texts: `LOW:HIGH` (every feature not named otherwise) or `NAME=LOW:HIGH`. Raises DataError for text of
    another form, a name that is no feature, features that are bounded twice, and features left without bounds.
    """
    everywhere: tuple[float, float] | None = None
    named: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, equals, interval = text.rpartition("=")
        low, colon, high = interval.partition(":")
        try:
            pair = (float(low), float(high))
        except ValueError:
            colon = ""
        if not colon:
            raise DataError(f"bounds are written LOW:HIGH or NAME=LOW:HIGH, not {text!r}")
        if name in named or (not equals and everywhere is not None):
            raise DataError(f"bounds for {name or 'every feature'} are given twice: leave one of them out")
        if not equals:
            everywhere = pair
        elif name in feature_names:
            named[name] = pair
        else:
            raise DataError(f"there is no feature {name!r} to bound; the features are {_some(feature_names)}")
    missing = [name for name in feature_names if name not in named] if everywhere is None else []
    if missing or (everywhere is None and not named):
        raise DataError(
            f"declare public bounds for {_some(missing or feature_names)}: "
            + OptionName("bounds", ("LOW", "HIGH"))
            + " for every feature, "
            + OptionName("bounds", {"NAME": ("LOW", "HIGH")})
            + " for one. They must not be read off the private records. Columns that are no "
            "numbers are declared in a schema: see 'dpserve schema draft'"
        )
    pairs = [named.get(name, everywhere) or (0.0, 0.0) for name in feature_names]
    return tuple(low for low, _ in pairs), tuple(high for _, high in pairs)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
