"""The judgement of a run by its canaries: lower bounds, and tests that convict a run which is not what it claims.

It stands below what trains, so that a run can fail, and is what loading, `inspect` and `audit release` make again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from dpserve.accounting import conversions, one_run
from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.losses import Cost, composition_of, without_coins
from dpserve.training.errors import BundleError, ClaimRefuted
from dpserve.training.pay_once.canaries import CONFIDENCE, DELTA, Canaries, CanaryPart, CanaryRun

DOUBT = 1e-9
"""The probability with which a sound run is convicted, over all tests together, at most, beside its `slack`."""
LARGEST_FALSE_ALARM = 1e-6
"""Nobody is convicted where it may be larger."""

SHARES = (0.4, 0.2, 0.1, 0.05)
"""Shares of the canaries that are guessed: the one is taken that the claim promises most of."""


@dataclass(frozen=True)
class CanaryVerdict:
    """The judgement of a run. p_values: by the name of each test, all of which a sound run passes together but with
    `false_alarm`. observed_mu: claimed of what canaries went through. guesses, right: of those that were guessed.
    slack: how far the laws of what is judged are from those that the tests take them for, in total variation, at most.
    """

    canaries: Canaries
    observed_mu: float
    guesses: int
    right: int
    p_values: Mapping[str, float]
    slack: float

    @property
    def p_value(self) -> float:
        """The least of all, times their number."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))

    @property
    def false_alarm(self) -> float:
        """The probability with which a sound run is convicted, at most."""
        return DOUBT + self.slack

    @property
    def strongest(self) -> str:
        """The test with the least p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])

    @property
    def convicts(self) -> bool:
        """Whether a sound run looks like this with a probability of at most `false_alarm`."""
        return self.p_value <= DOUBT and self.false_alarm <= LARGEST_FALSE_ALARM


def judged(canaries: Canaries, parts: Sequence[CanaryPart], run: CanaryRun, cost: Cost) -> CanaryVerdict:
    """Return what a run shows of its claim. cost: of the whole model.

    Scores. Each part's are N(0, 1) under the claim where a canary was left out; the score of a canary is their sum in
    the ratio of the parts' separations, the best for normal ones, and N(0, 1) again, for independent noise.

    Bounds. `mu_of_means`, and `mu_of_guesses` of the canaries whose scores lie farthest from the middle, in a share
    that is chosen by the claim alone.

    Coins. A canary's part may be mu-GDP but for an event of probability `coin`. Then all canaries' laws are within the
    sum of those of a run that is mu-GDP, in total variation: that is taken from the bounds' doubt. So is the distance
    of all numbers from normal ones (`distance_of`). Together they are the `slack`.

    Convictions. Each test has an equal share of DOUBT, and a p-value that is exact or too large under the claim: that
    the means are no farther apart than the claim allows, and those of `noise_p_values` for each part, and that no two
    parts have the same noise. A sound run's laws are those of the claim but for the slack, so that any event, and a
    conviction is one, is likelier by that at most. It is added to the false alarm and not to the p-values: there it
    would be multiplied by the number of tests, and with many canaries no claim could be refuted.
    """
    included = run.coins.included
    scores, separation, step = combined_scores(parts, run)
    both = scores[included], scores[~included]
    doubt = 1 - CONFIDENCE - _coins(parts)
    bound = one_run.mu_of_means(*both, doubt, step) if _are_enough(included) else 0.0
    guesses, right = _guesses(scores, included, separation)
    by_guesses = one_run.mu_of_guesses(len(scores), guesses, right, doubt)
    observed = observed_mu(parts)
    return CanaryVerdict(
        canaries.model_copy(
            update={
                "promised_epsilon": epsilon_of(cost),
                "observed_epsilon": _epsilon(observed),
                "lower_bound_mu": bound,
                "lower_bound_epsilon": _epsilon_down(bound),
                "guesses_lower_bound_epsilon": _epsilon_down(by_guesses),
            }
        ),
        observed,
        guesses,
        right,
        p_values_of(parts, run),
        _coins(parts),
    )


def observed_mu(parts: Sequence[CanaryPart]) -> float:
    """Return the mu that is claimed of all parts together."""
    return math.hypot(*(part.mu for part in parts))


def combined_scores(parts: Sequence[CanaryPart], run: CanaryRun) -> tuple[Floats, float, float]:
    """Return the score of each canary (N,), how far apart the claim has both kinds, and the step of their grid."""
    separations = np.array([part.separation for part in parts])
    separation = float(np.linalg.norm(separations))
    of_parts = np.array([part.scores(run.released[part.name]) for part in parts])
    # A score's directions, and the parts' shares of it, are 1 long.
    moves = [2 * part.rounding / part.deviation * math.sqrt(part.moved.shape[1]) for part in parts]
    step = math.sqrt(len(parts)) * max(moves)
    return np.tensordot(separations / separation, of_parts, axes=1), separation, step


def p_values_of(parts: Sequence[CanaryPart], run: CanaryRun) -> dict[str, float]:
    """Return the p-values of all tests of a run, by what they look for: see `judged`."""
    included = run.coins.included
    scores, _, step = combined_scores(parts, run)
    apart = one_run.p_value_of_means(scores[included], scores[~included], observed_mu(parts), step)
    p_values = {"scores farther apart than claimed": apart}
    for part in parts:
        for name, p_value in noise_p_values(part, run.released[part.name], included).items():
            p_values[f"{part.name}: {name}"] = p_value
    if len(parts) > 1:
        p_values["one part's noise in another"] = shared_noise(run, run, parts, parts)
    return p_values


def _coins(parts: Sequence[CanaryPart]) -> float:
    """Return how far the laws of all canaries are from those that are claimed, in total variation, at most."""
    return math.fsum(part.coin * len(part.moved) for part in parts) + distance_of(parts)


def distance_of(parts: Sequence[CanaryPart]) -> float:
    """Return how far all noise is from normal noise, rounded, in total variation, at most."""
    return math.fsum(part.distance * part.moved.size for part in parts)


def epsilon_of(cost: Cost) -> float:
    """Return the epsilon at DELTA of a cost, rounded up: by the Gaussian curve where all losses are Gaussian."""
    _, coins = without_coins(composition_of({cost: 1}))
    rho, delta = float(cost.rho) * (1 + 2.0**-50), DELTA - coins
    if cost.is_gaussian:
        return conversions.gaussian_epsilon(conversions.mu_of_rho(rho), delta)
    return conversions.zcdp_epsilon(rho, delta)


def _epsilon(mu: float) -> float:
    return conversions.gaussian_epsilon(min(mu, conversions.LARGEST_MU), DELTA)


def _epsilon_down(mu: float) -> float:
    return _epsilon(mu) * (1 - 2.0**-30) if mu else 0.0


def _are_enough(included: Mask) -> bool:
    return 1 <= int(included.sum()) <= len(included) - 3


def _guesses(scores: Floats, included: Mask, separation: float) -> tuple[int, int]:
    """Return how many canaries are guessed and how many of them rightly: those farthest from half the separation.

    How many follows from the claim: as many as promise the largest bound if scores are normal and as far apart.
    """
    half, number = separation / 2, len(scores)

    def expected(share: float) -> float:
        cut = _cut(half, share)
        right = scipy.special.ndtr(half - cut)
        count = max(1, round(share * number))
        return one_run.mu_of_guesses(number, count, int(count * right / share), 1 - CONFIDENCE)

    guesses = max(1, round(max(SHARES, key=expected) * number))
    surest = np.argsort(-np.abs(scores - half), kind="stable")[:guesses]
    return guesses, int(((scores[surest] > half) == included[surest]).sum())


def _cut(half: float, share: float) -> float:
    """Return t with P(|X| >= t) = share for X ~ N(half, 1), or N(-half, 1)."""
    low, high = 0.0, half + 40.0
    for _ in range(60):
        middle = (low + high) / 2
        beyond = scipy.special.ndtr(half - middle) + scipy.special.ndtr(-half - middle)
        low, high = (middle, high) if beyond > share else (low, middle)
    return low


def noise_p_values(part: CanaryPart, released: Floats, included: Mask) -> dict[str, float]:
    """Return the p-values of a part's claim by what each test is of: exact or too large.

    Under the claim the residuals (k, w), in deviations, are independent N(0, 1) rounded to a grid of step h, the
    scores' laws are known, and all numbers together are at most `slack` from that in L2, rounding included: each
    number moves by `CanaryPart.rounding` at most.

    - Their sum of squares is chi-square: too little noise, too much. |r| moves by slack at most.
    - Two that are equal at one distance from each other: given all before, a residual is one multiple of the grid with
      probability at most e = h/sqrt(2 pi) (1 + h^2), and where a canary's movement lies between multiples, at most two
      are rounded to one number: so pairs at a distance that are equal are at most binomial, with probability 2 e. There
      is one test for each distance; noise that comes again has one distance.
    - Residuals of nothing: as many in |r| <= h are at most binomial, with probability 3 e.
    - The mean of the scores left out is normal, and so is that of those included but for how often they join, which is
      binomial, n T times: the convolution of both is summed. Too high, too low.
    """
    residuals, slack = part.residuals(released, included), part.slack / part.deviation
    step = part.step / part.deviation
    size = residuals.size
    slack += part.rounding / part.deviation * math.sqrt(size)
    length = float(np.linalg.norm(residuals))
    equal = min(1.0, step / math.sqrt(2 * math.pi) * (1 + step**2))
    bare = int((np.abs(residuals) <= step * (1 + 1e-6)).sum())
    left_out, joined = _mean_tests(part, released, included, slack)
    return {
        "too little noise": float(scipy.special.gammainc(size / 2, (length + slack) ** 2 / 2)),
        "too much noise": float(scipy.special.gammaincc(size / 2, max(length - slack, 0.0) ** 2 / 2)),
        "numbers without noise": _binomial_tail(bare, size, min(1.0, 3 * equal)),
        "noise that comes again": _repeats(np.rint(residuals / step), min(1.0, 2 * equal)),
        "canaries left out that are seen": left_out,
        "canaries that move more or less than they may": joined,
    }


def _binomial_tail(count: int, trials: int, probability: float) -> float:
    """Return P(Binomial(trials, probability) >= count)."""
    return 1.0 if count <= 0 else float(scipy.special.betainc(count, trials - count + 1, probability))


def _repeats(multiples: Floats, equal: float) -> float:
    """Return the p-value of the distance at which most of the multiples (k, w) are equal, in the order of drawing.

    Sorting brings equal ones together, so that distances are counted of few pairs; of one value's only the nearest.
    """
    flat = multiples.ravel()
    order = np.argsort(flat, kind="stable")
    values, least = flat[order], 1.0
    distances: list[Integers] = []
    for ahead in range(1, 5):
        same = values[ahead:] == values[:-ahead]
        distances.append((order[ahead:] - order[:-ahead])[same])
    counts = np.bincount(np.concatenate(distances)) if any(map(len, distances)) else np.zeros(1, dtype=np.int64)
    for distance in np.flatnonzero(counts >= max(2, int(counts.max(initial=0)))):
        least = min(least, _binomial_tail(int(counts[distance]), len(flat) - int(distance), equal))
    return min(1.0, least * len(flat))


def _mean_tests(part: CanaryPart, released: Floats, included: Mask, slack: float) -> tuple[float, float]:
    """Return the p-values of the mean score of canaries left out, and of that of those included."""
    scores, n = part.scores(released), int(included.sum())
    m = len(scores) - n
    if not _are_enough(included):
        return 1.0, 1.0
    outside = abs(float(scores[~included].sum())) / math.sqrt(m)
    left_out = 2 * float(scipy.special.ndtr(-max(outside - slack, 0.0)))
    total, trials = float(scores[included].sum()), n * part.steps
    most = slack * math.sqrt(n)
    if part.is_certain:
        beyond = abs(total - n * part.separation) - most
        return left_out, 2 * float(scipy.special.ndtr(-max(beyond, 0.0) / math.sqrt(n)))
    # Beyond lies less than 1e-60, of a binomial that is nearly Poisson and of one that is nearly normal.
    centre, spread = trials * part.rate, 60 + 40 * math.sqrt(trials * part.rate * (1 - part.rate))
    joins = np.arange(max(0, math.floor(centre - spread)), min(trials, math.ceil(centre + spread)) + 1)
    log_chance = (
        scipy.special.gammaln(trials + 1)
        - scipy.special.gammaln(joins + 1)
        - scipy.special.gammaln(trials - joins + 1)
        + scipy.special.xlogy(joins, part.rate)
        + scipy.special.xlog1py(trials - joins, -part.rate)
    )
    chances, moved = np.exp(log_chance), joins * part.length
    above = float((chances * scipy.special.ndtr((moved - total + most) / math.sqrt(n))).sum())
    below = float((chances * scipy.special.ndtr((total + most - moved) / math.sqrt(n))).sum())
    return left_out, min(1.0, 2 * (1 + 1e-6) * min(above, below) + 1e-15)


def shared_noise(one: CanaryRun, others: CanaryRun, parts: Sequence[CanaryPart], more: Sequence[CanaryPart]) -> float:
    """Return the p-value of two releases having the same noise, whatever numbers lie between: of the most alike two.

    one, others: the same run, whose parts are compared with each other, or two runs, of these parts each.

    Given a release's residuals a, in the order of drawing and 0 where they are not known, those of another one, b, are
    independent of them: at any lag <a, b> is normal of standard deviation |a| at most, but for slack. Twice its tail,
    times the lags and the pairs.
    """
    pairs = [
        (mine, other, part, against)
        for place, (part, mine) in enumerate((each, _flat(each, one)) for each in parts)
        for against, other in ((each, _flat(each, others)) for each in (more[:place] if others is one else more))
    ]
    least, lags = 1.0, 0
    for mine, other, _, against in pairs:
        length, size = float(np.linalg.norm(mine)), len(mine) + len(other)
        products = np.fft.irfft(np.conj(np.fft.rfft(mine, size)) * np.fft.rfft(other, size), size)
        alike = float(np.abs(products).max()) / length if length else math.inf
        slack = (against.slack + against.rounding * math.sqrt(len(other))) / against.deviation
        least = min(least, 2 * float(scipy.special.ndtr(-max(alike - slack - 1e-6, 0.0))))
        lags += size
    return min(1.0, least * lags)


def _flat(part: CanaryPart, run: CanaryRun) -> Floats:
    """Return the part's residuals in the order of drawing, 0 where a canary's movement is not known."""
    released, included = run.released[part.name], run.coins.included
    residuals = np.zeros(part.moved.shape)
    residuals[slice(None) if part.is_certain else ~included] = part.residuals(released, included)
    flat: Floats = residuals.ravel()
    return flat


def check_again(canaries: Canaries, verdict: CanaryVerdict) -> None:
    """Raise BundleError unless a certificate says of its canaries what a run shows.

    Raises ClaimRefuted where that refutes the certificate.
    """
    for name, shown in verdict.canaries.model_dump().items():
        stated = getattr(canaries, name)
        if not (
            math.isclose(stated, shown, rel_tol=1e-6, abs_tol=1e-9) if isinstance(shown, float) else stated == shown
        ):
            raise BundleError(f"the canaries' {name} is {stated!r} and should be {shown!r}")
    if verdict.convicts:
        raise ClaimRefuted(f"the canaries refute the certificate: {verdict.strongest}, p = {verdict.p_value:.2g}")


def refuse_refuted(verdict: CanaryVerdict) -> Canaries:
    """Return the certificate's part of a run. Raises ClaimRefuted where the run refutes its claim."""
    if verdict.convicts:
        raise ClaimRefuted(
            f"the canaries of this run refute its certificate: {verdict.strongest} (p = {verdict.p_value:.2g}; a sound "
            f"run is refuted with a probability of {verdict.false_alarm:.2g} at most; {verdict.canaries.summary}). No "
            "bundle was written. Training again is another run; if it fails again, something in the training is not "
            "what the certificate says: do not serve models of it, and report it"
        )
    return verdict.canaries
