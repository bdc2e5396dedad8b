"""One class, from the exponential mechanism or by permute-and-flip: the cheap answer where a label is enough."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost, PrivacyLoss
from dpserve.mechanisms import grid, selection
from dpserve.mechanisms.answer_noise import SelectionNoise
from dpserve.mechanisms.mechanism import PURE_DEFAULT, Law, Price, Prices, SelectingMechanism
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.selection import SMALLEST_EPSILON, epsilon_at, law_at
from dpserve.mechanisms.worlds import Worlds


@dataclass(frozen=True)
class Label(SelectingMechanism):
    """A class v with probability in proportion to exp(epsilon z_v / (sqrt(2) D)), D the row's L2 sensitivity.

    Or, by permute-and-flip, the class whose logit is largest with exponential noise of the mean sqrt(2) D / epsilon.
    `dpserve.mechanisms.selection` holds the proofs: a loss of range `epsilon`, and `epsilon`-DP.

    Raises ValueError unless the price of a row in rho is one that `dpserve.accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "label"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"
    prices: ClassVar[Prices] = Prices(
        default="rho:0.00125",
        pure_default=PURE_DEFAULT,
        forms={
            "rho:R": "exponential mechanism",
            "epsilon:E@D": "the same as rho:R, at the most rho that keeps it",
            "epsilon:E": "permute-and-flip",
        },
        audited=("epsilon:1",),
    )

    epsilon: float
    law: Law = "exponential"

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        sampling_error.check_row_rho(float(self.cost.rho))
        if self.epsilon < SMALLEST_EPSILON:
            raise ValueError(f"epsilon must be at least {SMALLEST_EPSILON:.4g}, not {self.epsilon}")

    @classmethod
    def at_price(cls, price: Price, classes: int, selection: Law | None = None) -> Self:
        """See `SelectingMechanism`."""
        del classes
        law = selection or law_at(price)
        return cls(epsilon_at(law, price), law)

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`."""
        del classes
        law = selection.law_of(losses[0])
        return None if law is None or len(losses) > 1 else cls(*law)

    @property
    def cost(self) -> Cost:
        """A loss of range epsilon, or of epsilon-DP."""
        return Cost((selection.loss_of(self.law, self.epsilon),))

    def prepare(self, classes: int) -> None:
        """Build the noise table ahead of the first release, if there is one."""
        del classes
        selection.prepare(self.law)

    def scale(self, sensitivity: Floats) -> Floats:
        """Return the scale of the draw for rows of these sensitivities, (n,): see `selection.scale_by`."""
        return selection.scale_by(self.law, sensitivity, self.epsilon)

    def answer_noise(self, sensitivity: Floats, classes: int) -> SelectionNoise:
        """See `Mechanism`."""
        del classes
        return SelectionNoise(law=self.law, scale=self.scale(sensitivity))

    def chances(self, logits: Floats, sensitivity: Floats) -> Floats:
        """See `Mechanism`: but for the grid, and the floor below which no class falls."""
        return selection.probabilities(self.law, logits, sensitivity, self.epsilon)

    def worst_neighbours(self, classes: int) -> Worlds:
        """See `Mechanism`."""
        return selection.worst_neighbours(self.law, self.epsilon, classes)

    def log_ratio(self, answers: Floats, worlds: Worlds) -> Floats:
        """See `Mechanism`."""
        inside, outside = (
            selection.log_probabilities(self.law, logits, worlds.sensitivity, self.epsilon)
            for logits in (worlds.logits_in, worlds.logits_out)
        )
        shown = answers.argmax(axis=1)[:, None]
        ratios: Floats = np.take_along_axis(inside - outside, shown, axis=1)[:, 0]
        return ratios

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return the class of each row as 1 among zeros, (n, C), for logits (n, C) of sensitivity (n,).

        Each row takes one word, or six for each class by permute-and-flip. Raises ValueError for shapes or values out
        of range (`grid.validated`).
        """
        logits, sensitivity = grid.validate(logits, sensitivity)
        count = selection.words_of(self.law, logits.shape[1])
        words = randomness.words(len(logits) * count).reshape(len(logits), count)
        classes = selection.select_by(self.law, logits, sensitivity, self.epsilon, words)
        answers: Floats = (np.arange(logits.shape[1]) == classes[:, None]).astype(np.float64)
        return answers
