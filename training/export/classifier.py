"""The computation of a pay-once model, as its kind gives it: the files of an export are made from it."""

from typing import Any

from dpserve.training.errors import NotExportable
from dpserve.training.kinds.registry import all_kinds, kind_of
from dpserve.training.pay_once.classifier import ReleasedClassifier


def classifier_of(model: Any) -> ReleasedClassifier:
    """Return what a model computes. Raises NotExportable for one whose kind cannot be taken away, saying why."""
    kind = kind_of(model)
    if (lack := kind.limitation("export")) is not None:
        others = ", ".join(other.name for other in all_kinds().values() if other.limitation("export") is None)
        raise NotExportable(f"{model.certificate.name} cannot be taken away: {lack}; of the kinds {others}")
    return kind.classifier(model)
