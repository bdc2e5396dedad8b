"""The columns of canaries in a head's weights: `WeightsCertificate.canary_parts` says why they stand alone."""

from dpserve.accounting.arrays import Floats
from dpserve.training.exact.quantised import quantised
from dpserve.training.fitting.objective import RegularisedCrossEntropy
from dpserve.training.fitting.solver import minimise
from dpserve.training.pay_once.canaries import Coins, included_records, one_hot


def canary_weights(coins: Coins, strong_convexity: float, classes: int, tolerance: float) -> Floats:
    """Return the columns (C, N) of the canaries in a head that is trained with those included: `train_head`'s way."""
    number = len(coins.included)
    records = included_records(coins, classes, number)
    objective = RegularisedCrossEntropy(records, classes, number, strong_convexity, one_hot(number))
    return quantised(minimise(objective, tolerance))
