"""A mechanism of the request path, and the price of one row.

A mechanism is a frozen value that states its cost once. The ledger's charge, the client's account and the
audit's claim are derived from that value. `dpserve.mechanisms.registry` has the mechanisms by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Literal, Self, cast, get_args

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.conversions import gaussian_mu, zcdp_rho
from dpserve.accounting.losses import Cost, PrivacyLoss
from dpserve.mechanisms.answer_noise import AnswerNoise, AnyNoise, UnknownNoise
from dpserve.mechanisms.grid import round_down, square_root_down
from dpserve.mechanisms.randomness import Randomness, frame_parts
from dpserve.mechanisms.worlds import Worlds, logarithms, two_classes_apart

PriceKind = Literal["rho", "noise-multiplier", "epsilon"]

PriceForm = Literal["rho:R", "noise-multiplier:M", "epsilon:E", "epsilon:E@D"]
"""The forms in which a price is written. An epsilon without a delta is pure."""

Law = Literal["exponential", "permute-and-flip"]
"""The law by which a class is selected (`dpserve.mechanisms.selection`)."""

_FORMS = "rho:R, noise-multiplier:M, epsilon:E or epsilon:E@DELTA"
_LEAST_AMOUNT, _LARGEST_AMOUNT = Decimal("1e-20"), Decimal("1e20")


@dataclass(frozen=True)
class Price:
    """The most that one row may cost, in the owner's words and exactly as written."""

    kind: PriceKind
    amount: Decimal
    delta: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "rho:0.001", "noise-multiplier:20", "epsilon:0.1" or "epsilon:0.1@1e-6". Raises ValueError."""
        kind, _, rest = text.partition(":")
        written, at, delta_written = rest.partition("@")
        if kind not in get_args(PriceKind) or (at and kind != "epsilon"):
            raise ValueError(f"a price is written {_FORMS}, not {text!r}")
        try:
            amount, delta = Decimal(written), float(delta_written) if at else None
        except (InvalidOperation, ValueError) as error:
            raise ValueError(f"a price is written {_FORMS} with numbers, not {text!r}") from error
        if not (amount.is_finite() and _LEAST_AMOUNT <= amount <= _LARGEST_AMOUNT):
            raise ValueError(
                f"the number of a price must lie between {_LEAST_AMOUNT} and {_LARGEST_AMOUNT}, not {written}"
            )
        if delta is not None and not 0 < delta < 1:
            raise ValueError(f"the delta of a price must lie between 0 and 1, not {delta_written}")
        return cls(cast(PriceKind, kind), amount, delta)

    def __str__(self) -> str:
        """Return the price as text that `parse` reads back."""
        return f"{self.kind}:{self.amount}".lower() + ("" if self.delta is None else f"@{self.delta!r}")

    @property
    def exact(self) -> Fraction:
        """The amount."""
        return Fraction(self.amount)

    def mu(self, share: Fraction = Fraction(1)) -> float:
        """Return the mu of Gaussian noise that costs this share, rounded down. Raises ValueError for a pure epsilon."""
        if self.kind == "rho":
            return round_down(square_root_down(2 * share * self.exact))
        if self.kind == "noise-multiplier":
            return round_down(1 / self.exact)
        if self.delta is None:
            raise ValueError("Gaussian noise has no pure epsilon; write the price epsilon:E@DELTA")
        return gaussian_mu(round_down(self.exact), self.delta)

    @property
    def is_pure(self) -> bool:
        """Whether it is a pure epsilon."""
        return self.kind == "epsilon" and self.delta is None

    def in_rho(self) -> Self:
        """Return this price in rho, where it is an epsilon at a delta: the most rho that keeps it, rounded down.

        Raises ValueError where that is next to nothing.
        """
        if self.delta is None:
            return self
        return type(self).parse(f"rho:{Decimal(zcdp_rho(round_down(self.exact), self.delta))}")

    def pure_epsilon(self, per_rho: int, share: Fraction = Fraction(1)) -> float:
        """Return the epsilon of a loss with rho = epsilon^2 / per_rho that costs this share, rounded down.

        Raises ValueError for a price that has no such epsilon.
        """
        if self.kind == "noise-multiplier":
            raise ValueError("a selection has no noise multiplier; write the price rho:R or epsilon:E")
        if self.delta is not None:
            raise ValueError("this mechanism is priced by a pure epsilon; write the price epsilon:E")
        return round_down(
            share * self.exact if self.kind == "epsilon" else square_root_down(per_rho * share * self.exact)
        )


PURE_DEFAULT = "epsilon:0.05"
"""The default price of what has a pure epsilon: a budget of 1 pays for 20 answers."""


@dataclass(frozen=True)
class Prices:
    """The prices of a mechanism.

    default: where the owner states none, in an account that counts rho; pure_default: in one that counts pure epsilon,
    None where the mechanism has no such price. forms: how a price is written, and what it buys. audited: those at which
    an audit of the sampler draws answers; it times the last.
    """

    default: str
    pure_default: str | None
    forms: Mapping[PriceForm, str]
    audited: tuple[str, ...]


class Mechanism(ABC):
    """A way to turn the logits of one row into a private answer. A value: it compares, hashes and holds no state.

    `release`, `cost` and `answer_noise` are what it does; the rest follows from them for noise of a known law on each
    logit, and a mechanism of another shape says it itself.
    """

    name: ClassVar[str]
    """The name by which an owner asks for it."""
    status: ClassVar[Literal["proven", "unproven"]]
    """Whether the cost is proved or only claimed."""
    prices: ClassVar[Prices]

    @classmethod
    def at_price(cls, price: Price, classes: int) -> Self:
        """Return the mechanism whose release of one row of so many classes costs `price`, and never more.

        The parameter is rounded so that the cost, exactly, is at most the price as written; a noise multiplier alone is
        taken as the nearest float, and its cost rounded up. No noise table is built. Raises ValueError for a price that
        it cannot be given, or a number out of its range, naming the range.
        """
        raise NotImplementedError

    @classmethod
    def from_losses(cls, losses: tuple[PrivacyLoss, ...], classes: int) -> Self | None:
        """Return the mechanism that a service says it answers with; None if one of this name has no such losses."""
        raise NotImplementedError

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """The cost of one release of one row, the same for every row: the noise follows the sensitivity."""

    @abstractmethod
    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return one private answer for each row: probabilities, float64 of shape (n, C).

        logits: float64 (n, C). sensitivity: float64 (n,), how far in L2 row i's logits *as computed in floating
        point* can move when one record is added or removed; the caller has included the error of evaluation.
        Every row takes the same number of random words, row after row, in one call of `randomness.words`, and no row
        depends on another: with `KeyedRandomness` a row's answer is a function of its question, its logits and its
        sensitivity alone. Raises ValueError for shapes that do not fit and for values out of range.
        """

    def prepare(self, classes: int) -> None:
        """Build what noise tables there are ahead of the first release. Raises ValueError where `release` would."""
        del classes

    def answer_noise(self, sensitivity: Floats, classes: int) -> AnyNoise:
        """Return the noise on answers to rows of these sensitivities, (n,). Public."""
        del sensitivity, classes
        return UnknownNoise("nobody worked out how far the noise moves an answer")

    def least_scale(self, sensitivity: Floats, classes: int) -> Floats:
        """Return the least scale of `answer_noise` that the price promises, whatever its last digit: (n,).

        Raises ValueError where the noise has no known law.
        """
        return self._known_noise(sensitivity, classes).scale

    def deviation(self, sensitivity: float, classes: int) -> float | None:
        """Return the standard deviation of the noise on a logit, as it is drawn on the grid; None where it has none."""
        noise = self.answer_noise(np.array([sensitivity]), classes)
        if not isinstance(noise, AnswerNoise):
            return None
        return float(np.sqrt(noise.law.variance) * noise.scale[0])

    def multiplier(self, classes: int) -> float | None:
        """Return the standard deviation of the noise on a logit over the sensitivity, as the planner says it."""
        return self.deviation(1.0, classes)

    def worst_neighbours(self, classes: int) -> Worlds:
        """Return one row of sensitivity 1 whose logits are exactly as far apart as the proof allows."""
        return two_classes_apart(classes)

    def log_ratio(self, answers: Floats, worlds: Worlds) -> Floats:
        """Return ln P_in(answer)/P_out(answer) for each row's answer, (n,): the record is in if it is large.

        answers: (n, C) as released for the rows of `worlds`. Raises ValueError where the law of answers is not known.
        """
        noise = self._known_noise(worlds.sensitivity, worlds.classes)
        return noise.law.log_ratio(logarithms(answers), worlds.logits_in, worlds.logits_out, noise.scale)

    def chances(self, logits: Floats, sensitivity: Floats) -> Floats:
        """Return the probability of each class that a row's answer shows it, (n, C), where it shows a class alone."""
        raise NotImplementedError

    def _known_noise(self, sensitivity: Floats, classes: int) -> AnswerNoise:
        noise = self.answer_noise(sensitivity, classes)
        if isinstance(noise, AnswerNoise):
            return noise
        raise ValueError(f"the noise law of the mechanism {self.name!r} is not known")


