"""A schema's encoding as steps of scikit-learn: rows of values in the order of the columns become numbers.

A row is a list, or a row of a data frame: numbers and booleans, levels as texts, dates as texts, `datetime` or
NumPy's; None, NaN or NaT where a value is missing; times are UTC. What the service refuses has an answer, as
`training.export.onnx_columns` says.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder

from training.errors import NotExportable
from training.export.sklearn_steps import function, scaler, sums
from training.inputs.columns import PARTS, AnyColumn, BooleanColumn, LevelsColumn, NumberColumn, TextColumn, TimeColumn

_DAY = 86_400_000_000.0
_UNITS = {"month": ("M", "-", 1), "hour": ("h", "T", 0)}


def encoding(columns: Sequence[AnyColumn]) -> list[Any]:
    """Return the steps from rows of values (n, columns) to rows of coordinates (n, d)."""
    each = []
    for index, column in enumerate(columns):
        own = function(np.take, indices=np.array([index]), axis=1)
        each.append((f"column-{index}", _pipeline(own, *_encoded(column))))
    return [function(np.asarray, dtype=object), FeatureUnion(each)]


def _pipeline(*steps: Any) -> Pipeline:
    return Pipeline([(f"{index}-{type(step).__name__.lower()}", step) for index, step in enumerate(steps)])


def _encoded(column: AnyColumn) -> list[Any]:
    match column:
        case NumberColumn() | BooleanColumn():
            least = column.minimum if isinstance(column, NumberColumn) else 0.0
            least = least if column.substitute is None else column.substitute
            value = ("value", function(np.nan_to_num, nan=least, posinf=None, neginf=None))
            missing = [("missing", function(np.isnan))] if column.marks_missing else []
            return [function(np.asarray, dtype=np.float64), FeatureUnion([value, *missing])]
        case LevelsColumn():
            return _levels(column)
        case TimeColumn():
            return _time(column)
        case TextColumn():
            raise NotExportable(f"the column {column.name!r} is a text, whose n-grams no step hashes alike")


def _levels(column: LevelsColumn) -> list[Any]:
    """One-hot of all texts that are known, and from these the levels, any other, and what is missing."""
    missing = [text for text in column.missing if text not in column.levels]
    nothing: list[object] = [] if column.required else [None, np.nan]
    levels = np.array([*column.levels, *missing, *nothing], dtype=object)
    others = column.unknown == "coordinate"
    matrix = np.zeros((len(column.levels) + others + column.marks_missing, len(levels)))
    for place, text in enumerate(levels):
        if place < len(column.levels) and text not in column.missing:
            matrix[place, place] = 1.0
        elif not column.required:
            matrix[-1 if column.substitute is None else column.substitute, place] = 1.0
    mean = np.zeros(len(matrix))
    if others:
        matrix[len(column.levels)], mean[len(column.levels)] = -1.0, -1.0  # one, less what is known
    encoder = OneHotEncoder(categories=[levels], handle_unknown="ignore", sparse_output=False).fit(levels[:, None])
    return [encoder, sums(matrix), scaler(mean, 1.0)]


def _time(column: TimeColumn) -> list[Any]:
    absent = function(np.isnat)
    blocks: list[tuple[str, Any]] = []
    for part in column.parts:
        if part == "time":
            numbers = _pipeline(function(np.asarray, dtype=np.float64), scaler(np.zeros(1), _DAY))
            # What is missing is far below the bound, to which it is moved later.
            blocks.append((part, numbers))
            continue
        blocks.append((part, _weekdays() if part == "weekday" else _shown(part)))
    missing = [("missing", absent)] if column.marks_missing else []
    # As texts, for NumPy makes no time of NaN, or of a data frame's NaT.
    texts = [function(np.asarray, dtype=np.str_)]
    texts += [function(np.char.replace, old=old, new="NaT") for old in ("None", "nan")]
    if column.if_missing is not None:
        texts.append(function(np.char.replace, old="NaT", new=_iso(column.substitute)))
    low, high = (np.array(column.parse(bound), "datetime64[us]") for bound in (column.minimum, column.maximum))
    # Before parts are taken, for a date beyond the bounds has the month of the bound. NaT stays as it is.
    within = function(np.clip, a_min=low, a_max=high)
    return [*texts, function(np.asarray, dtype="datetime64[us]"), within, FeatureUnion([*blocks, *missing])]


def _iso(micros: int) -> str:
    return str(np.datetime_as_string(np.datetime64(micros, "us")))


def _weekdays() -> Pipeline:
    each = [(f"day-{day}", function(np.is_busday, weekmask=[place == day for place in range(7)])) for day in range(7)]
    return _pipeline(function(np.asarray, dtype="datetime64[D]"), FeatureUnion(each))


def _shown(part: str) -> Pipeline:
    """One-hot of a month or an hour: what ISO 8601 has behind the last sign. NaT has nothing there that is one."""
    unit, sign, first = _UNITS[part]
    words = np.array([f"{place:02}" for place in range(first, first + len(PARTS[part]))], dtype=object)
    one_hot = OneHotEncoder(categories=[words], handle_unknown="ignore", sparse_output=False)
    return _pipeline(
        function(np.datetime_as_string, unit=unit, casting="unsafe"),
        function(np.char.rpartition, sep=sign),
        function(np.take, indices=2, axis=2),
        function(np.asarray, dtype=object),
        one_hot.fit(words[:, None]),
    )
