"""One class, from the exponential mechanism: the cheap answer where a label is enough."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from accounting import sampling_error
from accounting.losses import BoundedRangeLoss, Cost
from mechanisms import grid
from mechanisms.grid import Floats
from mechanisms.randomness import Randomness
from mechanisms.selection import SMALLEST_EPSILON, scale, select


@dataclass(frozen=True)
class Label:
    """A class v with probability in proportion to exp(epsilon z_v / (sqrt(2) D)), D the row's L2 sensitivity.

    `mechanisms.selection` holds the proof that its loss has range `epsilon`.

    Raises ValueError unless the price of a row, epsilon^2/8, is one that `accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "label"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        sampling_error.check_row_rho(float(self.cost.rho))
        if self.epsilon < SMALLEST_EPSILON:
            raise ValueError(f"epsilon must be at least {SMALLEST_EPSILON:.4g}, not {self.epsilon}")

    @property
    def cost(self) -> Cost:
        """A loss of range epsilon."""
        return Cost((BoundedRangeLoss(self.epsilon),))

    def scale(self, sensitivity: Floats) -> Floats:
        """Return for rows of these sensitivities, (n,), how much higher a logit makes its class e times likelier."""
        return scale(sensitivity, self.epsilon)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return the class of each row as 1 among zeros, shape (n, C), for logits (n, C) of sensitivity (n,).

        Each row takes one word. Raises ValueError for shapes or values out of range (`grid.validated`).
        """
        logits, sensitivity = grid.validated(logits, sensitivity)
        classes = select(logits, sensitivity, self.epsilon, randomness.words(len(logits)))
        answers: Floats = (np.arange(logits.shape[1]) == classes[:, None]).astype(np.float64)
        return answers
