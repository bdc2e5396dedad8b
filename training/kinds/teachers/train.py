"""Training of certified teachers on private records.

A record's teacher is a keyed hash of the record itself, so that it depends on that record alone. A share of a shuffled
list would not do: adding one record would move others to other parts, and with them other teachers.
"""

import hashlib
import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import NoiseKey
from training.bundles.sealing import one_line
from training.errors import DataError, TrainingError
from training.exact.network import exact_layers
from training.features.maps import FeatureMap
from training.inputs.records import Records
from training.kinds.teachers.bundle import Teachers
from training.kinds.teachers.certificate import BY_RECORD, BY_UNIT, Rule, TeachersCertificate, mean_sensitivity
from training.kinds.teachers.networks import Schedule, train_stack

Parts = tuple[NDArray[np.int64], ...]
"""For each teacher the rows of its records, in the order of their hashes: whatever order the records came in."""

_PURPOSE = b"dpserve: which teacher a record belongs to\0"
_OF_UNIT = b"dpserve: which teacher a unit belongs to\0"


@dataclass(frozen=True)
class TeachersRecipe:
    """The public choices. hidden: the widths of hidden layers, none for linear teachers."""

    name: str
    feature_map: FeatureMap
    teachers: int = 250
    hidden: tuple[int, ...] = ()
    rule: Rule = "votes"
    schedule: Schedule = field(default_factory=Schedule)


def train_teachers(
    records: Records,
    recipe: TeachersRecipe,
    lineage: str,
    key: bytes,
    progress: Callable[[int], None] = lambda _: None,
) -> Teachers:
    """Train a teacher on each part of the records and certify their mean.

    key: the owner's secret, which says a record's part. progress is told how many steps are done. Raises
    TrainingError for choices that have no certificate.
    """
    tensors = recipe.feature_map.public_tensors()
    try:
        certificate = TeachersCertificate.fresh(
            recipe.name,
            records.declaration,
            recipe.feature_map,
            lineage,
            unit=records.unit,
            parts=BY_RECORD if records.unit is None else BY_UNIT,
            teachers=recipe.teachers,
            hidden=recipe.hidden,
            activation=recipe.schedule.activation,
            rule=recipe.rule,
            logit_sensitivity=mean_sensitivity(max(recipe.teachers, 1), len(records.declaration.classes)),
        )
    except ValueError as error:
        raise TrainingError(f"these teachers are not possible: {one_line(error)}") from error
    parts = parts_of(records, key, recipe.teachers)
    check_disjoint(parts)
    # Networks learn from numbers of unit variance, and what they learn is then asked for phi itself.
    scale = math.sqrt(recipe.feature_map.dimension)
    inputs = (recipe.feature_map(records.X, tensors) * scale).astype(np.float32)
    trained = train_stack(inputs, records.y, parts, certificate.widths, recipe.schedule, progress)
    (weights, biases), *others = [(w.astype(np.float64), b.astype(np.float64)) for w, b in trained]
    layers = exact_layers(((weights * scale, biases), *others), recipe.schedule.activation)
    taught = np.array([len(rows) > 0 for rows in parts])
    return Teachers(certificate, layers, taught, tensors, NoiseKey.fresh())


def parts_of(records: Records, key: bytes, teachers: int) -> Parts:
    """Return the part of each of `teachers` teachers.

    A record is its features and its label as 64-bit numbers; equal records fall into one part. Where records have
    privacy units, all of one unit fall into the part that its name says. key: the owner's secret, so that nobody else
    can compute which records meet in one teacher.
    """
    if records.units is not None and records.units.names is None:
        raise DataError("the units have no names, by which their teachers could be found")
    parts: list[list[tuple[bytes, int]]] = [[] for _ in range(teachers)]
    for index, (row, label) in enumerate(zip(records.X, records.y, strict=True)):
        # 0.0 and -0.0 are the same number.
        content = (row + 0.0).astype("<f8").tobytes() + int(label).to_bytes(8, "little")
        digest = hmac.digest(key, _PURPOSE + content, hashlib.sha256)
        part = digest
        if records.units is not None and records.units.names is not None:
            name = records.units.names[records.units.of[index]].tobytes()
            part = hmac.digest(key, _OF_UNIT + name, hashlib.sha256)
        parts[int.from_bytes(part, "little") % teachers].append((digest, index))
    return tuple(np.array([index for _, index in sorted(part)], dtype=np.int64) for part in parts)


def check_disjoint(parts: Parts) -> None:
    """Raise DataError if a record is in two parts: then it moves two teachers, and the sensitivity is not sqrt(2)/m."""
    seen: dict[int, int] = {}
    for teacher, rows in enumerate(parts):
        for row in rows.tolist():
            if row in seen:
                raise DataError(
                    f"record {row} is in the parts of the teachers {seen[row]} and {teacher}. Parts that overlap are "
                    "refused: one record would move more than one teacher, which the noise does not cover"
                )
            seen[row] = teacher
