"""Rows that an owner declares public, read for a bundle and put through its head."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accounting.planner import PublicSample
from dpserve.commands.options import state_folder
from training.bundle import CertifiedHead
from training.certificate import Certificate
from training.data.csv_file import read_csv
from training.data.digits import load_digits
from training.data.npz_file import read_npz
from training.data.records import Floats
from training.errors import TrainingError
from training.lineage import KnownRecords

Rows = tuple[Floats, NDArray[np.int64]]

MOST_ROWS = 2000
"""An accuracy on so many is within 0.04 of that on all, and is computed in seconds."""


def read_public_rows(
    head: CertifiedHead, source: str, label: str, ignore: list[str], where: str | None
) -> PublicSample:
    """Return the head's logits on public rows, with their sensitivities: at most `MOST_ROWS`, spread evenly.

    Raises TrainingError for rows that do not fit the bundle, and for a file that holds records of its lineage.
    """
    certificate = head.certificate
    X, y = _held_out_digits(certificate) if source == "digits" else _read(certificate, source, label, ignore, where)
    used = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).astype(int))
    phi = head.features(X[used])
    return PublicSample(
        head.logits(phi), y[used], head.logit_sensitivity(phi), f"{len(used)} rows of {source}, declared public"
    )


def _held_out_digits(certificate: Certificate) -> Rows:
    digits = load_digits()
    declaration = digits.train.declaration
    if (certificate.feature_names, certificate.classes) != (declaration.feature_names, declaration.classes):
        raise TrainingError("the bundle was not trained on digits, so it cannot be asked about them")
    return digits.held_out_rows, digits.held_out_labels


def _read(certificate: Certificate, source: str, label: str, ignore: list[str], where: str | None) -> Rows:
    names, feature_map = certificate.feature_names, certificate.feature_map
    bounds = [
        f"{name}={low!r}:{high!r}" for name, low, high in zip(names, feature_map.lower, feature_map.upper, strict=True)
    ]
    path = Path(source)
    match path.suffix.lower():
        case ".csv":
            records = read_csv(path, label=label, classes=certificate.classes, bounds=bounds, ignore=ignore)
        case ".npz":
            records = read_npz(path, classes=certificate.classes, bounds=bounds, where=where)
        case _:
            raise TrainingError(f"--public takes 'digits', a .csv or an .npz file, not {source!r}")
    known = KnownRecords(state_folder())
    shared = known.among(known.digests(records)).get(certificate.lineage, 0)
    if shared:
        raise TrainingError(
            f"{source} holds private records of the bundle's lineage, {shared:,} of its rows: an accuracy on them is "
            "not covered by any budget. Put rows that are public into a file of their own"
        )
    order = [records.declaration.feature_names.index(name) for name in names]
    return np.ascontiguousarray(records.X[:, order]), records.y
