"""Two-sided geometric noise on each logit: a mechanism that another package brings, and all of it is this file."""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, PrivacyLoss, PureLoss
from dpserve.mechanisms import grid
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.laws import LAPLACE
from dpserve.mechanisms.mechanism import Mechanism, Price, Prices
from dpserve.mechanisms.noise import floored_exponential
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.worlds import Worlds, all_classes_apart

SCALE = 2**16
"""In steps of the grid."""
LAW = replace(LAPLACE, name="geometric")


@dataclass(frozen=True)
class Geometric(Mechanism):
    """A whole number of steps X on every logit, P(X = x) in proportion to e^(-|x|/SCALE).

    The proof. Neighbours' rows on the grid are at most sqrt(C) D/g + ROUNDING C steps apart in L1, by Cauchy and
    Schwarz, and the step g is such that this is at most SCALE epsilon. P(X = x) and P(X = x + d) differ by a factor of
    at most e^(|d|/SCALE) (Ghosh, Roughgarden and Sundararajan 2009): epsilon-DP. Scaling and softmax are
    post-processing.

    X is the difference of two variables floor(Y), Y exponential: within one step of Laplace noise of this scale.
    """

    name: ClassVar[str] = "geometric"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"
    prices: ClassVar[Prices] = Prices(
        default="rho:0.00125",
        pure_default="epsilon:0.05",
        forms=dict.fromkeys(("rho:R", "epsilon:E"), "geometric noise"),
        audited=("epsilon:1",),
    )

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        sampling_error.check_row_rho(float(self.cost.rho))

    @classmethod
    def at_price(cls, price: Price, classes: int) -> Self:
        """See `Mechanism`."""
        del classes
        return cls(price.pure_epsilon(per_rho=2))

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`."""
        del classes
        match losses:
            case (PureLoss(epsilon),):
                return cls(epsilon)
        return None

    @property
    def cost(self) -> Cost:
        """Pure epsilon."""
        return Cost((PureLoss(self.epsilon),))

    def prepare(self, classes: int) -> None:
        """See `Mechanism`."""
        step_per_sensitivity(self.epsilon, classes)
        floored_exponential(SCALE)

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise:
        """See `Mechanism`."""
        steps = grid.steps_of(sensitivity, step_per_sensitivity(self.epsilon, classes))
        return AnswerNoise(LAW, SCALE * steps, rounding=1 / SCALE)

    def worst_neighbours(self, classes: int) -> Worlds:
        """See `Mechanism`."""
        return all_classes_apart(classes)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """See `Mechanism`."""
        logits, sensitivity = grid.validate(logits, sensitivity)
        steps = grid.steps_of(sensitivity, step_per_sensitivity(self.epsilon, logits.shape[1]))
        law = floored_exponential(SCALE)
        words = randomness.words(2 * logits.size * law.words_per_draw).reshape(*logits.shape, 2, law.words_per_draw)
        one, other = law.draw(words[..., 0, :]), law.draw(words[..., 1, :])
        return grid.softmax(grid.on_grid(logits, steps) + one - other, steps)


@functools.lru_cache
def step_per_sensitivity(epsilon: float, classes: int) -> float:
    """Return the grid's step for a sensitivity of one."""
    return grid.step_per_sensitivity(SCALE, epsilon, grid.square_root(classes), grid.ROUNDING * classes)
