"""The type of a certificate's lists, which validation leaves at the first value that is wrong.

pydantic keeps an error for every wrong value: four million of them took 18 s and 2.8 GB.
"""

from typing import Annotated, TypeVar

from pydantic import FailFast

Item = TypeVar("Item")

Several = Annotated[tuple[Item, ...], FailFast()]
