"""The dissimilarity of two records, and the most dissimilar neighbouring data set (Bernau et al. 2021, Definition 6).

A heuristic for the sensitivity of a training set: that records unlike the others have gradients unlike the others'.
"""

from typing import Literal, get_args

import numpy as np
from scipy.ndimage import uniform_filter
from scipy.spatial.distance import cdist

from dpserve.accounting.arrays import Floats

Measure = Literal["ssim", "hamming", "euclidean", "manhattan", "cosine"]
MEASURES: tuple[Measure, ...] = get_args(Measure)

_WINDOW = 7
_STABILISERS = (0.01**2, 0.03**2)


def dissimilarity(measure: Measure, some: Floats, others: Floats) -> Floats:
    """Return how unlike each of `some` (n, d) is to each of `others` (m, d), as (n, m), larger for less alike.

    ssim: 1 - the mean structural similarity of square grey images with values in [0, 1]. cosine: 1 - the cosine, 1
    where a record is zero. hamming: the share of features that differ. Raises ValueError for another name.
    """
    if measure == "ssim":
        return _negative_structure(some, others)
    if measure not in MEASURES:
        raise ValueError(f"the measures are {', '.join(MEASURES)}, not {measure!r}")
    metric = {"manhattan": "cityblock"}.get(measure, measure)
    found: Floats = np.asarray(cdist(some, others, metric))  # type: ignore[call-overload]
    return np.nan_to_num(found, nan=1.0)


def most_unlike_member(measure: Measure, records: Floats) -> int:
    """Return the row of `records` (n, d) that is most unlike all others together (Equation 18)."""
    return int(dissimilarity(measure, records, records).sum(axis=1).argmax())


def most_unlike_pair(measure: Measure, records: Floats, others: Floats) -> tuple[int, int]:
    """Return the rows of `records` (n, d) and of `others` (m, d) that are most unlike each other (Equation 20)."""
    found = dissimilarity(measure, records, others)
    row, column = np.unravel_index(int(found.argmax()), found.shape)
    return int(row), int(column)


def _negative_structure(some: Floats, others: Floats) -> Floats:
    """Return 1 - SSIM (Wang, Bovik, Sheikh and Simoncelli 2004, Equation 13) over windows of 7 x 7 within the image.

    Sample variances, and the usual constants 0.01^2 and 0.03^2 for values of range 1.
    """
    side = round(some.shape[1] ** 0.5)
    if side * side != some.shape[1] or side < _WINDOW:
        raise ValueError(f"structural similarity is of square images, {_WINDOW} pixels wide or more")
    left, right = (_Windowed.of(images.reshape(-1, side, side)) for images in (some, others))
    return np.stack([left.against(row, right) for row in range(len(some))])


class _Windowed:
    """Images (n, side, side) with the means and variances of their windows."""

    def __init__(self, images: Floats, means: Floats, variances: Floats) -> None:
        self.images, self.means, self.variances = images, means, variances

    @classmethod
    def of(cls, images: Floats) -> "_Windowed":
        means = _window_means(images)
        return cls(images, means, _without_bias(_window_means(images * images) - means * means))

    def against(self, row: int, others: "_Windowed") -> Floats:
        """Return 1 - SSIM of one image with each of the others, (m,)."""
        means, variances = self.means[row], self.variances[row]
        both = _without_bias(_window_means(self.images[row] * others.images) - means * others.means)
        first, second = _STABILISERS
        alike = (2 * means * others.means + first) * (2 * both + second)
        spread = (means**2 + others.means**2 + first) * (variances + others.variances + second)
        unlike: Floats = 1 - (alike / spread).mean(axis=(1, 2))
        return unlike


def _window_means(images: Floats) -> Floats:
    means = uniform_filter(images, size=(1, _WINDOW, _WINDOW), mode="constant")
    edge = _WINDOW // 2
    inner: Floats = means[:, edge:-edge, edge:-edge]
    return inner


def _without_bias(values: Floats) -> Floats:
    count = _WINDOW * _WINDOW
    return values * (count / (count - 1))
