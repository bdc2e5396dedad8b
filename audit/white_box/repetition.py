"""Noise that comes back: a score for implementations whose noise takes few values.

The projection on the canary is the best score where the noise is Gaussian. Noise from few seeds looks Gaussian to it,
or nearly, and is told completely by whoever has seen each of its values.
"""

import numpy as np
from numpy.typing import NDArray

from audit import estimators
from audit.estimators import LowerBound

Floats = NDArray[np.float64]

_NEAREST = 1e-6


def nearest_seen(inside: Floats, outside: Floats, seen: float = 0.5) -> tuple[Floats, Floats]:
    """Return scores (in, out) of all but the first `seen` of the observations (n,), (m,), which are what was seen.

    The score is the log of the distance to the nearest observation seen without the canary over that to the nearest
    seen with it: above 0 for what looks more like those with it. Distances below 1e-6 of the noise count as that.
    """
    cut_in, cut_out = round(len(inside) * seen), round(len(outside) * seen)
    with_canary, without = np.sort(inside[:cut_in]), np.sort(outside[:cut_out])
    floor = _NEAREST * float(np.std(without))

    def score(observed: Floats) -> Floats:
        ratio: Floats = np.log(_distance(observed, without, floor)) - np.log(_distance(observed, with_canary, floor))
        return ratio

    return score(inside[cut_in:]), score(outside[cut_out:])


def repetition_bound(inside: Floats, outside: Floats, confidence: float) -> LowerBound:
    """Return the bound of mu from `nearest_seen`, at its natural threshold 0, by Clopper and Pearson."""
    return estimators.gdp(*nearest_seen(inside, outside), confidence, threshold=0.0)


def _distance(observed: Floats, seen: Floats, floor: float) -> Floats:
    place = np.searchsorted(seen, observed)
    below = np.abs(observed - seen[np.maximum(place - 1, 0)])
    above = np.abs(observed - seen[np.minimum(place, len(seen) - 1)])
    nearest: Floats = np.maximum(np.minimum(below, above), floor)
    return nearest
