"""From private records to a model trained by DP-SGD."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
from pydantic import ValidationError

from accounting import gaussian_envelope
from accounting.losses import ApproximateGaussianLoss, Cost
from mechanisms.randomness import Randomness
from training.certificate import NAME, now
from training.data.records import Records
from training.errors import TrainingError
from training.feature_maps import FeatureMap
from training.releases.dpsgd.certificate import DpSgdCertificate, Sampling
from training.releases.dpsgd.choices import Choices
from training.releases.dpsgd.descent import descend
from training.releases.dpsgd.model import DpSgdModel, network_inputs
from training.releases.dpsgd.step import private_step

Progress = Callable[[int], None]
"""Told how many steps are done."""


@dataclass(frozen=True)
class DpSgdRecipe:
    """The public choices of a training run: the model's name, its feature map, how it is trained, and what it may cost.

    mu: of the whole run. noise_multiplier: of a step; None for the least that costs at most mu.
    sampling: how records join a step; only Poisson sampling is covered.
    """

    name: str
    feature_map: FeatureMap
    choices: Choices
    mu: float
    noise_multiplier: float | None = None
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        """Refuse what no certificate could be made for."""
        if not NAME.fullmatch(self.name):
            raise TrainingError(
                f"a model is named with letters, digits, '.', '_' and '-', at most 64, not {self.name!r}; see --name"
            )
        if self.sampling not in get_args(Sampling):
            raise TrainingError(
                f"DP-SGD is covered only with Poisson sampling, not {self.sampling!r}: that a step tells little of a "
                "record rests on whether it took part, which each record decides for itself; batches of a fixed size, "
                "or that pass through shuffled records, have no such bound"
            )


def certify(
    recipe: DpSgdRecipe, classes: tuple[str, ...], feature_names: tuple[str, ...], lineage: str
) -> DpSgdCertificate:
    """Return the certificate of a run before it is made: from public choices alone.

    Raises TrainingError where there is none: for choices out of range, and for noise that costs more than mu.
    """
    choices = recipe.choices
    try:
        noise = recipe.noise_multiplier
        if noise is None:
            noise = gaussian_envelope.least_noise(recipe.mu, choices.sampling_rate, choices.steps)
        elif not gaussian_envelope.covers(recipe.mu, noise, choices.sampling_rate, choices.steps):
            least = gaussian_envelope.least_noise(recipe.mu, choices.sampling_rate, choices.steps)
            raise TrainingError(
                f"{choices.steps} steps at sampling rate {choices.sampling_rate:g} with noise multiplier {noise:g} "
                f"cost more than the budget of mu = {recipe.mu:.4g}: it needs a noise multiplier of {least:.4g}"
            )
        certificate = DpSgdCertificate(
            name=recipe.name,
            model_id=secrets.token_hex(16),
            created=now(),
            classes=classes,
            feature_names=feature_names,
            feature_map=recipe.feature_map,
            cost=str(Cost((ApproximateGaussianLoss(recipe.mu, gaussian_envelope.DELTA),))),
            lineage=lineage,
            noise_multiplier=noise,
            mu=recipe.mu,
            **choices.as_fields(),
        )
        certificate.derived_cost()
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]).replace("_", " ") if first["loc"] else "the choices"
        raise TrainingError(f"{where}: {first['msg'].lower()}") from error
    except ValueError as error:
        raise TrainingError(str(error)) from error
    return certificate


def train_dpsgd(
    records: Records, recipe: DpSgdRecipe, lineage: str, randomness: Randomness, progress: Progress = lambda _: None
) -> DpSgdModel:
    """Train a model by DP-SGD. The digest in its certificate is zero until `save_dpsgd` has written the weights.

    Raises TrainingError for choices that have no certificate, before a record is touched.
    """
    declaration = records.declaration
    certificate = certify(recipe, declaration.classes, declaration.feature_names, lineage)
    tensors = recipe.feature_map.public_tensors()
    network = certificate.network
    parameters = descend(
        private_step(network, certificate.step_release, randomness),
        network.initial(certificate.first_weights_seed),
        network_inputs(certificate, records.X, tensors),
        records.y,
        certificate.descent,
        lambda done, _, __: progress(done),
    )
    if not np.isfinite(parameters).all():
        raise TrainingError("the weights grew without bound: take a smaller --learning-rate")
    return DpSgdModel(certificate, parameters, tensors)
