"""Refusing numbers that mean nothing, with the range that would have been accepted."""

import math


def require_above_zero(name: str, value: float, high: float = math.inf) -> None:
    """Raise ValueError unless value is finite and 0 < value <= high."""
    if not (math.isfinite(value) and 0 < value <= high):
        limit = f" and at most {high:g}" if math.isfinite(high) else ""
        raise ValueError(f"{name} must be a finite number above 0{limit}, not {value}")


def require_up_to(name: str, value: float, high: float) -> None:
    """Raise ValueError unless 0 <= value <= high."""
    if not 0 <= value <= high:
        raise ValueError(f"{name} must lie between 0 and {high:g}, not be {value}")


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless low < value < high."""
    if not low < value < high:
        raise ValueError(f"{name} must lie strictly between {low} and {high}, not be {value}")


def require_delta(delta: float) -> None:
    """Raise ValueError unless 0 < delta < 1: at delta = 0 no finite epsilon holds for Gaussian noise."""
    require_between("delta", delta, 0, 1)
