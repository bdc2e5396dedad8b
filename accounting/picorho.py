"""The ledger's unit: zCDP rho as a whole number of 1e-12, so that a budget is never a float.

Charges are rounded up and budgets down; a sum of charges that fits a budget in picorho therefore fits it in
rho. Every amount stays below 2**53, because the store's function computes in IEEE doubles, which hold and add
such integers exactly.
"""

import math
from fractions import Fraction

PICORHO_PER_RHO = 10**12
LARGEST = 2**53 - 1
"""The largest amount the ledger can hold: about 9007 rho."""


def charge(rho: float | Fraction) -> int:
    """Return `rho` in picorho, rounded up. Raises ValueError unless 0 <= rho and the result fits the ledger."""
    return _check(math.ceil(_exact(rho) * PICORHO_PER_RHO))


def budget(rho: float | Fraction) -> int:
    """Return `rho` in picorho, rounded down. Raises ValueError unless 0 <= rho and the result fits the ledger."""
    return _check(math.floor(_exact(rho) * PICORHO_PER_RHO))


def to_rho(picorho: int) -> float:
    """Return an amount of picorho as rho, for display."""
    return picorho / PICORHO_PER_RHO


def _exact(rho: float | Fraction) -> Fraction:
    if not isinstance(rho, Fraction) and not math.isfinite(rho):
        raise ValueError(f"rho must be finite, not {rho}")
    exact = Fraction(rho)
    if exact < 0:
        raise ValueError(f"rho must not be negative, and {float(exact)} is")
    return exact


def _check(picorho: int) -> int:
    if picorho > LARGEST:
        raise ValueError(f"rho must be at most {LARGEST / PICORHO_PER_RHO:.6g}, the largest amount the ledger holds")
    return picorho
