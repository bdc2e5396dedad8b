"""One class, selected privately, and the noisy log-odds of that class, and nothing else.

The published method's shape (`dpserve.mechanisms.published`), releasing only what was paid for.
"""

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self

import numpy as np
import scipy

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.losses import Cost, GaussianLoss, LaplaceLoss, PrivacyLoss
from dpserve.mechanisms import elementary, grid, laws, selection
from dpserve.mechanisms.answer_noise import AnswerNoise
from dpserve.mechanisms.mechanism import PURE_DEFAULT, Law, Price, Prices, SelectingMechanism
from dpserve.mechanisms.noise import NoiseLaw, rounded_gaussian, rounded_laplace
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.selection import SMALLEST_EPSILON, epsilon_at, law_at
from dpserve.mechanisms.worlds import Worlds, logarithms

_LAPLACE_SCALE = 2**16
_SMALLEST_STEP = 2.0**-34
_LARGEST_LOGIT_IN_STEPS = 2.0**44
_LEAST_EXPONENT = -64.0


@dataclass(frozen=True)
class SelectedNeuron(SelectingMechanism):
    """A class v as `Label` draws it, then its log-odds with noise that costs `noise`.

    The proof. Given v, its log-odds f(z) = z_v - ln sum_{j != v} e^(z_j) has the gradient e_v - q, q being a
    probability vector on the other classes: its L2 norm is at most sqrt(2), so f moves by at most sqrt(2) D
    where z moves by D in L2. In steps of the grid, `log_odds_on_grid` moves by at most sqrt(2) D/g + ROUNDING, and g
    is chosen so that this is at most S times mu (or epsilon). The noise is added to that integer. The two
    releases compose adaptively. Scaling, the sigmoid, and sharing what is left evenly are post-processing.

    Raises ValueError unless the price of a row is one that `dpserve.accounting.sampling_error` allows.
    """

    name: ClassVar[str] = "selected-neuron"
    status: ClassVar[Literal["proven", "unproven"]] = "proven"
    prices: ClassVar[Prices] = Prices(
        default="rho:0.00125",
        pure_default=PURE_DEFAULT,
        forms={
            "rho:R": "exponential mechanism and Gaussian noise, R/2 each",
            "epsilon:E@D": "the same as rho:R, at the most rho that keeps it",
            "epsilon:E": "permute-and-flip and Laplace noise, E/2 each",
        },
        audited=("rho:0.1", "epsilon:1"),
    )

    selection_epsilon: float
    noise: GaussianLoss | LaplaceLoss
    law: Law = "exponential"

    def __post_init__(self) -> None:
        """Refuse what no row may cost, and noise that no table is large enough for."""
        sampling_error.check_row_rho(float(self.cost.rho))
        if self.selection_epsilon < SMALLEST_EPSILON:
            raise ValueError(f"the epsilon of the selection must be at least {SMALLEST_EPSILON:.4g}")
        noise_scale(self.noise)

    @classmethod
    def at_price(cls, price: Price, classes: int, selection: Law | None = None) -> Self:
        """See `SelectingMechanism`. Half of the price is for the selection, and half for the noise.

        A pure epsilon buys Laplace noise, another price Gaussian noise.
        """
        del classes
        half, law = Fraction(1, 2), selection or law_at(price)
        epsilon = epsilon_at(law, price, half)
        if price.is_pure:
            return cls(epsilon, LaplaceLoss(epsilon), law)
        return cls(epsilon, GaussianLoss(price.in_rho().mu(half)), law)

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`."""
        del classes
        match losses:
            case (first, GaussianLoss() | LaplaceLoss() as noise) if (law := selection.law_of(first)) is not None:
                return cls(law[0], noise, law[1])
        return None

    @property
    def cost(self) -> Cost:
        """The loss of the selection, and that of the noise."""
        return Cost((selection.loss_of(self.law, self.selection_epsilon), self.noise))

    def prepare(self, classes: int) -> None:
        """Build the noise tables ahead of the first release."""
        del classes
        selection.prepare(self.law)
        _law(self.noise)

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise:
        """See `Mechanism`. The noise is on the log-odds of the selected class."""
        del classes
        scale, per_sensitivity = noise_scale(self.noise)
        law = laws.GAUSSIAN if isinstance(self.noise, GaussianLoss) else laws.LAPLACE
        steps = grid.steps_of(sensitivity, per_sensitivity, _SMALLEST_STEP)
        return AnswerNoise(law, scale * steps, "log-odds", rounding=0.5 / scale)

    def worst_neighbours(self, classes: int) -> Worlds:
        """See `Mechanism`. Of two classes an answer does not show which was selected."""
        return selection.worst_neighbours(self.law, self.selection_epsilon, classes, hidden=classes == 2)

    def log_ratio(self, answers: Floats, worlds: Worlds) -> Floats:
        """See `Mechanism`. It sums over the classes that may have been selected: the others share the rest evenly."""
        classes, noise = worlds.classes, self.answer_noise(worlds.sensitivity, worlds.classes)
        # The largest and smallest of the others agree, for the selected class and no other (with two classes for both).
        possible = np.stack(
            [np.ptp(np.delete(answers, place, axis=1), axis=1) == 0 for place in range(classes)], axis=1
        )
        shown = logarithms(answers)
        others = [np.delete(shown, place, axis=1).max(axis=1) for place in range(classes)]
        log_odds = shown - np.stack(others, axis=1) - np.log(classes - 1)

        def log_law(logits: Floats) -> Floats:
            drawn = noise.law.log_density((log_odds - _exact_log_odds(logits)) / noise.scale[:, None])
            chosen = selection.log_probabilities(self.law, logits, worlds.sensitivity, self.selection_epsilon)
            total: Floats = scipy.special.logsumexp(np.where(possible, chosen + drawn, -np.inf), axis=1)
            return total

        return log_law(worlds.logits_in) - log_law(worlds.logits_out)

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return probabilities, shape (n, C), for logits (n, C) of L2 sensitivity (n,) in each row.

        Each row takes the words of its selection and those of one draw. Raises ValueError for shapes or values out of
        range (`grid.validated`).
        """
        logits, sensitivity = grid.validate(logits, sensitivity)
        rows, classes = logits.shape
        law = _law(self.noise)
        first = selection.words_of(self.law, classes)
        words = randomness.words(rows * (first + law.words_per_draw)).reshape(rows, first + law.words_per_draw)
        selected = selection.select_by(self.law, logits, sensitivity, self.selection_epsilon, words[:, :first])
        steps = grid.steps_of(sensitivity, noise_scale(self.noise)[1], _SMALLEST_STEP)
        noisy = log_odds_on_grid(logits, selected, steps) + law.draw(words[:, first:])
        return _spread(noisy * steps, selected, classes)


def log_odds_on_grid(logits: Floats, selected: Integers, steps: Floats) -> Integers:
    """Return the log-odds of the selected class of each row in steps, shape (n,), as integers.

    For rows z, z' at most D apart in L2, C <= 1024 and g >= 2^-34, the results differ by at most
    sqrt(2) D/g + ROUNDING. Clipping the logits at B = 2^44 g moves no two of them apart. It remains that the
    result is within 1/2 + 2^-4 of f(clip(z))/g. With u = 2^-53, m the largest of the other logits and s >= 1 the
    sum of e^(z_j - m) over them:
    - s: z_j - m is within u of itself, which x e^-x <= 1/e turns into at most C u / e in all; exp errs by
      less than 2^-45 of its value; exponents below -64, and the selected class's, are raised to it, so
      that no exp is slow for being tiny, which is at most C e^-64 < 2^-82; adding up errs by less than C u s.
      Together less than 2^-42 s;
    - ln s, at most 7: less than 2^-41, the logarithm's own error of less than 2^-45 of its value included;
    - m + ln s and then z_v less it: u (B + 7) and u (2 B + 7), rounded generously: 2^-51.4 B + 2^-49;
    - in steps: 2^-7 + 2^-7.4 + 2^-15; the quotient, below 2^46, is within 2^-8; rint moves by at most 1/2.
    Together below 1/2 + 2^-5. The result is the same everywhere (`dpserve.mechanisms.elementary`), as it must be: it is
    what the noise of a question is added to.
    """
    rows = np.arange(len(logits))
    bound = (_LARGEST_LOGIT_IN_STEPS * steps)[:, None]
    clipped = np.clip(logits, -bound, bound)
    chosen = clipped[rows, selected]
    clipped[rows, selected] = -np.inf
    largest = clipped.max(axis=1)
    weights = elementary.exp(np.maximum(clipped - largest[:, None], _LEAST_EXPONENT))
    others = largest + elementary.log(elementary.row_sums(weights))
    return grid.on_grid(chosen - others, steps)


def _exact_log_odds(logits: Floats) -> Floats:
    """Return z_v - ln sum_{j != v} e^(z_j) for every class v, (n, C): in floating point, for audits."""
    rest = [scipy.special.logsumexp(np.delete(logits, place, axis=1), axis=1) for place in range(logits.shape[1])]
    return np.asarray(logits - np.stack(rest, axis=1))


def _spread(log_odds: Floats, selected: Integers, classes: int) -> Floats:
    """Give the selected class of each row the probability that its log-odds say, and the others the rest evenly."""
    small = elementary.exp(-np.abs(log_odds))
    smaller, larger = small / (1 + small), 1 / (1 + small)
    chosen, rest = np.where(log_odds >= 0, larger, smaller), np.where(log_odds >= 0, smaller, larger)
    answers: Floats = np.repeat((rest / (classes - 1))[:, None], classes, axis=1)
    answers[np.arange(len(selected)), selected] = chosen
    return answers


def _law(noise: GaussianLoss | LaplaceLoss) -> NoiseLaw:
    scale, _ = noise_scale(noise)
    return rounded_gaussian(scale) if isinstance(noise, GaussianLoss) else rounded_laplace(scale)


@functools.lru_cache
def noise_scale(noise: GaussianLoss | LaplaceLoss) -> tuple[int, float]:
    """Return the noise scale in steps and the step per unit of sensitivity."""
    if isinstance(noise, GaussianLoss):
        scale, strength = grid.gaussian_scale(noise.mu, grid.ROUNDING), noise.mu
    else:
        scale, strength = _LAPLACE_SCALE, noise.epsilon
    return scale, grid.step_per_sensitivity(scale, strength, grid.square_root(2), grid.ROUNDING)
