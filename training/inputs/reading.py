"""Labelled rows from wherever they are: the digits, an NPZ file, or a table in a file, at a URL or in memory."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from dpserve.accounting.messages import Message
from dpserve.training.errors import WrongOption
from dpserve.training.inputs.blocks import BlockDeclaration
from dpserve.training.inputs.columns import Columns, Missing, encodings_among
from dpserve.training.inputs.declared import Bounds
from dpserve.training.inputs.digits import load_digits
from dpserve.training.inputs.lineage import DIGITS
from dpserve.training.inputs.npz_file import read_npz
from dpserve.training.inputs.records import OnRows, Records
from dpserve.training.inputs.schema import TableSchema, Unlabelled, is_encoding, schema_of
from dpserve.training.options import Options, option

LOCAL = "local"
"""The engine that has the records here."""


class LabelledRows(Options):
    """The columns of labelled rows that are no features."""

    panel = "Reading rows"

    label: str = option("label", "Of a table: the column of class names.")
    ignore: tuple[str, ...] = option((), "Of a table: a column to leave out.")


class TableRows(LabelledRows):
    """The form in which a table of labelled rows is written."""

    encoding: str | None = option(
        None, "Of a CSV file: its encoding, as windows-1252 or latin-1.", default_text="the schema's, or utf-8"
    )
    decimal: str | None = option(None, "Of a table without a schema: the sign before a number's fraction, as a comma.")
    sheet: str | None = option(None, "Of a spreadsheet with several sheets: the one to read.")
    unlabelled: Unlabelled = option(
        "refuse", "Of a table: what becomes of records without a label: refuse, or leave-out."
    )
    id: str | None = option(
        None,
        "Of a table: a column with a key of each record, or of its person. It is no feature: by it records are found "
        "again in another lineage however they are written.",
    )


class RowsForm(TableRows):
    """The form in which labelled rows are written: a table's, or an NPZ file's."""

    where: str | None = option(None, "NPZ: the boolean array that picks the rows to use.")

    def read(
        self,
        source: Any,
        *,
        classes: Sequence[str] = (),
        values: Sequence[str] | None = None,
        bounds: Sequence[str] | Bounds = (),
        clip: bool = False,
        schema: TableSchema | None = None,
        unit: str | None = None,
        engine: str = LOCAL,
        missing: Sequence[str] | Missing = (),
        blocks: BlockDeclaration | None = None,
        progress: OnRows = lambda _, __: None,
    ) -> Records:
        """Read the rows. source: 'digits', a path ending in .npz, or a table
        (`dpserve.training.inputs.tables.open_table`).

        classes: the declared names. values: what each class is called in the file, if not by its name. bounds: as
        `parse_bounds` takes them. schema: of a table, in place of these three. unit: a table's column of units. engine:
        where the records shall be. missing: what a table's missing values become, as `with_missing` takes it. blocks:
        the declared blocks that the records are in. Raises TrainingError for a file of another kind and for rows
        that break the declaration.
        """
        is_npz = isinstance(source, str) and Path(source).suffix.lower() == ".npz"
        is_digits = isinstance(source, str) and source == DIGITS
        by_column = blocks is not None and blocks.column is not None
        self._check(source, is_npz or is_digits, engine, schema, unit=unit, missing=missing, block=by_column)
        if blocks is not None and engine != LOCAL:
            raise WrongOption("engine", "has no blocks: records that are in blocks are read here")
        if is_digits:
            return _in_blocks(load_digits().train, blocks)
        declared: dict[str, Any] = {"classes": classes, "values": values, "bounds": bounds, "clip": clip}
        if is_npz:
            if schema is not None:
                raise WrongOption("schema", "does not go with an .npz file, which has no columns with names")
            return _in_blocks(read_npz(Path(source), where=self.where, **declared), blocks)
        # Only who reads a table should wait for Arrow.
        from dpserve.training.inputs.table_records import read_numbers, read_with_schema

        shared: dict[str, Any] = {"label": self.label, "ignore": self.ignore, "unit": unit, "missing": missing}
        shared |= {"id_column": self.id, "encoding": self.encoding, "sheet": self.sheet, "unlabelled": self.unlabelled}
        reader: Callable[..., Records]
        if schema is not None:
            reader = partial(read_with_schema, schema=schema, clip=clip, **shared)
        else:
            reader = partial(read_numbers, **shared, **declared, decimal=self.decimal or ".")
        if engine == LOCAL:
            return _in_blocks(reader(source, blocks=blocks, progress=progress), blocks)
        from dpserve.training.inputs.ray_sums import read_on_ray
        from dpserve.training.inputs.tables import files_of

        # What trains on sums takes these records for others, and no other kind is trained on Ray.
        return cast(Records, read_on_ray(engine, files_of(source), reader, progress))

    def read_like(
        self,
        source: Any,
        names: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        classes: Sequence[str],
        values: Sequence[str],
        columns: Columns = (),
        **more: Any,
    ) -> Records:
        """Read rows by the declaration of a model or of other records.

        names, lower, upper: of every feature, in declared units. classes: their names. values: what each is called in
        the source. columns: what the features encode, if anything. more: as for `read`, and so is what is raised.
        """
        limits = zip(names, lower, upper, strict=True)
        return self.read(
            source,
            classes=classes,
            values=values,
            bounds={name: (low, high) for name, low, high in limits},
            schema=schema_of(columns, self.label, classes, values),
            **more,
        )

    def _check(self, source: Any, is_array: bool, engine: str, schema: TableSchema | None, **others: object) -> None:
        """Raise for options that do not go with what is read. is_array: whether it has no columns with names."""
        if engine != LOCAL and (not isinstance(source, str) or is_array):
            raise WrongOption("engine", "reads the files of a table, and neither digits nor .npz files, elsewhere")
        if engine != LOCAL and schema is not None and encodings_among(schema.columns):
            raise WrongOption("engine", "takes no encoder of texts: its workers lack the encoder's files")
        own = {name: getattr(self, name) for name in ("id", "encoding", "decimal", "sheet")}
        for name, given in (others | own | {"unlabelled": self.unlabelled != "refuse"}).items():
            if given and is_array:
                raise WrongOption(name, "is for a table with named columns, not digits or .npz files")
        if self.encoding is not None and not is_encoding(self.encoding):
            raise WrongOption("encoding", f"{self.encoding!r} is not known: take windows-1252 or latin-1, for example")
        if schema is not None and self.decimal is not None:
            raise WrongOption("decimal", Message("goes without {schema}, where a column has {decimal_char}"))


def _in_blocks(records: Records, blocks: BlockDeclaration | None) -> Records:
    """Return the records with the blocks that are declared of them."""
    return records if blocks is None else blocks.taken_from(records)
