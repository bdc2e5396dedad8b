"""Types of a certificate's fields: names, and lists, which validation leaves at the first value that is wrong.

pydantic keeps an error for every wrong value: four million of them took 18 s and 2.8 GB.
"""

import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import FailFast

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The form of a model's and a lineage's name."""

MOST_CLASSES = 1024


def checked_name(name: str) -> str:
    """Return a name. Raises ValueError for what is none."""
    if not NAME.fullmatch(name):
        raise ValueError("must be letters, digits, '.', '_' and '-', at most 64")
    return name


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that has come before; None where each comes once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


Item = TypeVar("Item")

Several = Annotated[tuple[Item, ...], FailFast()]
