"""Declarations of options that several kinds of models share: a kind declares a field of its own with one of these."""

from functools import partial

from dpserve.accounting.picorho import to_rho
from dpserve.training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from dpserve.training.options import option
from dpserve.training.pay_once.canaries import LEAST as LEAST_CANARIES
from dpserve.training.pay_once.canaries import MOST as MOST_CANARIES


def price_words(whole: int) -> str:
    """Return a price in picorho as a person writes it."""
    return f"rho:{to_rho(whole)!r}"


CANARIES = partial(
    option,
    None,
    "How many made records join the training by fair coins, on coordinates of their own, to measure what it tells.",
    unit="records",
    ge=LEAST_CANARIES,
    le=MOST_CANARIES,
)

LAMBDA = partial(
    option,
    None,
    "Lambda: a larger one means less noise and a simpler model.",
    ge=SMALLEST_PARAMETER,
    le=LARGEST_PARAMETER,
    default_text="by rule from the price",
)

TOLERANCE = partial(
    option,
    sentence="tau: the gradient norm that is reached, or training fails.",
    ge=SMALLEST_PARAMETER,
    le=LARGEST_PARAMETER,
)
