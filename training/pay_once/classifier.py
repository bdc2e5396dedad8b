"""The computation of every pay-once model, as public numbers: the files of an export are made from it.

A row x becomes phi(x) (`dpserve.training.features`). Some kinds take it around a released centre: phi is scaled to
length 1, the centre is subtracted, and the rest is divided by its length, or by CLOSEST where it is shorter. One or
several networks follow, whose values are added, the calibration being part of their last layers, and the softmax.
Everything here was released and paid for, or is public, so that whoever has paid for it may have it.
"""

import json
from dataclasses import dataclass
from importlib.metadata import version

from dpserve.accounting.arrays import Floats
from dpserve.training.features.maps import HeadFeatureMap
from dpserve.training.inputs.columns import Columns, TextColumn
from dpserve.training.pay_once.calibration import CALIBRATION, Calibration
from dpserve.training.pay_once.certificate import ReleaseCertificate

Layers = tuple[tuple[Floats, Floats], ...]
"""Weights (inputs, outputs) and biases (outputs,) of each layer, with tanh between layers."""

COVERAGES = (500, 550, 600, 650, 700, 750, 800, 850, 900, 950, 975, 990, 995, 999)
"""Coverages in thousandths for which a file has prediction sets. Its certificate has what gives all others."""

BEYOND_BOUNDS = "clipped to the declared bounds"
"""The fate of such values in a file, which cannot refuse one."""

FILES_DIFFER = 2.0**-19
"""More than a probability of a file may differ from the model's: tests allow 1e-6."""


@dataclass(frozen=True, eq=False)
class ReleasedClassifier:
    """softmax(network(phi(x)) + ...), or of phi(x) around a centre.

    networks: whose values are added; lengths of inputs and the calibration are multiplied and added into them.
    centre: (D,), what directions of phi are taken around; None where phi itself goes in.
    """

    certificate: ReleaseCertificate
    tensors: dict[str, Floats]
    networks: tuple[Layers, ...]
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
        """Return public metadata of the numbers, by name. `certificate` is the certificate's public part, as JSON."""
        calibrated, price = self.certificate.release_of(CALIBRATION), self.certificate.price
        return {
            "model": self.certificate.name,
            "model_id": self.certificate.model_id,
            "price": str(price),
            "price_rho": f"{float(price.rho):.12g}",
            "calibration": f"in the last layer; it is {calibrated.cost} of the price" if calibrated else "none",
            "classes": json.dumps(self.certificate.classes),
            "feature_names": json.dumps(self.certificate.feature_names),
            "columns": json.dumps([column.name for column in self.columns] if self.columns_inside else []),
            "beyond_bounds": BEYOND_BOUNDS
            + (", as the service does" if self.certificate.clips else "; the service refuses them unless asked to"),
            "certificate": json.dumps(self.certificate.public()),
            "written_by": f"dpserve {version('dpserve')}",
        } | self._prediction_sets()

    def _prediction_sets(self) -> dict[str, str]:
        """Return the least probability of a class in a prediction set, by coverage, if there are prediction sets.

        A number, or a list of one for each class where sets are by class. Each is `PredictionSets.least` less
        FILES_DIFFER, so that a set by a file's probabilities has every class that the service's has: its coverage is
        no smaller.
        """
        sets, classes = self.certificate.prediction_sets, len(self.certificate.classes)
        if sets is None:
            return {}
        least = {coverage: (sets.least(coverage, classes) - FILES_DIFFER).clip(0).tolist() for coverage in COVERAGES}
        by_coverage = {
            f"{coverage / 1000:g}": each if sets.by == "class" else each[0] for coverage, each in least.items()
        }
        return {"prediction_sets": json.dumps(by_coverage)}


def calibrated_layer(weights: Floats, calibration: Calibration) -> tuple[Floats, Floats]:
    """Return the layer whose values are the calibrated logits of a head (C, D)."""
    return calibration.scale * weights.T, calibration.offsets
