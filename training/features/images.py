"""Features of images: histograms of gradients, shades, and random Fourier features of the histograms."""

import functools
from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared
from dpserve.training.devices import Matrix
from dpserve.training.features import hog, pooling
from dpserve.training.features.feature_map import FeatureMap
from dpserve.training.features.whole_steps import (
    LENGTH,
    STEP,
    UNIT_ROWS,
    Bandwidth,
    Seed,
    Waves,
    frequencies,
    into_ball,
    products_with,
    waves_of,
)


class OfImages(FeatureMap):
    """A map of images: x has an image's pixels, row by row, each with its channels, height * width * channels of them.

    Proof that ||phi(x)|| <= 1 for every x. Clipping leaves u in [0, 1]^d whatever x is, so that a subclass's numbers b
    are finite, and of at most 2^10. `into_ball` returns length b / max(r, ||b||), rounded towards zero, the norm exact
    but for its square root and one multiplication: at most `length` (1 + 2^-50) long, which `SHRINK` makes up for. It
    uses nothing else that is known of b; r = 2^-20 only keeps zeros zero.
    """

    clip_norm: Declared[float] = Field(default=1.0, ge=1.0, le=1.0)
    """Every row has the same norm already."""
    kind: Declared[str]
    """Named here as it comes before the shape in what bundles have sealed."""
    image_shape: Declared[tuple[int, int, int]]
    """Height, width and channels: 1 for grey, 3 for red, green and blue."""

    @model_validator(mode="after")
    def _shape_is_that_of_the_rows(self) -> Self:
        hog.check_shape(self.image_shape, len(self.lower))
        return self


class Hog(OfImages):
    """Histograms of oriented gradients of an image, and of a colour image a histogram of its colours too.

    `hog.described` gives numbers from 0 to 2^9, and `hog.centred` from -2^9 to 2^9.
    """

    kind: Declared[Literal["hog"]] = "hog"
    centred: Declared[bool] = Field(default=False, exclude_if=lambda centred: not centred)
    """Whether each block's numbers are less their mean, and each quarter's colours (`hog.centred`)."""

    @functools.cached_property
    def dimension(self) -> int:
        """32 numbers for each block of cells, 256 for the colours of a colour image, and the bias."""
        return hog.width_of(self.image_shape) + 1

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        b = hog.described(u, self.image_shape)
        return into_ball(hog.centred(b, self.image_shape) if self.centred else b, UNIT_ROWS, length)


class HogFourier(OfImages):
    """Histograms of gradients, how light the parts of the image are, and random Fourier features of the histograms.

    A linear head on it is the sum of one on the histograms, one on means of pixels, and one that approximates the
    Gaussian kernel of the histograms' directions. Each of the three has length 1, or 0 where it has no direction: means
    half as heavy did worse on rows of Fashion-MNIST that were held back from training.
    """

    kind: Declared[Literal["hog-fourier"]] = "hog-fourier"
    random_features: Declared[Waves]
    bandwidth: Declared[Bandwidth]
    seed: Declared[Seed]

    @functools.cached_property
    def dimension(self) -> int:
        """The histograms' numbers (see `Hog`), the means, D random features, and the bias."""
        return hog.width_of(self.image_shape) + pooling.width_of(self.image_shape) + self.random_features + 1

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D/2, numbers of the histograms), in turns, rounded so that `products_with` is exact."""
        width = hog.width_of(self.image_shape)
        return {"omega": frequencies(self.seed, (self.random_features // 2, width), self.bandwidth)}

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        directions = into_ball(hog.described(u, self.image_shape), UNIT_ROWS, LENGTH)
        means = into_ball(pooling.pooled(u, self.image_shape), UNIT_ROWS, LENGTH)
        waves = waves_of(products_with(directions, tensors["omega"]), LENGTH)
        return into_ball(np.hstack([directions, means, waves]) * STEP, UNIT_ROWS, length)
