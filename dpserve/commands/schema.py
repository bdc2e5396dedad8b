"""`dpserve schema init`: asks what is public of a table, and writes it into a file that other commands take."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TypeVar
from urllib.parse import urlsplit

import typer

from dpserve.accounting.messages import Message, named, spelled
from dpserve.commands.command import Group
from dpserve.commands.files import whole_file
from dpserve.declarations import ColumnOptions
from dpserve.training.errors import DataError, ErrorList, TrainingError, WrongOption, WrongValue
from dpserve.training.fields import checked_name
from dpserve.training.inputs.column_words import (
    FORMS,
    IGNORE,
    column_in_words,
    column_proposed,
    id_proposed,
    label_proposed,
    unit_proposed,
)
from dpserve.training.inputs.declared import parse_bounds, parse_classes
from dpserve.training.inputs.described import ColumnType, Date, Datetime, Number
from dpserve.training.inputs.reading import TableRows
from dpserve.training.inputs.schema import TableFacts, parse_schema
from dpserve.training.inputs.schema_files import schema_content, schema_toml
from dpserve.training.inputs.undeclared import undeclared
from dpserve.training.kinds.kind import declared_count
from dpserve.training.options import option, option_of
from dpserve.wording import as_flag

_Answer = TypeVar("_Answer")

_INTRODUCTION = """\
{}
Their values are not looked at. Answer from what you know without the records: a
bound or a list that is read off them would tell of single ones. Enter takes
what is in brackets, and Ctrl-C writes nothing.
"""

app = Group("Declare a table in a file, without looking at its values.")


class InitOptions(ColumnOptions):
    """Answers that are known already, and the file to write."""

    id: str | None = option_of(TableRows, "id")
    n: int | None = option_of(TableFacts, "n")
    lineage: str | None = option(None, "Your name for these records.", default_text="the file's name")
    encoding: str | None = option(None, "Of a CSV file.", default_text="one that the first bytes fit")
    decimal: str | None = option(None, "The sign before a number's fraction, as a comma.", default_text=".")
    sheet: str | None = option_of(TableRows, "sheet")
    out: Path | None = option(None, "The new schema: a .toml or a .json file.", default_text="the table's name.toml")
    yes: bool = option(False, "Ask nothing, and take every proposal.")


class _Asker:
    """Asks in a terminal; without one it takes proposals, if that is asked for, and leaves the rest open."""

    def __init__(self, *, yes: bool) -> None:
        """yes: whether to take every proposal."""
        self.asks, self._yes = not yes and sys.stdin.isatty(), yes

    def answer(
        self, question: str, proposal: str | None, read: Callable[[str], _Answer], usual: str | None = None
    ) -> _Answer | None:
        """Return an answer, read; None for none. usual: the answer where nothing is proposed or asked."""
        if self.asks:
            proc = partial(_read, read=read)
            answer: _Answer = typer.prompt(question, default=proposal or usual, value_proc=proc)
            return answer
        words = proposal if self._yes and proposal is not None else usual
        return None if words is None else read(words)


def _read(text: str, read: Callable[[str], _Answer]) -> _Answer:
    """Return a person's answer. Raises what makes the terminal ask again."""
    try:
        return read(text.strip())
    except (TrainingError, ValueError) as error:
        raise typer.BadParameter(spelled(error, as_flag)) from error


