"""The public rules by which every option is set, from the budget and the declaration and never from the records.

docs/mechanisms.md says how they were found, within the training records of public sets, and where that is not the whole
truth. An owner who follows them spends nothing on choosing.
"""

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from dpserve.accounting import domains
from dpserve.training.features.crosses import MOST_CELLS
from dpserve.training.features.hog import Shape
from dpserve.training.features.maps import Bins, FeatureMap, Fourier, Hog, HogFourier, Identity, Quantiles
from dpserve.training.features.whole_steps import UNIT_ROWS
from dpserve.training.inputs.columns import (
    AnyColumn,
    BooleanColumn,
    LevelsColumn,
    NumberColumn,
    TextColumn,
    numbers_among,
)

if TYPE_CHECKING:
    from dpserve.training.inputs.records import Declaration

FeatureRule = Literal["modality", "fourier", "quantiles", "even", "unit", "crosses", "hog-fourier"]
"""Rules for the features of an option: those of the rows' modality, random ones, cuts at noisy quantiles or even ones,
unit rows, bins with hashed pairs of columns, and for images shades and random features beside histograms of gradients.
"""
Modality = Literal["images", "table", "presence", "text"]
"""Rows whose schema says what features they have: histograms of gradients, bins or cuts, words beside what else. Rows
of "presence" say yes or no in each of more than MOST_CUT columns, as of words or goods."""

_YES_AND_NO = 2

MOST_BINNED = 32
"""Tables of up to so many numbers have bins: 65 coordinates for each."""
MOST_CUT = 128
"""Tables of up to so many numbers may have cuts: 31 coordinates for each at most."""

RANDOM_FEATURES, BANDWIDTH = 2000, 0.6
"""Noise on a logit does not grow with the number of features, so there may be many. Bandwidths of 0.5 and 0.7 did
alike on the training part of MNIST."""

IMAGES_RANDOM_FEATURES, IMAGES_BANDWIDTH = 1000, 0.5
"""Beside histograms of gradients, chosen on rows of Fashion-MNIST that were held back from training."""

CROSS_BUCKETS = 4096
"""Four times as many took 0.002 from the log loss of flights that were held back from training, at epsilon 1."""

_LOGIT_NOISE = 0.25


def strong_convexity(mu: float) -> float:
    """Lambda for a release, or an answer, of mu: the power of two nearest 4 sqrt(2) / mu.

    The noise on a logit of a row of length 1 is then sqrt(2) / (Lambda mu), about a quarter. With less Lambda the
    weights grow more slowly than their noise; with more they shrink while the noise already is too small to matter.
    The number of records plays no part in it.

    At the default price of an answer, where it is 128, no Lambda from 8 to 4,096 (by doubling) was right on more than
    0.016 of the rows more, or had a log loss less by more than 0.046, on a fifth held out of digits, breast cancer,
    wine and iris (five splits) and of three made tables of 10,000 and 40,000 records. The rule is older than these.
    """
    domains.require_above_zero("mu", mu)
    return 2.0 ** round(math.log2(math.sqrt(2) / (_LOGIT_NOISE * mu)))


def modality_of(declaration: "Declaration", image_shape: Shape | None = None) -> Modality | None:
    """Return the modality of rows whose features follow from what is declared; None for many numbers without more."""
    if image_shape is not None:
        return "images"
    if any(isinstance(column, TextColumn) for column in declaration.columns):
        return "text"
    if len(declaration.columns) > MOST_CUT and all(map(_says_yes_or_no, declaration.columns)):
        return "presence"
    return "table" if _is_table(declaration) else None


def _says_yes_or_no(column: AnyColumn) -> bool:
    if isinstance(column, NumberColumn):
        return (column.kind, column.minimum, column.maximum) == ("integer", 0, 1)
    return isinstance(column, BooleanColumn) or (isinstance(column, LevelsColumn) and len(column.levels) == _YES_AND_NO)


def _is_table(declaration: "Declaration") -> bool:
    """Tell whether rows are a table: by a schema, by few numbers, or by bounds that differ between columns.

    Many numbers within the same bounds may be pixels or the presence of words, and stay as they are. DP-SGD at epsilon
    1 on rows of length 1, and on cuts, had these log losses on rows held out: 0.226 and 0.343 on 1,400 digits of 64
    pixels; 0.568 and 0.580 on 10,000 made rows of 100 words in five classes, 0.478 and 0.477 on 100,000; but 0.565 and
    0.370 on 10,000 made rows of 50 numbers in two classes, some of which count most in the middle of their range, and
    0.605 and 0.284 on 100,000.
    """
    ranges = {*zip(declaration.lower, declaration.upper, strict=True)}
    return bool(declaration.columns) or declaration.features <= MOST_BINNED or len(ranges) > 1


def feature_map(
    rule: FeatureRule, declaration: "Declaration", image_shape: Shape | None = None, *, head: bool = False
) -> FeatureMap:
    """Return the map for rows like these. head: whether for a head, each of whose answers gets noise.

    Images, whose shape is given, have their histograms of gradients, centred for a head, or more beside them where an
    option asks for that. Tables of few numbers have bins, or cuts or crosses where an option asks for them. Other rows
    are scaled to length 1, because shorter ones would get the same noise for a smaller signal, or have random Fourier
    features. Fourier features of a wide table with a schema are an option of their own. The cuts of quantiles are even
    until these are bought (`dpserve.training.fitting.histograms`).
    """
    shared: dict[str, Any] = {"lower": declaration.lower, "upper": declaration.upper, "columns": declaration.columns}
    shared["bias"] = 0.0
    if image_shape is not None and rule == "hog-fourier":
        waves = {"random_features": IMAGES_RANDOM_FEATURES, "bandwidth": IMAGES_BANDWIDTH, "seed": 0}
        return HogFourier(**shared, image_shape=image_shape, **waves)
    if image_shape is not None:
        return Hog(**shared, image_shape=image_shape, centred=head)
    numbers = len(numbers_among(declaration.columns)) if declaration.columns else declaration.features
    if rule in ("quantiles", "even") and 0 < numbers <= MOST_CUT and _is_table(declaration):
        return Quantiles(**shared)
    if rule == "crosses" and numbers <= MOST_BINNED:
        with suppress(ValidationError):  # where no two columns can be crossed
            return Bins(**shared, cross_buckets=CROSS_BUCKETS, cross_cells=MOST_CELLS)
    if rule == "fourier" and not (declaration.features <= MOST_BINNED and numbers):
        return Fourier(**shared, clip_norm=UNIT_ROWS, random_features=RANDOM_FEATURES, bandwidth=BANDWIDTH, seed=0)
    if rule != "unit" and 0 < numbers <= MOST_BINNED:
        return Bins(**shared)
    return Identity(**shared, clip_norm=UNIT_ROWS)
