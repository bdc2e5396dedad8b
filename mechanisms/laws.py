"""The laws of noise that is added to numbers, and all that intervals, the planner, audits and attacks know of them.

A law is symmetric about 0 and unimodal. Noise is a variable e of it times a scale: `GAUSSIAN` noise has the standard
deviation `scale`, `LAPLACE` noise the density e^(-|x|/scale) / (2 scale). Who reads a law never asks which it is.

Write f(z) = z_k - ln(sum of e^(z_j) over j other than k): the log-odds of class k given the logits z. An answer with
noise n on each logit shows f at z + n. f is concave and its gradient, (1, -q) with q a distribution, has an L2 norm of
at most sqrt(2).

SciPy is imported where it is used: a service that draws noise is smaller without it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from dpserve.accounting.arrays import Floats

COVERAGE = 0.95
"""The least probability with which an interval holds what there is without noise."""

_DEVIATIONS = 2.0
_ERROR_SHARE = 1 - COVERAGE - 0.001
"""Probability that `margin` misses a winner made by noise; the rest is for the rounding to the grid."""

_RATES = np.geomspace(2.0**-8, 2.0**80, 177)
"""The h of Chernoff's bound, one of which is the best or next to it. Each of them holds."""
_QUADRATURE = np.linspace(-100.0, 4.0, 4001)
_QUADRATURE_ERROR = 1e-9


class Law(ABC):
    """A law of added noise, as a value. It says everything of noise of scale 1, or of a stated scale."""

    name: str
    """The name that a client reads."""
    variance: ClassVar[float]
    """The variance of noise of scale 1."""
    quantile: ClassVar[float]
    """|e| is at most this with a probability above COVERAGE, by more than rounding to a grid of 2^16 steps takes."""
    enough: ClassVar[int]
    """So many independent numbers convict noise x 0.8 with p below 1e-9, as a rule."""
    apart: ClassVar[np.ufunc]
    """The scale that the difference of two noises of these scales has, as `margin` takes it."""
    averages: ClassVar[bool] = False
    """Whether the mean of k draws has the same law, of the scale over sqrt(k)."""

    @abstractmethod
    def reach(self, scale: Floats, classes: int) -> tuple[Floats, Floats]:
        """Return how far noise on each logit moves a class's log-odds up, and down, at most, with P >= COVERAGE.

        scale: (n, 1), or each class's own, (n, C). Returns their shape.
        """

    @abstractmethod
    def margin(self, classes: int) -> float:
        """Return by how much noise puts a logit above the model's own largest at most, with P >= COVERAGE.

        Over `apart` of the scales of the two logits' noise. All `classes` - 1 classes that are not the largest are
        covered together.
        """

    @abstractmethod
    def log_density(self, e: Floats) -> Floats:
        """Return ln of the density of noise of scale 1, less a constant."""

    @abstractmethod
    def log_ratio(self, noisy: Floats, inside: Floats, outside: Floats, scale: Floats) -> Floats:
        """Return the log-likelihood ratio, (n,), of noisy logits that are known up to a shift of all.

        noisy: (n, C), such as logarithms of answers. inside, outside: (n, C), the exact logits of the two worlds.
        scale: (n,). Noise that is drawn is a rounded law; this is the ratio of the continuous ones at the grid's
        points. That costs an attack nothing that can be seen (the masses per step differ from the density by a share of
        (k^2/S^2 - 1)/(24 S^2), S >= 2^8 being the scale in steps and k the noise), and no bound depends on it.
        """

    @abstractmethod
    def blurred(self, x: Floats, deviation: float, scale: Floats) -> Floats:
        """Return ln of the density at x of N(0, deviation^2) plus noise of this scale, less a constant."""

    @abstractmethod
    def lower_tail(self, square: float, leverages: Mapping[float, float]) -> float:
        """Return an upper bound of P(||M e||^2 <= square), M being an orthogonal projection.

        leverages: how many of the M_jj have which value, above 0.
        """

    @abstractmethod
    def upper_tail(self, value: float, weights: Mapping[float, int]) -> float:
        """Return an upper bound of P(|sum_j w_j e_j| >= value) for weights of norm 1, so many of each."""


