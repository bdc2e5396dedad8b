"""Lower bounds of epsilon from observations of steps, for one step and for a whole run, and whether a claim stands.

A step's bound is a parameter of the Gaussian family, mu = 1/noise multiplier; the run's is what as many sampled steps
of that noise tell (Nasr et al. 2023, Section 5.5). That presumes that the implementation has steps of this family, all
alike, and samples as claimed: what the claim itself presumes. It is a statement about the noise and the clipping.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.special
import scipy.stats

from dpserve.accounting import analyses, conversions, domains
from dpserve.accounting.arrays import Floats
from dpserve.accounting.crossings import crossing
from dpserve.accounting.losses import SubsampledGaussianLoss
from dpserve.audit import estimators
from dpserve.audit.estimators import LowerBound

_LEAST_NOISE, _LARGEST_NOISE = 0.05, 1e4
_LEAST_MU, _LARGEST_MU = 1e-3, 4.0
"""Range of a step's mu: less is taken for nothing, more for 4, enough to say that a run is not private."""
_OPTIMISM = 0.025
"""Largest share of a run's epsilon that rounding every step's loss down may cost."""
_NEAREST = 1e-6
POWER = 0.99
"""With what probability an audit that was sized for a fault convicts it."""
_LEAST_RATIO = 1e-3


@dataclass(frozen=True)
class ClaimedRun:
    """The claim about a run: `steps` sampled Gaussian steps, and the epsilon that they give at delta."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float

    @property
    def epsilon(self) -> float:
        """The least valid epsilon of the run."""
        loss = SubsampledGaussianLoss(self.noise_multiplier, self.sampling_rate)
        found = [analyse(Counter({loss: self.steps}), self.delta) for analyse in (analyses.exact, analyses.rdp)]
        return min(analysis.epsilon for analysis in found if analysis.epsilon is not None)

    @property
    def step_epsilon(self) -> float:
        """The epsilon at delta of the noise of one step, when the record is sampled for certain."""
        return conversions.gaussian_epsilon(1 / self.noise_multiplier, self.delta)


def claimed_run(epsilon: float, sampling_rate: float, steps: int, delta: float) -> ClaimedRun:
    """Return the claim with the least noise, to a relative 1e-3 or less, whose epsilon is at most this one.

    Raises ValueError where no noise multiplier from 0.05 to 10,000 gives it.
    """

    def excess(log_noise: float) -> float:
        return ClaimedRun(math.exp(log_noise), sampling_rate, steps, delta).epsilon - epsilon

    if not excess(math.log(_LARGEST_NOISE)) <= 0 < excess(math.log(_LEAST_NOISE)):
        raise ValueError(
            f"no noise multiplier from {_LEAST_NOISE:g} to {_LARGEST_NOISE:g} gives epsilon {epsilon:g} at delta "
            f"{delta:g} for {steps} steps at sampling rate {sampling_rate:g}"
        )
    met = crossing(excess, math.log(_LARGEST_NOISE), math.log(_LEAST_NOISE), tolerance=1e-4).met
    return ClaimedRun(math.exp(met), sampling_rate, steps, delta)


def pooled_bound(inside: Floats, outside: Floats, confidence: float) -> LowerBound:
    """Return the bound of mu from both kinds of errors at 1/2, where they are alike frequent: the closest."""
    return estimators.pooled_gdp(inside, outside, confidence, threshold=0.5)


def run_epsilon(bound: LowerBound, claim: ClaimedRun) -> float:
    """Return the epsilon at delta of a run whose steps have the noise that `bound` leaves possible, rounded down.

    A bound in epsilon is first taken for the Gaussian mechanism with that epsilon at delta, as Section 5.5 does.
    """
    mu = bound.value
    if bound.parameter != "mu":
        mu = conversions.gaussian_mu(mu, claim.delta) if mu > 0 else 0.0
    if mu <= _LEAST_MU:
        return 0.0
    return composed_epsilon(1 / min(mu, _LARGEST_MU), claim.sampling_rate, claim.steps, claim.delta)


@lru_cache(maxsize=256)
def composed_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return the epsilon at delta of `steps` sampled Gaussian steps, rounded down.

    The losses of a step are rounded down to a grid (an optimistic privacy loss distribution), so fine that a run's
    epsilon loses little.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    above = ClaimedRun(noise_multiplier, sampling_rate, steps, delta).epsilon
    if above == 0:
        return 0.0
    one = pld.from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=False,
        value_discretization_interval=_OPTIMISM * above / steps,
        sampling_prob=sampling_rate,
        use_connect_dots=False,
    )
    found = float(one.self_compose(steps).get_epsilon_for_delta(delta))
    return found if math.isfinite(found) else 0.0


def repetition_bound(inside: Floats, outside: Floats, confidence: float) -> LowerBound:
    """Return a bound of mu that half of the observations (n,), (m,) teach and the others count, by Clopper and Pearson.

    For implementations whose noise takes few values. The projection on the canary is the best score where the noise is
    Gaussian. Noise from few seeds looks Gaussian to it, or nearly, and is known completely to an observer who has seen
    each of its values.

    The score is the log of the distance to the nearest observation seen without the canary over that to the nearest
    seen with it: above the threshold 0 for what looks more like those with it. Distances below 1e-6 of the noise count
    as that.
    """
    cut_in, cut_out = round(len(inside) / 2), round(len(outside) / 2)
    with_canary, without = np.sort(inside[:cut_in]), np.sort(outside[:cut_out])
    floor = _NEAREST * float(np.std(without))

    def distance(observed: Floats, known: Floats) -> Floats:
        place = np.searchsorted(known, observed)
        ends = known[np.maximum(place - 1, 0)], known[np.minimum(place, len(known) - 1)]
        return np.maximum(np.minimum(*(np.abs(observed - end) for end in ends)), floor)

    def score(observed: Floats) -> Floats:
        return np.log(distance(observed, without)) - np.log(distance(observed, with_canary))

    return estimators.gdp(score(inside[cut_in:]), score(outside[cut_out:]), confidence, threshold=0.0)


def most_errors(mu: float, observations: int, confidence: float) -> int:
    """Return of how many errors, in `observations` each way, a step that claims mu is convicted; -1 for none.

    By pooled errors at the threshold 1/2 (`dpserve.audit.estimators.pooled_gdp`). Noise that is `ratio` times the
    claimed makes 2 n observations err with probability Phi(-mu/(2 ratio)) each, independently, and the claim falls
    where at most so many of them did: the power is one value of a binomial law.
    """
    claimed = float(scipy.special.ndtr(-mu / 2))
    most = int(scipy.stats.binom.ppf(1 - confidence, 2 * observations, claimed))
    while most >= 0 and scipy.stats.binom.cdf(most, 2 * observations, claimed) > (1 - confidence) * (1 - 1e-9):
        most -= 1
    return most


def power(mu: float, ratio: float, observations: int, confidence: float) -> float:
    """Return the probability that noise `ratio` times what mu claims is convicted, wrongly with 1 - confidence at most.

    Raises ValueError for a ratio that is none: it lies above 0 and is at most 1.
    """
    domains.require_above_zero("the ratio of noises", ratio)
    domains.require_up_to("the ratio of noises", ratio, 1)
    most = most_errors(mu, observations, confidence)
    if most < 0:
        return 0.0
    return float(scipy.stats.binom.cdf(most, 2 * observations, scipy.special.ndtr(-mu / (2 * ratio))))


def largest_ratio(mu: float, observations: int, confidence: float, wanted: float = POWER) -> float | None:
    """Return the largest ratio of noises that so many observations convict with the power wanted; None for none."""

    def lacking(ratio: float) -> float:
        return wanted - power(mu, ratio, observations, confidence)

    if lacking(_LEAST_RATIO) > 0:
        return None
    return crossing(lacking, _LEAST_RATIO, 1.0, tolerance=1e-4).met


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of one implementation: observations of all runs together, and the mean accuracy of training."""

    claim: ClaimedRun
    without: Floats
    with_canary: Floats
    accuracy: float


