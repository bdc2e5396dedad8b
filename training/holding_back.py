"""Prediction sets of a pay-once model: records are held back by coins, and the model that the others trained is asked
about them. `dpserve.training.pay_once.coverage` has the promise, `dpserve.training.pay_once.prediction_sets` the price.
"""

from pathlib import Path

import numpy as np

from dpserve.accounting import picorho
from dpserve.accounting.arrays import Floats, Mask
from dpserve.accounting.messages import Message
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.tapes import coins, during, next_part
from dpserve.training.bundles.sealing import load_sealed, save_sealed
from dpserve.training.errors import TrainingError
from dpserve.training.features.encoded import Encoder
from dpserve.training.inputs.records import Records, SummedRecords
from dpserve.training.inputs.sums import BLOCK, check_count
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import pay_once
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.pay_once.prediction_sets import COUNTS, By, counts_of, groups_of, record_parts, release_sets


def hold_back(records: Records, one_in: int, randomness: Randomness) -> tuple[SummedRecords, Records]:
    """Return the records that train, and those that are held back (`held_of`). Raises TrainingError where all are."""
    held = held_of(records, one_in, randomness)
    if held.all():
        raise TrainingError(
            Message(
                "there are too few records to hold any back: none is left to train on. Train without "
                "prediction sets, by {prediction_sets:off}"
            )
        )
    return records.summed(~held), records.taken(held)


def held_of(records: Records, one_in: int, randomness: Randomness) -> Mask:
    """Return which records are held back, (n,): by a coin for each record, or for each unit.

    Coins, and not a hash of the record: equal records would all be on one side by a hash, and what is held back would
    then be no sample of them. With half of all records equal, and hard, a coverage of 0.9 would be 0.54.
    """
    check_count(len(records))
    of = np.arange(len(records)) if records.units is None else records.units.of
    is_held = coins(int(of.max(initial=-1)) + 1, 2**64 // one_in, randomness)
    held: Mask = is_held[of]
    return held


def with_sets(draft: Path, out: Path, held: Records, by: By, one_in: int, randomness: Randomness) -> ReleaseCertificate:
    """Write a trained bundle again, with prediction sets of records that trained nothing; return its certificate.

    draft: the bundle. out: a new folder. held: the records held back, of which there may be none.
    """
    next_part(randomness)
    model = pay_once(load_model(draft))
    assert model is not None
    certificate, tensors = load_sealed(draft, type(model.certificate))
    own = own_probabilities(model, held)
    groups = groups_of(by, len(certificate.classes))
    counts = counts_of(own, held.y, record_parts(held.units, len(held)), groups)
    mu = mu_for(min(picorho.budget(certificate.whole_cost().rho), LARGEST_PRICE))
    with during(COUNTS.name, randomness):
        sets = release_sets(counts, mu, one_in, randomness)
    try:
        return save_sealed(out, tensors, certificate.with_prediction_sets(sets))
    except ValueError as error:
        raise TrainingError(f"prediction sets are not possible here: {error}") from error


def own_probabilities(model: ReleasedModel, records: Records) -> Floats:
    """Return the probability that a model gives the class of each record, (n,), whatever records are beside it.

    A row's answer has the same bits in any batch, except where an encoder computes its features: one row at a time
    there.
    """
    at_once = 1 if isinstance(model.certificate.feature_map, Encoder) else BLOCK
    own = np.empty(len(records))
    for start in range(0, len(records), at_once):
        block = slice(start, start + at_once)
        answers = model.values(records.X[block].copy())
        own[block] = answers[np.arange(len(answers)), records.y[block]]
    return own
