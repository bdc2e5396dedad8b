"""Reading what a store holds: a value that cannot be read is damage, and says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpserve.accounting.ledger.errors import LedgerDamaged


@contextmanager
def reading(lineage: str) -> Iterator[None]:
    """Raise LedgerDamaged for what cannot be read of the lineage."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(lineage, error) from error


UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""The errors that reading a damaged value raises."""


def unreadable(lineage: str, error: Exception) -> LedgerDamaged:
    """Return what to raise for what cannot be read of the lineage."""
    return LedgerDamaged(lineage, f"what the store holds cannot be read: {error!r}")
