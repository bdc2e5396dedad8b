"""Where the chain of a lineage's receipts ends, as far as is known here: what the hashes of charges are foreseen from.

A service that computes the hash of its next receipt spares the store to do so, which takes a hundred times as long. It
needs to know the hash before, and where several workers charge one lineage each would know only its own: they share
the newest head that any of them foresees, in memory that all have from before they were forked.

Promises: whatever stands there is a hint. The store takes a hash that was foreseen if it follows the head that the
store has, under the number that the store counts, and else says where the chain ends (`charges.lua`). So nobody waits
for anybody to read or to write: what was read while another wrote it, what a worker wrote before it was killed, and the
head of a charge that was refused cost a call to the store that decides nothing, and no more.
"""

import mmap
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

from accounting.ledger.chain import GENESIS

_PLACES = 16
_PLACE = Struct("=16sQ32s")
"""A lineage's digest, the number of its newest receipt, and its hash."""

_MOST_RECEIPTS = 2**53
"""The store counts no further; what stands for a number beyond is none, and could not even be counted on from."""


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a lineage's chain of receipts: the newest number and its hash."""

    sequence: int = 0
    hash: bytes = GENESIS


class SharedHeads:
    """Memory that a process shares with those it forks, for the heads of a few lineages.

    Two lineages of more than a few may have the same place, where the one that was written last is found.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self._memory = mmap.mmap(-1, _PLACES * _PLACE.size)

    def read(self, lineage: str) -> Head | None:
        """Return what was written of the lineage last, which may be half of one head and half of another."""
        digest = _digest(lineage)
        found, sequence, newest = _PLACE.unpack_from(self._memory, _place(digest))
        return Head(sequence, newest) if found == digest and sequence < _MOST_RECEIPTS else None

    def write(self, lineage: str, head: Head) -> None:
        """Let the others read `head`."""
        digest = _digest(lineage)
        _PLACE.pack_into(self._memory, _place(digest), digest, head.sequence, head.hash)


def _digest(lineage: str) -> bytes:
    return blake2b(lineage.encode(), digest_size=16).digest()


def _place(digest: bytes) -> int:
    return digest[0] % _PLACES * _PLACE.size


class Heads:
    """What one process knows of every lineage: by itself, or with those that it shares memory with."""

    def __init__(self, shared: SharedHeads | None = None) -> None:
        """Know nothing yet, but what the others do."""
        self._shared = shared
        self._known: dict[str, Head] = {}

    def newest(self, lineage: str) -> Head:
        """Return the head that the next charge is most likely to follow: of a lineage not heard of, the first."""
        read = self._shared.read(lineage) if self._shared is not None else None
        return read or self._known.get(lineage) or Head()

    def foresee(self, lineage: str, head: Head) -> None:
        """Let the others know what the head will be once the call that is being sent was decided."""
        if self._shared is not None:
            self._shared.write(lineage, head)

    def came(self, lineage: str, head: Head, *, foreseen: Head | None = None) -> None:
        """Note the head that a reply says there was. foreseen: the one that was expected instead.

        Nobody follows from what did not come, unless another did already: who hears from the store then, says better.
        """
        self._known[lineage] = head
        if self._shared is not None and foreseen != head:
            read = self._shared.read(lineage)
            if read is None or read == foreseen or read.sequence < head.sequence:
                self._shared.write(lineage, head)
