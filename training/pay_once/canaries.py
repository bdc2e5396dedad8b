"""Canaries of a training: made records that show, from the run that made a model, what it tells at least.

Each of N canaries has coordinates of its own, which are zero in every real record, and is in the run or left out of it
by a fair coin. It goes the way of a record: the same functions compute its term, clip it, sample it and add the noise.
What was released at its coordinates lies in the bundle, with the coins.

Real records are promised what they were. Let neighbours differ by a real record, or a unit. Its terms have nothing at
the canaries' coordinates, and nothing that is computed at these enters the model: so the two runs release vectors that
differ, if at all, at the model's coordinates alone, and those have the law that they have without canaries
(`GaussianVector.release_beside`, `training.kinds.dpsgd.step`). What is released beside them is a function of public
numbers, coins and noise of its own, the same in both runs: whoever sees it too sees post-processing.

So everything here can be published. What the coordinates hold is noise that no record moved, the coins are of records
of nobody, and the bounds, and whether training fails, are computed of these and of public numbers. Publishing it
gives away the noise at the canaries' coordinates, and no other: words are drawn once.

The commitment is a hash of the coins and of a random number. Whoever has the certificate alone can guess the coins
before they are shown, and check afterwards that they were not changed.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import scipy.special
from pydantic import BaseModel, ConfigDict, Field

from accounting import conversions, one_run
from accounting.arrays import Floats, Integers, Mask
from accounting.losses import Cost, composition_of, without_coins
from mechanisms.randomness import Randomness
from training.errors import BundleError, TrainingError
from training.inputs.sums import LocalSums, Rows, of_rows

LEAST, MOST = 64, 10_000
"""Fewer canaries show next to nothing."""

CONFIDENCE = 0.95
"""The confidence of the bounds that are shown: a sound run of 20 has one that is above its claim, if that is tight."""
DOUBT = 1e-9
"""The probability with which a sound run is convicted, over all tests together, at most."""
DELTA = 1e-5
"""The delta of every epsilon here."""

SHARES = (0.4, 0.2, 0.1, 0.05)
"""Shares of the canaries that are guessed: the one is taken that the claim promises most of."""

_NONCE = 32
_COINS, _NONCE_NAME, _RELEASED = "canaries.coins", "canaries.nonce", "canaries.released."

ESTIMATOR: Literal["difference of mean scores, by a noncentral t"] = "difference of mean scores, by a noncentral t"


class ClaimRefuted(TrainingError):
    """A run released more of its canaries than its certificate claims, but with a probability of DOUBT: no bundle."""


class Canaries(BaseModel):
    """The canaries of a run as its certificate lists them. Every number is of canaries alone, and public."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=LEAST, le=MOST)
    commitment: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the coins and of a random number that lies with them."""
    estimator: Literal["difference of mean scores, by a noncentral t"] = ESTIMATOR
    """`accounting.one_run.mu_of_means`."""
    confidence: float = Field(default=CONFIDENCE, ge=CONFIDENCE, le=CONFIDENCE)
    delta: float = Field(default=DELTA, ge=DELTA, le=DELTA)
    """Of every epsilon here."""
    promised_epsilon: float = Field(default=0.0, ge=0)
    """The epsilon of the whole model, by its certificate."""
    observed_epsilon: float = Field(default=0.0, ge=0)
    """The epsilon of the releases that canaries went through: no more than promised, less where they skip some."""
    lower_bound_mu: float = Field(default=0.0, ge=0)
    lower_bound_epsilon: float = Field(default=0.0, ge=0)
    guesses_lower_bound_epsilon: float = Field(default=0.0, ge=0)
    """The bound that assumes nothing of the noise: `accounting.one_run.mu_of_guesses`, at the same confidence."""

    @property
    def summary(self) -> str:
        """The promise and the measurement, in one line."""
        return (
            f"promised at most {self.promised_epsilon:.4g}; measured at least {self.lower_bound_epsilon:.4g} with "
            f"{self.confidence:g} confidence"
        )


@dataclass(frozen=True, eq=False)
class CanaryPart:
    """A release that canaries went through, as it is claimed to be.

    mu: of its claim. moved: (N, w), how an included canary moves its numbers each time that it joins. deviation: of
    the noise on a number, all steps together. step: of the grid that each number lies on. steps, rate: how often and
    with what probability an included canary joins. slack: how far all numbers may be from what is said, in L2.
    """

    name: str
    mu: float
    moved: Floats
    deviation: float
    step: float
    steps: int = 1
    rate: float = 1.0
    slack: float = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether an included canary joins every time."""
        return self.rate == 1

    @property
    def length(self) -> float:
        """The movement of a canary that joins once, in deviations: the same for all."""
        return float(np.linalg.norm(self.moved[0])) / self.deviation

    @property
    def separation(self) -> float:
        """The mean movement of an included canary, in deviations."""
        return self.length * self.steps * self.rate

    def scores(self, released: Floats) -> Floats:
        """Return each canary's score (N,) of what was released (N, w): N(0, 1) where it was left out."""
        directions = self.moved / np.linalg.norm(self.moved, axis=1, keepdims=True)
        scores: Floats = (released * directions).sum(axis=1) / self.deviation
        return scores

    def residuals(self, released: Floats, included: Mask) -> Floats:
        """Return the noise (k, w) that the claim leaves, in deviations: of canaries whose movement is known."""
        if not self.is_certain:
            return released[~included] / self.deviation
        return (released - np.where(included[:, None], self.steps * self.moved, 0.0)) / self.deviation


