"""From private records to a certified head."""

from mechanisms.randomness import NoiseKey
from training.bundle import CertifiedHead
from training.certificate import Certificate, derive
from training.data.records import Records
from training.objective import RegularisedCrossEntropy
from training.quantised import quantised
from training.recipe import Recipe
from training.solver import Progress, minimise
from training.sums import Features, Rows


def train(records: Records, recipe: Recipe, lineage: str, progress: Progress = lambda _: None) -> CertifiedHead:
    """Minimise the objective on the records, round the weights to their grid and certify the result.

    Raises NotConverged when the tolerance is not reached: then there is no certificate. The digest in the
    returned certificate is zero until `save_bundle` has written the weights.
    """
    tensors = recipe.feature_map.public_tensors()
    classes = len(records.declaration.classes)
    rows = Rows(Features(recipe.feature_map, sparse=True))
    objective = RegularisedCrossEntropy(
        records.sums, classes, recipe.feature_map.dimension, recipe.strong_convexity, rows
    )
    weights = quantised(minimise(objective, recipe.tolerance, progress))
    certificate = Certificate.fresh(
        recipe.name,
        records.declaration,
        recipe.feature_map,
        lineage,
        unit=records.unit,
        strong_convexity=recipe.strong_convexity,
        choice=recipe.choice,
        tolerance=recipe.tolerance,
        **derive(recipe.strong_convexity, recipe.tolerance, *weights.shape),
    )
    return CertifiedHead(certificate, weights, tensors, NoiseKey.fresh())