@dataclass(frozen=True)
class GaussianLaw(Law):
    """N(0, 1)."""

    name: str = "gaussian"
    variance: ClassVar[float] = 1.0
    quantile: ClassVar[float] = 1.97  # holds 95.1 %
    enough: ClassVar[int] = 1000
    apart: ClassVar[np.ufunc] = np.hypot
    averages: ClassVar[bool] = True

    def reach(self, scale: Floats, classes: int) -> tuple[Floats, Floats]:
        """See `Law`.

        For one scale s: from above, f(z + n) <= f(z) + gradient . n, so f(z + n) is above f(z) by more than t sqrt(2) s
        with probability at most 1 - Phi(t). From below, f is sqrt(2)-Lipschitz, so it falls more than t sqrt(2) s below
        its median with probability at most 1 - Phi(t) (Gaussian isoperimetry: Borell 1975); the median of a concave
        function of Gaussian noise is at least its mean (Kwapien 1994), and its mean is at least f(z) - s^2/2 by
        Jensen's inequality, or f(z) itself with two classes. With t = 2 both tails together are below 4.6 %; the rest
        is for the rounding to the grid. Where the classes' scales s_j differ, m being the largest of the others', the
        gradient times the scales has the norm sqrt(s_k^2 + m^2) at most, in place of sqrt(2) s, and the mean is at
        least f(z) - m^2/2.
        """
        largest = _largest_other(scale)
        above = _DEVIATIONS * np.sqrt(scale * scale + largest * largest)
        return above, above if classes == 2 else above + largest * largest / 2

    def margin(self, classes: int) -> float:
        """See `Law`. Two logits' noise differs by N(0, s^2 + s'^2): a union bound over the other classes."""
        return NormalDist().inv_cdf(1 - _ERROR_SHARE / (classes - 1))

    def log_density(self, e: Floats) -> Floats:
        """See `Law`."""
        return -(e**2) / 2

    def log_ratio(self, noisy: Floats, inside: Floats, outside: Floats, scale: Floats) -> Floats:
        """See `Law`: of N(z_in, s^2) and N(z_out, s^2) on vectors less their mean."""
        noisy, inside, outside = (rows - rows.mean(axis=1, keepdims=True) for rows in (noisy, inside, outside))
        ratios: Floats = ((noisy - (inside + outside) / 2) * (inside - outside)).sum(axis=1) / scale**2
        return ratios

    def blurred(self, x: Floats, deviation: float, scale: Floats) -> Floats:
        """See `Law`."""
        variance = np.square(scale) + deviation**2
        return np.asarray(-np.square(x) / (2 * variance) - np.log(variance) / 2)

    def lower_tail(self, square: float, leverages: Mapping[float, float]) -> float:
        """See `Law`. It is exact: ||M e||^2 is chi-square with rank(M) degrees of freedom."""
        import scipy.special

        rank = sum(leverage * count for leverage, count in leverages.items())
        return float(scipy.special.gammainc(rank / 2, square / 2))

    def upper_tail(self, value: float, weights: Mapping[float, int]) -> float:
        """See `Law`. It is exact."""
        import scipy.special

        del weights
        return float(2 * scipy.special.ndtr(-value))


