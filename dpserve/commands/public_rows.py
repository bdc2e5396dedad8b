"""Rows that an owner declares public, read for a bundle and put through its head."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accounting.planner import PublicSample
from dpserve.commands.options import state_folder
from dpserve.commands.row_files import RowFile
from training.bundle import CertifiedHead
from training.certificate import Certificate
from training.data.classes import values_of
from training.data.digits import load_digits
from training.data.records import Floats
from training.errors import TrainingError
from training.lineage import KnownRecords

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
