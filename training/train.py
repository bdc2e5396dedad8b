"""From private records to a certified head."""

from mechanisms.randomness import NoiseKey
from training.bundle import CertifiedHead
from training.certificate import ASSUMPTIONS, Certificate, assumptions_on, derive, fresh_fields, neighbouring
from training.data.records import Records
from training.feature_maps import Encoder
from training.objective import RegularisedCrossEntropy
from training.quantised import quantised
from training.recipe import Recipe
from training.solver import Progress, minimise
from training.sums import ROWS, Features, Rows, Sums, of_rows


def train(records: Records, recipe: Recipe, lineage: str, progress: Progress = lambda _: None) -> CertifiedHead:
    """Minimise the objective on the records, round the weights to their grid and certify the result.

    Raises NotConverged when the tolerance is not reached: then there is no certificate. The digest in the
    returned certificate is zero until `save_bundle` has written the weights.
    """
    tensors = recipe.feature_map.public_tensors()
    classes = len(records.declaration.classes)
    if isinstance(recipe.feature_map, Encoder):
        # An encoder shows how far it is, and takes its time: all rows go through it once.
        phi = recipe.feature_map(records.X, tensors)
        sums: Sums = of_rows(phi, records.y, records.weights)
        rows = ROWS
    else:
        sums, rows = records.sums, Rows(Features(recipe.feature_map, sparse=True))
    objective = RegularisedCrossEntropy(sums, classes, recipe.feature_map.dimension, recipe.strong_convexity, rows)
    weights = quantised(minimise(objective, recipe.tolerance, progress))
    declaration = records.declaration
    certificate = Certificate.model_validate(
        fresh_fields(recipe.name, declaration.classes, declaration.feature_names, recipe.feature_map, lineage)
        | {
            "strong_convexity": recipe.strong_convexity,
            "tolerance": recipe.tolerance,
        }
        | neighbouring(records.unit, ASSUMPTIONS)
        | {"assumptions": assumptions_on(recipe.feature_map, records.unit)}
        | derive(recipe.strong_convexity, recipe.tolerance, *weights.shape)
    )
    return CertifiedHead(certificate, weights, tensors, NoiseKey.fresh())
