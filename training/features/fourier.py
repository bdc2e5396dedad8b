"""Scaled rows, and random Fourier features of them."""

import functools
from collections.abc import Mapping
from typing import Literal

from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared
from dpserve.training.devices import Matrix
from dpserve.training.features.feature_map import FeatureMap
from dpserve.training.features.whole_steps import (
    LENGTH,
    Bandwidth,
    Seed,
    Waves,
    frequencies,
    into_ball,
    products_with,
    waves_of,
)


class Identity(FeatureMap):
    """phi(x) is the scaled row itself."""

    kind: Declared[Literal["identity"]] = "identity"

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        return into_ball(u, self.clip_norm, length)


class Fourier(FeatureMap):
    """Random Fourier features: inner products approximate exp(-||v - v'||^2 / (2 bandwidth^2))."""

    kind: Declared[Literal["fourier"]] = "fourier"
    random_features: Declared[Waves]
    bandwidth: Declared[Bandwidth]
    seed: Declared[Seed]

    @functools.cached_property
    def dimension(self) -> int:
        """D random features and the bias."""
        return self.random_features + 1

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D/2, d), in turns, rounded so that `products_with` is exact."""
        return {"omega": frequencies(self.seed, (self.random_features // 2, len(self.lower)), self.bandwidth)}

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        return waves_of(products_with(into_ball(u, self.clip_norm, LENGTH), tensors["omega"]), length)