@app.command()
def init(
    *,
    data: str = option(
        ..., "A table: CSV, Parquet, Feather or a spreadsheet; a file, a folder or a URL.", argument=True
    ),
    given: InitOptions,
) -> None:
    """Ask what is public of a table, and write it into a file for `train`, `plan`, `evaluate` and Python.

    Only the columns' names and storage types are looked at, a CSV file's delimiter and which encoding its first bytes
    fit. Without a terminal, or with --yes, nothing is asked: what no flag says and nothing proposes is listed.
    """
    # Only who reads a table should wait for Arrow.
    from dpserve.training.inputs.tables import encoding_of, open_table

    # A URL's query may hold a token.
    name = Path((urlsplit(data).path if "://" in data else data).rstrip("/")).name
    stem = name.partition(".")[0] or "table"
    out = given.out or Path(f"{stem}.toml")
    if out.suffix.lower() not in (".toml", ".json"):
        raise WrongValue("out", "must end in .toml or .json", value=str(out))
    if out.exists():  # before anybody answers
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(out))
    encoding = given.encoding or encoding_of(data)
    table = open_table(data, encoding, given.sheet)
    types, asker = dict(zip(table.names, table.types, strict=True)), _Asker(yes=given.yes)
    if asker.asks:
        typer.echo(_INTRODUCTION.format(fill(f"{data} has the columns {', '.join(types)}.", 79)))
    _check_flags(given, types)
    label = given.label if "label" in given.model_fields_set else _label(given, types, asker)
    classes = _classes(given, asker, label or "", types.get(label or "")) if label or given.classes else {}
    facts = _facts(given, types, asker, label, stem)
    columns, left_out = _columns(given, types, asker, facts, office=table.delimiter == ";")
    lacking = ErrorList()
    lacking.errors = undeclared(
        dict.fromkeys(types),
        label="label" if label is None else label,
        has_classes=bool(classes),
        declared={*columns, *(name for name in (facts.unit, facts.id) if name)},
        left_out=left_out,
    )
    lacking.attempt(lambda: declared_count(facts.n))
    lacking.check()
    facts = facts.replaced(ignore=left_out, **({} if encoding is None else {"encoding": encoding}))
    content = schema_content(facts, columns, classes)
    parse_schema(content, out.name).split(label or "")
    as_toml = out.suffix.lower() != ".json"
    text = schema_toml(content, name) if as_toml else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with whole_file(out, text.encode()):
        pass
    typer.echo(f"Wrote {out}. It is public: the model's certificate has its columns and classes.")
    if encoding is not None or any(types.values()):
        typer.echo("Check its types and its encoding: they are those of the file, which one record can change.")
    named = {"--data": data, "--sheet": given.sheet, "--schema": str(out)}
    table_words = " ".join(f"{flag} {shlex.quote(value)}" for flag, value in named.items() if value is not None)
    typer.echo(f"Next: dpserve train {table_words} --epsilon 1 --delta 1e-6")


def _check_flags(given: InitOptions, types: Mapping[str, str | None]) -> None:
    """Raise all that is wrong with the flags, before anybody is asked."""
    wrong, roles = ErrorList(), dict[str, str]()

    def note(flag: str, name: str) -> None:
        if name not in types:
            wrong.errors.append(WrongOption(flag, f"names no column {name!r}; there are {', '.join(types)}"))
        elif name in roles:
            wrong.errors.append(
                WrongOption(flag, Message("names the column {!r}, as {} does", name, named(roles[name])))
            )
        roles.setdefault(name, flag)

    for flag in ("label", "unit", "id"):
        if flag in given.model_fields_set:
            note(flag, getattr(given, flag))
    for flag, part in (("bounds", str.rpartition), ("levels", str.partition), ("dates", str.partition)):
        for name in filter(None, (part(text, "=")[0] for text in getattr(given, flag))):
            note(flag, name)
    for flag in ("texts", "ignore"):
        for name in getattr(given, flag):
            note(flag, name)
    wrong.attempt(given.declared_classes)
    wrong.attempt(lambda: given.described(types))
    wrong.check()
    _numbers(given, types, [*types])


def _label(given: InitOptions, types: Mapping[str, str | None], asker: _Asker) -> str | None:
    """Return the column of classes; None where nothing says it."""
    left = [name for name in types if name not in (given.unit, given.id, *given.ignore)]
    return asker.answer("Column of classes, which a model predicts", label_proposed(left), partial(_column, left=left))


def _facts(
    given: InitOptions, types: Mapping[str, str | None], asker: _Asker, label: str | None, stem: str
) -> TableFacts:
    """Return what is said of the table beside its columns' types."""
    left = [name for name in types if name not in (label, given.unit, given.id, *given.ignore)]

    none = next(word for word in ("none", "no column", "-", "") if word not in types)

    def column_or_none(text: str) -> str | None:
        return None if text == none else _column(text, left)

    asked: dict[str, object] = {"label": label}
    for name, question, proposed in (
        ("unit", "Column that names the person behind each record", unit_proposed),
        ("id", "Column with a key of each record", id_proposed),
    ):
        if (value := getattr(given, name)) is None:
            value = asker.answer(question, proposed(left), column_or_none, none)
            left = [each for each in left if each != value]
        asked[name] = value
    counted = "people" if asked["unit"] else "records"
    asked["n"] = given.n or asker.answer(f"About how many {counted}, as a number that may be public", None, _count)
    asked["lineage"] = given.lineage or asker.answer(
        "Your name for these records: all their models share one budget", None, checked_name, _name_of(stem)
    )
    return TableFacts(**{name: value for name, value in asked.items() if value is not None})


