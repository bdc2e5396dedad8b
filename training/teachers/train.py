"""From private records to certified teachers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mechanisms.randomness import NoiseKey
from training.certificate import fresh_fields
from training.data.records import Records
from training.errors import TrainingError
from training.exact_network import exact_layers
from training.feature_maps import FeatureMap
from training.sealing import one_line
from training.teachers.bundle import Teachers
from training.teachers.certificate import Rule, TeachersCertificate, mean_sensitivity
from training.teachers.networks import Schedule, train_stack
from training.teachers.parts import check_disjoint, parts_of


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
    classes = records.declaration.classes
    try:
        certificate = TeachersCertificate.model_validate(
            fresh_fields(recipe.name, classes, records.declaration.feature_names, recipe.feature_map, lineage)
            | {
                "teachers": recipe.teachers,
                "hidden": recipe.hidden,
                "activation": recipe.schedule.activation,
                "rule": recipe.rule,
                "logit_sensitivity": mean_sensitivity(max(recipe.teachers, 1), len(classes)),
            }
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
