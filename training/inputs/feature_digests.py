"""Digests of records as a model sees them: the encoded columns that are used, scaled by their declared bounds.

They recognise records that are written otherwise: with other columns among those left out, in another unit of measure
whose bounds are declared in it, as 32-bit numbers, or with another label. Each number is rounded to `STEPS` steps
between its bounds, on two grids whose lines lie at least 0.38 steps apart, so that a number next to a line of one grid
lies well within a step of the other. Each grid is read by the coordinates' names, in whatever order and in capitals or
not, and by their places, whatever they are called; each of these with the class and without it. This makes `KINDS`
digests for each record, and two records count as equal where any of those without the class, or with it, are.

Which records are recognised. Let no number of a record move by more than a share e < 0.19 of a step, and d of them
move at all, as the same value written otherwise does. A digest changes on a grid only if some number lies within e of a
line of that grid, and no number lies within e of lines of both. So both grids miss the record only if one number is
near a line of the first and another near one of the second. For numbers that lie anywhere between lines, each for
itself, that has a probability of at most d (d - 1) (2 e)^2, by the sum over pairs. A single number that moves is never
missed. Numbers of 32 bits, between bounds of which one is 0, move by at most e = 2^-12 of a step: 50 of them are missed
in fewer than 6 of 10,000 records. Levels, truth values and whole numbers that 32 bits hold do not move.

Which others are taken for them. Records with the same rounded numbers have the same digests, whoever they are. Records
with others have one of a kind in common with a probability of at most 2^-60: it is two sums of whole numbers, modulo
the prime p = 2^31 - 1, each number multiplied by a weight below p that BLAKE2b draws for its coordinate. Whatever the
other weights are, at most one value of a weight whose number differs makes a sum equal.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from accounting.arrays import Floats, Words

STEPS = 4096
"""Into how many steps each number's range is rounded."""
_SHIFTS = (0.5, 0.5 + 0.381966)
"""Shifts of the grids, in steps. The first grid has no line at a round share of the range."""
KINDS = 8
"""Grids, names or places, without the class or with it, in this order."""
UNLABELLED = (0, 2, 4, 6)
LABELLED = (1, 3, 5, 7)

_PRIME = 2**31 - 1
_LANES = 2
_COORDINATES = 2**8
"""Number of coordinates summed as doubles at once: 2^8 2^13 2^31 < 2^53, so every sum is exact."""
_NUMBERS = 2**20
"""Number of values read at once."""
_MOST_IN_MEMORY = 2**26


def feature_digests(
    X: Floats,
    y: NDArray[np.int64],
    names: Sequence[str],
    lower: Sequence[float],
    upper: Sequence[float],
    classes: Sequence[str],
) -> Words:
    """Return the digests of records, (KINDS, n), each below 2^62.

    X: (n, d), within its bounds. y: (n,), indexes of classes.
    """
    digests = _room(KINDS, len(X))
    low = np.asarray(lower, dtype=np.float64)
    whole = np.asarray(upper, dtype=np.float64) - low
    read = [[_plain(name) for name in names], [str(place) for place in range(len(names))]]
    weights = np.concatenate([_weights("coordinate", each) for each in read], axis=1)
    of_class = [_weights("class", each) for each in ([_plain(name) for name in classes], map(str, range(len(classes))))]
    rows = max(1, _NUMBERS // max(1, X.shape[1]))
    for start in range(0, len(X), rows):
        steps = _steps(X[start : start + rows] - low, whole)
        labels = y[start : start + rows]
        for grid, shift in enumerate(_SHIFTS):
            sums = _sums(np.floor(steps + shift), weights)
            for reading, of in enumerate(of_class):
                own = sums[:, _LANES * reading : _LANES * (reading + 1)]
                kind = 4 * grid + 2 * reading
                digests[kind, start : start + rows] = _joined(own)
                digests[kind + 1, start : start + rows] = _joined(
                    (own + of[labels].astype(np.uint64)) % np.uint64(_PRIME)
                )
    return digests


def _steps(above: Floats, whole: Floats) -> Floats:
    """Return values (n, d) above their lower bounds in steps, of which a whole range (d,) has STEPS."""
    with np.errstate(over="ignore"):
        scale = STEPS / whole
    if np.isfinite(scale).all():
        return above * scale
    # In a range as narrow as 1e-306 a value has few bits, and its steps no number of their own.
    return above / whole * STEPS


def _room(kinds: int, records: int) -> Words:
    """Return an array for digests: in memory, or, of many, in a file without a name that goes with it."""
    if 8 * kinds * records <= _MOST_IN_MEMORY:
        return np.empty((kinds, records), dtype=np.uint64)
    return np.memmap(tempfile.TemporaryFile(), np.uint64, "w+", shape=(kinds, records))


def _plain(name: str) -> str:
    """Return a name without what people write differently: capitals, spaces and signs."""
    return "".join(filter(str.isalnum, name.casefold())) or name


def _weights(purpose: str, names: Iterable[str]) -> Floats:
    """Return whole numbers below the prime for each name (k, _LANES). Of two equal names each has its own."""
    seen: dict[str, int] = {}
    drawn = bytearray()
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        content = f"{purpose}\0{seen[name]}\0{name}".encode("utf-8", "surrogatepass")
        drawn += hashlib.blake2b(content, digest_size=8 * _LANES, person=b"dpserve feature").digest()
    weights: Floats = (np.frombuffer(drawn, dtype="<u8") % np.uint64(_PRIME)).astype(np.float64).reshape(-1, _LANES)
    return weights


def _sums(whole: Floats, weights: Floats) -> Words:
    """Return whole numbers (n, d) times weights (d, k), modulo the prime: (n, k)."""
    total = np.zeros((len(whole), weights.shape[1]), dtype=np.uint64)
    for start in range(0, len(weights), _COORDINATES):
        part = whole[:, start : start + _COORDINATES] @ weights[start : start + _COORDINATES]
        total = (total + part.astype(np.uint64)) % np.uint64(_PRIME)
    return total


def _joined(lanes: Words) -> Words:
    joined: Words = lanes[:, 0] << np.uint64(31) | lanes[:, 1]
    return joined
