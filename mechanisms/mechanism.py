"""The protocol of a mechanism, the mechanisms by name, and the way from an owner's price of one row to one.

A mechanism is a frozen value that states its cost once. The ledger's charge, the client's account and the
audit's claim are derived from that value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Protocol, Self, cast, get_args

from dpserve.accounting.arrays import Floats
from dpserve.accounting.conversions import gaussian_mu
from dpserve.accounting.losses import Cost, GaussianLoss, LaplaceLoss
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.grid import LARGEST_CLASSES, round_down, round_up, square_root_down
from dpserve.mechanisms.label import Label
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.randomness import Randomness, frame_parts
from dpserve.mechanisms.selected_neuron import SelectedNeuron

PriceKind = Literal["rho", "noise-multiplier", "epsilon"]

PriceForm = Literal["rho:R", "noise-multiplier:M", "epsilon:E", "epsilon:E@D"]
"""The forms in which a price is written. An epsilon without a delta is pure."""

_FORMS = "rho:R, noise-multiplier:M, epsilon:E or epsilon:E@DELTA"
_LEAST_AMOUNT, _LARGEST_AMOUNT = Decimal("1e-20"), Decimal("1e20")


class Mechanism(Protocol):
    """A way to turn the logits of one row into a private answer. A value: it compares, hashes and holds no state."""

    def __hash__(self) -> int:
        """Return the hash of its parameters."""
        ...

    @property
    def name(self) -> str:
        """The name by which an owner asks for it."""
        ...

    @property
    def status(self) -> Literal["proven", "unproven"]:
        """Whether the cost is proved or only claimed."""
        ...

    @property
    def cost(self) -> Cost:
        """The cost of one release of one row, the same for every row: the noise follows the sensitivity."""
        ...

    def release(self, logits: Floats, sensitivity: Floats, randomness: Randomness) -> Floats:
        """Return one private answer for each row: probabilities, float64 of shape (n, C).

        logits: float64 (n, C). sensitivity: float64 (n,), how far in L2 row i's logits *as computed in floating
        point* can move when one record is added or removed; the caller has included the error of evaluation.
        Every row takes the same number of random words, row after row, in one call of `randomness.words`, and no row
        depends on another: with `KeyedRandomness` a row's answer is a function of its question, its logits and its
        sensitivity alone. Raises ValueError for shapes that do not fit and for values out of range.
        """
        ...


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


def names() -> tuple[str, ...]:
    """Return the names that `priced` knows."""
    return tuple(PRICING)


def default_price(name: str, *, pure: bool = False) -> str:
    """Return the price of a row where the owner states none: rho = 0.00125, with any mechanism.

    pure: for an account that counts pure epsilon: 0.05, so that a budget of 1 pays for 20 answers. Gaussian noise has
    no such price and keeps its own, which the account then refuses. Raises ValueError for an unknown name.
    """
    pricing = _pricing(name)
    return pricing.pure_default or pricing.default if pure else pricing.default


def priced(name: str, price: str | Price, classes: int) -> Mechanism:
    """Return what `at_price` does, with its noise tables built, so that no first release waits for them.

    Raises ValueError as `at_price` does, and where a table does not fit the number of classes.
    """
    mechanism = at_price(name, price, classes)
    try:
        match mechanism:
            case Gaussian() | Laplace():
                mechanism.prepare(classes)
            case SelectedNeuron() | Label():
                mechanism.prepare()
    except ValueError as error:
        raise _price_error(name, price, classes, error) from error
    return mechanism


def at_price(name: str, price: str | Price, classes: int) -> Mechanism:
    """Return the mechanism `name` whose release of one row of `classes` classes costs `price`, and never more.

    The mechanism's parameter is rounded so that its cost, exactly, is at most the price as written. Only a noise
    multiplier is taken as the nearest float (Laplace: of the scale over the L1 sensitivity) and its cost rounded
    up. No noise table is built.

    Raises ValueError for an unknown name, a price that the mechanism cannot be given, or a number out of its
    range, naming the range.
    """
    pricing = _pricing(name)
    if not 2 <= classes <= LARGEST_CLASSES:
        raise ValueError(f"there must be between 2 and {LARGEST_CLASSES} classes, not {classes}")
    if isinstance(price, str):
        price = Price.parse(price)
    try:
        return pricing.make(price, classes)
    except ValueError as error:
        raise _price_error(name, price, classes, error) from error


def _pricing(name: str) -> "Pricing":
    if name not in PRICING:
        raise ValueError(f"there is no mechanism {name!r}; there are {', '.join(names())}")
    return PRICING[name]


def _price_error(name: str, price: str | Price, classes: int, error: ValueError) -> ValueError:
    return ValueError(f"{name} with {classes} classes cannot be priced at {price}: {error}")


def _gaussian(price: Price, classes: int) -> Gaussian:  # noqa: ARG001
    return Gaussian(float(price.amount) if price.kind == "noise-multiplier" else round_up(1 / Fraction(_mu(price))))


def _laplace(price: Price, classes: int) -> Laplace:  # noqa: ARG001
    return Laplace(round_up(1 / price.exact) if price.kind == "noise-multiplier" else _pure_epsilon(price, 2))


def _selected_neuron(price: Price, classes: int) -> SelectedNeuron:  # noqa: ARG001
    """Split rho evenly over selection and Gaussian noise, or a pure epsilon over selection and Laplace noise."""
    half = Fraction(1, 2)
    selection_epsilon = _pure_epsilon(price, 8, half)
    if price.kind == "rho":
        return SelectedNeuron(selection_epsilon, GaussianLoss(_mu(price, half)))
    return SelectedNeuron(selection_epsilon, LaplaceLoss(selection_epsilon), "permute-and-flip")


def _label(price: Price, classes: int) -> Label:  # noqa: ARG001
    epsilon = _pure_epsilon(price, 8)
    return Label(epsilon) if price.kind == "rho" else Label(epsilon, "permute-and-flip")


def _published(price: Price, classes: int) -> Published:
    """Take a pure epsilon as what is claimed with Laplace noise, anything else as what is with Gaussian noise."""
    if price.kind == "epsilon" and price.delta is None:
        return Published(classes, round_down(price.exact), "laplace")
    return Published(classes, _mu(price), "gaussian")


def _mu(price: Price, share: Fraction = Fraction(1)) -> float:
    """Return the mu that costs this share of `price`, rounded down."""
    if price.kind == "rho":
        return round_down(square_root_down(2 * share * price.exact))
    if price.kind == "noise-multiplier":
        return round_down(1 / price.exact)
    if price.delta is None:
        raise ValueError("Gaussian noise has no pure epsilon; write the price epsilon:E@DELTA")
    return gaussian_mu(round_down(price.exact), price.delta)


def _pure_epsilon(price: Price, per_rho: int, share: Fraction = Fraction(1)) -> float:
    """Return the epsilon of a loss with rho = epsilon^2 / per_rho that costs this share of `price`, rounded down."""
    if price.kind == "noise-multiplier":
        raise ValueError("a selection has no noise multiplier; write the price rho:R or epsilon:E")
    if price.delta is not None:
        raise ValueError("this mechanism is priced by a pure epsilon; write the price epsilon:E")
    return round_down(
        share * price.exact if price.kind == "epsilon" else square_root_down(per_rho * share * price.exact)
    )


@dataclass(frozen=True)
class Pricing:
    """The mechanisms that prices buy, and the price where the owner states none.

    make: takes a price and a number of classes. default: in an account that counts rho; pure_default: in one that
    counts pure epsilon, None where the mechanism has no such price. forms: how a price is written, and what it buys.
    """

    make: Callable[[Price, int], Mechanism]
    default: str
    pure_default: str | None
    forms: Mapping[PriceForm, str]


_PURE_DEFAULT = "epsilon:0.05"

PRICING: Mapping[str, Pricing] = {
    Gaussian.name: Pricing(
        _gaussian,
        "noise-multiplier:20",
        None,
        dict.fromkeys(("rho:R", "noise-multiplier:M", "epsilon:E@D"), "Gaussian noise"),
    ),
    Laplace.name: Pricing(
        _laplace,
        "noise-multiplier:20",
        _PURE_DEFAULT,
        dict.fromkeys(("rho:R", "noise-multiplier:M", "epsilon:E"), "Laplace noise"),
    ),
    SelectedNeuron.name: Pricing(
        _selected_neuron,
        "rho:0.00125",
        _PURE_DEFAULT,
        {
            "rho:R": "exponential mechanism and Gaussian noise, R/2 each",
            "epsilon:E": "permute-and-flip and Laplace noise, E/2 each",
        },
    ),
    Label.name: Pricing(
        _label,
        "rho:0.00125",
        _PURE_DEFAULT,
        {"rho:R": "exponential mechanism", "epsilon:E": "permute-and-flip"},
    ),
    Published.name: Pricing(
        _published,
        "noise-multiplier:20",
        _PURE_DEFAULT,
        {
            "rho:R": "Gaussian noise, as claimed",
            "noise-multiplier:M": "Gaussian noise, as claimed",
            "epsilon:E": "Laplace noise, as claimed",
            "epsilon:E@D": "Gaussian noise, as claimed",
        },
    ),
}
"""The mechanisms by name."""