@dataclass(frozen=True)
class LaplaceLaw(Law):
    """The density e^(-|x|)/2. `replace(LAPLACE, name=...)` is the law of noise that lies within a step of it."""

    name: str = "laplace"
    variance: ClassVar[float] = 2.0
    quantile: ClassVar[float] = 3.0  # holds 95.02 %
    enough: ClassVar[int] = 2500
    apart: ClassVar[np.ufunc] = np.add

    def reach(self, scale: Floats, classes: int) -> tuple[Floats, Floats]:
        """See `Law`. No |e_j| exceeds c with probability COVERAGE, and then f moves by at most c (s_k + m).

        m is the largest of the others' scales, as above.
        """
        either = _largest_of(classes) * (scale + _largest_other(scale))
        return either, either

    def margin(self, classes: int) -> float:
        """See `Law`. No two logits' noise differs by more than c (s + s') with probability COVERAGE."""
        return _largest_of(classes)

    def log_density(self, e: Floats) -> Floats:
        """See `Law`."""
        return -np.abs(e)

    def log_ratio(self, noisy: Floats, inside: Floats, outside: Floats, scale: Floats) -> Floats:
        """See `Law`: of the densities' integrals over the unknown shift."""
        return _shifted((noisy - inside) / scale[:, None]) - _shifted((noisy - outside) / scale[:, None])

    def blurred(self, x: Floats, deviation: float, scale: Floats) -> Floats:
        """See `Law`. It is the normal-Laplace density (Reed and Jorgensen 2004)."""
        import scipy.special

        ratio = deviation / scale
        sides = [sign * x / scale + scipy.special.log_ndtr(-sign * x / deviation - ratio) for sign in (-1.0, 1.0)]
        density: Floats = np.logaddexp(*sides) + ratio**2 / 2 - np.log(2 * scale)
        return density

    def lower_tail(self, square: float, leverages: Mapping[float, float]) -> float:
        """See `Law`.

        With the characteristic function f >= 0, E exp(-h ||M e||^2) is the mean over g from N(0, M) of the product of
        f(sqrt(2h) g_j), and M is a sum of multiples theta_j = M_jj of projections on unit vectors. The geometric
        Brascamp-Lieb inequality (Ball 1989; Barthe 1998, Theorem 1) then bounds it by

            prod_j ( E_t f(sqrt(2 h theta_j) t)^(1/theta_j) )^theta_j,   t from N(0, 1),

        and P(||M e||^2 <= q) <= e^(h q) times that for every h > 0 (Chernoff).
        """
        exponents = _RATES * square
        for leverage, count in leverages.items():
            exponents = exponents + count * leverage * _log_transform(leverage)
        return math.exp(min(0.0, float(exponents.min())))

    def upper_tail(self, value: float, weights: Mapping[float, int]) -> float:
        """See `Law`. Chernoff's bound, from E exp(h w e) = 1/(1 - h^2 w^2)."""
        rates = np.linspace(0, 1, 200)[:-1] / max(weights)
        logarithms = -rates * value
        logarithms -= sum(count * np.log1p(-((rates * weight) ** 2)) for weight, count in weights.items())
        return min(1.0, 2 * math.exp(float(logarithms.min())))


GAUSSIAN = GaussianLaw()
LAPLACE = LaplaceLaw()


def _largest_other(scale: Floats) -> Floats:
    """Return the largest of the other numbers of its row for each of `scale`, (n, C); of (n, 1) the number itself."""
    if scale.shape[1] == 1:
        return scale
    second, first = np.partition(scale, -2, axis=1)[:, -2:].T
    # Where two are the largest, the second is it, too.
    return np.asarray(np.where(scale == first[:, None], second[:, None], first[:, None]))


@lru_cache
def _largest_of(classes: int) -> float:
    """Return the c that no |e_j| of Laplace's law exceeds with probability COVERAGE."""
    return -math.log(1 - COVERAGE ** (1 / classes))


def _shifted(residuals: Floats) -> Floats:
    """Return ln of the integral over c of exp(-sum_i |r_i + c|), r: (n, C): Laplace's density up to a shift of all.

    With a the sorted -r_i, g(c) = sum_i |c - a_i| has the slope 2k - C between a_k and a_k+1, and -C, C beyond.
    """
    import scipy.special

    places = np.sort(-residuals, axis=1)
    classes = places.shape[1]
    sums = np.abs(places[:, :, None] - places[:, None, :]).sum(axis=2)
    slopes = np.abs(2.0 * np.arange(1, classes) - classes)
    lengths = np.diff(places, axis=1)
    lower = np.minimum(sums[:, :-1], sums[:, 1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(slopes > 0, -np.expm1(-slopes * lengths) / np.maximum(slopes, 1e-300), lengths)
        logarithms = np.log(inner) - lower
    ends = np.stack([-sums[:, 0], -sums[:, -1]], axis=1) - np.log(classes)
    total: Floats = scipy.special.logsumexp(np.concatenate([logarithms, ends], axis=1), axis=1)
    return total


@lru_cache(maxsize=256)
def _log_transform(leverage: float) -> Floats:
    """Return ln E_t f(sqrt(2 h theta) t)^(1/theta) at the h of `_RATES`, or more, for f(t) = 1/(1 + t^2).

    By the trapezoidal rule in ln t: the integrand decays at either end. What is left out below t = e^-100 is less than
    e^-100, and what is beyond e^4 less than e^-1000.
    """
    import scipy.special

    t = np.exp(_QUADRATURE)
    step = _QUADRATURE[1] - _QUADRATURE[0]
    weights = np.log(2 / math.sqrt(2 * math.pi) * step) + _QUADRATURE - t**2 / 2
    powers = np.log1p(2 * leverage * _RATES[:, None] * t**2) / leverage
    log_values: Floats = scipy.special.logsumexp(weights - powers, axis=1) + _QUADRATURE_ERROR
    return log_values
