"""The public rules by which every option is set, from the budget and the declaration and never from the records.

docs/mechanisms.md says how they were found, within the training records of public sets, and where that is not the whole
truth. An owner who follows them spends nothing on choosing.
"""

import math
from typing import Literal

from accounting import domains
from training.columns import numbers_among
from training.data.records import Declaration
from training.feature_maps import Bins, FeatureMap, Fourier, Identity

Features = Literal["identity", "fourier"]

MOST_BINNED = 32
"""Tables of up to so many numbers have bins: 65 coordinates for each."""

UNIT_ROWS = 2.0**-20
"""A clip norm that draws every row to length 1: shorter rows would get the same noise for a smaller signal."""

RANDOM_FEATURES, BANDWIDTH = 2000, 0.6
"""Noise on a logit does not grow with the number of features, so there may be many. Bandwidths of 0.5 and 0.7 did
alike on the training part of MNIST."""

_LOGIT_NOISE = 0.25


def strong_convexity(mu: float) -> float:
    """Lambda for a release, or an answer, of mu: the power of two nearest 4 sqrt(2) / mu.

    The noise on a logit of a row of length 1 is then sqrt(2) / (Lambda mu), about a quarter. With less Lambda the
    weights grow more slowly than their noise; with more they shrink while the noise already is too small to matter.
    The number of records plays no part in it.
    """
    domains.require_above_zero("mu", mu)
    return 2.0 ** round(math.log2(math.sqrt(2) / (_LOGIT_NOISE * mu)))


def feature_map(features: Features, declaration: Declaration) -> FeatureMap:
    """Return bins of the numbers where they are few; otherwise rows drawn to length 1, or random Fourier features.

    Fourier features of a table with a schema are an option of their own, unless all of its coordinates are few.
    """
    numbers = len(numbers_among(declaration.columns)) if declaration.columns else declaration.features
    narrow = declaration.features <= MOST_BINNED
    if 0 < numbers <= MOST_BINNED and (narrow or features == "identity"):
        return Bins(lower=declaration.lower, upper=declaration.upper, bias=0.0, columns=declaration.columns)
    if features == "identity":
        return Identity(
            lower=declaration.lower, upper=declaration.upper, clip_norm=UNIT_ROWS, bias=0.0, columns=declaration.columns
        )
    return Fourier(
        lower=declaration.lower,
        upper=declaration.upper,
        clip_norm=UNIT_ROWS,
        bias=0.0,
        columns=declaration.columns,
        random_features=RANDOM_FEATURES,
        bandwidth=BANDWIDTH,
        seed=0,
    )
