"""A pay-once model's computation as public numbers, from which the files of an export are made.

A row x becomes phi(x) (`training.features.maps`). Some kinds take it around a released centre: phi is drawn to length
1, the centre is subtracted, and the rest is divided by its length, or by CLOSEST where it is shorter. Dense layers
follow, the calibration being part of the last one, and the softmax of its values. Everything here was released and paid
for, or is public, so that whoever holds the tier may have it.
"""

import json
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from typing import Literal

from accounting.arrays import Floats
from accounting.losses import Cost
from training.errors import NotExportable
from training.features.maps import HeadFeatureMap
from training.inputs.columns import Columns, TextColumn
from training.kinds.class_sums.model import ClassSums
from training.kinds.dpsgd.model import DpSgdModel
from training.kinds.loading import AnyModel
from training.kinds.objective.model import PerturbedHead
from training.kinds.weights.model import ReleasedWeights
from training.pay_once.calibration import Calibration, losses
from training.pay_once.certificate import ReleaseCertificate
from training.pay_once.model import ReleasedModel, TieredModel, rounded

Activation = Literal["tanh", "relu"]


@dataclass(frozen=True, eq=False)
class Classifier:
    """softmax(layers(phi(x))), or of phi(x) around a centre.

    layers: weights (inputs, outputs) and biases (outputs,) of each; lengths of inputs, temperatures and the calibration
    are multiplied and added into them. calibration_mu: what the tier's calibration cost, 0 where there is none.
    centre: (D,), what directions of phi are taken around; None where phi itself goes in.
    """

    certificate: ReleaseCertificate
    tier: str
    tensors: dict[str, Floats]
    layers: tuple[tuple[Floats, Floats], ...]
    calibration_mu: float
    activation: Activation = "tanh"
    centre: Floats | None = None

    @property
    def feature_map(self) -> HeadFeatureMap:
        """phi, which is public."""
        return self.certificate.feature_map

    @property
    def columns(self) -> Columns:
        """The schema's columns; none where rows are numbers."""
        return self.feature_map.columns

    @property
    def columns_inside(self) -> bool:
        """Whether files take the columns by name and encode them: not with a text, which is hashed outside."""
        return bool(self.columns) and not any(isinstance(column, TextColumn) for column in self.columns)

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata beside the numbers, by name: nothing in it is private. `certificate` is its public part, as JSON."""
        tiers = self.certificate.tiers
        before = [each.cost for each in takewhile(lambda each: each.name != self.tier, tiers)]
        calibrated = Cost(losses(self.calibration_mu)) if self.calibration_mu else None
        price = Cost(tuple(loss for cost in [*before, tiers[len(before)].cost] for loss in cost.losses))
        return {
            "model": self.certificate.name,
            "model_id": self.certificate.model_id,
            "tier": self.tier,
            "price": str(price),
            "price_rho": f"{float(price.rho):.12g}",
            "calibration": f"in the last layer; it is {calibrated} of the price" if calibrated else "none",
            "classes": json.dumps(self.certificate.classes),
            "feature_names": json.dumps(self.certificate.feature_names),
            "columns": json.dumps([column.name for column in self.columns] if self.columns_inside else []),
            "certificate": json.dumps(self.certificate.public()),
            "written_by": f"dpserve {version('dpserve')}",
        }


def classifier_of(model: AnyModel, tier: str | None = None) -> Classifier:
    """Return what a model computes at a tier; one of several must be named.

    Raises NotExportable for a model that is not private itself, and a tier that there is not.
    """
    if not isinstance(model, ReleasedModel):
        raise NotExportable(
            f"{model.certificate.name} is not private: whoever had its weights would learn more of the records than "
            "was ever paid for. Serve it with 'dpserve serve', or train a pay-once model, which may be taken away: "
            "'dpserve train --release class-sums', objective, dpsgd or weights"
        )
    names = [each.name for each in model.certificate.tiers]
    if tier is None and len(names) > 1:
        raise NotExportable(f"{model.certificate.name} has several tiers; say which, with --tier: {', '.join(names)}")
    if tier is not None and tier not in names:
        raise NotExportable(f"there is no tier {tier!r}; this model has {', '.join(map(repr, names))}")
    chosen = tier or names[0]
    return _computed(model.at(chosen) if isinstance(model, TieredModel) else model, chosen)


def _computed(model: ReleasedModel, tier: str) -> Classifier:
    """Return what a model of one tier computes."""
    match model:
        case ReleasedWeights():
            mu = model.certificate.precisions[model.level].calibration_mu
            head = _calibrated(model.weights, model.calibration)
            return Classifier(model.certificate, tier, model.tensors, (head,), mu)
        case PerturbedHead():
            head = _calibrated(rounded(model.weights), model.calibration)
            return Classifier(model.certificate, tier, model.tensors, (head,), model.certificate.calibration_mu)
        case ClassSums():
            head, mu = _calibrated(model.weights, model.calibration), model.certificate.calibration_mu
            return Classifier(model.certificate, tier, model.tensors, (head,), mu, centre=model.mean)
        case DpSgdModel():
            certificate, mu = model.certificate, model.certificate.calibration_mu
            (weights, biases), *others = model.layers
            layers = ((weights * certificate.input_norm, biases), *others)
            return Classifier(certificate, tier, model.tensors, layers, mu, certificate.activation, model.centre)
    raise NotExportable(f"a pay-once model of the kind {model.certificate.release!r} has no form to be taken away in")


def _calibrated(weights: Floats, calibration: Calibration) -> tuple[Floats, Floats]:
    """Return the layer whose values are the calibrated logits of a head (C, D)."""
    return calibration.scale * weights.T, calibration.offsets
