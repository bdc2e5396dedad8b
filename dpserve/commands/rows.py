"""Labelled rows: an owner's private records, and rows that are declared public. The options that say where they are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from accounting.planner import PublicSample
from dpserve.commands.options import state_folder
from training.bundle import CertifiedHead
from training.certificate import Certificate
from training.data.classes import values_of
from training.data.csv_file import read_csv
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Floats, Records
from training.errors import TrainingError
from training.lineage import KnownRecords

READING = "Reading rows"

Label = Annotated[str, typer.Option(help="CSV: the column of class names.")]
Ignore = Annotated[list[str] | None, typer.Option(help="CSV: a column to leave out.", rich_help_panel=READING)]
Where = Annotated[
    str | None, typer.Option(help="NPZ: the boolean array that picks the rows to use.", rich_help_panel=READING)
]
Clip = Annotated[
    bool,
    typer.Option("--clip", help="Clip values beyond the bounds instead of refusing them.", rich_help_panel=READING),
]
Classes = Annotated[
    str | None,
    typer.Option(help="The class names, separated by commas, or VALUE=NAME of each; for your own data."),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(help="LOW:HIGH for every feature, NAME=LOW:HIGH for one; public, not read off the records."),
]


@dataclass(frozen=True)
class RowFile:
    """Where rows are and how to read them. `source`: 'digits', or a path ending in .csv or .npz.

    classes: the declared names. values: what each class is called in the file, if not by its name. label, ignore: of a
    CSV file. where: of an NPZ file. option: the command's option that names the file, for messages.
    """

    source: str
    option: str
    label: str = "label"
    classes: tuple[str, ...] = ()
    values: tuple[str, ...] | None = None
    bounds: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    where: str | None = None
    clip: bool = False

    def read(self) -> Records:
        """Read the rows. Raises TrainingError for a file of another kind and for rows that break the declaration."""
        if self.source == "digits":
            return load_digits().train
        path = Path(self.source)
        match path.suffix.lower():
            case ".csv":
                return read_csv(
                    path,
                    label=self.label,
                    classes=self.classes,
                    values=self.values,
                    bounds=self.bounds,
                    ignore=self.ignore,
                    clip=self.clip,
                )
            case ".npz":
                return read_npz(
                    path,
                    classes=self.classes,
                    values=self.values,
                    bounds=self.bounds,
                    where=self.where,
                    clip=self.clip,
                )
        raise TrainingError(f"{self.option} takes 'digits', a .csv or an .npz file, not {self.source!r}")


Rows = tuple[Floats, NDArray[np.int64]]

MOST_ROWS = 2000
"""An accuracy on so many is within 0.04 of that on all, and is computed in seconds."""


@dataclass(frozen=True)
class PublicRows:
    """Labelled rows that an owner declares public. `source`: 'digits', FILE.csv or FILE.npz.

    class_names: VALUE=NAME of each class, between commas, where the file has other values than the bundle's names.
    """

    source: str
    label: str
    class_names: str | None
    ignore: tuple[str, ...]
    where: str | None

    def sample(self, head: CertifiedHead) -> PublicSample:
        """Return the head's logits on the rows, with their sensitivities: at most `MOST_ROWS`, spread evenly.

        Raises TrainingError for rows that do not fit the bundle, and for a file that holds records of its lineage.
        """
        X, y = _held_out_digits(head.certificate) if self.source == "digits" else self._read(head.certificate)
        used = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).astype(int))
        phi = head.features(X[used])
        origin = f"{len(used)} rows of {self.source}, declared public"
        commonest = float(np.bincount(y[used]).max() / len(used))
        return PublicSample(head.logits(phi), y[used], head.logit_sensitivity(phi), origin, commonest)

    def _read(self, certificate: Certificate) -> Rows:
        names, feature_map = certificate.feature_names, certificate.feature_map
        limits = zip(names, feature_map.lower, feature_map.upper, strict=True)
        records = RowFile(
            self.source,
            "--public",
            label=self.label,
            classes=certificate.classes,
            values=values_of(certificate.classes, self.class_names),
            bounds=tuple(f"{name}={low!r}:{high!r}" for name, low, high in limits),
            ignore=self.ignore,
            where=self.where,
        ).read()
        known = KnownRecords(state_folder())
        shared = known.among(known.digests(records)).get(certificate.lineage, 0)
        if shared:
            raise TrainingError(
                f"{self.source} holds private records of the bundle's lineage, {shared:,} of its rows: an accuracy on "
                "them is not covered by any budget. Put rows that are public into a file of their own"
            )
        order = [records.declaration.feature_names.index(name) for name in names]
        return np.ascontiguousarray(records.X[:, order]), records.y


def _held_out_digits(certificate: Certificate) -> Rows:
    digits = load_digits()
    declaration = digits.train.declaration
    if (certificate.feature_names, certificate.classes) != (declaration.feature_names, declaration.classes):
        raise TrainingError("the bundle was not trained on digits, so it cannot be asked about them")
    return digits.held_out_rows, digits.held_out_labels
