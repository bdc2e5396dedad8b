"""Training of a certified head on private records."""

from dpserve.mechanisms.randomness import NoiseKey
from dpserve.training.bundles.certificate import CONVEXIFIED_NO_UNITS, Certificate, derive
from dpserve.training.errors import DataError, TrainingError
from dpserve.training.exact.quantised import quantised
from dpserve.training.features.rows import MappedRows
from dpserve.training.fitting.log_mean_exp import RegularisedLogMeanExp
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.solver import Objective, minimise
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import Rows
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.head.recipe import Recipe


def train_head(records: AnyRecords, recipe: Recipe, lineage: str) -> CertifiedHead:
    """Minimise the objective on the records, round the weights to their grid and certify the result.

    Raises NotConverged when the tolerance is not reached, and DataError for fewer records than the convexified
    objective was declared to have at least: then there is no certificate. The digest in the
    returned certificate is zero until `save_bundle` has written the weights.
    """
    tensors = recipe.feature_map.public_tensors()
    classes = len(records.declaration.classes)
    rows = Rows(MappedRows(recipe.feature_map, compact=True))
    size, convexity = (classes, recipe.feature_map.dimension), recipe.convexity
    objective: Objective
    if convexity is None:
        objective = RegularisedCrossEntropy(records.sums, *size, recipe.strong_convexity, rows)
    else:
        if records.unit is not None:
            raise TrainingError(CONVEXIFIED_NO_UNITS)
        if len(records) < convexity.least_records:
            # How many there are is private.
            raise DataError(
                f"there are fewer than the {convexity.least_records} records that were declared, without which the "
                "bound does not hold"
            )
        objective = RegularisedLogMeanExp(records.sums, *size, recipe.strong_convexity, convexity, rows)
    weights = quantised(minimise(objective, recipe.tolerance))
    certificate = Certificate.fresh(
        recipe.name,
        records.declaration,
        recipe.feature_map,
        lineage,
        unit=records.unit,
        strong_convexity=recipe.strong_convexity,
        tolerance=recipe.tolerance,
        **derive(recipe.strong_convexity, recipe.tolerance, classes, recipe.feature_map.declared.dimension, convexity),
    )
    return CertifiedHead(certificate, weights, tensors, NoiseKey.fresh())
