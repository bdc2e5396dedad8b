"""softmax(z + N(0, sigma^2 I)): the Gaussian mechanism on a row's logits."""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, GaussianLoss, PrivacyLoss
from dpserve.mechanisms import grid
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.mechanisms.mechanism import Mechanism, Price, Prices
from dpserve.mechanisms.noise import rounded_gaussian
from dpserve.mechanisms.randomness import Randomness


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise of `noise_multiplier` times the row's L2 sensitivity on every logit: mu = 1/noise_multiplier.

    The proof. Neighbours' rows on the grid (`dpserve.mechanisms.grid`) are at most D/g + ROUNDING sqrt(C) steps apart
    in L2. The step g is chosen so that this is at most S mu. Adding N(0, S^2) to such integers is mu-GDP (Dong,
    Roth and Su 2022, Theorem 2.7), and rounding the sum, scaling it by the public g and taking the softmax are
    post-processing. S is a power of two at which rounding takes at most 1 % of mu; for a noise multiplier above
    about 580 / sqrt(C) the largest table is too small for that and the noise is larger than its name, by up
    to a factor of 2, beyond which the mechanism refuses.

    Raises ValueError unless the price of a row, mu^2/2, is one that `dpserve.accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "gaussian"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"
    prices: ClassVar[Prices] = Prices(
        default="noise-multiplier:20",
        pure_default=None,
        forms=dict.fromkeys(("rho:R", "noise-multiplier:M", "epsilon:E@D"), "Gaussian noise"),
        audited=("noise-multiplier:4",),
    )

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(f"the noise multiplier must be positive and finite, not {self.noise_multiplier}")
        sampling_error.check_row_rho(float(self.cost.rho))

    @classmethod
    def at_price(cls, price: Price, classes: int) -> Self:
        """See `Mechanism`."""
        del classes
        return cls(float(price.amount) if price.kind == "noise-multiplier" else grid.round_up(1 / Fraction(price.mu())))

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`. The noise multiplier may differ in the last digit."""
        del classes
        match losses:
            case (GaussianLoss(mu),):
                return cls(1 / mu)
        return None

    @functools.cached_property
    def mu(self) -> float:
        """1 / noise_multiplier, rounded up."""
        return grid.round_up(1 / Fraction(self.noise_multiplier))

    @property
    def cost(self) -> Cost:
        """mu-GDP."""
        return Cost((GaussianLoss(self.mu),))

    def prepare(self, classes: int) -> None:
        """Build the noise table ahead of the first release. Raises ValueError where `release` would."""
        rounded_gaussian(grid.gaussian_noise(self.mu, classes)[0])

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise:
        """See `Mechanism`. The scale is the standard deviation of the noise on each logit."""
        scale, per_sensitivity = grid.gaussian_noise(self.mu, classes)
        return AnswerNoise(GAUSSIAN, scale * grid.steps_of(sensitivity, per_sensitivity), rounding=0.5 / scale)

    def least_scale(self, sensitivity: Floats, classes: int) -> Floats:
        """See `Mechanism`. The table that the noise comes from may hang on the multiplier's last digit."""
        del classes
        return sensitivity * self.noise_multiplier

    def multiplier(self, classes: int) -> float:
        """See `Mechanism`: the noise multiplier by its name."""
        del classes
        return self.noise_multiplier

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return probabilities, shape (n, C), for logits (n, C) of L2 sensitivity (n,) in each row.

        Each row takes 2 C words, in order. Raises ValueError for shapes or values out of range
        (`grid.validated`) and for a noise multiplier too large for the number of classes.
        """
        logits, sensitivity = grid.validate(logits, sensitivity)
        scale, per_sensitivity = grid.gaussian_noise(self.mu, logits.shape[1])
        law = rounded_gaussian(scale)
        steps = grid.steps_of(sensitivity, per_sensitivity)
        words = randomness.words(logits.size * law.words_per_draw).reshape(*logits.shape, law.words_per_draw)
        return grid.softmax(grid.on_grid(logits, steps) + law.draw(words), steps)
