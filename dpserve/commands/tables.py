"""Tables of labelled rows: the options that say where they are and how they are read, and `dpserve schema`."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from dpserve.accounting.arrays import Floats, Integers
from dpserve.commands.command import Group
from dpserve.commands.console import shares
from dpserve.commands.files import whole_file
from dpserve.commands.options import state_folder
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import DataError, TrainingError, WrongOption
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import Columns
from dpserve.training.inputs.declared import values_of
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.inputs.reading import LOCAL as LOCAL
from dpserve.training.inputs.reading import RowsForm
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import TableSchema, read_schema
from dpserve.training.inputs.schema import draft as drafted
from dpserve.training.options import option

READING = RowsForm.panel
SCHEMA = partial(
    option,
    None,
    "A Table Schema, .json or .toml, that says what the table's columns are, in place of their classes and bounds. "
    "Public: 'dpserve schema draft' writes one to fill in.",
    "--schema",
)

app = Group("Declare a table's columns in a file, without looking at its values.")


def schema_alone(path: Path | None, **others: object) -> TableSchema | None:
    """Return the schema in a file, if there is one. Raises WrongOption beside options that it takes the place of."""
    for name, given in others.items():
        if path is not None and given:
            raise WrongOption("schema", f"takes the place of --{name.replace('_', '-')}: leave that out")
    return None if path is None else read_schema(path)


class FileOptions(RowsForm):
    """Options for reading labelled rows, which show how far that is."""

    def read(self, source: Any, **declared: Any) -> Records:
        """Read rows; what is declared, and what is raised: as for `RowsForm.read`."""
        # How many records there are is not said: a log of a training is more public than they are.
        with shares("reading") as show:
            return super().read(source, progress=lambda _, share: show("", share), **declared)

    def rows_like(
        self,
        source: str,
        names: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        classes: Sequence[str],
        class_names: str | None,
        columns: Columns = (),
        **more: Any,
    ) -> Records:
        """Read rows by the declaration of a model or of other records. columns: what the features encode.

        class_names: the declared names, or VALUE=NAME of each, between commas,
        where the file has other values. more: as for `read`.
        """
        values = values_of(classes, class_names)
        return self.read_like(source, names, lower, upper, classes, values, columns, **more)

    def read_held_out(
        self,
        certificate: ModelCertificate,
        source: str,
        class_names: str | None,
        unit: str | None = None,
        clip: bool = False,
        blocks: BlockDeclaration | None = None,
    ) -> tuple[Floats, Integers, Records | None]:
        """Return rows to ask a model about, (n, d) in its order, their classes (n,), and the records if not digits.

        source: 'digits', those that were kept out of training, or as for `read`. unit: the column of units, which the
        rows must have. clip: draw values back to the bounds although training refused them. blocks: those that the rows
        are in. Raises TrainingError.
        """
        if source == "digits":
            if unit is not None:
                raise TrainingError(f"digits have no column {unit!r}, by which the model knows its units: name a table")
            if blocks is not None and blocks.column is not None:
                raise WrongOption("block", "is for a table with named columns, not digits")
            digits = load_digits()
            declared = digits.train.declaration
            if (certificate.feature_names, certificate.classes) != (declared.feature_names, declared.classes):
                raise TrainingError("the bundle was not trained on digits, so it cannot be asked about them")
            return digits.held_out_rows, digits.held_out_labels, None
        feature_map = certificate.feature_map
        names, lower, upper = certificate.feature_names, feature_map.lower, feature_map.upper
        records = self.rows_like(
            source,
            names,
            lower,
            upper,
            certificate.classes,
            class_names,
            certificate.columns,
            unit=unit,
            clip=clip or certificate.clips,
            blocks=blocks,
        )
        return records.in_order(certificate.feature_names), records.y, records


def check_public(rows: Records, source: str) -> None:
    """Raise TrainingError where rows that are declared public are private records of any lineage."""
    records = RecordRegistry(state_folder())
    for lineage, shared in records.among(records.digests(rows)).items():
        keys = f", {shared.units:,} of its keys or units" * bool(shared.units)
        raise TrainingError(
            f"{source} holds private records of the lineage {lineage!r}: {shared.records:,} of its rows as they are"
            f"{keys}. What is computed from them is not covered by any budget. Put rows that are public into a file of "
            "their own"
        )


@app.command()
def draft(
    *,
    data: str = option(
        ..., "A table: CSV, Parquet, Feather or a spreadsheet; a file, a folder or a URL.", argument=True
    ),
    out: Path = option(Path("schema.json"), "The new schema: a .json or a .toml file."),
    label: str = option("label", "The column of classes."),
    unit: str | None = option(None, "The column of privacy units, which a schema does not describe."),
    id: str | None = option(None, "The column of keys of records, or of people: nor does it describe that one."),  # noqa: A002
    sheet: str | None = option(None, RowsForm.model_fields["sheet"].description or ""),
) -> None:
    """Write a template of a schema, from the columns' names and storage types alone, and say what to fill in.

    No value is looked at, but for the encoding that a CSV file's bytes fit and its header's delimiter: bounds, levels
    and classes are public, and must be known without the records.
    """
    # Only who reads a table should wait for Arrow.
    from dpserve.training.inputs.tables import encoding_of, open_table

    encoding = encoding_of(data)
    table = open_table(data, encoding, sheet)
    if label not in table.names:
        raise DataError(f"{data} has no column {label!r}: name the column of classes with --label")
    if unit is not None and (unit == label or unit not in table.names):
        raise DataError(f"{data} has no column {unit!r} beside its classes: name the column of units with --unit")
    if id is not None and (id == label or id not in table.names):
        raise DataError(f"{data} has no column {id!r} beside its classes: name the column of keys with --id")
    no_fields = (unit, id)
    described = [(name, type_) for name, type_ in zip(table.names, table.types, strict=True) if name not in no_fields]
    content, missing = drafted(described, label, encoding)
    if table.delimiter == ";":
        # Where a comma is the decimal sign, offices put semicolons between columns.
        missing.append(
            'if numbers are written 1.234,5: "decimalChar": "," and "groupChar": "." in their fields; if dates are '
            'written 31.01.2026: "format": "%d.%m.%Y"'
        )
    text = (
        _as_toml(content) if out.suffix.lower() == ".toml" else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    )
    with whole_file(out, text.encode()):
        pass
    typer.echo(
        f"Wrote {out}. It is public: fill in what you know without the records, and nothing read off them. Check its "
        "types and its encoding: they are those of the file, which one record can change."
    )
    for field in missing:
        typer.echo(f" - {field}")
    of_label = "" if label == "label" else f" --label {label}"
    typer.echo(f"Next: dpserve plan --schema {out}{of_label} --n RECORDS --epsilon 1 --delta 1e-5")


def _as_toml(content: dict[str, Any]) -> str:
    lines = [f"missingValues = {_toml(content['missingValues'])}"]
    if "encoding" in content:
        lines.append(f"encoding = {_toml(content['encoding'])}")
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
