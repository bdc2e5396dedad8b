"""Privacy losses as values: what one release may tell about one record, and how losses add up.

A mechanism states its `Cost` once. The ledger's charge, `GET /budget` and the audit's claim are all derived from that
value. Neighbouring data sets differ by the addition or removal of one record.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Literal

from dpserve.accounting import domains, picorho


@dataclass(frozen=True)
class PrivacyLoss(ABC):
    """The privacy loss of one mechanism, described by positive, finite parameters."""

    kind: ClassVar[str]

    @property
    def parameters(self) -> tuple[float, ...]:
        """The parameters that, with `kind`, describe the loss completely, in the constructor's order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    @abstractmethod
    def rho(self) -> Fraction:
        """The zCDP parameter, exactly."""

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of pure differential privacy; infinity where, as for Gaussian noise, there is none."""
        return math.inf

    def __post_init__(self) -> None:
        """Refuse a parameter that describes no loss; hold it as a float, so that equal losses have equal texts."""
        for field in fields(self):
            object.__setattr__(self, field.name, float(getattr(self, field.name)))
        for parameter in self.parameters:
            if not (math.isfinite(parameter) and parameter > 0):
                raise ValueError(f"the parameter of a {self.kind} loss must be positive and finite, not {parameter}")

    def __str__(self) -> str:
        """Return the loss as text that `parse` reads back exactly."""
        return ":".join([self.kind, *map(repr, self.parameters)])


@dataclass(frozen=True)
class GaussianLoss(PrivacyLoss):
    """N(0, 1) against N(mu, 1): mu-GDP (Dong, Roth and Su 2022), mu being L2 sensitivity over sigma.

    rho = mu^2 / 2 (Bun and Steinke 2016, Proposition 6).
    """

    kind: ClassVar[str] = "gaussian"
    mu: float

    @property
    def rho(self) -> Fraction:
        """mu^2 / 2."""
        return Fraction(self.mu) ** 2 / 2


@dataclass(frozen=True)
class EpsilonLoss(PrivacyLoss):
    """A loss of epsilon-DP. rho = epsilon^2 / 2 (Bun and Steinke 2016, Proposition 3), or less where more is known."""

    epsilon: float

    @property
    def rho(self) -> Fraction:
        """epsilon^2 / 2."""
        return Fraction(self.epsilon) ** 2 / 2

    @property
    def pure_epsilon(self) -> float:
        """epsilon."""
        return self.epsilon


@dataclass(frozen=True)
class LaplaceLoss(EpsilonLoss):
    """Independent Laplace noise of scale b on coordinates that move by at most epsilon * b in L1.

    One coordinate that moves by the whole of epsilon * b dominates: the trade-off function of Laplace shifted
    by s is the s-fold group composition of a log-concave location family, and the hybrid argument over
    coordinates bounds the product by the composition of the groups (Dong, Roth and Su 2022, Theorem 2.14), so
    shifts a_1, ..., a_C are dominated by the single shift |a_1| + ... + |a_C|.
    """

    kind: ClassVar[str] = "laplace"


@dataclass(frozen=True)
class BoundedRangeLoss(EpsilonLoss):
    """A loss whose values lie in an interval of length epsilon that holds 0, as the exponential mechanism's.

    rho = epsilon^2 / 8 (Cesar and Rogers 2021, Lemma 3.4, after Dong, Durfee and Rogers 2020), and epsilon-DP.
    """

    kind: ClassVar[str] = "exponential"

    @property
    def rho(self) -> Fraction:
        """epsilon^2 / 8."""
        return Fraction(self.epsilon) ** 2 / 8


@dataclass(frozen=True)
class PureLoss(EpsilonLoss):
    """Any mechanism that is epsilon-DP and of which no more is known, as permute-and-flip's selection.

    Randomised response at epsilon dominates it (Kairouz, Oh and Viswanath 2015, Theorem 2.5).

    `dpserve.mechanisms.selection.flip` says why permute-and-flip's rho has no smaller multiple of epsilon^2.
    """

    kind: ClassVar[str] = "pure"


@dataclass(frozen=True)
class SubsampledGaussianLoss(PrivacyLoss):
    """One step of DP-SGD: Poisson sampling at `sampling_rate`, Gaussian noise of `noise_multiplier` clipping norms.

    The larger of the two directions is (1-q) N(0, 1) + q N(1/sigma, 1) against N(0, 1) (Mironov, Talwar and Zhang
    2019, Section 3; Zhu, Dong and Wang 2022, Theorem 11).

    rho = 1/(2 sigma^2): Renyi divergences are jointly quasi-convex, so that a mixture of N(0, 1) and
    N(1/sigma, 1) is no further from N(0, 1), either way round, than N(1/sigma, 1) is. zCDP cannot see the
    sampling; Renyi divergences of bounded order can (`dpserve.accounting.analyses`).
    """

    kind: ClassVar[str] = "sgm"
    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        """Refuse parameters that describe no sampled Gaussian."""
        super().__post_init__()
        if self.sampling_rate > 1:
            raise ValueError(f"the sampling rate must lie above 0 and be at most 1, not be {self.sampling_rate}")

    @property
    def rho(self) -> Fraction:
        """1/(2 sigma^2)."""
        return 1 / (2 * Fraction(self.noise_multiplier) ** 2)


@dataclass(frozen=True)
class ReplacementGaussianLoss(PrivacyLoss):
    """One step of perturbed SGD: `batch` draws with replacement from `records`, noise of so many clipping norms.

    To compare with Poisson sampling; nothing here draws so, and no account takes it. Neighbouring data sets have the
    same number of records and differ in one of them. A draw of it moves the sum of clipped gradients by at most 2.

    rho = 2 batch^2 / sigma^2: if every draw were of it, the sum would move by 2 batch. zCDP cannot see the sampling;
    `dpserve.accounting.compositions.replacement_delta` can.
    """

    kind: ClassVar[str] = "sgm-replacement"
    noise_multiplier: float
    batch: float
    records: float

    def __post_init__(self) -> None:
        """Refuse numbers of records that are not whole."""
        super().__post_init__()
        if not (self.batch.is_integer() and self.records.is_integer()):
            raise ValueError(f"a batch and records are whole numbers, not {self.batch:g} and {self.records:g}")

    @property
    def rho(self) -> Fraction:
        """2 batch^2 / sigma^2."""
        return 2 * Fraction(self.batch) ** 2 / Fraction(self.noise_multiplier) ** 2


LARGEST_PURE_EPSILON = 10
"""The largest proven price of a release in pure epsilon: up to it `dpserve.accounting.sampling_error` holds."""

LARGEST_COIN = 2.0**-40
"""No loss may have a larger delta of its own, so that accounts need only count them
(`dpserve.accounting.sampling_error`)."""


@dataclass(frozen=True)
class ApproximateGaussianLoss(PrivacyLoss):
    """A mechanism M with delta_M(epsilon) <= delta + (1 - delta) delta_mu(epsilon) for every epsilon, both ways round.

    delta_mu is the profile of mu-GDP. The right side is the profile of a coin that shows everything with probability
    delta, beside N(0, 1) against N(mu, 1): that pair dominates M. So M is a post-processing of it (Blackwell;
    Kairouz, Oh and Viswanath 2015, Theorem 2.10, with domination both ways round): with probability delta something
    that may show everything, and otherwise something mu-GDP. Dominating pairs compose, adaptively too (Zhu, Dong and
    Wang 2022, Theorem 10): the squares of the mus add up, and so do the deltas.

    rho = mu^2/2, that of the Gaussian part: the price. The coin has no finite rho; it is paid from delta, by
    `dpserve.accounting.analyses` for what was released and by `dpserve.accounting.sampling_error` for what a budget can
    ever buy."""

    kind: ClassVar[str] = "approximate-gaussian"
    mu: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse a coin that budgets do not provide for."""
        super().__post_init__()
        if self.delta > LARGEST_COIN:
            raise ValueError(f"the delta of an {self.kind} loss must be at most 2^-40, not {self.delta:g}")

    @property
    def rho(self) -> Fraction:
        """mu^2 / 2."""
        return Fraction(self.mu) ** 2 / 2


