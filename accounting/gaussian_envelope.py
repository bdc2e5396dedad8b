"""A whole run of DP-SGD as one Gaussian: the least mu that covers its privacy curve except for a delta of 2^-40.

An account that accepts Gaussian charges adds up mu^2, and its figures are exact. A run of Poisson-sampled Gaussian
steps is not Gaussian, but where the noise of a step is not small it nearly is, and then `ApproximateGaussianLoss(mu,
DELTA)` with a mu hardly above the one that the run has at any (epsilon, delta) of interest covers it at every
epsilon, in both directions of neighbouring data sets.

Nothing is sampled and nothing is transformed: losses are spread over a grid so that the pair of laws is dominated,
composed by plain convolution of numbers that are never negative, whose rounding errors are therefore relative ones,
and compared with the Gaussian curve on whole intervals. The grid has at most a few thousand points whatever the run,
and is made coarser, to the safe side, where that is too few: looking at a run takes a fraction of a second, whoever
chose its parameters. `dp_accounting`, which composes by Fourier transforms with absolute errors of the order of 2^-40,
is the oracle in tests.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from dpserve.accounting import domains, sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.crossings import crossing

DELTA = 2.0**-40
"""The delta of the loss that covers a run: for the tails, for truncation and for the noise sampler."""

LARGEST_MU = 4.0
"""No run may cost more."""

MOST_STEPS = 10**6

LEAST_NOISE, LARGEST_NOISE = 0.25, 1e6
"""The noise multiplier of a step lies between these."""

_IDEAL_DELTA = 2.0**-41
"""The part of DELTA for ideal noise."""
_SAMPLER_DELTA = 2.0**-46
"""The most that the sampler's error may be: see `check_sampler`."""
_TRUNCATED = 2.0**-50
"""The probability, over all steps, of losses that are cut off at either end each time that laws are composed."""
_LOSS_ERROR = 2.0**-43
_TAIL_ERROR = 2.0**-42
_LARGEST_RATE = 1 - 2.0**-8
_CURVE_ERROR = 2.0**-38
_MOST_POINTS = 2**12
"""No law that is composed or read has more."""


