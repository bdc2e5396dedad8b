"""The two currencies of accounts: zCDP rho, and pure epsilon. Both are counted in whole numbers of 1e-12.

An account counts in one of them for good, by what it accepts (`dpserve.accounting.budgets`). The same release has a
price in rho always, and one in pure epsilon where it has such an epsilon at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from dpserve.accounting import picorho
from dpserve.accounting.losses import Cost

PER_UNIT = picorho.PICORHO_PER_RHO
"""Amounts are counted in whole numbers of a unit over this."""


@dataclass(frozen=True)
class Currency:
    """A currency. `name`: of its unit; `price`: of one release at a cost, in 1e-12, None where it has none."""

    name: Literal["rho", "epsilon"]
    price: Callable[[Cost], int | None]

    value = staticmethod(picorho.to_rho)
    """Returns an amount of 1e-12 as a number of units, for display."""

    def answers(self, left: int, price: Cost) -> int:
        """Return how many releases at this price, which is above 0, an amount pays for: none without a price."""
        each = self.price(price)
        return left // each if each is not None else 0

    def words(self, amount: int) -> str:
        """Return an amount in words, as `rho = 0.5`."""
        return f"{self.name} = {self.value(amount):.6g}"


RHO = Currency("rho", attrgetter("picorho"))
EPSILON = Currency("epsilon", attrgetter("picoepsilon"))
