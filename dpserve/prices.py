"""Prices of releases, and the budgets that lineages open with, as owners give them: epsilon with delta, or rho."""

from collections.abc import Callable
from functools import partial

from dpserve.accounting.budgets import READ_AT, Budget
from dpserve.accounting.messages import Message, named
from dpserve.mechanisms.gaussian_vector import picorho_for, whole_picorho
from dpserve.training.errors import WrongOption, WrongValue
from dpserve.training.options import Options, option


class Price(Options):
    """The price of a release: an epsilon with a delta, or a rho."""

    epsilon: float | None = option(None, "What all answers together cost, at a delta: 1, for example.")
    delta: float | None = option(None, "The delta of epsilon: above 0, and far below 1 / n.")
    rho: float | None = option(None, "The price in zCDP rho, in place of epsilon and delta.")

    @property
    def whole(self) -> int | None:
        """The price in picorho, rounded down; None where none is given. Raises WrongOption for what is no price."""
        if self.rho is not None and (self.epsilon is not None or self.delta is not None):
            raise WrongOption("rho", Message("takes the place of {epsilon} and {delta}: leave one of them out"))
        if self.rho is not None:
            return _price("rho", self.rho, lambda: whole_picorho(f"rho:{self.rho!r}"))
        if self.epsilon is None and self.delta is None:
            return None
        if self.epsilon is None or self.delta is None:
            name, other = ("delta", "epsilon") if self.delta is None else ("epsilon", "delta")
            raise WrongOption(name, Message("is needed beside {}", named(other)))
        if not 0 < self.delta < 1:
            raise WrongValue("delta", "must lie between 0 and 1", value=self.delta)
        epsilon, delta = self.epsilon, self.delta
        return _price("epsilon", epsilon, lambda: picorho_for(epsilon, delta))

    @property
    def read_at(self) -> float | None:
        """The delta at which a cost is said as an epsilon; None where the price was given in rho."""
        return None if self.rho is not None else self.delta or READ_AT


def _price(name: str, given: float, whole: Callable[[], int]) -> int:
    try:
        return whole()
    except (ValueError, ArithmeticError) as error:
        raise WrongOption(name, f"is no price: {error}", value=given) from error


def large_delta(delta: float | None, n: int | None) -> str | None:
    """Return the warning of a delta that protects few; None of others. n: about how many records there are."""
    if delta is None or n is None or delta * n <= 1:
        return None
    return Message(
        "{delta:{}} is above {:.2g}, which is 1 / {n}: a model may then give away about {:,.0f} records as they are. "
        "Take one far below",
        f"{delta:g}",
        1 / n,
        delta * n,
    )


def flags_of_budget(epsilon: float, delta: float) -> str:
    """Return the flags of a budget."""
    return f"--epsilon {epsilon:g} --delta {delta:g}".replace("e-0", "e-")


LINEAGE_EPSILON = partial(
    option, None, "With a delta, the budget that a lineage, or each of its blocks, opens with where it has none."
)
LINEAGE_DELTA = partial(option, None, "The delta of that budget.")


def budget_text(epsilon: float | None, delta: float | None) -> str:
    """Return the budget that a lineage or a block opens with, as bundles state it; "" for none. Raises WrongOption."""
    if epsilon is None and delta is None:
        return ""
    text = f"epsilon:{epsilon!r}@{delta!r}"
    if epsilon is None or delta is None:
        raise WrongOption("lineage_epsilon", Message("goes with {lineage_delta}"))
    try:
        Budget.parse(text, "any")
    except ValueError as error:
        raise WrongOption("lineage_epsilon", f"is no budget: {error}", value=epsilon) from error
    return text
