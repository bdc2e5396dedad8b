"""N(0, sigma^2 I) drawn once, on a whole vector, such as weights or class sums."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import ClassVar

import numpy as np

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.budgets import Budget
from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms import grid
from dpserve.mechanisms.mechanism import Price
from dpserve.mechanisms.noise import LARGEST_GAUSSIAN_SCALE, rounded_gaussian
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.tapes import Law, release

LARGEST_SIZE = sampling_error.DRAWS_PER_RELEASE

LEAST_PRICE = picorho.charge(Fraction(sampling_error.LEAST_RELEASE_RHO)) + 1
"""The least price of a release, in picorho."""

LARGEST_PRICE = picorho.budget(sampling_error.LARGEST_RELEASE_RHO)
"""The largest price of a release, in picorho. A larger budget buys no better one."""

_PART = 2**18
"""Values that are drawn at a time, to keep the words of the whole vector out of memory."""


@dataclass(frozen=True)
class GaussianVector:
    """Gaussian noise on each of `size` values that one record moves by at most `sensitivity` together, in L2.

    mu-GDP for the whole vector, and so for everything that is ever computed from it.

    The proof is that of `dpserve.mechanisms.gaussian`, for a vector instead of a row. On the grid of the public step g
    neighbours' vectors are at most D/g + ROUNDING sqrt(size) steps apart in L2 (`dpserve.mechanisms.grid`), and g is
    chosen so that this is at most S mu. Adding N(0, S^2) to such integers is mu-GDP (Dong, Roth and Su 2022, Theorem
    2.7); rounding the sum to integers, which is how the tables draw, and scaling it by g are post-processing.

    `sensitivity` must bound how far the values *as computed in floating point* can move. Raises ValueError unless
    the price, mu^2/2, is one that `dpserve.accounting.sampling_error` allows for what is paid for once, the size is
    between 1 and LARGEST_SIZE, and so much noise on so many values fits the grid.
    """

    name: ClassVar[str] = "gaussian-vector"

    mu: float
    size: int
    sensitivity: float

    def __post_init__(self) -> None:
        """Refuse what no release may cost, and what has no grid."""
        if not 0 < self.mu < math.inf:
            raise ValueError(f"mu must be positive and finite, not {self.mu}")
        if not 1 <= self.size <= LARGEST_SIZE:
            raise ValueError(f"a release has between 1 and {LARGEST_SIZE} values, not {self.size}")
        if not 2.0**-500 <= self.sensitivity <= grid.LARGEST_SENSITIVITY:
            raise ValueError(f"the sensitivity must be positive and at most 1e200, not {self.sensitivity}")
        sampling_error.check_release_rho(self.cost.rho)
        grid.gaussian_noise(self.mu, self.size)

    @property
    def cost(self) -> Cost:
        """mu-GDP, once."""
        return Cost((GaussianLoss(self.mu),))

    @property
    def step(self) -> float:
        """The grid step g: never so small that values up to 1024 would be clipped (`grid.SMALLEST_STEP`)."""
        return max(
            math.nextafter(self.sensitivity * grid.gaussian_noise(self.mu, self.size)[1], math.inf), grid.SMALLEST_STEP
        )

    @property
    def standard_deviation(self) -> float:
        """sigma of the noise before it is rounded to the grid, S g: at least sensitivity / mu."""
        return grid.gaussian_noise(self.mu, self.size)[0] * self.step

    def release(self, values: Floats, randomness: Randomness) -> Floats:
        """Return the values with noise, float64 of their shape. They are `size` many and finite.

        Takes 2 words for each value, in order. Draw it once: every call is a release of its own and costs again.
        """
        if np.size(values) != self.size:
            raise ValueError(f"there must be {self.size} values, not {np.size(values)}")
        return self._drawn(np.asarray(values, dtype=np.float64), randomness, whole=True)

    def release_part(self, values: Floats, randomness: Randomness) -> Floats:
        """Return some of the values with noise; what the others are may be chosen by what these became.

        All parts together are `size` values, which one record moves by at most `sensitivity` in L2 whatever parts were
        released before: that is for the caller to see to.

        Proof. Let a record move part i, of k_i values, by at most s_i given the parts before, with the squares of the
        s_i summing up to at most `sensitivity` squared. On the grid neighbours' parts are at most s_i/g + ROUNDING
        sqrt(k_i) steps apart, so part i is mu_i-GDP with S mu_i equal to that; adaptive composition adds the squares of
        the mu_i (Dong, Roth and Su 2022, Corollary 3.3), and the root of that sum is, by the triangle inequality for
        the vectors of the s_i/g and of the ROUNDING sqrt(k_i), at most sensitivity/g + ROUNDING sqrt(size): what the
        whole vector's proof has.
        """
        values = np.asarray(values, dtype=np.float64)
        if not 1 <= values.size <= self.size:
            raise ValueError(f"a part has between 1 and {self.size} values, not {values.size}")
        return self._drawn(values, randomness, whole=False)

    def release_beside(self, values: Floats, unmoved: Floats, randomness: Randomness) -> tuple[Floats, Floats]:
        """Return a part of the values, (..., D), and numbers that no record moves, (..., K), with noise of one draw.

        See `release_part`. What goes for a record's part goes for both together: the unmoved numbers are the same for
        neighbours, before and after they are rounded to the grid, so that neighbours are no more steps apart, and given
        the values' noise what is released of the unmoved ones has one law. So `size` counts the values alone, and so
        does `dpserve.accounting.sampling_error`: the other draws have the same law on both sides, sampler and all.
        """
        if not 1 <= np.size(values) <= self.size:
            raise ValueError(f"a part has between 1 and {self.size} values, not {np.size(values)}")
        both = self._drawn(np.concatenate([values, unmoved], axis=-1), randomness, whole=False)
        released, beside = np.split(both, [np.shape(values)[-1]], axis=-1)
        return released.copy(), beside.copy()

    def _drawn(self, values: Floats, randomness: Randomness, *, whole: bool) -> Floats:
        """Return any number of values with noise of this law, of their shape. whole: whether they are all."""
        if not np.isfinite(values).all():
            raise ValueError("every value must be finite")
        law = Law(self.name, self.sensitivity, (self.mu, float(self.size)), whole)
        return release(law, values, randomness, partial(self._with_noise, values))

    def _with_noise(self, values: Floats, randomness: Randomness) -> Floats:
        law = rounded_gaussian(grid.gaussian_noise(self.mu, self.size)[0])
        step = self.step
        flat, noisy = values.ravel(), np.empty(values.size)
        for start in range(0, values.size, _PART):
            piece = flat[start : start + _PART]
            words = randomness.words(piece.size * law.words_per_draw).reshape(piece.size, law.words_per_draw)
            integers = grid.on_grid(piece, np.full(piece.size, step)) + law.draw(words)
            noisy[start : start + _PART] = integers * step
        return noisy.reshape(values.shape)


def whole_picorho(price: str | Price) -> int:
    """Return what a release paid for once may cost at `price`, as picorho, rounded down.

    "epsilon:E@DELTA" is what an account opened with that epsilon and that delta may spend, so that one such release
    spends the whole account. Raises ValueError for a pure epsilon, and for a price out of range.
    """
    if isinstance(price, str):
        price = Price.parse(price)
    match price.kind:
        case "rho":
            amount = picorho.budget(price.exact)
        case "noise-multiplier":
            amount = picorho.budget(1 / price.exact**2 / 2)
        case _:
            if price.delta is None:
                raise ValueError("Gaussian noise has no pure epsilon; write the price epsilon:E@DELTA")
            return picorho_for(float(price.amount), price.delta)
    sampling_error.check_release_rho(Fraction(amount, picorho.PICORHO_PER_RHO))
    return amount


def picorho_for(epsilon: float, delta: float) -> int:
    """Return what an account opened with this epsilon and this delta may spend, as picorho, rounded down.

    Raises ValueError for numbers out of range, and for a release that would cost less or more than one can.
    """
    budget = Budget.from_epsilon_delta(epsilon, delta, "gaussian")
    try:
        sampling_error.check_release_rho(Fraction(budget.limit, picorho.PICORHO_PER_RHO))
    except ValueError:
        least, largest = (budget.epsilon_at(price) for price in (LEAST_PRICE, LARGEST_PRICE))
        raise ValueError(
            f"the epsilon of a pay-once model must lie between {least:.3g} and {largest:.3g} at delta {delta:g}: for "
            "others no noise was proved"
        ) from None
    return budget.limit


def mu_for(amount: int) -> float:
    """Return the largest mu that costs at most so many picorho."""
    return grid.round_down(grid.square_root_down(Fraction(2 * amount, picorho.PICORHO_PER_RHO)))


def least_price(size: int) -> int:
    """Return the least price, in picorho, of a release of so many values: what noise that fits the grid costs."""
    least = 2 * grid.ROUNDING * grid.square_root(size) / LARGEST_GAUSSIAN_SCALE
    return max(LEAST_PRICE, picorho.charge(least**2 / 2 * Fraction(1 + 2.0**-9)))
