"""A schema's encoding in ONNX: rows by the names of their columns become the numbers of
`dpserve.training.inputs.columns`.

Each column is an input (rows, 1) of its name: a number or a boolean in double precision, NaN where it is missing; a
level as a text, as it was declared; a date or a time as microseconds since 1970-01-01 UTC in 64-bit integers, the least
of them (NumPy's NaT) where it is missing. The blocks of coordinates have the bits that the service gives them.

What the service refuses has an answer here: numbers and times beyond their bounds are moved to them, a text that
is no level counts as none of them, and a missing value that is required as the least one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpserve.training.errors import NotExportable
from dpserve.training.export.onnx_graph import Graph
from dpserve.training.inputs.columns import AnyColumn, BooleanColumn, LevelsColumn, NumberColumn, TextColumn, TimeColumn
from dpserve.training.inputs.time_columns import PARTS

if TYPE_CHECKING:
    from onnx import ValueInfoProto

ML_DOMAIN, ML_OPSET = "ai.onnx.ml", 3
"""The operator set of the look-up of texts, which every runtime for classical models has."""

_OUTPUTS = ("label", "probabilities")
_NO_TIME = -(2**63)
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR


def columns_of(graph: Graph, columns: Sequence[AnyColumn]) -> tuple[list["ValueInfoProto"], str]:
    """Return the inputs, and the name of the encoded rows (n, d). Raises NotExportable for names that are taken."""
    from onnx import TensorProto, helper

    inputs, blocks = [], []
    for column in columns:
        name = column.name
        if name in _OUTPUTS or name.startswith("dpserve/"):
            raise NotExportable(f"a column named {name!r} is in the way of an output of that name: rename it")
        match column:
            case NumberColumn() | BooleanColumn():
                kind, encoded = TensorProto.DOUBLE, _number(graph, column)
            case LevelsColumn():
                kind, encoded = TensorProto.STRING, _levels(graph, column)
            case TimeColumn():
                kind, encoded = TensorProto.INT64, _time(graph, column)
            case TextColumn():
                raise NotExportable(f"the column {name!r} is a text, whose n-grams no operator of ONNX can hash")
        inputs.append(helper.make_tensor_value_info(name, kind, ["rows", 1]))
        blocks += encoded
    return inputs, graph("Concat", *blocks, axis=1)


def _number(graph: Graph, column: NumberColumn | BooleanColumn) -> list[str]:
    least = column.minimum if isinstance(column, NumberColumn) else 0.0
    least = least if column.substitute is None else column.substitute
    absent = graph("IsNaN", column.name)
    return [graph("Where", absent, graph.constant([[least]]), column.name), *_missing(graph, column, absent)]


def _levels(graph: Graph, column: LevelsColumn) -> list[str]:
    others = len(column.levels)
    nothing = -1 if column.substitute is None else column.substitute
    places = {level: index for index, level in enumerate(column.levels)} | dict.fromkeys(column.missing, nothing)
    place = graph(
        "LabelEncoder",
        column.name,
        domain=ML_DOMAIN,
        keys_strings=list(places),
        values_int64s=list(places.values()),
        default_int64=others,
    )
    absent = graph("Equal", place, graph.integers([[-1]]))
    count = others + (column.unknown == "coordinate")
    return [_one_hot(graph, place, count), *_missing(graph, column, absent)]


def _time(graph: Graph, column: TimeColumn) -> list[str]:
    absent = graph("Equal", column.name, graph.integers([[_NO_TIME]]))
    low, high = (graph.integers([[column.parse(bound)]]) for bound in (column.minimum, column.maximum))
    nothing = low if column.if_missing is None else graph.integers([[column.substitute]])
    micros = graph("Where", absent, nothing, graph("Min", graph("Max", column.name, low), high))
    present, blocks = graph("Not", absent), []
    days = _floor(graph, micros, _DAY)
    for part in column.parts:
        match part:
            case "time":
                blocks.append(graph("Div", graph.real(micros), graph.constant([[float(_DAY)]])))
                continue
            case "month":
                place = _month(graph, days)
            case "weekday":
                # 1970-01-01 was a Thursday.
                place = _modulo(graph, graph("Add", days, graph.integers([[3]])), 7)
            case "hour":
                place = _modulo(graph, _floor(graph, micros, _HOUR), 24)
        shown = place if column.if_missing is not None else graph("Where", present, place, graph.integers([[-1]]))
        blocks.append(_one_hot(graph, shown, len(PARTS[part])))
    return [*blocks, *_missing(graph, column, absent)]


def _month(graph: Graph, days: str) -> str:
    """Return months from 0, by counting years from March (Hinnant 2013, "chrono-compatible low-level date algorithms").

    719,468 days lie between 0000-03-01 and 1970-01-01, and 400 years have 146,097.
    """

    def divided(value: str, by: int) -> str:
        return graph("Div", value, graph.integers([[by]]))

    day = _modulo(graph, graph("Add", days, graph.integers([[719_468]])), 146_097)
    without = graph(
        "Sub", graph("Add", graph("Sub", day, divided(day, 1_460)), divided(day, 36_524)), divided(day, 146_096)
    )
    years = divided(without, 365)
    leaps = graph("Sub", divided(years, 4), divided(years, 100))
    of_years = graph("Add", graph("Mul", years, graph.integers([[365]])), leaps)
    fifths = graph("Mul", graph("Sub", day, of_years), graph.integers([[5]]))
    months = divided(graph("Add", fifths, graph.integers([[2]])), 153)
    return _modulo(graph, graph("Add", months, graph.integers([[2]])), 12)


def _modulo(graph: Graph, values: str, by: int) -> str:
    """With the divisor's sign, as Python has it."""
    return graph("Mod", values, graph.integers([[by]]))


def _floor(graph: Graph, values: str, by: int) -> str:
    return graph("Div", graph("Sub", values, _modulo(graph, values, by)), graph.integers([[by]]))


def _one_hot(graph: Graph, place: str, count: int) -> str:
    return graph.real(graph("Equal", place, graph.integers([list(range(count))])))


def _missing(graph: Graph, column: AnyColumn, absent: str) -> list[str]:
    return [graph.real(absent)] if column.marks_missing else []
