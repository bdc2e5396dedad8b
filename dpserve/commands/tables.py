"""Tables of labelled rows: the options that say where they are and how they are read."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from dpserve.accounting.arrays import Floats, Integers
from dpserve.commands.console import shares
from dpserve.commands.options import state_folder
from dpserve.training.bundles.certificate import ModelCertificate
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import Columns
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.lineage import DIGITS, RecordRegistry
from dpserve.training.inputs.reading import LOCAL as LOCAL
from dpserve.training.inputs.reading import RowsForm
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.schema import TableSchema, read_schema
from dpserve.training.options import option

READING = RowsForm.panel
SCHEMA = partial(
    option,
    None,
    "A Table Schema, .json or .toml, that says what the table's columns are, in place of their classes and bounds. "
    "Public: 'dpserve schema init' asks for its content and writes it.",
    "--schema",
)


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

    def for_public(self, source: str) -> Self:
        """Return the options by which public rows are read: no key of records, for no lineage has them.

        Columns that are no features may be missing there.
        """
        if source == DIGITS or source.lower().endswith(".npz"):
            return self.replaced(encoding=None)
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.table_records import column_names

        there = column_names(source, self.encoding, self.sheet)
        no_features = (*self.ignore, getattr(self, "unit", None), self.id)
        return self.replaced(id=None, ignore=tuple(name for name in there if name in no_features))

    def rows_like(
        self,
        source: str,
        names: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        classes: Sequence[str],
        values: Sequence[str],
        columns: Columns = (),
        **more: Any,
    ) -> Records:
        """Read rows by the declaration of a model or of other records. columns: what the features encode.

        values: what each class is called in the file. more: as for `read`.
        """
        return self.read_like(source, names, lower, upper, classes, values, columns, **more)

    def read_held_out(
        self,
        certificate: ModelCertificate,
        source: str,
        values: Sequence[str],
        unit: str | None = None,
        clip: bool = False,
        blocks: BlockDeclaration | None = None,
    ) -> tuple[Floats, Integers, Records | None]:
        """Return rows to ask a model about, (n, d) in its order, their classes (n,), and the records if not digits.

        source: 'digits', those that were kept out of training, or as for `read`. unit: the column of units, which the
        rows must have. clip: clip values to the bounds although training refused them. blocks: those that the rows
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
            values,
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
