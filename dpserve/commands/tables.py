"""Tables of labelled rows: the options that say where they are and how they are read, and `dpserve schema`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpserve.commands.command import Group, Options, option
from dpserve.commands.console import shares
from training.columns import Columns
from training.data.classes import values_of
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Records
from training.errors import DataError, TrainingError
from training.schema import Schema, schema_of
from training.schema import draft as drafted

READING = "Reading rows"

app = Group("Declare a table's columns in a file, without looking at its values.")


class RowOptions(Options):
    """How a table of labelled rows is read."""

    label: str = option("label", "Of a table: the column of class names.", panel=READING)
    ignore: list[str] | None = option(None, "Of a table: a column to leave out.", panel=READING)


class FileOptions(RowOptions):
    """How labelled rows are read: a table, or NPZ."""

    where: str | None = option(None, "NPZ: the boolean array that picks the rows to use.", panel=READING)

    def read(
        self,
        source: str,
        flag: str,
        *,
        classes: Sequence[str] = (),
        values: Sequence[str] | None = None,
        bounds: Sequence[str] = (),
        clip: bool = False,
        schema: Schema | None = None,
        unit: str | None = None,
    ) -> Records:
        """Read the rows. source: 'digits', a path ending in .npz, or a table; flag: the option that names it.

        classes: the declared names. values: what each class is called in the file, if not by its name. bounds: LOW:HIGH
        or NAME=LOW:HIGH. schema: of a table, in place of these three. unit: a table's column of units. Raises
        TrainingError for a file of another kind and for rows that break the declaration.
        """
        if unit is not None and (source == "digits" or Path(source).suffix.lower() == ".npz"):
            raise TrainingError("--unit names a column of a table: digits and .npz files have none")
        if source == "digits":
            return load_digits().train
        declared: dict[str, Any] = {"classes": classes, "values": values, "bounds": bounds, "clip": clip}
        if Path(source).suffix.lower() == ".npz":
            if schema is not None:
                raise TrainingError(f"{flag}: an .npz file has no columns with names, which a schema could describe")
            return read_npz(Path(source), where=self.where, **declared)
        # Only who reads a table should wait for Arrow.
        from training.data.table_records import read_numbers, read_with_schema

        with shares("reading") as show:

            def progress(records: int, share: float) -> None:
                show(f"{records:,} records", share)

            if schema is not None:
                return read_with_schema(
                    source, schema, self.label, ignore=self.ignore or (), clip=clip, unit=unit, progress=progress
                )
            return read_numbers(
                source, label=self.label, ignore=self.ignore or (), unit=unit, progress=progress, **declared
            )

    def read_like(
        self,
        source: str,
        names: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        classes: Sequence[str],
        class_names: str | None,
        columns: Columns = (),
    ) -> Records:
        """Read public rows by the declaration of a model or of other records. columns: what the features encode.

        class_names: the declared names, or VALUE=NAME of each, between commas, where the file has other values.
        """
        limits = zip(names, lower, upper, strict=True)
        values = values_of(classes, class_names)
        return self.read(
            source,
            "--public",
            schema=schema_of(columns, self.label, classes, values),
            classes=classes,
            values=values,
            bounds=[f"{name}={low!r}:{high!r}" for name, low, high in limits],
        )


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
