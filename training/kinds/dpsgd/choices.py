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

from dpserve.training.features.maps import FeatureMap, Quantiles
from dpserve.training.fitting.network import Network

NETWORK_SHARE = 0.3
"""Share of the price of all steps that buys those of the network beside the linear head.

On 19 tables at epsilon 1 and 31 at 4 with REACH_OF_CLASS or more, a fifth held out, log loss was less by .026 and .024
in the mean than that of the linear head alone, both calibrated. Half of the price took off .029 and .025, but the head
alone is the best on large tables, Adult and diamonds among them, and a smaller part of the price hurts it less.
"""

HIDDEN = 32
"""Units of the network."""

REACH_OF_CLASS = 300.0
"""Records times mu, over the classes, from which a network stands beside a linear head on cuts.

With less its noise takes more than it learns. At epsilon 1 log loss rose by .018 on letter (160) and .046 on texture
(100), and fell by .006 on hpc (220); with more it fell by .06 on banana, by .38 on a made table of two numbers' XOR,
and by .002 to .015 on nearly all others, but rose by .003 on Adult and .006 on diamonds.
"""


LEAST_MU = 0.09
"""The least mu of a run that has a network by rule: its share is above the least that a release costs, though quantiles
may take half."""


@dataclass(frozen=True)
class NetworkChoices:
    """The public choices of the network beside the linear head. hidden: its tanh units."""

    hidden: int
    sampling_rate: float
    learning_rate: float
    first_weights_seed: int = 0
    share: float = NETWORK_SHARE


@dataclass(frozen=True)
class Choices:
    """The public choices of a run, as its certificate lists them."""

    records_declared: int
    sampling_rate: float
    steps: int
    learning_rate: float
    gradient_clip: float = 1.0
    input_norm: float = 4.0
    momentum: float = 0.9
    averaged: float = 0.75
    beside: NetworkChoices | None = None
    centre_share: float = 0.05
    """Share of the price that buys the mean that inputs are taken around; 0 for none. By rule at least this much."""

    def as_fields(self) -> dict[str, Any]:
        """Return those of the linear head and of its steps, by the certificate's names."""
        return {name: value for name, value in asdict(self).items() if name not in ("beside", "centre_share")}


_STEPS = 200
_SAMPLING_RATE = 0.1
_LEAST_EXPECTED_BATCH, _MOST_EXPECTED_BATCH = 1000, 20_000
"""Records in a step; more than the most, for a linear head, told nothing: see `choices_for`."""
_MOST_OF_NETWORK = 5000
"""Expected records in a step of a network, at most."""
_LINEAR_WAY, _LINEAR_POWER = 18.0, 4 / 3
_LINEAR_THROW, _NETWORK_THROW = 0.7, 0.3
_CENTRE_REACH, _MOST_OF_CENTRE = 250.0, 0.19
"""Records times mu below which the centre's share is larger, so that its noise is as large as there, and its most."""


def choices_by_rule(
    records_declared: int, mu: float, feature_map: FeatureMap, classes: int, hidden: int | None = None, **made: Any
) -> Choices:
    """Return the choices for rows on a feature map: `choices_for`, with the network that is asked for, or by rule.

    hidden: its units, 0 for no network, None for what the rule says: HIDDEN on cuts of numbers where REACH_OF_CLASS
    lets them learn, and the price pays for them. Other features have their linear head alone: on histograms of MNIST's
    images it is right on .981.
    """
    dimension = feature_map.declared.dimension
    if hidden is None:
        reaches = mu * records_declared >= REACH_OF_CLASS * classes and mu >= LEAST_MU
        hidden = HIDDEN if reaches and isinstance(feature_map, Quantiles) else 0
    return choices_for(records_declared, mu, Network((dimension, classes)).size, hidden=hidden, **made)


def choices_for(records_declared: int, mu: float, size: int, hidden: int = 0, **made: Any) -> Choices:
    """Return the choices for about so many records and a run that may cost mu; `made`: those that the owner made.

    size: how many parameters the linear head has. hidden: units of the network beside it, 0 for none.

    Let w = learning_rate steps gradient_clip / (1 - momentum), how far gradients of full length would take the weights,
    and r = sqrt(size)/(mu records_declared), which is the length of all noise beside that of all gradients, mu here
    being that of the run times the root of the head's or the network's share. For a linear head w = 18 r^(-4/3), but
    at most 0.7 mu records_declared, and for a network, which small steps suit better, w = 0.3 mu records_declared.
    Noise throws each weight in proportion to w/(mu records_declared): at 0.7 it moves a logit by about 2. Longer steps
    were no better and swung the more, the larger the budget was: Adult had log loss 0.312 at epsilon 1 and 0.322 at 4.
    Noise of all steps together does not depend on their number; 200 steps came closer to the minimum than 100 did, at
    twice the processor time.

    A record joins a step with probability 0.1, or, on many records, so that 20,000 do on average: for 1,000,000 made
    records of 50 numbers log loss was 0.1697 at probabilities of 0.1, 0.04 and 0.02 alike, at epsilon 1 and 8, for 59,
    30 and 21 processor seconds. A network's steps take half as many records, and 5,000 at most: on eight tables its log
    loss was .003 less at epsilon 1 and .001 more at 4 than with as many, at half the processor time.

    The centre's share of the price is the larger, the fewer records there are, as its noise is part of every input:
    below 250 records times mu it grows with the inverse of their square, so that the noise stays, up to 0.19.
    """
    most = _MOST_EXPECTED_BATCH / records_declared
    rate = min(1.0, max(min(_SAMPLING_RATE, most), _LEAST_EXPECTED_BATCH / records_declared))
    chosen = Choices(records_declared, sampling_rate=rate, steps=_STEPS, learning_rate=1.0)
    chosen = replace(chosen, **made)
    reach = mu * records_declared
    if "centre_share" not in made:
        wanted = chosen.centre_share * (_CENTRE_REACH / reach) ** 2
        chosen = replace(chosen, centre_share=max(chosen.centre_share, min(wanted, _MOST_OF_CENTRE)))
    length_of_way = (1 - chosen.momentum) / (chosen.steps * chosen.gradient_clip)
    if hidden:
        way = _NETWORK_THROW * math.sqrt(NETWORK_SHARE) * reach
        most = 1.0 if "sampling_rate" in made else _MOST_OF_NETWORK / records_declared
        rate = min(chosen.sampling_rate / 2, most)
        chosen = replace(chosen, beside=NetworkChoices(hidden, rate, way * length_of_way))
        reach *= math.sqrt(1 - NETWORK_SHARE)
    if "learning_rate" in made:
        return chosen
    way = min(_LINEAR_WAY * (reach / math.sqrt(size)) ** _LINEAR_POWER, _LINEAR_THROW * reach)
    return replace(chosen, learning_rate=way * length_of_way)
