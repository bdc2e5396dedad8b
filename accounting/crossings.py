"""Where a function of one variable crosses zero, by a bracket whose two ends have both been evaluated.

Every search of this package ends on an end of the bracket, and the caller takes the safe one: the value
returned has itself been seen to satisfy the condition asked for, however the search went.
"""

from collections.abc import Callable
from typing import NamedTuple

_MOST_STEPS = 400


class Bracket(NamedTuple):
    """Two neighbouring points: the function is at most zero at `met` and above zero at `unmet`."""

    met: float
    unmet: float


def crossing(function: Callable[[float], float], met: float, unmet: float, tolerance: float = 2.0**-50) -> Bracket:
    """Narrow a bracket to a relative width of `tolerance`, or to an exact zero, by Chandrupatla's method.

    Inverse quadratic interpolation where the last three points promise that it works, bisection otherwise
    (Chandrupatla 1997, Advances in Engineering Software 28(3)). `met` and `unmet` may lie either way round.
    Raises ValueError unless function(met) <= 0 < function(unmet).
    """
    a, b = met, unmet
    value_a, value_b = function(a), function(b)
    if not value_a <= 0 < value_b:
        raise ValueError(f"no crossing lies between {met} (value {value_a}) and {unmet} (value {value_b})")
    if value_a == 0:
        return Bracket(met=a, unmet=b)
    share = 0.5
    for _ in range(_MOST_STEPS):
        point = a + share * (b - a)
        value = function(point)
        if (value > 0) == (value_a > 0):
            c, value_c = a, value_a
        else:
            c, value_c = b, value_b
            b, value_b = a, value_a
        a, value_a = point, value
        closest = a if abs(value_a) < abs(value_b) else b
        narrowest = tolerance * max(abs(closest), 1e-300) / abs(b - a) if b != a else 1.0
        if narrowest >= 0.5 or value_a == 0:
            break
        share = _next_share(a, b, c, value_a, value_b, value_c)
        share = min(max(share, narrowest), 1 - narrowest)
    return Bracket(met=b, unmet=a) if value_a > 0 else Bracket(met=a, unmet=b)


def _next_share(a: float, b: float, c: float, value_a: float, value_b: float, value_c: float) -> float:
    """Return how far from a towards b to look next: interpolated where that is sure to converge, else half."""
    place, height = (a - b) / (c - b), (value_a - value_b) / (value_c - value_b)
    if not (1 - (1 - place) ** 0.5 < height < place**0.5):
        return 0.5
    return (value_a / (value_b - value_a)) * (value_c / (value_b - value_c)) + (
        (c - a) / (b - a) * value_a / (value_c - value_a) * value_b / (value_c - value_b)
    )
