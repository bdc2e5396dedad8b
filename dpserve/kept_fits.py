"""Fits that were paid for, kept in the owner's state folder: the same fit again is the same model, and costs nothing.

A fit is the same where its records, its options and this release of dpserve are. A notebook's cell that is run again
makes a new estimator, and would otherwise train and charge another model without a word.

A bundle is kept before it is charged, and taken away where the account does not pay. A process that is killed between
the two leaves a model that is charged when the same fit is asked for again: a purchase of one model is made once.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from dpserve.training.bundles.sealing import write_folder
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.lineage import KnownRecords
from dpserve.training.inputs.records import Records

if TYPE_CHECKING:
    from dpserve.training.fit import Request


class KeptFits:
    """The fits of an owner that were paid for."""

    def __init__(self, state: Path) -> None:
        """state: the owner's state folder."""
        self._folder = state / "fits"
        self._known = KnownRecords(self._folder)

    def place(self, records: Records, request: "Request", public: Records | None) -> Path:
        """Return the folder of a fit's bundle, whether it is there or not. public: rows that the planner simulates on.

        Its name is a keyed digest of the records, in any order, and of all that the model depends on.
        """
        asked = {
            "version": version("dpserve"),
            "request": request.model_dump(
                mode="json",
                # A budget says what a lineage may pay, and is no part of what is trained.
                exclude={"public", "features", "kind", "overlapping_lineage_is_accepted", "block_budget"},
            ),
            "kind": [type(request.kind).__name__, request.kind and request.kind.model_dump(mode="json")],
            "features": [request.features.word, request.features.model_dump(mode="json")],
            "encoder": _digest(request.features.content or b""),
            "declaration": repr(replace(records.declaration, block_budget="")),
            "unit": records.unit,
            "public": None if public is None else _digest(public.X.tobytes() + public.y.tobytes()),
        }
        content = json.dumps(asked, sort_keys=True).encode()
        name = hashlib.sha256(self._known.digest_of(records) + content).hexdigest()
        return self._models(request.lineage) / name

    def check_new(self, records: Records, lineage: str) -> None:
        """Raise TrainingError where a model of the lineage was paid for that any of the records trained."""
        if self._known.has_any(self._known.digests(records), lineage):
            raise TrainingError(
                f"a model of the lineage {lineage!r} was fitted on some of these records and paid for, with other "
                "records, or another name, n, kind, features or schema. This fit would train another one, and charge "
                "the lineage again: say so with again=True"
            )

    @contextmanager
    def charging(self, records: Records, lineage: str) -> Iterator[None]:
        """Note the records as those of a model that was paid for, while it is charged, and for good where it was."""
        with self._known.noted(lineage, self._known.digests(records), records.unit):
            yield

    def keep(self, place: Path, files: Mapping[str, bytes]) -> None:
        """Keep a bundle, in the place of one that was there."""
        self.drop(place)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_folder(place, files)

    def drop(self, place: Path) -> None:
        """Take a bundle away."""
        shutil.rmtree(place, ignore_errors=True)

    def forget(self, lineage: str) -> None:
        """Take away all that is kept of a lineage."""
        shutil.rmtree(self._models(lineage), ignore_errors=True)
        self._known.forget(lineage)

    def _models(self, lineage: str) -> Path:
        return self._folder / "models" / lineage


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