@dataclass(frozen=True)
class ClaimedLoss(PrivacyLoss):
    """A loss that is claimed and not proved. It is charged as claimed, and only to accounts opened for it."""

    @property
    @abstractmethod
    def claim(self) -> PrivacyLoss:
        """The loss that is claimed."""

    @property
    def parameters(self) -> tuple[float, ...]:
        """The claim's."""
        return self.claim.parameters

    @property
    def rho(self) -> Fraction:
        """The claim's."""
        return self.claim.rho

    @property
    def pure_epsilon(self) -> float:
        """The claim's."""
        return self.claim.pure_epsilon


@dataclass(frozen=True)
class ClaimedGaussianLoss(ClaimedLoss):
    """A claim of mu-GDP."""

    kind: ClassVar[str] = "claimed-gaussian"
    mu: float

    @property
    def claim(self) -> PrivacyLoss:
        """mu-GDP."""
        return GaussianLoss(self.mu)


@dataclass(frozen=True)
class ClaimedLaplaceLoss(ClaimedLoss):
    """A claim of epsilon-DP by Laplace noise."""

    kind: ClassVar[str] = "claimed-laplace"
    epsilon: float

    @property
    def claim(self) -> PrivacyLoss:
        """epsilon-DP."""
        return LaplaceLoss(self.epsilon)


_KINDS: dict[str, type[PrivacyLoss]] = {
    loss.kind: loss
    for loss in (
        GaussianLoss,
        LaplaceLoss,
        BoundedRangeLoss,
        PureLoss,
        SubsampledGaussianLoss,
        ApproximateGaussianLoss,
        ClaimedGaussianLoss,
        ClaimedLaplaceLoss,
    )
}


