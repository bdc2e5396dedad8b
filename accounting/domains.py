"""Refusing numbers that mean nothing, with the range that would have been accepted."""

import math


class OutOfRange(ValueError):
    """A number lies outside of its range. name: of the quantity, as messages have it. value: the number."""

    def __init__(self, name: str, value: float, range_words: str) -> None:
        """Say the range, and the number. range_words: as "must lie between 0 and 1, not be"."""
        self.name = name
        self.value = value
        super().__init__(f"{name} {range_words} {value}")


def require_above_zero(name: str, value: float, high: float = math.inf) -> None:
    """Raise OutOfRange unless value is finite and 0 < value <= high."""
    if not (math.isfinite(value) and 0 < value <= high):
        limit = f" and at most {high:g}" if math.isfinite(high) else ""
        raise OutOfRange(name, value, f"must be a finite number above 0{limit}, not")


def require_up_to(name: str, value: float, high: float) -> None:
    """Raise OutOfRange unless 0 <= value <= high."""
    require_within(name, value, 0, high)


def require_within(name: str, value: float, low: float, high: float) -> None:
    """Raise OutOfRange unless low <= value <= high."""
    if not low <= value <= high:
        raise OutOfRange(name, value, f"must lie between {low:g} and {high:g}, not be")


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Raise OutOfRange unless low < value < high."""
    if not low < value < high:
        raise OutOfRange(name, value, f"must lie strictly between {low} and {high}, not be")


def require_delta(delta: float) -> None:
    """Raise OutOfRange unless 0 < delta < 1: at delta = 0 no finite epsilon holds for Gaussian noise."""
    require_between("delta", delta, 0, 1)
