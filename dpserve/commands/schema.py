"""`dpserve schema`: declaring the columns of a table, without looking at its values."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpserve.commands.command import Group
from training.errors import DataError
from training.schema import draft as drafted

app = Group(help="Declare a table's columns in a file, without looking at its values.")


@app.callback()
def _schema() -> None:
    """Declare a table's columns in a file, without looking at its values."""


@app.command()
def draft(
    data: Annotated[str, typer.Argument(help="A table: CSV, Parquet, Feather; a file, a folder or a URL.")],
    out: Annotated[Path, typer.Option(help="The new schema: a .json or a .toml file.", show_default=False)] = Path(
        "schema.json"
    ),
    label: Annotated[str, typer.Option(help="The column of classes.")] = "label",
) -> None:
    """Write a template of a schema, from the columns' names and storage types alone, and say what to fill in.

    No value is looked at: bounds, levels and classes are public, and must be known without the records.
    """
    # Only who reads a table should wait for Arrow.
    from training.data.tables import open_table

    table = open_table(data)
    if label not in table.names:
        raise DataError(f"{data} has no column {label!r}: name the column of classes with --label")
    content, missing = drafted(list(zip(table.names, table.types, strict=True)), label)
    text = _as_toml(content) if out.suffix.lower() == ".toml" else json.dumps(content, indent=2) + "\n"
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DataError(f"{out} exists already: name a new file with --out") from None
    typer.echo(f"Wrote {out}. It is public: fill in what you know without the records, and nothing read off them.")
    for each in missing:
        typer.echo(f" - {each}")
    typer.echo(f"Next: dpserve train --data {data} --schema {out} --label {label} --lineage NAME --out MODEL")


def _as_toml(content: dict[str, Any]) -> str:
    lines = [f"missingValues = {_toml(content['missingValues'])}"]
    for field in content["fields"]:
        lines += ["", "[[fields]]", f"name = {_toml(field['name'])}"]
        lines.append(f"type = {_toml(field['type'])}" if field["type"] else "# type =")
        constraints = field["constraints"]
        if constraints:
            lines.append("[fields.constraints]")
            lines += [
                f"# {name} =" if value is None else f"{name} = {_toml(value)}" for name, value in constraints.items()
            ]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # A JSON text, list or truth value is one of TOML, too.
    return json.dumps(value, ensure_ascii=False)
