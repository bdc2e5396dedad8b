"""Training of class sums: the certificate from public numbers alone, then each step's release."""

from dataclasses import replace

import numpy as np

from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.sealing import one_line
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import FeatureMap
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import check_count
from dpserve.training.kinds.class_sums import steps
from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate
from dpserve.training.kinds.class_sums.model import ReleasedClassSums
from dpserve.training.pay_once import chain
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import Coins
from dpserve.training.pay_once.chain import PublicNumbers
from dpserve.training.pay_once.releases import Release
from dpserve.training.watchers import OnShare


def train_class_sums(
    records: AnyRecords,
    name: str,
    feature_map: FeatureMap,
    whole: int,
    lineage: str,
    randomness: Randomness,
    report: OnShare = lambda _, __: None,
    records_declared: int | None = None,
    canaries: int | None = None,
    *,
    before: tuple[Release, ...] = (),
    certificate_type: type[ClassSumsCertificate] = ClassSumsCertificate,
) -> ReleasedClassSums:
    """Release the class sums of the records for at most `whole` picorho, continue them, and certify the model.

    report: as for `chain.run`. records_declared: about how many records there
    are, as a public number; without it there are no gradient steps. canaries: how many there are. before: what was
    released for the feature map. Raises TrainingError for a price that cannot be, for more than MOST_RECORDS records,
    and where canaries refute the certificate.
    """
    check_count(len(records))
    declaration, classes = records.declaration, len(records.declaration.classes)
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    try:
        numbers = PublicNumbers(classes, feature_map, records_declared)
        certificate = certificate_type.fresh(
            name,
            declaration,
            feature_map,
            lineage,
            unit=records.unit,
            releases=(*before, *chain.divided(certificate_type.STEPS, whole, numbers)),
            canaries=None if coins is None else coins.certified(),
        )
        certificate.derived_cost()
    except ValueError as error:
        raise TrainingError(f"these class sums are not possible: {one_line(error)}") from error
    nothing = np.empty(0)
    model = ReleasedClassSums(certificate, nothing, nothing, feature_map.public_tensors(), Calibration.none(classes))
    begun = steps.begun(model, records, records_declared, coins)
    model = chain.run(certificate.STEPS, begun, certificate, randomness, report).model
    return replace(model, certificate=model.certificate.with_canaries(model.canaries))
