"""Algorithm 1 of Lu et al. 2022 as printed. Status: unproven. Offered so that it can be tested, never by default.

One release samples a neuron v with the exponential mechanism on the predicted probabilities, adds noise to the logit
of v alone, and releases the softmax of all logits:

1. p = softmax(z); P(v) proportional to exp(epsilon_sampling p_v / (2 Delta p)), Delta p from Corollary 2.
2. z_v gains Laplace noise of scale Delta z / epsilon_neuron, or Gaussian noise of that standard deviation.
3. The answer is softmax(z).

What is claimed: (2C+1) epsilon_neuron differential privacy with Laplace noise (Theorem 6, by Theorem 1), and
sqrt(4C+1) epsilon_neuron-GDP with Gaussian noise (Section 5.3, by Theorem 3), with epsilon_sampling = epsilon_neuron.
The proof gives epsilon to the sampling and 2 epsilon to each of the C coordinates.

What is wrong with the claim: given the answer, ln p_i - ln p_j = z_i - z_j exactly for all i, j other than v. With
three or more classes the answers of two neighbouring models whose logits differ in two un-noised coordinates by
different amounts therefore lie on different sets, whatever the noise, and no finite epsilon holds for them. Theorem 6
multiplies the densities of the un-noised coordinates as if they still had noise once the noised one is known; they are
deterministic. With two classes the only log-ratio is noised. The bounds behind Delta z are no worst-case bounds
either; `dpserve.training.kinds.published.bounds` says why. `Published.cost` is the claim, which the ledger charges as
stated.

The noise is drawn by inversion in double precision, as the source does, without a grid: it also makes none of the
promises that the proven mechanisms make about floating point. Asked again in one place it gives the same answer; where
another library computes normal quantiles and e^x - 1, the last digits may be others.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Words
from dpserve.accounting.losses import ClaimedGaussianLoss, ClaimedLaplaceLoss, Cost, PrivacyLoss
from dpserve.mechanisms import elementary, grid
from dpserve.mechanisms.answer_noise import AnswerNoise, HiddenNoise
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.laws import GAUSSIAN, LAPLACE
from dpserve.mechanisms.mechanism import PURE_DEFAULT, Mechanism, Price, Prices
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.worlds import Worlds, logarithms, worlds_apart

Noise = Literal["laplace", "gaussian"]

WORDS_PER_ROW = 2
_LARGEST_LOGIT = 1e300
"""Noisy logits are clipped here, after the noise, so that softmax never meets an infinity."""
_MATCH = 1e-3
"""Largest distance at which an answer's log-ratio agrees with a world's, as a share of the worlds' difference."""


