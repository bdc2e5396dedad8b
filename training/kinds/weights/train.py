"""The release of a certified head's weights."""

from dataclasses import replace

import numpy as np

from dpserve.mechanisms.gaussian_vector import LARGEST_SIZE, GaussianVector
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import TrainingError
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.weights.certificate import WeightsCertificate
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.kinds.weights.steps import WEIGHTS, Training
from dpserve.training.pay_once import chain
from dpserve.training.pay_once.calibration import CALIBRATION, Calibration
from dpserve.training.pay_once.canaries import Coins
from dpserve.training.pay_once.chain import PublicNumbers
from dpserve.training.pay_once.releases import Release


def release_weights(
    head: CertifiedHead,
    price: int,
    lineage: str,
    randomness: Randomness,
    records: AnyRecords | None = None,
    canaries: int | None = None,
    *,
    before: tuple[Release, ...] = (),
    certificate_type: type[WeightsCertificate] = WeightsCertificate,
) -> ReleasedWeights:
    """Draw the released weights of a certified head, at a price in picorho.

    records: those that the head was trained on, to calibrate on; None to leave probabilities as they come, surer than
    they are right. canaries: how many there are. before: what was released for the feature
    map. The head's exact weights should then be forgotten: only the release was paid for. Raises TrainingError for a
    price out of range, and where canaries refute the certificate.
    """
    trained = head.certificate
    if records is not None and records.unit != trained.unit:
        raise TrainingError("the head was trained with other privacy units than those of these records")
    steps = [step for step in certificate_type.STEPS if step is not CALIBRATION or records is not None]
    size, classes = len(trained.classes) * trained.feature_map.declared.dimension, len(trained.classes)
    if size > LARGEST_SIZE:
        raise TrainingError(f"there are {size} weights, and a release has at most {LARGEST_SIZE}; use fewer features")
    try:
        releases = chain.divided(steps, price, PublicNumbers(classes, trained.feature_map))
        mu = next(release.mu for release in releases if release.name == WEIGHTS.name)
        vector = GaussianVector(mu, size, trained.weight_sensitivity)
    except ValueError as error:
        raise TrainingError(f"this price is not possible with {size} weights: {error}") from error
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certificate = certificate_type.fresh(
        trained.name,
        trained,
        trained.feature_map,
        lineage,
        unit=trained.unit,
        releases=(*before, *releases),
        objective=trained.objective,
        convexified=trained.convexified,
        strong_convexity=trained.strong_convexity,
        tolerance=trained.tolerance,
        weight_sensitivity=trained.weight_sensitivity,
        noise=vector.standard_deviation,
        canaries=None if coins is None else coins.certified(),
    )
    model = ReleasedWeights(certificate, np.empty((classes, 0)), head.tensors, Calibration.none(classes))
    begun = Training(head, model, records, coins)
    model = chain.run(certificate.STEPS, begun, certificate, randomness).model
    return replace(model, certificate=model.certificate.with_canaries(model.canaries))
