"""Additions of other packages by entry points, such as mechanisms; those that cannot be used are left out."""

import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import TypeVar

Extension = TypeVar("Extension")


class ExtensionWarning(UserWarning):
    """Something that another package brings cannot be used."""


def extensions(group: str, check: Callable[[object], Extension]) -> Iterator[Extension]:
    """Yield what the entry points of a group bring. check: returns it, or raises what is wrong."""
    for point in entry_points(group=group):
        try:
            yield check(point.load())
        except Exception as error:  # noqa: BLE001 - somebody else's code may raise anything
            warnings.warn(
                f"{point.value} of {group} cannot be used and is left out: {error}", ExtensionWarning, stacklevel=2
            )
