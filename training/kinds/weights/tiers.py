"""The precisions of released weights: their names, and what each costs beyond the one before it."""

from collections.abc import Mapping

from training.errors import WrongOption
from training.fields import NAME

MOST_TIERS = 16


def tier_steps(prices: Mapping[str, int]) -> dict[str, int]:
    """Return what each tier costs beyond the one before it, in picorho, its calibration among it.

    Raises WrongOption for too many tiers, names that are none, and prices that do not rise.
    """
    if not 1 <= len(prices) <= MOST_TIERS:
        raise WrongOption("tier", f"names between 1 and {MOST_TIERS} precisions, not {len(prices)}")
    steps: dict[str, int] = {}
    before = 0
    for name, price in prices.items():
        if not NAME.fullmatch(name):
            raise WrongOption("tier", f"is named with letters, digits, '.', '_' and '-', at most 64, not {name!r}")
        if price <= before:
            raise WrongOption("tier", f"has the coarsest first and the finest last; {name!r} costs no more than before")
        steps[name], before = price - before, price
    return steps