def least_mu(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """Return the least mu for which the run is covered by `ApproximateGaussianLoss(mu, DELTA)`, rounded up.

    The run: `steps` adaptively chosen steps, each record in each with probability `sampling_rate`, and N(0,
    noise_multiplier^2) noise on a sum that one record moves by 1. Covered means: for every epsilon and both orders
    of every neighbouring pair, delta(epsilon) <= DELTA + (1 - DELTA) G(epsilon), G the curve of N(0,1) and N(mu,1).

    The run's pairs of laws are dominated by `steps`-fold products of ((1-q) N(0,1) + q N(1/s,1), N(0,1)) and of the
    same the other way round (Zhu, Dong and Wang 2022, Theorems 10 and 11). It is enough to look at epsilon >= 0, as
    delta_QP(-epsilon) = 1 - e^-epsilon (1 - delta_PQ(epsilon)) for either side of the comparison. At a sampling
    rate of 1 the product is N(0,1) against N(sqrt(steps)/s, 1) itself.

    The comparison leaves DELTA/2 for the noise sampler (`check_sampler`).

    Raises ValueError for parameters out of range, a sampling rate between 1 - 2^-8 and 1 among them, and where no mu
    up to LARGEST_MU covers the run.
    """
    _check(noise_multiplier, sampling_rate, steps)
    if sampling_rate == 1:
        mu = math.sqrt(steps) / noise_multiplier * (1 + 2.0**-50)
        if mu > LARGEST_MU:
            raise _too_little_noise(noise_multiplier, sampling_rate, steps)
        return mu
    curves = curves_of(noise_multiplier, sampling_rate, steps)
    if max(_excess(curve, LARGEST_MU) for curve in curves) > 0:
        raise _too_little_noise(noise_multiplier, sampling_rate, steps)
    guess = central_limit(noise_multiplier, sampling_rate, steps) / 2
    while max(_excess(curve, guess) for curve in curves) <= 0:
        guess /= 2
        if guess < 1e-9:
            return 2 * guess
    return crossing(lambda mu: max(_excess(curve, mu) for curve in curves), LARGEST_MU, guess, tolerance=1e-9).met


def covers(mu: float, noise_multiplier: float, sampling_rate: float, steps: int) -> bool:
    """Tell whether `ApproximateGaussianLoss(mu, DELTA)` covers the run, as `least_mu` defines it."""
    _check(noise_multiplier, sampling_rate, steps)
    if not 0 < mu <= LARGEST_MU:
        return False
    if sampling_rate == 1:
        return math.sqrt(steps) / noise_multiplier * (1 + 2.0**-50) <= mu
    try:
        curves = curves_of(noise_multiplier, sampling_rate, steps)
    except ValueError:  # so little noise that no mu in range covers the run
        return False
    return all(_excess(curve, mu) <= 0 for curve in curves)


@lru_cache(maxsize=16)
def least_noise(mu: float, sampling_rate: float, steps: int) -> float:
    """Return the least noise multiplier, to 1e-5 relative and rounded up, at which the run costs at most mu.

    Raises ValueError for parameters out of range.
    """
    domains.require_between("mu", mu, 0, LARGEST_MU)
    _check(1.0, sampling_rate, steps)
    if sampling_rate == 1:
        return math.sqrt(steps) / mu * (1 + 2.0**-49)
    guess = 1 / math.sqrt(math.log1p((mu / sampling_rate) ** 2 / steps))

    def excess(noise_multiplier: float) -> float:
        try:
            return least_mu(noise_multiplier, sampling_rate, steps) / mu - 1
        except ValueError:
            return LARGEST_MU / mu

    enough, too_little = guess * 1.02, guess * 0.999
    while excess(enough) > 0:
        too_little, enough = enough, enough * 1.1
    while excess(too_little) <= 0:
        enough, too_little = too_little, too_little * 0.98
    return crossing(excess, enough, too_little, tolerance=1e-5).met


def check_sampler(noise_multiplier: float, steps: int, draws: int, distance: float) -> None:
    """Raise ValueError unless the sampler's error fits into the half of DELTA that is left for it.

    draws: of one step; distance: of each from its ideal law, in total variation.

    The argument of `dpserve.accounting.sampling_error`, with a step for a release: t = draws distance, a step (1/(2
    noise_multiplier^2))-zCDP whatever its sampling, r = steps (t + g). With sampled noise every delta(epsilon) is then
    at most r higher. Where r <= 2^-46 that is covered, too: (DELTA/2)(1 - G(epsilon)) is what DELTA in the place of
    DELTA/2 adds to the bound, and G(epsilon) <= G(0) <= 2 Phi(2) - 1 < 1 - 2^-5 for mu <= LARGEST_MU.
    """
    per_step = draws * distance
    rho = 1 / (2 * noise_multiplier**2)
    error = steps * (per_step + sampling_error.missed_probability(rho, per_step)) * (1 + 2.0**-20)
    if error > _SAMPLER_DELTA:
        raise ValueError(
            f"a noise multiplier of {noise_multiplier:.4g} over {steps} steps of {draws} draws each leaves more to the "
            f"noise sampler's error ({error:.2g}) than is kept for it ({_SAMPLER_DELTA:.2g}): add more noise"
        )


@dataclass(frozen=True, eq=False)
class _Law:
    """An upper bound on a privacy loss distribution: mass (k,) at (first, first + 1, ...) times the interval.

    Upper bound: moving mass to larger losses, or adding some, only raises the delta of any epsilon, before and after
    composition. So the masses need not add up to 1.
    """

    masses: Floats
    first: int
    interval: float
    infinite: float
    truncation: float
    """The largest mass that may be cut off at either end of this law and of those composed from it."""

    @property
    def points(self) -> Floats:
        """The finite losses (k,)."""
        return (self.first + np.arange(len(self.masses))) * np.float64(self.interval)

    def __matmul__(self, other: "_Law") -> "_Law":
        """Compose: both losses together. The interval of each is the other's, times a power of 2."""
        if self.interval != other.interval:
            coarser, finer = (self, other) if self.interval > other.interval else (other, self)
            return coarser @ finer.coarser()
        finite, others = float(self.masses.sum()), float(other.masses.sum())
        infinite = self.infinite * others + other.infinite * finite + self.infinite * other.infinite
        law = _Law(
            np.convolve(self.masses, other.masses),
            self.first + other.first,
            self.interval,
            infinite * (1 + 2.0**-30),
            self.truncation,
        ).trim()
        while len(law.masses) > _MOST_POINTS:
            law = law.coarser()
        return law

    def coarser(self) -> "_Law":
        """Spread every second loss l over its neighbours l - h and l + h, h the interval.

        The fraction 1/(1 + e^-h) goes up: so the mean of e^-loss, the second law's mass, stays, and that of every
        convex function of it, as delta is, only grows, as in `one_step`. Each part is raised past its rounding.
        """
        start = self.first // 2
        length = (self.first + len(self.masses)) // 2 + 1 - start
        even = np.zeros(2 * length + 1)
        even[self.first - 2 * start :][: len(self.masses)] = self.masses
        kept, moved = even[0 : 2 * length : 2].copy(), even[1 : 2 * length : 2] * (1 + 2.0**-48)
        up = 1 / (1 + math.exp(-self.interval))
        kept += moved * (math.exp(-self.interval) * up)
        kept[1:] += moved[:-1] * up
        return _Law(kept * (1 + 2.0**-50), start, 2 * self.interval, self.infinite, self.truncation)

    def trim(self) -> "_Law":
        """Put the least losses at the least that is kept, and the largest at infinity."""
        below = np.cumsum(self.masses)
        above = np.cumsum(self.masses[::-1])[::-1]
        start = int(np.searchsorted(below, self.truncation, side="right"))
        end = len(below) - int(np.searchsorted(above[::-1], self.truncation, side="right"))
        if start >= end:
            return self
        kept = self.masses[start:end].copy()
        kept[0] += below[start - 1] * (1 + 2.0**-30) if start else 0.0
        beyond = float(above[end]) * (1 + 2.0**-30) if end < len(below) else 0.0
        return _Law(kept, self.first + start, self.interval, self.infinite + beyond, self.truncation)


@dataclass(frozen=True, eq=False)
class _Curve:
    """delta (k,) at epsilon (k,), ascending, both rounded to the safe side; between them linear in e^epsilon."""

    epsilons: Floats
    deltas: Floats


def _check(noise_multiplier: float, sampling_rate: float, steps: int) -> None:
    domains.require_between("the noise multiplier", noise_multiplier, LEAST_NOISE, LARGEST_NOISE)
    domains.require_within("the sampling rate", sampling_rate, 1e-6, 1)
    if _LARGEST_RATE < sampling_rate < 1:
        # Losses of a record's absence end at ln(1 - q), near which an edge would be computed too roughly.
        raise ValueError(
            f"the sampling rate must be at most {_LARGEST_RATE:g}, or 1, at which every record joins every step, not "
            f"{sampling_rate}: take 1"
        )
    domains.require_within("the number of steps", steps, 1, MOST_STEPS)


def _too_little_noise(noise_multiplier: float, sampling_rate: float, steps: int) -> ValueError:
    return ValueError(
        f"a noise multiplier of {noise_multiplier:.4g} at sampling rate {sampling_rate:.4g} over {steps} steps costs "
        f"more than mu = {LARGEST_MU:g}: add more noise or take fewer steps"
    )


def central_limit(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """Return about the mu of the run: sqrt(steps) q sqrt(e^(1/s^2) - 1) (Dong, Roth and Su 2022, Corollary 5.4)."""
    return sampling_rate * math.sqrt(steps * math.expm1(min(noise_multiplier**-2, 100.0)))


@lru_cache(maxsize=32)
def curves_of(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[_Curve, _Curve]:
    """Return the curve of each direction.

    The grid's interval is a part of the standard deviation of one step's loss: spreading losses over the grid adds
    about a sixth of its square to their variance. It is larger where the losses of one step would not fit on
    _MOST_POINTS: then they are rarely much above their deviation, and those that are decide.

    Raises ValueError where there is so little noise that no mu up to LARGEST_MU covers it.
    """
    roughly = min(central_limit(noise_multiplier, sampling_rate, steps), math.sqrt(steps) / noise_multiplier)
    if roughly > 2 * LARGEST_MU:
        raise _too_little_noise(noise_multiplier, sampling_rate, steps)
    spread = min(1 / noise_multiplier, central_limit(noise_multiplier, sampling_rate, 1))
    interval = spread / min(20.0, max(2.0, 500 / math.sqrt(steps)))
    return tuple(  # type: ignore[return-value]
        _curve(composed_law(law, steps), steps)
        for law in one_step(noise_multiplier, sampling_rate, interval, _TRUNCATED / steps)
    )


def one_step(s: float, q: float, interval: float, truncation: float) -> tuple[_Law, _Law]:
    """Return the laws of one step's loss in both directions, mass beyond a probability of `truncation` at infinity.

    The loss at x, ln(1 - q + q e^(x/s - 1/(2 s^2))), increases with x. The bin of losses between two neighbours lo
    < hi of the grid has mass m under the first law and m' under the second; its dominating representation with all
    mass at the ends, both masses kept, has the fraction f = (1 - m'/(m e^-lo))/(1 - e^-interval) of m at hi
    (Doroshenko et al. 2022). That is a spreading of the likelihood ratio with its mean kept, so every convex
    function's mean, as delta is, only grows.

    Rounding. A bin's edges in x are computed to within _LOSS_ERROR/2 in their loss, its masses to within _TAIL_ERROR
    times the tail probability at its edge towards the middle, from which they are differences: scipy's ndtr is within
    2^-44.3 down to -14, beyond which no such edge lies, and the rounding of its argument moves a tail by less than
    2^-45. So m is raised by as much, m' lowered, and f raised by 4 _LOSS_ERROR/(1 - e^-interval). As a shift of all
    losses by 2 _LOSS_ERROR in `_curve`, that covers a bin whose true losses exceed its ends: multiply the second law
    by e^(-_LOSS_ERROR), then they lie in [lo, hi + 2 _LOSS_ERROR], where f would change by less than it was raised.
    """
    far = -float(scipy.special.ndtri(truncation / 2))
    least, largest = loss_at(-far, s, q), loss_at(far + 1 / s, s, q)
    interval = max(interval, (largest - least) / (_MOST_POINTS - 4))
    first, last = math.floor(least / interval), math.ceil(largest / interval)
    edges = edges_of(np.arange(first, last + 1, dtype=np.float64) * np.float64(interval), s, q)
    raised, lowered = _bins(edges)
    raised_shifted, lowered_shifted = _bins(edges - 1 / s)
    mixed = ((1 - q) * raised + q * raised_shifted) * (1 + 2.0**-50)
    lowered_mixed = ((1 - q) * lowered + q * lowered_shifted) * (1 - 2.0**-50)
    below, above, above_shifted = (
        float(scipy.special.ndtr(x)) * (1 + 2.0**-40) for x in (edges[0], -edges[-1], 1 / s - edges[-1])
    )
    forwards = _spread(mixed, lowered, first, interval)
    backwards = _spread(raised[::-1], lowered_mixed[::-1], -last, interval)
    forwards[0] += below
    backwards[0] += above
    return (
        _Law(forwards, first, interval, (1 - q) * above + q * above_shifted, truncation).trim(),
        _Law(backwards, -last, interval, below, truncation).trim(),
    )


def edges_of(losses: Floats, s: float, q: float) -> Floats:
    """Return the x (k,) at which the loss has these values (k,), -inf for what is below all losses."""
    above_least = np.expm1(losses) > -q
    inside = np.log1p(np.where(above_least, np.expm1(losses) / q, 0.0))
    return np.where(above_least, inside * s + 0.5 / s, -np.inf)


def _bins(edges: Floats) -> tuple[Floats, Floats]:
    """Return the normal masses (k-1,) between edges (k,), raised and lowered by the error of computing them."""
    left, right = scipy.special.ndtr(edges), scipy.special.ndtr(-edges)
    positive = edges[:-1] > 0
    masses = np.where(positive, right[:-1] - right[1:], left[1:] - left[:-1])
    error = _TAIL_ERROR * np.where(positive, right[:-1], left[1:])
    return np.maximum(masses, 0) + error, np.maximum(masses - error, 0)


def _spread(masses: Floats, others: Floats, first: int, interval: float) -> Floats:
    """Return the masses (k,) of bins (k-1,) at their two ends. others: their masses under the second law."""
    starts = (first + np.arange(len(masses))) * interval
    ratios = np.divide(others * np.exp(starts), masses, out=np.zeros_like(masses), where=masses > 0)
    share = np.clip((1 - ratios + 4 * _LOSS_ERROR) / -math.expm1(-interval), 0.0, 1.0)
    spread = np.zeros(len(masses) + 1)
    spread[:-1] += masses * (1 - share)
    spread[1:] += masses * share
    raised: Floats = spread * (1 + 2.0**-50)
    return raised


def loss_at(x: float, s: float, q: float) -> float:
    """Return the loss of one step at x."""
    return float(np.logaddexp(math.log1p(-q), math.log(q) + x / s - 0.5 / s**2))


def composed_law(law: _Law, steps: int) -> _Law:
    """Return the law of `steps` independent losses, by squaring."""
    result: _Law | None = None
    power = law
    while True:
        if steps & 1:
            result = power if result is None else result @ power
        steps >>= 1
        if not steps:
            assert result is not None
            return result
        power = power @ power


def _curve(law: _Law, steps: int) -> _Curve:
    """Return the delta of the losses at every point of the grid from the last one that is not above 0.

    Rounding. A convolution adds products of positive numbers, at most k = _MOST_POINTS of them, in any order: within
    (k + 1) 2^-53, relatively. The composition is a tree with `steps` leaves, so the errors of its `steps` - 1
    convolutions add up to less than `steps` k 2^-52. A delta is the difference of two sums of at most k numbers, each
    within 2^-40 of itself. Each of the `steps` losses may be 2 _LOSS_ERROR larger than its place on the grid.
    """
    count = len(law.masses)
    points = law.points
    inflation = 1 + (steps * _MOST_POINTS * 2.0**-52 + 2.0**-40)
    beyond = np.append(np.cumsum(law.masses[::-1])[::-1][1:], 0.0)
    scaled = np.append(np.cumsum((law.masses * np.exp(-points))[::-1])[::-1][1:], 0.0) * np.exp(points)
    deltas = (np.maximum(beyond - scaled, 0) + beyond * _CURVE_ERROR + law.infinite) * inflation
    epsilons = points + (2 * _LOSS_ERROR * steps + 2.0**-50 * np.abs(points))
    start = max(0, int(np.searchsorted(epsilons, 0.0, side="right")) - 1)
    if epsilons[0] > 0:
        epsilons, deltas = np.append(0.0, epsilons), np.append(_delta_at_zero(law) * inflation, deltas)
        start = 0
    end = start + int(np.argmax(deltas[start:] <= _IDEAL_DELTA)) if deltas[-1] <= _IDEAL_DELTA else count
    return _Curve(epsilons[start : end + 1], deltas[start : end + 1])


def _delta_at_zero(law: _Law) -> float:
    """Return the delta at 0 of a law all of whose losses are positive."""
    return float((law.masses * -np.expm1(-law.points)).sum() + law.infinite) * (1 + _CURVE_ERROR)


def _excess(curve: _Curve, mu: float) -> float:
    """Return at most 0 only if the Gaussian curve of mu, with _IDEAL_DELTA, lies above `curve` at every epsilon >= 0.

    With x = e^epsilon, the bound E(x) = delta + (1 - delta) G(epsilon) is convex with the slope -(1 - delta) Phi(-
    epsilon/mu - mu/2), and the curve is a chord between neighbouring points. A convex function with slopes A and B at
    the ends of an interval of width w is nowhere more than w (B - A)/4 below its own chord: by its tangents, at a
    fraction p of the way, not more than min(p (S - A), (1 - p)(B - S)) w <= p (1 - p)(B - A) w, S the slope of the
    chord. So it is enough that at both ends E exceeds the curve by that much. From the last point on the curve, which
    decreases, is at most delta, and E is at least that.

    G is lowered, and slopes and differences are widened, by more than their rounding.
    """
    epsilons, deltas = curve.epsilons, curve.deltas
    if deltas[-1] > _IDEAL_DELTA:
        return math.inf
    x = np.exp(epsilons)
    upper = scipy.special.ndtr(mu / 2 - epsilons / mu) * (1 - _TAIL_ERROR)
    lower = scipy.special.ndtr(-mu / 2 - epsilons / mu) * (1 + _TAIL_ERROR)
    bound = _IDEAL_DELTA + (1 - _IDEAL_DELTA) * np.maximum(upper - x * lower * (1 + 2.0**-48), 0)
    sag = np.diff(x) * (-np.diff(lower) + 4 * _TAIL_ERROR * lower[:-1]) / 4 * (1 + 2.0**-30)
    needed = deltas + np.maximum(np.append(sag, 0.0), np.append(0.0, sag))
    return float(np.max((needed - bound) / np.maximum(deltas, _IDEAL_DELTA)))