class SelectingMechanism(Mechanism):
    """A mechanism that selects a class of each row by one of the two laws."""

    @classmethod
    @abstractmethod
    def at_price(cls, price: Price, classes: int, selection: Law | None = None) -> Self:
        """See `Mechanism`. selection: the law; None for the one that selects better at a price of this kind."""


NOISE_VERSION = "1"
"""Raised with every change in what a mechanism makes of its words, such as a table, a grid or the scale of a price.

And with every change in the logits k that a model gives for the same question, such as another exponential between
the layers of a network. Else a question would keep its words across the change, and two answers made of the same words
in two ways, or of two k, tell of k."""


@lru_cache
def noise_context(model_id: str, mechanism: Mechanism, blocks: tuple[str, ...] = ()) -> bytes:
    """Return what a question's noise depends on in addition to the question: the context of `KeyedRandomness`.

    A mechanism's text holds its name and every parameter, as a frozen dataclass's does: with the model, which has the
    sensitivity and the classes, these decide the scale of the noise. So one draw is never scaled in two ways. blocks:
    those that pay for the answers of the model, so that what one has paid for is no question of another's.
    """
    parts = (NOISE_VERSION, model_id, mechanism.name, repr(mechanism), str(mechanism.cost), *blocks)
    return frame_parts(*(part.encode() for part in parts))