def _parse_loss(text: str) -> PrivacyLoss:
    kind, *parameters = text.split(":")
    if kind not in _KINDS:
        raise ValueError(f"unknown privacy loss {kind!r}; known are {', '.join(sorted(_KINDS))}")
    expected = [field.name for field in fields(_KINDS[kind])]
    if len(parameters) != len(expected):
        raise ValueError(f"a {kind} loss is written {':'.join([kind, *map(str.upper, expected)])}, not {text!r}")
    try:
        numbers = [float(parameter) for parameter in parameters]
    except ValueError as error:
        raise ValueError(f"the parameters of a {kind} loss must be numbers, and {text!r} has others") from error
    return _KINDS[kind](*numbers)


@dataclass(frozen=True)
class Cost:
    """The cost of one release: the adaptive composition of `losses`. Without losses it costs nothing."""

    losses: tuple[PrivacyLoss, ...] = ()

    def __hash__(self) -> int:
        """Hash the losses, once: a cost is looked up several times for every request."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.losses)

    @property
    def rho(self) -> Fraction:
        """The zCDP parameter, exactly: zCDP composes by addition (Bun and Steinke 2016, Lemma 7)."""
        return sum((loss.rho for loss in self.losses), Fraction(0))

    @cached_property
    def picorho(self) -> int:
        """The ledger's charge for one release, in picorho."""
        return picorho.charge(self.rho)

    @property
    def pure_epsilon(self) -> float:
        """The epsilon of pure differential privacy by basic composition, or infinity."""
        return math.fsum(loss.pure_epsilon for loss in self.losses)

    @cached_property
    def picoepsilon(self) -> int | None:
        """The ledger's charge to an account of pure epsilon for one release, in 1e-12, rounded up.

        None where it has no pure epsilon, or a proven one above `LARGEST_PURE_EPSILON`. The epsilons of the losses
        add up exactly, as fractions: basic composition (Dwork, McSherry, Nissim and Smith 2006).
        """
        if any(math.isinf(loss.pure_epsilon) for loss in self.losses):
            return None
        epsilon = sum((Fraction(loss.pure_epsilon) for loss in self.losses), Fraction(0))
        return None if self.is_proven and epsilon > LARGEST_PURE_EPSILON else picorho.charge(epsilon)

    @property
    def is_gaussian(self) -> bool:
        """Whether the exact Gaussian curve describes it, coins aside: every loss is Gaussian or approximately so."""
        return all(isinstance(loss, GaussianLoss | ApproximateGaussianLoss) for loss in self.losses)

    @cached_property
    def coins(self) -> int:
        """Number of coins it takes, each of a probability of at most LARGEST_COIN; an account counts them, too."""
        return sum(isinstance(loss, ApproximateGaussianLoss) for loss in self.losses)

    @property
    def is_proven(self) -> bool:
        """Whether every loss is proved, rather than claimed."""
        return not any(isinstance(loss, ClaimedLoss) for loss in self.losses)

    @property
    def kind(self) -> Literal["gaussian", "proven", "unproven"]:
        """The kind of charge that an account must accept to pay for it."""
        if not self.is_proven:
            return "unproven"
        return "gaussian" if self.is_gaussian else "proven"

    def __str__(self) -> str:
        """Return the cost as text that `Cost.parse` reads back exactly."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return ",".join(str(loss) for loss in self.losses)

    @classmethod
    def parse(cls, text: str) -> "Cost":
        """Read what `str` wrote. Raises ValueError for anything else."""
        return cls(tuple(_parse_loss(part) for part in text.split(",") if part))


MOST_RELEASES = 10**12

Composition = Counter[PrivacyLoss]
"""The number of times that each privacy loss occurs."""


def composition_of(releases: Mapping[Cost, int]) -> Composition:
    """Return the losses of `releases`, the number of releases at each cost, with how often each occurs.

    A claimed loss counts as what is claimed: what is analysed is then a claim, too.
    """
    losses: Composition = Counter()
    for cost, count in releases.items():
        domains.require_up_to("a number of releases", count, MOST_RELEASES)
        for loss in cost.losses:
            losses[loss.claim if isinstance(loss, ClaimedLoss) else loss] += count
    return +losses


def without_coins(losses: Composition) -> tuple[Composition, float]:
    """Return the composition with Gaussian losses for the approximate ones, and their deltas together, rounded up.

    Let delta'(epsilon) be valid for the first. Then coins + delta'(epsilon) is valid for `losses`: except for the event
    that some coin shows everything, whose probability is at most the sum of the deltas, whoever chose what on the
    way, the releases are those of the first (`ApproximateGaussianLoss`). The same goes for the power of any test.
    """
    rest: Composition = Counter()
    coins = []
    for loss, count in losses.items():
        if isinstance(loss, ApproximateGaussianLoss):
            rest[GaussianLoss(loss.mu)] += count
            coins.append(loss.delta * count)
        else:
            rest[loss] += count
    return rest, math.fsum(coins) * (1 + 2.0**-40)