@dataclass(frozen=True, eq=False)
class Coins:
    """Fair coins (N,), true for a canary that is in the run, and 32 random bytes that blind their commitment."""

    included: Mask
    nonce: bytes

    @classmethod
    def drawn(cls, number: int, randomness: Randomness) -> Self:
        """Draw the coins of so many canaries."""
        words = randomness.words(number + _NONCE // 8)
        return cls(words[:number] >> np.uint64(63) == 1, words[number:].astype("<u8").tobytes())

    @property
    def commitment(self) -> str:
        """SHA-256 of both, in hexadecimal digits."""
        return hashlib.sha256(b"dpserve canaries" + self.nonce + self.included.astype(np.uint8).tobytes()).hexdigest()

    def certified(self) -> Canaries:
        """Return the certificate's part before anything was released."""
        return Canaries(number=len(self.included), commitment=self.commitment)


def labels_of(number: int, classes: int) -> Integers:
    """Return the class of each canary, (N,): as many of each as there can be, in order."""
    return np.arange(number, dtype=np.int64) // columns_of(number, classes)


def columns_of(number: int, classes: int) -> int:
    """Return how many columns so many canaries need where those of different classes share one."""
    return -(-number // classes)


def included_records(coins: Coins, classes: int, columns: int) -> LocalSums:
    """Return the included canaries as records whose row (1,) is the column of their coordinate: see `one_hot`."""
    places = np.flatnonzero(coins.included)
    return of_rows((places % columns)[:, None].astype(np.float64), labels_of(len(coins.included), classes)[places])


@dataclass(frozen=True)
class OneHot:
    """Map the rows of `included_records` to unit vectors, (n, columns); sparse ones where records' rows are."""

    columns: int
    sparse: bool

    def __call__(self, X: Floats) -> Any:
        """Return them."""
        at = X[:, 0].astype(np.int64)
        if self.sparse:
            import scipy.sparse  # dense rows do not need it

            return scipy.sparse.csr_array((np.ones(len(at)), at, np.arange(len(at) + 1)), shape=(len(at), self.columns))
        rows = np.zeros((len(at), self.columns))
        rows[np.arange(len(at)), at] = 1.0
        return rows


def one_hot(columns: int, *, sparse: bool = False) -> Rows:
    """Return how terms see the included canaries."""
    return Rows(OneHot(columns, sparse))


@dataclass(frozen=True, eq=False)
class CanaryRun:
    """Coins and what was released at the canaries' coordinates: (N, w) for each part by its name. All of it public."""

    coins: Coins
    released: Mapping[str, Floats]

    def with_part(self, name: str, released: Floats) -> Self:
        """Return it with what another part released, (N, w)."""
        return replace(self, released={**self.released, name: released})

    def tensors(self) -> dict[str, Floats]:
        """Return it as a bundle's tensors."""
        own = {_COINS: self.coins.included.astype(np.float64), _NONCE_NAME: np.frombuffer(self.coins.nonce, np.uint8)}
        own |= {_RELEASED + name: values for name, values in self.released.items()}
        return {name: np.asarray(values, dtype=np.float64) for name, values in own.items()}


def tensor_shapes(canaries: Canaries | None, parts: Sequence[CanaryPart]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what `CanaryRun.tensors` writes, none for a model without canaries."""
    if canaries is None:
        return {}
    released = {_RELEASED + part.name: part.moved.shape for part in parts}
    return {_COINS: (canaries.number,), _NONCE_NAME: (_NONCE,), **released}


def read_run(canaries: Canaries, parts: Sequence[CanaryPart], tensors: Mapping[str, Floats]) -> CanaryRun:
    """Return the run of a bundle's tensors. Raises BundleError for other coins."""
    coins, nonce = tensors[_COINS], tensors[_NONCE_NAME]
    if not (np.isin(coins, (0, 1)).all() and np.isin(nonce, np.arange(256)).all()):
        raise BundleError("the canaries' coins are 0 or 1, and what blinds them are bytes")
    run = CanaryRun(
        Coins(coins == 1, nonce.astype(np.uint8).tobytes()),
        {part.name: tensors[_RELEASED + part.name] for part in parts},
    )
    if run.coins.commitment != canaries.commitment:
        raise BundleError("the canaries' coins are not those that the certificate is committed to")
    return run


@dataclass(frozen=True)
class CanaryVerdict:
    """The judgement of a run. p_values: by the name of each test, all of which a sound run passes together but with
    DOUBT. observed_mu: claimed of what canaries went through. guesses, right: of those that were guessed.
    """

    canaries: Canaries
    observed_mu: float
    guesses: int
    right: int
    p_values: Mapping[str, float]

    @property
    def p_value(self) -> float:
        """The least of all, times their number."""
        return min(1.0, min(self.p_values.values()) * len(self.p_values))

    @property
    def strongest(self) -> str:
        """The test with the least p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])

    @property
    def convicts(self) -> bool:
        """Whether a sound run looks like this with a probability of at most DOUBT."""
        return self.p_value <= DOUBT


def judged(canaries: Canaries, parts: Sequence[CanaryPart], run: CanaryRun, cost: Cost) -> CanaryVerdict:
    """Return what a run shows of its claim. cost: of the whole model.

    Scores. Each part's are N(0, 1) under the claim where a canary was left out; the score of a canary is their sum in
    the ratio of the parts' separations, the best for normal ones, and N(0, 1) again, for independent noise.

    Bounds. `mu_of_means`, and `mu_of_guesses` of the canaries whose scores lie farthest from the middle, in a share
    that is chosen by the claim alone.

    Convictions. Each test has an equal share of DOUBT, and a p-value that is exact or too large under the claim: that
    the means are no farther apart than the claim allows, and those of `noise_p_values` for each part, and that no two
    parts have the same noise.
    """
    included = run.coins.included
    of_parts = [part.scores(run.released[part.name]) for part in parts]
    separations = np.array([part.separation for part in parts])
    scores = np.tensordot(separations / np.linalg.norm(separations), np.array(of_parts), axes=1)
    step = math.sqrt(len(parts)) * max(part.step / part.deviation * math.sqrt(part.moved.shape[1]) for part in parts)
    observed = math.hypot(*(part.mu for part in parts))
    both = scores[included], scores[~included]
    bound = one_run.mu_of_means(*both, 1 - CONFIDENCE, step) if _are_enough(included) else 0.0
    guesses, right = _guesses(scores, included, float(np.linalg.norm(separations)))
    by_guesses = one_run.mu_of_guesses(len(scores), guesses, right, 1 - CONFIDENCE)
    p_values = {"scores farther apart than claimed": one_run.p_value_of_means(*both, observed, step)}
    for part in parts:
        for name, p_value in noise_p_values(part, run.released[part.name], included).items():
            p_values[f"{part.name}: {name}"] = p_value
    if len(parts) > 1:
        p_values["one part's noise in another"] = shared_noise(run, run, parts, parts)
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
        p_values,
    )


def epsilon_of(cost: Cost) -> float:
    """Return the epsilon at DELTA of a cost whose losses are Gaussian but for coins, rounded up."""
    _, coins = without_coins(composition_of({cost: 1}))
    return conversions.gaussian_epsilon(conversions.mu_of_rho(float(cost.rho) * (1 + 2.0**-50)), DELTA - coins)


def _epsilon(mu: float) -> float:
    return conversions.gaussian_epsilon(min(mu, conversions.LARGEST_MU), DELTA)


def _epsilon_down(mu: float) -> float:
    return _epsilon(mu) * (1 - 2.0**-30) if mu else 0.0


def _are_enough(included: Mask) -> bool:
    return 1 <= included.sum() <= len(included) - 3


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

    Under the claim the residuals (k, w), in deviations, are independent N(0, 1) rounded to a grid of step h, the scores'
    laws are known, and all numbers together are at most `slack` from that in L2, rounding included.

    - Their sum of squares is chi-square: too little noise, too much. |r| moves by slack at most.
    - Two that are equal at one distance from each other: given all before, a residual is one multiple of the grid with
      probability at most e = h/sqrt(2 pi) (1 + h^2): so pairs at a distance that are equal are at most binomial. There
      is one test for each distance and each column; noise that comes again has one distance.
    - Residuals of nothing: as many in |r| <= h are at most binomial, with probability 3 e.
    - The mean of the scores left out is normal, and so is that of those included but for how often they join, which is
      binomial, n T times: the convolution of both is summed. Too high, too low.
    """
    residuals, slack = part.residuals(released, included), part.slack / part.deviation
    step = part.step / part.deviation
    size = residuals.size
    slack += step / 2 * math.sqrt(size)
    length = float(np.linalg.norm(residuals))
    equal = min(1.0, step / math.sqrt(2 * math.pi) * (1 + step**2))
    bare = int((np.abs(residuals) <= step * (1 + 1e-6)).sum())
    left_out, joined = _mean_tests(part, released, included, slack)
    return {
        "too little noise": float(scipy.special.gammainc(size / 2, (length + slack) ** 2 / 2)),
        "too much noise": float(scipy.special.gammaincc(size / 2, max(length - slack, 0.0) ** 2 / 2)),
        "numbers without noise": _binomial_tail(bare, size, min(1.0, 3 * equal)),
        "noise that comes again": _repeats(np.rint(residuals / step), equal),
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
    centre, spread = trials * part.rate, 40 * math.sqrt(trials * part.rate * (1 - part.rate))
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
        slack = (against.slack + against.step / 2 * math.sqrt(len(other))) / against.deviation
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
    """Raise BundleError unless a certificate says of its canaries what a run shows, and the run convicts nothing."""
    for name, shown in verdict.canaries.model_dump().items():
        stated = getattr(canaries, name)
        if not (math.isclose(stated, shown, rel_tol=1e-6, abs_tol=1e-9) if isinstance(shown, float) else stated == shown):
            raise BundleError(f"the canaries' {name} is {stated!r} and should be {shown!r}")
    if verdict.convicts:
        raise BundleError(f"the canaries refute the certificate: {verdict.strongest}, p = {verdict.p_value:.2g}")


def refuse_refuted(verdict: CanaryVerdict) -> Canaries:
    """Return the certificate's part of a run. Raises ClaimRefuted where the run refutes its claim."""
    if verdict.convicts:
        raise ClaimRefuted(
            f"the canaries of this run refute its certificate: {verdict.strongest} (p = {verdict.p_value:.2g}, and a "
            f"sound run has at most {DOUBT:g} with that probability; {verdict.canaries.summary}). No bundle was "
            "written. Training again is another run; if it fails again, something in the training is not what the "
            "certificate says: do not serve models of it, and report it"
        )
    return verdict.canaries


def moved_alike(direction: Floats, labels: Integers) -> Floats:
    """Return how each canary moves its numbers, (N, C): a vector (C,) of class 0, turned to each canary's class."""
    moved = np.full((len(labels), len(direction)), float(direction[-1]))
    moved[np.arange(len(labels)), labels] = direction[0]
    return moved
