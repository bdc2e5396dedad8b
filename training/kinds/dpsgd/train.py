"""Training by DP-SGD on private records."""

import math
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from pydantic import ValidationError

from dpserve.accounting import gaussian_envelope, picorho, sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.certificate import Declared
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.rows import Features
from dpserve.training.fields import NAME
from dpserve.training.fitting.around import around, on_steps
from dpserve.training.fitting.network import Network, check_shards
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import ROWS, OnCount, Rows, check_count, of_rows
from dpserve.training.kinds.class_sums.model import Directions, is_sparse, rows_of
from dpserve.training.kinds.dpsgd.centre import Inputs, centre_release, mean_of, sum_of_rows
from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate, Sampling, canary_length, cost_of
from dpserve.training.kinds.dpsgd.choices import Choices
from dpserve.training.kinds.dpsgd.descent import descend, noise_of_weights
from dpserve.training.kinds.dpsgd.model import DpSgdModel
from dpserve.training.kinds.dpsgd.step import StepCanaries, private_step
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.canaries import Canaries, CanaryRun, Coins, included_records, one_hot


@dataclass(frozen=True)
class DpSgdRecipe:
    """The public choices of a training run: the model's name, its feature map, how it is trained, and what it may cost.

    price: what all of it may cost, in picorho. noise_multiplier: of a step; None for the least that the price allows.
    sampling: how records join a step; only Poisson sampling is covered.
    """

    name: str
    feature_map: FeatureMap
    choices: Choices
    price: int
    noise_multiplier: float | None = None
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        """Refuse what no certificate could be made for."""
        if not NAME.fullmatch(self.name):
            raise TrainingError(
                f"a model is named with letters, digits, '.', '_' and '-', at most 64, not {self.name!r}"
            )
        if self.sampling not in get_args(Sampling):
            raise TrainingError(
                f"DP-SGD is covered only with Poisson sampling, not {self.sampling!r}: that a step tells little of a "
                "record rests on whether it took part, which each record decides for itself; batches of a fixed size, "
                "or that pass through shuffled records, have no such bound"
            )


def certify(
    recipe: DpSgdRecipe,
    declared: Declared,
    lineage: str,
    unit: str | None = None,
    canaries: Canaries | None = None,
) -> DpSgdCertificate:
    """Return the certificate of a run before it is made: from public choices alone.

    unit: the column of privacy units; then it is units that join steps, and that records_declared counts.
    canaries: those that join the steps.

    Raises TrainingError where there is none: for choices out of range, and for noise that costs more than the price.
    """
    choices = recipe.choices
    try:
        for_calibration, for_training = calibration.divided(recipe.price)
        calibration_mu = calibration.mu_of(for_calibration)
        centre_mu, steps_mu = shares(for_training, choices.centre_share)
        noise = _noise(recipe, steps_mu)
        dimension = recipe.feature_map.dimension
        cost = cost_of(centre_release(centre_mu, dimension) if centre_mu else None, steps_mu, calibration_mu)
        certificate = DpSgdCertificate.fresh(
            recipe.name,
            declared,
            recipe.feature_map,
            lineage,
            unit=unit,
            cost=str(cost),
            noise_multiplier=noise,
            centre_mu=centre_mu,
            steps_mu=steps_mu,
            calibration_mu=calibration_mu,
            canaries=canaries,
            **choices.as_fields(),
        )
        certificate.whole_cost()
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]).replace("_", " ") if first["loc"] else "the choices"
        raise TrainingError(f"{where}: {first['msg'].lower()}") from error
    except ValueError as error:
        raise TrainingError(str(error)) from error
    return certificate


def shares(price: int, centre_share: float) -> tuple[float, float]:
    """Return the mus of the centre and of all steps, which together cost at most `price` picorho, without calibration.

    The centre gets its share, or the least that a release may cost; nothing where that is more than a fifth.
    """
    least = math.ceil(sampling_error.LEAST_RELEASE_RHO * picorho.PICORHO_PER_RHO * (1 + 1e-6))
    centre = max(math.floor(price * centre_share), least)
    if not centre_share or 5 * centre > price:
        return 0.0, mu_for(price)
    return mu_for(centre), mu_for(price - centre)


def _noise(recipe: DpSgdRecipe, mu: float) -> float:
    """Return the noise multiplier, the owner's or the least. Raises TrainingError where the owner's is too little."""
    rate, steps, noise = recipe.choices.sampling_rate, recipe.choices.steps, recipe.noise_multiplier
    if noise is not None and gaussian_envelope.covers(mu, noise, rate, steps):
        return noise
    least = gaussian_envelope.least_noise(mu, rate, steps)
    if noise is not None:
        raise TrainingError(
            f"{steps} steps at sampling rate {rate:g} with noise multiplier {noise:g} cost more than the budget of "
            f"mu = {mu:.4g}: it needs a noise multiplier of {least:.4g}"
        )
    return least


def directions_of(X: Floats, feature_map: FeatureMap) -> Floats:
    """Return the records' rows, mapped and of length 1 or a hair less: (n, D), each a function of its record alone."""
    return Directions(Features(feature_map))(X)


