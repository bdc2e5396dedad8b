"""One class, from the exponential mechanism or by permute-and-flip: the cheap answer where a label is enough."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost
from dpserve.mechanisms import grid, selection
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.selection import SMALLEST_EPSILON, Law


@dataclass(frozen=True)
class Label:
    """A class v with probability in proportion to exp(epsilon z_v / (sqrt(2) D)), D the row's L2 sensitivity.

    Or, by permute-and-flip, the class whose logit is largest with exponential noise of the mean sqrt(2) D / epsilon.
    `dpserve.mechanisms.selection` holds the proofs: a loss of range `epsilon`, and `epsilon`-DP.

    Raises ValueError unless the price of a row in rho is one that `dpserve.accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "label"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"

    epsilon: float
    law: Law = "exponential"

    def __post_init__(self) -> None:
        """Refuse what no row may cost."""
        sampling_error.check_row_rho(float(self.cost.rho))
        if self.epsilon < SMALLEST_EPSILON:
            raise ValueError(f"epsilon must be at least {SMALLEST_EPSILON:.4g}, not {self.epsilon}")

    @property
    def cost(self) -> Cost:
        """A loss of range epsilon, or of epsilon-DP."""
        return Cost((selection.loss_of(self.law, self.epsilon),))

    def prepare(self) -> None:
        """Build the noise table ahead of the first release, if there is one."""
        selection.prepare(self.law)

    def scale(self, sensitivity: Floats) -> Floats:
        """Return the scale of the draw for rows of these sensitivities, (n,): see `selection.scale_by`."""
        return selection.scale_by(self.law, sensitivity, self.epsilon)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return the class of each row as 1 among zeros, (n, C), for logits (n, C) of sensitivity (n,).

        Each row takes one word, or six for each class by permute-and-flip. Raises ValueError for shapes or values out
        of range (`grid.validated`).
        """
        logits, sensitivity = grid.validate(logits, sensitivity)
        each = selection.words_of(self.law, logits.shape[1])
        words = randomness.words(len(logits) * each).reshape(len(logits), each)
        classes = selection.select_by(self.law, logits, sensitivity, self.epsilon, words)
        answers: Floats = (np.arange(logits.shape[1]) == classes[:, None]).astype(np.float64)
        return answers
