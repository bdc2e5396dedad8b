"""Labelled rows: an owner's private records, and rows that are declared public. The options that say where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.planner import PublicSample
from dpserve.commands.command import Options, option
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
MOST_ROWS = 2000
"""An accuracy on so many is within 0.04 of that on all, and is computed in seconds."""


class RowOptions(Options):
    """How a CSV file of labelled rows is read."""

    label: str = option("label", "CSV: the column of class names.", panel=READING)
    ignore: list[str] | None = option(None, "CSV: a column to leave out.", panel=READING)


class FileOptions(RowOptions):
    """How a file of labelled rows is read: CSV or NPZ."""

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
    ) -> Records:
        """Read the rows. source: 'digits', or a path ending in .csv or .npz; flag: the option that names it.

        classes: the declared names. values: what each class is called in the file, if not by its name. bounds: LOW:HIGH
        or NAME=LOW:HIGH. Raises TrainingError for a file of another kind and for rows that break the declaration.
        """
        if source == "digits":
            return load_digits().train
        path = Path(source)
        declared: dict[str, Any] = {"classes": classes, "values": values, "bounds": bounds, "clip": clip}
        match path.suffix.lower():
            case ".csv":
                return read_csv(path, label=self.label, ignore=self.ignore or (), **declared)
            case ".npz":
                return read_npz(path, where=self.where, **declared)
        raise TrainingError(f"{flag} takes 'digits', a .csv or an .npz file, not {source!r}")

    def read_like(
        self,
        source: str,
        names: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        classes: Sequence[str],
        class_names: str | None,
    ) -> Records:
        """Read public rows by the declaration of a model or of other records.

        class_names: the declared names, or VALUE=NAME of each, between commas, where the file has other values.
        """
        limits = zip(names, lower, upper, strict=True)
        return self.read(
            source,
            "--public",
            classes=classes,
            values=values_of(classes, class_names),
            bounds=[f"{name}={low!r}:{high!r}" for name, low, high in limits],
        )


def public_sample(head: CertifiedHead, source: str, class_names: str | None, file: FileOptions) -> PublicSample:
    """Return the head's logits on rows declared public, with their sensitivities: at most `MOST_ROWS`, spread evenly.

    source: 'digits', FILE.csv or FILE.npz. Raises TrainingError for rows that do not fit the bundle, and for a file
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
    records = file.read_like(source, names, feature_map.lower, feature_map.upper, certificate.classes, class_names)
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
