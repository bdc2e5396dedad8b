"""Canaries of a training: made records that show, from the run that made a model, what it tells at least.

Each of N canaries has coordinates of its own, which are zero in every real record, and is in the run or left out of it
by a fair coin. It goes the way of a record: the same functions compute its term, clip it, sample it and add the noise.
What was released at its coordinates lies in the bundle, with the coins.

Real records are promised what they were. Let neighbours differ by a real record, or a unit. Its terms have nothing at
the canaries' coordinates, and nothing that is computed at these enters the model: so the two runs release vectors that
differ, if at all, at the model's coordinates alone, and those have the law that they have without canaries
(`GaussianVector.release_beside`, `dpserve.training.kinds.dpsgd.noisy_step`). What is released beside them is a
function of public numbers, coins and noise of its own, the same in both runs: whoever sees it too sees post-processing.

So everything here may be shown to whoever has paid for the model. What the coordinates hold is noise that no record
moved, the coins are of records of nobody, and the bounds, and whether training fails, are computed of these and of
numbers of the certificate. Showing it gives away the noise at the canaries' coordinates, and no other: words are drawn
once. Strangers are not shown it: the grid of the noise depends on how many coordinates the model has, and so, where
cuts were bought, on what was released for these.

The commitment is a hash of the coins and of a random number. Whoever has the certificate alone can guess the coins
before they are shown, and check afterwards that they were not changed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field

from dpserve.accounting.arrays import Floats, Integers, Mask
from dpserve.accounting.disclosure import Declared, DisclosedModel, Released
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import BundleError
from dpserve.training.inputs.sums import LocalSums, Rows, of_rows

LEAST, MOST = 64, 10_000
"""Fewer canaries show next to nothing."""

CONFIDENCE = 0.95
"""The confidence of the bounds that are shown: a sound run of 20 has one that is above its claim, if that is tight."""
DELTA = 1e-5
"""The delta of every epsilon here."""

_NONCE = 32
_COINS, _NONCE_NAME, _RELEASED = "canaries.coins", "canaries.nonce", "canaries.released."

ESTIMATOR: Literal["difference of mean scores, by a noncentral t"] = "difference of mean scores, by a noncentral t"


class Canaries(DisclosedModel):
    """The canaries of a run as its certificate lists them."""

    model_config = ConfigDict(extra="forbid")

    number: Declared[int] = Field(ge=LEAST, le=MOST)
    commitment: Declared[str] = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the coins and of a random number that lies with them."""
    estimator: Declared[Literal["difference of mean scores, by a noncentral t"]] = ESTIMATOR
    """`dpserve.accounting.one_run.mu_of_means`."""
    confidence: Declared[float] = Field(default=CONFIDENCE, ge=CONFIDENCE, le=CONFIDENCE)
    delta: Declared[float] = Field(default=DELTA, ge=DELTA, le=DELTA)
    """The delta of every epsilon here."""
    promised_epsilon: Declared[float] = Field(default=0.0, ge=0)
    """The epsilon of the whole model, by its certificate."""
    observed_epsilon: Declared[float] = Field(default=0.0, ge=0)
    """The epsilon of the releases that canaries went through: no more than promised, less where they skip some."""
    lower_bound_mu: Annotated[float, Released("model")] = Field(default=0.0, ge=0)
    lower_bound_epsilon: Annotated[float, Released("model")] = Field(default=0.0, ge=0)
    guesses_lower_bound_epsilon: Annotated[float, Released("model")] = Field(default=0.0, ge=0)
    """The bound that assumes nothing of the noise: `dpserve.accounting.one_run.mu_of_guesses`, at the same
    confidence."""

    @property
    def summary(self) -> str:
        """The promise, rounded up, and the measurement, rounded down, in one line."""
        return (
            f"promised at most {_figure(self.promised_epsilon, ROUND_CEILING)}; measured at least "
            f"{_figure(self.lower_bound_epsilon, ROUND_FLOOR)} with {self.confidence:g} confidence, at delta "
            f"{self.delta:g}"
        )


def _figure(value: float, rounding: str) -> str:
    """Return a value in four digits; what is off by less than a computation is comes out even."""
    return f"{Context(prec=4, rounding=rounding).create_decimal(f'{value:.12g}').normalize():f}"


@dataclass(frozen=True, eq=False)
class CanaryPart:
    """A release that canaries went through, as it is claimed to be.

    mu: of its claim. moved: (N, w), how an included canary moves its numbers each time that it joins. deviation: of
    the noise on a number, all steps together. step: of the grid that each number lies on. steps, rate: how often and
    with what probability an included canary joins. slack: how far all numbers may be from what is said, in L2, but for
    rounding. draws: how many numbers that were rounded to the grid each number is the sum of. coin: the probability, of
    a canary, with which the part is not mu-GDP (`dpserve.accounting.losses.ApproximateGaussianLoss`). distance: of a
    number's noise, before it is rounded, from a normal law, in total variation.
    """

    name: str
    mu: float
    moved: Floats
    deviation: float
    step: float
    steps: int = 1
    rate: float = 1.0
    slack: float = 0.0
    draws: int = 1
    coin: float = 0.0
    distance: float = 0.0

    @property
    def rounding(self) -> float:
        """The most that rounding moves a number."""
        return self.draws * self.step / 2

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


def moved_alike(direction: Floats, labels: Integers) -> Floats:
    """Return how each canary moves its numbers, (N, C): a vector (C,) of class 0, turned to each canary's class."""
    moved = np.full((len(labels), len(direction)), float(direction[-1]))
    moved[np.arange(len(labels)), labels] = direction[0]
    return moved


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
