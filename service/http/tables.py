"""Tables as bodies: CSV with a header, and the data frames of MLflow's scoring protocol. Rows by the columns' names.

The protocol (https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally) asks with `dataframe_split`,
`dataframe_records`, `inputs` or `instances`, exactly one of them, and with `params`.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET

from service.errors import InvalidRows
from service.http.problems import Problem, ProblemType
from service.http.requests import invalid
from service.http.schemas import InvocationsRequest, SplitFrame
from service.predictor import Value
from training.columns import NUMBER

CSV = "text/csv"
FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")

Rows = Sequence[list[float]] | Sequence[dict[str, Value]] | Sequence[list[float] | dict[str, Value]]

_decode = msgspec.json.Decoder(InvocationsRequest).decode
_PLACE = re.compile(r"\[(\d+)\](?:\[(?:(\d+)|\.\.\.)\])?`$")


def rows_of_csv(body: bytes) -> list[dict[str, Value]]:
    """Return the rows below a header, by its names, each value as its text. Raises a 400 problem and InvalidRows."""
    try:
        lines = list(csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True))
    except UnicodeDecodeError:
        raise invalid("the body is not CSV in UTF-8") from None
    except csv.Error as error:
        raise invalid(f"the body is not CSV: {error}") from None
    head, *records = [line for line in lines if line] or [[]]
    names = [name.strip() for name in head]
    if not names or all(NUMBER.fullmatch(name) for name in names):
        raise InvalidRows("the first line of CSV names the columns")
    _check_once(names)
    return [_by_name(names, list[Value](record), row) for row, record in enumerate(records)]


def as_numbers(rows: Sequence[Mapping[str, Value]]) -> list[dict[str, Value]]:
    """Return rows of texts with a number in place of each text that is one."""
    return [{name: _number_or_text(value) for name, value in row.items()} for row in rows]


def _number_or_text(value: Value) -> Value:
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value.strip()) else value


def rows_of_invocation(body: bytes) -> tuple[Rows, str | None]:
    """Return the rows that MLflow's protocol asks about, and the tier that `params` names, or None.

    Raises msgspec's errors for what is not JSON, Problem and InvalidRows.
    """
    try:
        asked = _asked(body)
    except msgspec.ValidationError as error:
        raise _malformed(str(error)) from None
    given = [form for form in FORMS if getattr(asked, form) is not UNSET]
    if len(given) != 1:
        raise _malformed(f"send exactly one of {', '.join(FORMS)}")
    tier = (asked.params or {}).get("tier")
    if (asked.params or {}).keys() - {"tier"} or not isinstance(tier, str | None):
        raise invalid("params takes nothing but the name of a tier")
    if asked.dataframe_split is not UNSET:
        return _of_split(asked.dataframe_split), tier
    if isinstance(asked.inputs, dict):
        return _of_columns(asked.inputs), tier
    return asked.dataframe_records or asked.instances or asked.inputs or [], tier  # UNSET is false


def _asked(body: bytes) -> InvocationsRequest:
    """Return what is asked. Like MLflow's own server it takes NaN, as its clients write missing values, for null."""
    try:
        return _decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if b"NaN" not in body:
            raise
        try:
            content = json.loads(body, parse_constant={"NaN": None}.__getitem__)
        except (ValueError, KeyError):
            raise error from None
        return msgspec.convert(content, InvocationsRequest)


def _of_split(frame: SplitFrame) -> Rows:
    names = frame.columns
    if names is UNSET or names == list(range(len(names))):
        for index, row in enumerate(frame.data):
            for column, value in enumerate(row):
                if type(value) is not float:
                    raise InvalidRows(f"row {index}, column {column} must be a finite number", index, column)
        return frame.data  # type: ignore[return-value]  # looked at above
    texts = [str(name) for name in names]
    _check_once(texts)
    return [_by_name(texts, row, index) for index, row in enumerate(frame.data)]


def _of_columns(columns: Mapping[str, list[Value]]) -> Rows:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise InvalidRows("every column of inputs must have as many values")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _check_once(names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRows(f"the column {twice!r} is there more than once")


def _by_name(names: Sequence[str], values: Sequence[Value], row: int) -> dict[str, Value]:
    if len(values) != len(names):
        raise InvalidRows(f"row {row} has {len(values)} values, and there are {len(names)} columns", row)
    return dict(zip(names, values, strict=True))


def _malformed(message: str) -> Problem:
    """Return the problem of JSON that is not the protocol's, by msgspec's message and its path in the body."""
    said, _, path = message.partition(" - at ")
    found = _PLACE.search(path)
    row, column = (None if place is None else int(place) for place in found.groups()) if found else (None, None)
    where = path.strip("`").removeprefix("$").removeprefix(".")
    detail = f"{where}: {said}" if where else said
    return Problem(ProblemType.INVALID_ROWS, detail, row=row, column=column)
