"""Tables as bodies: CSV with a header, and the data frames of MLflow's scoring protocol. Rows by the columns' names.

The protocol (https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally) asks with `dataframe_split`,
`dataframe_records`, `inputs` or `instances`, exactly one of them, and with `params`.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from dpserve.service.errors import InvalidRows
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import invalid
from dpserve.service.http.schemas import AnswerOptions, InvocationsRequest, SplitFrame
from dpserve.service.predictor import Value
from dpserve.training.inputs.column import NUMBER
from dpserve.training.inputs.columns import DELIMITERS

CSV = "text/csv"
FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs")

Lists = Sequence[list[float]] | Sequence[dict[str, Value]] | Sequence[list[float] | dict[str, Value]]
Rows = Lists | NDArray[np.floating[Any]]


Asked = tuple[Rows, AnswerOptions]
"""Rows, and what is wished for beside them."""


class Table(Protocol):
    """Checks of a model's tables before their rows are read."""

    @property
    def largest_batch(self) -> int:
        """The most rows that may be asked about at once."""
        ...

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InvalidRows unless these name the model's columns, each once."""
        ...

    def check_count(self, rows: int) -> None:
        """Raise InvalidRows for no row, and for more than may be asked about at once."""
        ...


_CHARSETS = ("utf-8", "utf-16", "us-ascii", "iso-8859-1", "latin-1", "latin1", "iso-8859-15", "windows-1252")
"""The names of the encodings of tables. Others are refused: the time that some take grows faster than a text."""
_decode = msgspec.json.Decoder(InvocationsRequest).decode
_PLACE = re.compile(r"\[(\d+)\](?:\[(?:(\d+)|\.\.\.)\])?`$")


def rows_of_csv(body: bytes, table: Table, charset: str | None = None) -> list[dict[str, Value]]:
    """Return the rows below a header, by its names, each value as its text. Raises a 400 problem and InvalidRows.

    charset: the encoding that the Content-Type names; UTF-8 without one. The delimiter is found as in files that are
    trained on. The header is checked before the rows are read, and no more rows are read than may be asked about.
    """
    try:
        text = body.decode(_encoding(charset)).removeprefix("\ufeff")
        delimiter = max(DELIMITERS, key=text.lstrip("\r\n").partition("\n")[0].count)
        lines = filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
        names = [name.strip() for name in next(lines, ())]
        if not names or all(NUMBER.fullmatch(name) for name in names):
            raise InvalidRows("the first line of CSV names the columns")
        table.check_names(names)
        rows: list[dict[str, Value]] = []
        for record in lines:
            if len(rows) == table.largest_batch:
                table.check_count(len(rows) + 1 + sum(1 for _ in lines))
            rows.append(_by_name(names, list[Value](record), len(rows)))
    except UnicodeDecodeError:
        in_what = "UTF-8: name its charset in the Content-Type, as windows-1252" if charset is None else "its charset"
        raise invalid(f"the body is not CSV in {in_what}") from None
    except csv.Error as error:
        raise invalid(f"the body is not CSV: {error}") from None
    return rows


def _encoding(charset: str | None) -> str:
    """Return the encoding that a charset names. Raises a 400 problem for another than those that tables come in."""
    named = "utf-8" if charset is None else charset.lower()
    if named not in _CHARSETS:
        raise invalid(f"the charset of CSV is one of {', '.join(_CHARSETS)}")
    return named


def as_numbers(rows: Sequence[Mapping[str, Value]]) -> list[dict[str, Value]]:
    """Return rows of texts with a number in place of each text that is one."""
    return [{name: _number_or_text(value) for name, value in row.items()} for row in rows]


def _number_or_text(value: Value) -> Value:
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value.strip()) else value


def rows_of_invocation(body: bytes, table: Table) -> Asked:
    """Return what MLflow's protocol asks; `params` are the options beside the rows.

    Raises msgspec's errors for what is not JSON, Problem and InvalidRows.
    """
    try:
        asked = _asked(body)
    except msgspec.ValidationError as error:
        raise _malformed(str(error)) from None
    given = [form for form in FORMS if getattr(asked, form) is not UNSET]
    if len(given) != 1:
        raise _malformed(f"send exactly one of {', '.join(FORMS)}")
    params = asked.params or {}
    try:
        options = msgspec.convert(params, AnswerOptions)
    except msgspec.ValidationError:
        raise invalid(
            "params takes true or false for 'intervals' and for 'clip', and a number for 'coverage', and nothing else"
        ) from None
    if asked.dataframe_split is not UNSET:
        return _of_split(asked.dataframe_split, table), options
    if isinstance(asked.inputs, dict):
        return _of_columns(asked.inputs, table), options
    return asked.dataframe_records or asked.instances or asked.inputs or [], options  # UNSET is false


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


def _of_split(frame: SplitFrame, table: Table) -> Rows:
    names = frame.columns
    if names is UNSET or names == list(range(len(names))):
        for index, row in enumerate(frame.data):
            for column, value in enumerate(row):
                if type(value) is not float:
                    raise InvalidRows(f"row {index}, column {column} must be a finite number", index, column)
        return frame.data  # type: ignore[return-value]  # looked at above
    texts = [str(name) for name in names]
    table.check_names(texts)
    return [_by_name(texts, row, index) for index, row in enumerate(frame.data)]


def _of_columns(columns: Mapping[str, list[Value]], table: Table) -> Rows:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise InvalidRows("every column of inputs must have as many values")
    table.check_names([*columns])
    table.check_count(*lengths)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _by_name(names: Sequence[str], values: Sequence[Value], row: int) -> dict[str, Value]:
    if len(values) != len(names):
        raise InvalidRows(f"row {row} has {len(values)} values, and there are {len(names)} columns", row)
    return dict(zip(names, values, strict=True))


def _malformed(message: str) -> Problem:
    """Return the problem of JSON that is not the protocol's, by msgspec's message and its path in the body."""
    reason, _, path = message.partition(" - at ")
    location = _PLACE.search(path)
    row, column = (None if place is None else int(place) for place in location.groups()) if location else (None, None)
    where = path.strip("`").removeprefix("$").removeprefix(".")
    detail = f"{where}: {reason}" if where else reason
    return Problem(ProblemType.INVALID_ROWS, detail, row=row, column=column)
