"""Figures that take long, kept for as long as nobody may tell by the time of a reply whether they were."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_CACHES: list[Any] = []


def remembered(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that keeps a function's last `most` results until `forget_all`, as `functools.lru_cache`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        kept: Any = lru_cache(maxsize=most)(function)
        _CACHES.append(kept)
        return kept  # type: ignore[no-any-return]

    return decorate


def forget_all() -> None:
    """Forget every result: what takes long for one client is then not sooner done for the next."""
    for each in _CACHES:
        each.cache_clear()
