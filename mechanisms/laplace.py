"""softmax(z + Lap(b)^C): the Laplace mechanism on a row's logits."""

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, LaplaceLoss, PrivacyLoss
from dpserve.mechanisms import grid
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.laws import LAPLACE
from dpserve.mechanisms.mechanism import PURE_DEFAULT, Mechanism, Price, Prices
from dpserve.mechanisms.noise import LAPLACE_SCALE, rounded_laplace
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.worlds import Worlds, all_classes_apart


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise of scale sqrt(C) D / epsilon on every logit, D being the row's L2 sensitivity.

    The proof. Neighbours' rows on the grid (`dpserve.mechanisms.grid`) are at most sqrt(C) D/g + ROUNDING C steps apart
    in L1, by Cauchy and Schwarz. The step g is chosen so that this is at most S epsilon, S = 2^24. Adding
    independent Laplace noise of scale S to such integers is epsilon-DP (Dwork, McSherry, Nissim and Smith
    2006), dominated by one coordinate that moves by all of it (`dpserve.accounting.losses.LaplaceLoss`); rounding the
    sum, scaling it by the public g and taking the softmax are post-processing.

    Raises ValueError unless the price of a row, epsilon^2/2, is one that `dpserve.accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "laplace"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"
    prices: ClassVar[Prices] = Prices(
        default="noise-multiplier:20",
        pure_default=PURE_DEFAULT,
        forms=dict.fromkeys(("rho:R", "noise-multiplier:M", "epsilon:E"), "Laplace noise"),
        audited=("epsilon:1",),
    )

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        sampling_error.check_row_rho(float(self.cost.rho))

    @classmethod
    def at_price(cls, price: Price, classes: int) -> Self:
        """See `Mechanism`. The noise multiplier is the scale over the L1 sensitivity."""
        del classes
        return cls(
            grid.round_up(1 / price.exact) if price.kind == "noise-multiplier" else price.pure_epsilon(per_rho=2)
        )

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`."""
        del classes
        match losses:
            case (LaplaceLoss(epsilon),):
                return cls(epsilon)
        return None

    @property
    def cost(self) -> Cost:
        """Pure epsilon, of one Laplace variable; the sampler's error is paid from the budget's delta."""
        return Cost((LaplaceLoss(self.epsilon),))

    def prepare(self, classes: int) -> None:
        """Build the noise table ahead of the first release. Raises ValueError where `release` would."""
        step_per_sensitivity(self.epsilon, classes)
        rounded_laplace(LAPLACE_SCALE)

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise:
        """See `Mechanism`. Each logit has noise of the scale."""
        steps = grid.steps_of(sensitivity, step_per_sensitivity(self.epsilon, classes))
        return AnswerNoise(LAPLACE, LAPLACE_SCALE * steps, rounding=0.5 / LAPLACE_SCALE)

    def worst_neighbours(self, classes: int) -> Worlds:
        """See `Mechanism`. What counts is how far the row moves in L1."""
        return all_classes_apart(classes)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return probabilities, shape (n, C), for logits (n, C) of L2 sensitivity (n,) in each row.

        Each row takes 6 C words, in order. Raises ValueError for shapes or values out of range
        (`grid.validated`) and for an epsilon too small for the number of classes.
        """
        logits, sensitivity = grid.validate(logits, sensitivity)
        steps = grid.steps_of(sensitivity, step_per_sensitivity(self.epsilon, logits.shape[1]))
        law = rounded_laplace(LAPLACE_SCALE)
        words = randomness.words(logits.size * law.words_per_draw).reshape(*logits.shape, law.words_per_draw)
        return grid.softmax(grid.on_grid(logits, steps) + law.draw(words), steps)


@functools.lru_cache
def step_per_sensitivity(epsilon: float, classes: int) -> float:
    """Return the grid's step for a sensitivity of one, rounded up for `classes` logits at this epsilon."""
    return grid.step_per_sensitivity(LAPLACE_SCALE, epsilon, grid.square_root(classes), grid.ROUNDING * classes)
