"""The public choices of a run of DP-SGD, and the rule that makes those which the owner leaves out.

Nothing here looks at the records. The rule's few numbers were found once, on parts of the training records of public
sets (MNIST with 2,000 to 50,000 images, Adult, Location and supermarket baskets) that were held back to look at. The
steps, and how far noise may throw a linear head's weights, were found again on a fifth of the training records of
satimage, spambase, digits, texture, MNIST with histograms, penbased and Adult with bins, at epsilon 0.5 to 8, and the
share of the price that buys the centre on 100 to 800 records of the training parts of letter, texture, penbased,
satimage, vehicle, magic, phoneme, spambase and others, at epsilon 1. Every set gets the same rule.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpserve.training.fitting.network import Activation
from dpserve.training.kinds.dpsgd.descent import Optimiser


@dataclass(frozen=True)
class Choices:
    """The public choices of a run, as its certificate lists them."""

    records_declared: int
    sampling_rate: float
    steps: int
    learning_rate: float
    hidden: tuple[int, ...] = ()
    activation: Activation = "tanh"
    gradient_clip: float = 1.0
    input_norm: float = 4.0
    optimiser: Optimiser = "momentum"
    momentum: float = 0.9
    averaged: float = 0.75
    first_weights_seed: int = 0
    centre_share: float = 0.05
    """Share of the price that buys the mean that inputs are taken around; 0 for none. By rule at least this much."""

    def as_fields(self) -> dict[str, Any]:
        """Return them by the certificate's names, but for the centre's share."""
        return {name: value for name, value in asdict(self).items() if name != "centre_share"}


_STEPS = 200
_SAMPLING_RATE = 0.1
_LEAST_EXPECTED_BATCH, _MOST_EXPECTED_BATCH = 1000, 20_000
"""Records in a step; more than the most, for a linear head, told nothing: see `choices_for`."""
_LINEAR_WAY, _LINEAR_POWER = 18.0, 4 / 3
_LINEAR_THROW, _NETWORK_THROW = 0.7, 0.3
_CENTRE_REACH, _MOST_OF_CENTRE = 250.0, 0.19
"""Records times mu below which the centre's share is larger, so that its noise is as large as there, and its most."""


def choices_for(records_declared: int, mu: float, size: int, **made: Any) -> Choices:
    """Return the choices for about so many records and a run that may cost mu; `made`: those that the owner made.

    size: how many parameters there are.

    Let w = learning_rate steps gradient_clip / (1 - momentum), how far gradients of full length would take the weights,
    and r = sqrt(size)/(mu records_declared), which is the length of all noise beside that of all gradients. For a
    linear head w = 18 r^(-4/3), but at most 0.7 mu records_declared, and for a network, which small steps suit
    better, w = 0.3 mu records_declared. Noise throws each weight in proportion to w/(mu records_declared): at 0.7
    it moves a logit by about 2. Longer steps were no better and swung the more, the larger the budget was: Adult
    had log loss 0.312 at epsilon 1 and 0.322 at 4. Noise of all steps together does not depend on their number; 200
    steps came closer to the minimum than 100 did, at twice the processor time.

    A record joins a step with probability 0.1, or, for a linear head on many records, so that 20,000 do on average: for
    1,000,000 made records of 50 numbers log loss was 0.1697 at probabilities of 0.1, 0.04 and 0.02 alike, at epsilon 1
    and 8, for 59, 30 and 21 processor seconds.

    The centre's share of the price is the larger, the fewer records there are, as its noise is part of every input:
    below 250 records times mu it grows with the inverse of their square, so that the noise stays, up to 0.19.
    """
    most = 1.0 if made.get("hidden") else _MOST_EXPECTED_BATCH / records_declared
    rate = min(1.0, max(min(_SAMPLING_RATE, most), _LEAST_EXPECTED_BATCH / records_declared))
    chosen = Choices(records_declared, sampling_rate=rate, steps=_STEPS, learning_rate=1.0)
    chosen = replace(chosen, **made)
    reach = mu * records_declared
    if "centre_share" not in made:
        wanted = chosen.centre_share * (_CENTRE_REACH / reach) ** 2
        chosen = replace(chosen, centre_share=max(chosen.centre_share, min(wanted, _MOST_OF_CENTRE)))
    if "learning_rate" in made:
        return chosen
    if chosen.hidden:
        way = _NETWORK_THROW * reach
    else:
        way = min(_LINEAR_WAY * (reach / math.sqrt(size)) ** _LINEAR_POWER, _LINEAR_THROW * reach)
    return replace(chosen, learning_rate=way * (1 - chosen.momentum) / (chosen.steps * chosen.gradient_clip))
