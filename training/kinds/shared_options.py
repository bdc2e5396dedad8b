"""Declarations of options that several kinds of models share: a kind annotates a field of its own with one of these."""

from collections.abc import Sequence
from typing import Annotated, Literal

from dpserve.accounting.messages import Message
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.fitting.sensitivity import LARGEST_PARAMETER, SMALLEST_PARAMETER
from dpserve.training.kinds.options import Declared
from dpserve.training.pay_once.canaries import LEAST as LEAST_CANARIES
from dpserve.training.pay_once.canaries import MOST as MOST_CANARIES

PRICE_FORM = "rho:R, noise-multiplier:M or epsilon:E@DELTA"


def price_words(whole: int) -> str:
    """Return a price in picorho as a person writes it."""
    return f"rho:{to_rho(whole)!r}"


PLANNED = Message("; {budget} in its place leaves it to the planner")
"""Ending of messages about options that the planner sets by a price for all answers."""

PRICE = Declared(
    "What all answers together cost.",
    unit="picorho",
    least=1,
    needed_text=Message("what all answers together cost: {}{}", PRICE_FORM, PLANNED),
    form=PRICE_FORM,
    read=whole_picorho,
    write=price_words,
)
"""The price of a pay-once model. A person writes a price; the value is in whole picorho."""

Price = Annotated[int, PRICE]

RECORDS = Declared(
    "About how many records there are, as a number that may be public: not counted.",
    unit="records",
    least=1,
    needed_text="about how many records there are, as a number that may be public; counting them would say whether "
    "one is there",
)

CANARIES = Declared(
    "How many made records join the training by fair coins, on coordinates of their own, to measure what it tells.",
    unit="records",
    least=LEAST_CANARIES,
    most=MOST_CANARIES,
    default_text="none",
)

LAMBDA = Declared(
    "Lambda: a larger one means less noise and a simpler model.",
    least=SMALLEST_PARAMETER,
    most=LARGEST_PARAMETER,
    default_text="by rule from the price",
)

TOLERANCE = Declared(
    "tau: the gradient norm that is reached, or training fails.", least=SMALLEST_PARAMETER, most=LARGEST_PARAMETER
)

Activation = Literal["tanh", "relu"]


def widths(hidden: Sequence[int]) -> tuple[int, ...]:
    """Return the widths of hidden layers: a width of 0 stands for no layer, as of a linear head."""
    return tuple(width for width in hidden if width)
