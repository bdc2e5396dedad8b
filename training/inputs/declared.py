"""Reading what the owner declares.

Classes: `no,yes`, or `0=no,1=yes` where the records hold other values. Bounds: `0:16` for all features, `age=17:90` for
one.
"""

from collections.abc import Mapping, Sequence

from dpserve.accounting.messages import Message
from dpserve.training.errors import DataError


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
    if len({name for name, _ in pairs}) < len(pairs) or len({value for _, value in pairs}) < len(pairs):
        raise DataError(f"classes are named once each, not {text!r}")
    return tuple(name for name, _ in pairs), tuple(value for _, value in pairs)


def values_of(classes: Sequence[str], text: str | None) -> tuple[str, ...]:
    """Return what each of a model's classes is called in other records. text: as `parse_classes` takes it; None: so.

    Raises DataError for text that names other classes than the model's.
    """
    if text is None:
        return tuple(classes)
    return values_by_name(classes, dict(zip(*parse_classes(text), strict=True)))


def values_by_name(classes: Sequence[str], value_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return what each of a model's classes is called in other records. value_of: that of each, by its name.

    Raises DataError for other classes than the model's.
    """
    if sorted(value_of) != sorted(classes):
        raise DataError(f"the model's classes are {', '.join(classes)}, not {', '.join(value_of)}")
    return tuple(value_of[name] for name in classes)


Bounds = Mapping[str | None, tuple[float, float]]
"""The lower and the upper bound of features by name; under None, those of every feature that is not named."""


def parse_bounds(
    given: Sequence[str] | Bounds, feature_names: Sequence[str]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and the upper bounds of every feature, in the order of `feature_names`.

    given: bounds, or a person's words for them: `LOW:HIGH` (every feature not named otherwise) or `NAME=LOW:HIGH`.
    Raises DataError for text of another form, a name that is no feature, features that are bounded twice, and features
    left without bounds.
    """
    bounds = given if isinstance(given, Mapping) else _read_bounds(given)
    everywhere = bounds.get(None)
    unknown = [name for name in bounds if name is not None and name not in feature_names]
    if unknown:
        raise DataError(f"there is no feature {unknown[0]!r} to bound; the features are {_some(feature_names)}")
    missing = [name for name in feature_names if name not in bounds] if everywhere is None else []
    if missing or not bounds:
        raise DataError(
            Message(
                "declare public bounds for {}: {bounds:LOW:HIGH} for every feature, {bounds:NAME=LOW:HIGH} "
                "for one. They must not be read off the private records",
                _some(missing or feature_names),
            )
        )
    pairs = [bounds[name if name in bounds else None] for name in feature_names]
    return tuple(low for low, _ in pairs), tuple(high for _, high in pairs)


def _read_bounds(texts: Sequence[str]) -> Bounds:
    bounds: dict[str | None, tuple[float, float]] = {}
    for text in texts:
        name, equals, interval = text.rpartition("=")
        low, colon, high = interval.partition(":")
        try:
            pair = (float(low), float(high))
        except ValueError:
            colon = ""
        if not colon:
            raise DataError(f"bounds are written LOW:HIGH or NAME=LOW:HIGH, not {text!r}")
        key = name if equals else None
        if key in bounds:
            raise DataError(f"bounds for {name or 'every feature'} are given twice: leave one of them out")
        bounds[key] = pair
    return bounds


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
