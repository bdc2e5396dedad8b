"""The computation of a pay-once model at a tier, as its kind gives it: the files of an export are made from it."""

from typing import Any

from accounting.messages import OptionName
from training.errors import NotExportable
from training.kinds.registry import all_kinds, kind_of
from training.pay_once.classifier import Classifier
from training.pay_once.model import model_at


def classifier_of(model: Any, tier: str | None = None) -> Classifier:
    """Return what a model computes at a tier; one of several must be named.

    Raises NotExportable for a model whose kind cannot be taken away, saying why, and a tier that there is not.
    """
    kind, name = kind_of(model), model.certificate.name
    if (lack := kind.lacks.get("export")) is not None:
        others = ", ".join(each.name for each in all_kinds().values() if "export" not in each.lacks)
        raise NotExportable(f"{name} cannot be taken away: {lack}; of the kinds {others}")
    names = [each.name for each in model.certificate.tiers]
    if tier is None and len(names) > 1:
        raise NotExportable(
            f"{name} has several tiers; say which, with " + OptionName("tier") + f": {', '.join(names)}"
        )
    if tier is not None and tier not in names:
        raise NotExportable(f"there is no tier {tier!r}; this model has {', '.join(map(repr, names))}")
    chosen = tier or names[0]
    return kind.classifier(model_at(model, chosen), chosen)
