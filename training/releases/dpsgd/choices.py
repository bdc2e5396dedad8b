"""How DP-SGD is run: public choices, and the rule that makes them from public numbers where the owner makes none.

Nothing here looks at the records. The rule was found on the training images of MNIST, which are public, split into a
part to train on and a part to look at; it was then used unchanged everywhere.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from training.releases.dpsgd.descent import Optimiser
from training.releases.dpsgd.network import Activation


@dataclass(frozen=True)
class Choices:
    """The public choices of a run, as its certificate lists them."""

    records_declared: int
    sampling_rate: float
    steps: int
    learning_rate: float
    hidden: tuple[int, ...] = (128,)
    activation: Activation = "tanh"
    clip_norm: float = 1.0
    input_norm: float = 4.0
    optimiser: Optimiser = "momentum"
    momentum: float = 0.9
    averaged: float = 0.75
    first_weights_seed: int = 0

    def as_fields(self) -> dict[str, Any]:
        """Return them by the certificate's names."""
        return asdict(self)


_STEPS = 100
_LARGEST_RATE = 0.1
_LEAST_NOISE_TIMES_RATE = 2.5
_THROW = 0.3
_LONGEST_WAY = 2000.0


def by_rule(records_declared: int, mu: float, **made: Any) -> Choices:
    """Return the choices for about so many records and a run that may cost mu; `made`: those that the owner made.

    What matters is how far the weights travel beside how far noise throws them. Whatever the sampling rate, the noise
    on a step's mean gradient is about clip_norm sqrt(steps)/(mu records_declared), so that steps of a learning rate
    l move a weight by about l steps clip_norm / ((1 - momentum) mu records_declared): the rule holds that fixed, as
    long as the way that gradients of full length would go does not become longer than is of use.
    """
    chosen = Choices(records_declared, sampling_rate=_LARGEST_RATE, steps=_STEPS, learning_rate=1.0)
    chosen = replace(chosen, **made)
    if "learning_rate" not in made:
        way = min(_THROW * mu * records_declared, _LONGEST_WAY)
        rate = way * (1 - chosen.momentum) / (chosen.steps * chosen.clip_norm)
        chosen = replace(chosen, learning_rate=rate)
    return chosen