@dataclass(frozen=True)
class Published(Mechanism):
    """Algorithm 1 with a claimed total of `epsilon` for one release of one row of `classes` classes.

    With Laplace noise epsilon is of pure differential privacy; with Gaussian noise it is the mu of mu-GDP, which the
    source writes epsilon-GDP. Raises ValueError for nonsense.
    """

    name: ClassVar[str] = "published"
    status: ClassVar[Literal["proven", "unproven"]] = "unproven"
    prices: ClassVar[Prices] = Prices(
        default="noise-multiplier:20",
        pure_default=PURE_DEFAULT,
        forms={
            "rho:R": "Gaussian noise, as claimed",
            "noise-multiplier:M": "Gaussian noise, as claimed",
            "epsilon:E": "Laplace noise, as claimed",
            "epsilon:E@D": "Gaussian noise, as claimed",
        },
        audited=("noise-multiplier:0.2", "epsilon:5"),
    )

    classes: int
    epsilon: float
    noise: Noise

    def __post_init__(self) -> None:
        """Refuse what describes no such mechanism."""
        if self.classes < 2:
            raise ValueError(f"there are at least two classes, not {self.classes}")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"the claimed epsilon must be positive and finite, not {self.epsilon}")
        if self.noise not in ("laplace", "gaussian"):
            raise ValueError(f"the noise is laplace or gaussian, not {self.noise!r}")
        if not self.epsilon_neuron > 0:
            raise ValueError(f"a claimed epsilon of {self.epsilon} is too small to be divided among its parts")

    @classmethod
    def at_price(cls, price: Price, classes: int) -> Self:
        """See `Mechanism`. A pure epsilon is what is claimed with Laplace noise, and the rest with Gaussian noise."""
        if price.kind == "epsilon" and price.delta is None:
            return cls(classes, grid.round_down(price.exact), "laplace")
        return cls(classes, price.mu(), "gaussian")

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """See `Mechanism`."""
        match losses:
            case (ClaimedGaussianLoss(mu),):
                return cls(classes, mu, "gaussian")
            case (ClaimedLaplaceLoss(epsilon),):
                return cls(classes, epsilon, "laplace")
        return None

    @property
    def epsilon_neuron(self) -> float:
        """The part of the budget that scales the noise; the sampling gets the same (Section 5.3), rounded down."""
        if self.noise == "laplace":
            return laplace_part(self.epsilon, self.classes)
        return gaussian_part(self.epsilon, self.classes)

    @property
    def cost(self) -> Cost:
        """The source's claim for one release: a claim, not a bound."""
        return Cost(
            (ClaimedLaplaceLoss(self.epsilon) if self.noise == "laplace" else ClaimedGaussianLoss(self.epsilon),)
        )

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise | HiddenNoise:
        """See `Mechanism`. Of two classes the one log-ratio has the noise, and of more one logit that is not named."""
        law, scale = GAUSSIAN if self.noise == "gaussian" else LAPLACE, sensitivity / self.epsilon_neuron
        if classes == 2:
            return AnswerNoise(law, scale, "log-odds")
        return HiddenNoise("one logit got noise and the others none, and the answer does not say which", law, scale)

    def worst_neighbours(self, classes: int) -> Worlds:
        """See `Mechanism`. Every two logits change by different amounts, each by at most the 1 of one neuron."""
        return worlds_apart(np.linspace(1.0, -1.0, classes))

    def log_ratio(self, answers: Floats, worlds: Worlds) -> Floats:
        """See `Mechanism`. With three classes or more the two worlds' answers do not overlap, and there is no ratio.

        Then it is how many log-ratios of two classes agree with the world "in", less those that agree with "out".
        Algorithm 1 noises one logit: the log-ratio of any two other classes is z_i - z_j of its world, to the last
        digits. Two classes whose log-ratio is the same in both worlds say nothing and are left out.
        """
        first, second = np.triu_indices(worlds.classes, 1)
        observed, inside, outside = (
            rows[:, first] - rows[:, second] for rows in (logarithms(answers), worlds.logits_in, worlds.logits_out)
        )
        noise = self.answer_noise(worlds.sensitivity, worlds.classes)
        if isinstance(noise, AnswerNoise):
            log_law = (noise.law.log_density((observed - exact)[:, 0] / noise.scale) for exact in (inside, outside))
            return next(log_law) - next(log_law)
        reach = _MATCH * np.abs(inside - outside)
        agree: Floats = np.float64(1) * (np.abs(observed - inside) < reach) - (np.abs(observed - outside) < reach)
        total: Floats = agree.sum(axis=1)
        return total

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return one answer (n, C) for each row of logits (n, C).

        sensitivity: (n,), the claimed Delta z of one neuron. Each row uses two words of randomness, whatever its
        logits. Raises ValueError for shapes that do not fit, logits that are not finite, or a sensitivity that is
        not positive and finite.
        """
        _check(logits, sensitivity, self.classes)
        words = randomness.words(WORDS_PER_ROW * len(logits)).reshape(len(logits), WORDS_PER_ROW)
        v = _sampled_neurons(softmax(logits), sensitivity, self.epsilon_neuron, _uniforms(words[:, 0]))
        noise = _standard_noise(_uniforms(words[:, 1]), self.noise)
        noisy = logits.copy()
        with np.errstate(over="ignore"):
            noisy[np.arange(len(v)), v] += noise * (sensitivity / self.epsilon_neuron)
        return softmax(np.clip(noisy, -_LARGEST_LOGIT, _LARGEST_LOGIT))


def laplace_part(epsilon: float, classes: int) -> float:
    """epsilon / (2C+1), rounded down: epsilon for the sampling and 2 epsilon for each of C coordinates (Theorem 6)."""
    share = epsilon / (2 * classes + 1)
    while Fraction(share) * (2 * classes + 1) > Fraction(epsilon):
        share = math.nextafter(share, 0)
    return share


def gaussian_part(epsilon: float, classes: int) -> float:
    """epsilon / sqrt(4C+1), rounded down: the root of epsilon^2 + C (2 epsilon)^2 composes (Theorem 3, Section 5.3)."""
    share = epsilon / math.sqrt(4 * classes + 1)
    while Fraction(share) ** 2 * (4 * classes + 1) > Fraction(epsilon) ** 2:
        share = math.nextafter(share, 0)
    return share


def probability_sensitivity(neuron_sensitivity: Floats) -> Floats:
    """Corollary 2: Delta p <= min(exp(2 Delta z) - 1, 1) for each row."""
    half_ln_2 = math.log(2) / 2
    claimed: Floats = np.where(
        neuron_sensitivity >= half_ln_2, 1.0, np.expm1(2 * np.minimum(neuron_sensitivity, half_ln_2))
    )
    return np.minimum(claimed, 1.0)


def sampling_probabilities(probabilities: Floats, neuron_sensitivity: Floats, epsilon: float) -> Floats:
    """The law of the sampled neuron (n, C): proportional to exp(epsilon p_v / (2 Delta p))."""
    with np.errstate(over="ignore"):
        slope = np.minimum(epsilon / (2 * probability_sensitivity(neuron_sensitivity)), _LARGEST_LOGIT)
    return softmax(slope[:, None] * probabilities)


def _sampled_neurons(
    probabilities: Floats, neuron_sensitivity: Floats, epsilon: float, uniforms: Floats
) -> NDArray[np.intp]:
    cumulative = np.cumsum(sampling_probabilities(probabilities, neuron_sensitivity, epsilon), axis=1)
    below = cumulative[:, :-1] <= uniforms[:, None] * cumulative[:, -1:]
    neurons: NDArray[np.intp] = below.sum(axis=1)
    return neurons


def _standard_noise(uniforms: Floats, noise: Noise) -> Floats:
    if noise == "gaussian":
        gaussian: Floats = scipy.special.ndtri(uniforms)
        return gaussian
    centred = uniforms - 0.5
    laplace: Floats = -np.sign(centred) * elementary.log(1 - 2 * np.abs(centred))
    return laplace


def _uniforms(words: Words) -> Floats:
    """Midpoints of 2^52 equal cells of (0, 1): exact in double precision, and never 0 or 1."""
    uniforms: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniforms


def _check(logits: Floats, sensitivity: Floats, classes: int) -> None:
    if logits.ndim != 2 or logits.shape[1] != classes:
        raise ValueError(f"the logits have shape {logits.shape}, not (n, {classes})")
    if sensitivity.shape != (len(logits),):
        raise ValueError(f"the sensitivity has shape {sensitivity.shape}, not ({len(logits)},)")
    if not np.isfinite(logits).all():
        raise ValueError("the logits must be finite")
    if not (np.isfinite(sensitivity).all() and (sensitivity > 0).all()):
        raise ValueError("the sensitivity of every row must be positive and finite")
