"""Labelled rows: an owner's private records, and rows that are declared public. The options that say where they are."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from accounting.planner import PublicSample
from dpserve.commands.command import Options, option
from dpserve.commands.console import shares
from dpserve.commands.options import state_folder
from training.bundle import CertifiedHead
from training.certificate import Certificate
from training.columns import Columns
from training.data.classes import values_of
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Floats, Records
from training.errors import TrainingError
from training.lineage import KnownRecords
from training.schema import Schema, schema_of

READING = "Reading rows"
LOCAL = "local"
"""The engine that has the records here."""
MOST_ROWS = 2000
"""An accuracy on so many is within 0.04 of that on all, and is computed in seconds."""


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
        engine: str = LOCAL,
    ) -> Records:
        """Read the rows. source: 'digits', a path ending in .npz, or a table; flag: the option that names it.

        classes: the declared names. values: what each class is called in the file, if not by its name. bounds: LOW:HIGH
        or NAME=LOW:HIGH. schema: of a table, in place of these three. unit: a table's column of units.
        engine: where the records shall be. Raises TrainingError for a file of another kind and for rows that break the
        declaration.
        """
        if engine != LOCAL and (source == "digits" or Path(source).suffix.lower() == ".npz"):
            raise TrainingError("--engine reads tables, and neither digits nor .npz files, on other machines")
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

            shared: dict[str, Any] = {"label": self.label, "ignore": tuple(self.ignore or ()), "unit": unit}
            reader: Callable[..., Records]
            if schema is not None:
                reader = functools.partial(read_with_schema, schema=schema, clip=clip, **shared)
            else:
                reader = functools.partial(read_numbers, **shared, **declared)
            if engine == LOCAL:
                return reader(source, progress=progress)
            from training.data.tables import files_of
            from training.ray_sums import read_on_ray

            # What trains on sums takes these records for others, and the command offers nothing else on Ray.
            return cast(Records, read_on_ray(engine, files_of(source), reader, progress))

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


def public_sample(head: CertifiedHead, source: str, class_names: str | None, file: FileOptions) -> PublicSample:
    """Return the head's logits on rows declared public, with their sensitivities: at most `MOST_ROWS`, spread evenly.

    source: 'digits', a table or FILE.npz. Raises TrainingError for rows that do not fit the bundle, and for a file
    that holds records of its lineage.
    """
    certificate = head.certificate
    X, y = _held_out_digits(certificate) if source == "digits" else _public(certificate, source, class_names, file)
    used = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).astype(int))
    phi = head.features(X[used])
    origin = f"{len(used)} rows of {source}, declared public"
    commonest = float(np.bincount(y[used]).max() / len(used))
    return PublicSample(head.logits(phi), y[used], head.logit_sensitivity(phi), origin, commonest)


def _public(
    certificate: Certificate, source: str, class_names: str | None, file: FileOptions
) -> tuple[Floats, NDArray[np.int64]]:
    names, feature_map = certificate.feature_names, certificate.feature_map
    lower, upper, columns = feature_map.lower, feature_map.upper, feature_map.columns
    records = file.read_like(source, names, lower, upper, certificate.classes, class_names, columns)
    known = KnownRecords(state_folder())
    shared = known.among(known.digests(records)).get(certificate.lineage, 0)
    if shared:
        raise TrainingError(
            f"{source} holds private records of the bundle's lineage, {shared:,} of its rows: an accuracy on "
            "them is not covered by any budget. Put rows that are public into a file of their own"
        )
    order = [records.declaration.feature_names.index(name) for name in names]
    return np.ascontiguousarray(records.X[:, order]), records.y


def _held_out_digits(certificate: Certificate) -> tuple[Floats, NDArray[np.int64]]:
    digits = load_digits()
    declaration = digits.train.declaration
    if (certificate.feature_names, certificate.classes) != (declaration.feature_names, declaration.classes):
        raise TrainingError("the bundle was not trained on digits, so it cannot be asked about them")
    return digits.held_out_rows, digits.held_out_labels