POOLED = "f-DP (CP), pooled errors"
CHOSEN = "f-DP (CP), chosen threshold"
REPEATED = "f-DP (CP) of repeated noise"
CONVICTING = (POOLED, CHOSEN, REPEATED)


def confidence_of_each(conviction_confidence: float) -> float:
    """Return the confidence of each bound that can convict, so that all together have this one."""
    return estimators.confidence_of_each(conviction_confidence, len(CONVICTING))


@dataclass(frozen=True)
class Row:
    """One method's bound: of a step, as an epsilon at delta, and of the run that such steps make."""

    method: str
    bound: LowerBound
    step_epsilon: float
    run_epsilon: float


@dataclass(frozen=True)
class StepFinding:
    """The result of an audit of steps. rows: with `confidence`; sure_mu: a bound of mu with `conviction_confidence`."""

    claim: ClaimedRun
    observations: int
    accuracy: float
    confidence: float
    conviction_confidence: float
    rows: tuple[Row, ...]
    sure_mu: float

    @property
    def convicted(self) -> bool:
        """Whether a step tells more than is claimed."""
        return self.sure_mu > 1 / self.claim.noise_multiplier

    @property
    def ratio_seen(self) -> float | None:
        """The largest ratio of the noise to the claimed one that is convicted with the probability POWER."""
        each = confidence_of_each(self.conviction_confidence)
        return largest_ratio(1 / self.claim.noise_multiplier, self.observations, each)

    def power(self, ratio: float) -> float:
        """Return the probability that so many observations convict noise of this ratio to the claimed one."""
        each = confidence_of_each(self.conviction_confidence)
        return power(1 / self.claim.noise_multiplier, ratio, self.observations, each)

    def __getitem__(self, method: str) -> Row:
        """Return the row of a method. Raises KeyError where there were too few observations for it."""
        for row in self.rows:
            if row.method == method:
                return row
        raise KeyError(method)


def judge(measured: Measured, confidence: float, conviction_confidence: float) -> StepFinding:
    """Return every method's bounds, and whether the claim of the step is refuted.

    Three exact bounds of mu can convict, each allowed a third of 1 - conviction_confidence: of the projection on the
    canary at the threshold 1/2, which suits the claim; at one chosen on a share of the observations, for a step that is
    nothing like its claim; and `repetition_bound`. A step that holds its claim is convicted with at most that
    probability: the observations of a sound step are independent, N(0, s^2) and N(1, s^2) exactly but for rounding,
    where the auditor takes the other records' part away.
    """
    claim, inside, outside = measured.claim, measured.with_canary, measured.without
    each = confidence_of_each(conviction_confidence)
    bounds: dict[str, LowerBound] = {}
    bounds[POOLED] = pooled_bound(inside, outside, confidence)
    bounds[CHOSEN] = estimators.gdp(inside, outside, confidence)
    bounds[REPEATED] = repetition_bound(inside, outside, confidence)
    sure_mu = max(
        pooled_bound(inside, outside, each).value,
        estimators.gdp(inside, outside, each).value,
        repetition_bound(inside, outside, each).value,
    )
    return StepFinding(
        claim=claim,
        observations=len(inside),
        accuracy=measured.accuracy,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        rows=tuple(
            Row(method, bound, bound.epsilon(claim.delta), run_epsilon(bound, claim))
            for method, bound in bounds.items()
        ),
        sure_mu=sure_mu,
    )