def train_dpsgd(
    records: Records,
    recipe: DpSgdRecipe,
    lineage: str,
    randomness: Randomness,
    progress: OnCount = lambda _: None,
    directions: Floats | None = None,
    canaries: int | None = None,
) -> DpSgdModel:
    """Train a model by DP-SGD. The digest in its certificate is zero until `save_dpsgd` has written the weights.

    directions: what `directions_of` returns for these records and the recipe's map, where it is known already.
    canaries: how many there are.
    Raises TrainingError for choices that have no certificate, and for more records than are covered, before a record
    is touched; and where canaries refute the certificate.
    """
    check_count(len(records))
    sums = records.sums if directions is None else of_rows(directions, records.y)
    check_shards(sums)
    declaration = records.declaration
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certified = None if coins is None else coins.certified()
    certificate = certify(recipe, declaration, lineage, records.unit, certified)
    tensors = recipe.feature_map.public_tensors()
    rows = ROWS if directions is not None else rows_of(recipe.feature_map)
    centre = np.zeros(recipe.feature_map.dimension)
    if (release := certificate.centre_release) is not None:
        noisy_sum = release.release(sum_of_rows(sums, rows), randomness)
        centre = mean_of(noisy_sum, certificate.records_declared, recipe.feature_map)
    network = certificate.network
    parameters = network.initial(certificate.first_weights_seed)
    step = private_step(network, certificate.step_release, randomness)
    if directions is None and is_sparse(recipe.feature_map):
        centre = on_steps(centre)
        inputs = around(rows, centre, certificate.input_norm)
    else:
        inputs = Rows(Inputs(rows.make, centre, certificate.input_norm))
    joining = None if coins is None else _canaries(coins, certificate)
    seen = np.zeros(0 if joining is None else joining.network.layers(np.empty(joining.network.size))[0][0].size)

    def noisy_step(parameters: Floats) -> Floats:
        released, beside = step.noisy_totals(parameters, sums, inputs, joining)
        seen[:] += beside
        return released

    parameters = descend(noisy_step, parameters, certificate.descent, lambda done, _, __: progress(done))
    run = None if coins is None else CanaryRun(coins, {"steps": seen.reshape(len(coins.included), -1)})
    certificate = certificate.with_canaries(run)
    if not np.isfinite(parameters).all():
        raise TrainingError(Message("the weights grew without bound: take a smaller {learning_rate}"))
    last_weights, last_biases = network.layers(parameters)[-1]
    last_weights /= temperature(certificate)
    last_biases /= temperature(certificate)
    model = DpSgdModel(certificate, parameters.copy(), centre, tensors, canaries=run)
    found = calibration.calibrated(
        records.sums, model.logits, len(declaration.classes), certificate.calibration_mu, randomness
    )
    last_weights *= found.scale
    last_biases *= found.scale
    last_biases += found.offsets
    return replace(model, parameters=parameters)


def _canaries(coins: Coins, certificate: DpSgdCertificate) -> StepCanaries:
    """Return the included canaries as steps take them: each input lies on a coordinate of its own."""
    number, classes, length = len(coins.included), len(certificate.classes), canary_length(certificate.input_norm)
    sparse = is_sparse(certificate.feature_map)
    rows = one_hot(number, sparse=sparse)
    nothing = np.zeros(number)
    inputs = around(rows, nothing, length) if sparse else Rows(Inputs(rows.make, nothing, length))
    network, clip_norm = Network((number, classes)), certificate.clip_norm
    return StepCanaries(
        included_records(coins, classes, number),
        inputs,
        network,
        lambda parameters, inputs, labels: network.clipped_sum(parameters, inputs, labels, clip_norm),
    )


_LINEAR_LOGIT_NOISE = 2.0
"""Found on rows that were held back, as the rule for the learning rate, and so was the logarithm for networks: from
epsilon 0.3 to 8 the log loss fell or stayed on every set."""


def temperature(certificate: DpSgdCertificate) -> float:
    """Return what a model's logits are divided by, at least 1, from the certificate's public numbers alone.

    Clipping counts a record on the wrong side as much however far it is there, so that logits grow until noise stops
    them, and every answer is sure of itself. Division by one positive number keeps their order. So they are divided
    until noise in the last layer's weights moves a logit by at most 2 for a linear head, whose inputs have the length
    input_norm; and by ln C in a network of C classes, whose last layer's inputs are taken to be as long as tanh allows,
    the square root of their number. It is post-processing of what was released. The weights are divided by it once, so
    that whoever reads them needs no more.
    """
    if certificate.optimiser != "momentum":
        return 1.0
    each = noise_of_weights(certificate.descent, certificate.noise_multiplier * certificate.clip_norm)
    if certificate.hidden:
        length, most = math.sqrt(certificate.hidden[-1]), math.log(len(certificate.classes))
    else:
        length, most = certificate.input_norm, _LINEAR_LOGIT_NOISE
    return max(1.0, each * math.hypot(length, 1.0) / most)
