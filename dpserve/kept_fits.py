"""Fits that were paid for, kept in the owner's state folder: the same fit again is the same model, and costs nothing.

A fit is the same where its records, its options and this release of dpserve are. A notebook's cell that is run again
makes a new estimator, and would otherwise train and charge another model without a word.

A bundle is kept before it is charged, and taken away where the account does not pay. A process that is killed between
the two leaves a model that is charged when the same fit is asked for again: a purchase of one model is made once.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dpserve.training.bundles.sealing import write_folder
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.lineage import RecordDigests, RecordRegistry
from dpserve.training.inputs.records import Records

if TYPE_CHECKING:
    from dpserve.training.fit import Request


@dataclass(frozen=True)
class KeptFit:
    """A fit, whether its bundle is in its folder or not."""

    folder: Path
    lineage: str
    unit: str | None
    paid_records: RecordRegistry
    digests: RecordDigests

    def check_new(self) -> None:
        """Raise TrainingError where a model of the lineage was paid for that any of the records trained."""
        if self.paid_records.has_any(self.digests, self.lineage):
            raise TrainingError(
                f"a model of the lineage {self.lineage!r} was fitted on some of these records and paid for, with other "
                "records, or another name, n, kind, features or schema. This fit would train another one, and charge "
                "the lineage again: say so with again=True"
            )

    @property
    def are_others(self) -> bool:
        """Whether models of the lineage were paid for, and none of them was of any of these records."""
        return self.paid_records.is_noted(self.lineage) and not self.paid_records.has_any(self.digests, self.lineage)

    @contextmanager
    def charging(self) -> Iterator[None]:
        """Note the records as those of a model that was paid for, while it is charged, and for good where it was."""
        with self.paid_records.noted(self.lineage, self.digests, self.unit):
            yield

    def keep(self, bundle: Path) -> None:
        """Keep a bundle, in the place of one that was there."""
        self.drop()
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_folder(self.folder, {path.name: path.read_bytes() for path in bundle.iterdir()})

    def drop(self) -> None:
        """Take the bundle away."""
        shutil.rmtree(self.folder, ignore_errors=True)


class KeptFits:
    """The fits of an owner that were paid for."""

    def __init__(self, state: Path) -> None:
        """state: the owner's state folder."""
        self._folder = state / "fits"
        self._paid_records = RecordRegistry(self._folder)

    def fit_of(self, records: Records, request: "Request", public: Records | None) -> KeptFit:
        """Return a fit. public: rows that the planner simulates on.

        Its folder's name is a keyed digest of the records, in any order, and of all that the model depends on.
        """
        asked = {
            "version": version("dpserve"),
            "request": request.model_dump(
                mode="json",
                # A budget says what a lineage may pay, and is no part of what is trained.
                exclude={"features", "kind", "overlapping_lineage_is_accepted", "block_budget"},
            ),
            "kind": [type(request.kind).__name__, request.kind.model_dump(mode="json", fallback=lambda _: None)],
            "features": [request.features.word, request.features.model_dump(mode="json")],
            "encoder": _digest(request.features.content or b""),
            "declaration": repr(replace(records.declaration, block_budget="")),
            "unit": records.unit,
            "public": None if public is None else _digest(public.X.tobytes() + public.y.tobytes()),
        }
        content = json.dumps(asked, sort_keys=True).encode()
        name = hashlib.sha256(self._paid_records.digest_of(records) + content).hexdigest()
        folder, digests = self._models(request.lineage) / name, self._paid_records.digests(records)
        return KeptFit(folder, request.lineage, records.unit, self._paid_records, digests)

    def forget(self, lineage: str) -> None:
        """Take away all that is kept of a lineage."""
        shutil.rmtree(self._models(lineage), ignore_errors=True)
        self._paid_records.forget(lineage)

    def _models(self, lineage: str) -> Path:
        return self._folder / "models" / lineage


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