def _column(text: str, left: Sequence[str]) -> str:
    if text not in left:
        raise DataError(f"{text!r} is none of the columns {', '.join(left)}")
    return text


def _count(text: str) -> int:
    if not text.replace(",", "").isdecimal() or int(text.replace(",", "")) < 1:
        raise DataError(f"{text!r} is no number of records, as 2000")
    return int(text.replace(",", ""))


def _name_of(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "table"


def _classes(given: InitOptions, asker: _Asker, label: str, storage: str | None) -> dict[str, str]:
    """Return the name of each class by its value in the table; none where nothing says them."""

    def read(text: str) -> dict[str, str]:
        names, values = parse_classes(text)
        if len(names) < 2:
            raise DataError("there are at least two classes, as no,yes")
        return dict(zip(values, names, strict=True))

    if given.classes:
        return dict(zip(*reversed(given.declared_classes()), strict=True))
    proposal = "false,true" if storage == "boolean" else None
    question = f"Classes of {label}: A,B, or VALUE=NAME,VALUE=NAME for codes"
    return asker.answer(question, proposal, read) or {}


def _columns(
    given: InitOptions, types: Mapping[str, str | None], asker: _Asker, facts: TableFacts, *, office: bool
) -> tuple[dict[str, ColumnType], tuple[str, ...]]:
    """Return the columns of features, and those that are left out. office: whether semicolons divide the file."""
    no_features = {facts.label, facts.unit, facts.id, *given.ignore}
    left = [name for name in types if name not in no_features]
    numbers = _numbers(given, types, left)
    if shared := [name for name in numbers if not any(text.startswith(f"{name}=") for text in given.bounds)]:
        typer.echo(fill(f"The bounds without a column's name are those of {', '.join(shared)}.", 79))
    declared = given.described(types) | numbers
    if asker.asks and set(left) - declared.keys():
        typer.echo(fill(f"Each other column is {FORMS}.", 79))
    columns: dict[str, ColumnType] = {}
    left_out = [*given.ignore]
    for name in left:
        words = declared.get(name) or asker.answer(
            f"  {name}", column_proposed(name, types[name]), _reader(types[name])
        )
        if words == IGNORE:
            left_out.append(name)
        elif isinstance(words, ColumnType):
            columns[name] = words
    return _as_written(columns, given.decimal, asker, office=office), tuple(left_out)


def _numbers(given: InitOptions, types: Mapping[str, str | None], left: Sequence[str]) -> dict[str, ColumnType]:
    """Return the columns that have bounds; those for every number are only for what is no text or date as stored."""
    named = {text.rpartition("=")[0] for text in given.bounds}
    others = given.described(types).keys()
    rest = [name for name in left if "" in named and name not in others and types[name] in ("number", "integer", None)]
    bounded = [name for name in left if name in named or name in rest]
    lower, upper = parse_bounds(given.bounds, bounded) if bounded else ((), ())
    columns: dict[str, ColumnType] = {}
    for name, low, high in zip(bounded, lower, upper, strict=True):
        words = f"{low!r}:{high!r}"
        try:
            columns[name] = column_in_words(words, types[name])
        except DataError as error:
            raise WrongValue("bounds", f"must be finite and in order for {name!r}", value=words) from error
    return columns


def _reader(storage: str | None) -> Callable[[str], ColumnType | str]:
    return lambda text: IGNORE if text == IGNORE else column_in_words(text, storage)


def _as_written(
    columns: Mapping[str, ColumnType], decimal: str | None, asker: _Asker, *, office: bool
) -> dict[str, ColumnType]:
    """Return the columns with the signs and the pattern by which an office's file writes them."""
    if decimal is None and office and any(isinstance(column, Number) for column in columns.values()):
        decimal = asker.answer("The sign before a number's fraction", ",", _sign)
    made = dict(columns)
    for name, column in columns.items():
        if isinstance(column, Number) and decimal == ",":
            made[name] = column.replaced(decimal=",", group=".")
        if isinstance(column, Date) and not isinstance(column, Datetime) and office:
            # Dates as 2026-01-31 are read, too.
            made[name] = column.replaced(pattern="%d.%m.%Y")
    return made


def _sign(text: str) -> str:
    if text not in (".", ","):
        raise WrongValue("decimal", "must be a point or a comma", value=text)
    return text
