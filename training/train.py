"""From private records to a certified head."""

import secrets

from mechanisms.randomness import NoiseKey
from training.bundle import CertifiedHead
from training.certificate import Certificate, assumptions_on, derive, now
from training.data.records import Records
from training.objective import RegularisedCrossEntropy
from training.quantised import quantised
from training.recipe import Recipe
from training.solver import Progress, minimise


def train(records: Records, recipe: Recipe, lineage: str, progress: Progress = lambda _: None) -> CertifiedHead:
    """Minimise the objective on the records, round the weights to their grid and certify the result.

    Raises NotConverged when the tolerance is not reached: then there is no certificate. The digest in the
    returned certificate is zero until `save_bundle` has written the weights.
    """
    tensors = recipe.feature_map.public_tensors()
    objective = RegularisedCrossEntropy(
        recipe.feature_map(records.X, tensors), records.y, len(records.declaration.classes), recipe.strong_convexity
    )
    weights = quantised(minimise(objective, recipe.tolerance, progress))
    certificate = Certificate.model_validate(
        {
            "name": recipe.name,
            "model_id": secrets.token_hex(16),
            "created": now(),
            "classes": records.declaration.classes,
            "feature_names": records.declaration.feature_names,
            "feature_map": recipe.feature_map,
            "strong_convexity": recipe.strong_convexity,
            "tolerance": recipe.tolerance,
            "assumptions": assumptions_on(recipe.feature_map),
            "lineage": lineage,
        }
        | derive(recipe.strong_convexity, recipe.tolerance, *weights.shape)
    )
    return CertifiedHead(certificate, weights, tensors, NoiseKey.fresh())
