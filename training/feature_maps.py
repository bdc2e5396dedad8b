"""Public feature maps phi with ||phi(x)|| <= 1 for every input, chosen without the private records.

Every map begins alike. A row x is clipped to its declared bounds and scaled to u in [0, 1]^d, then, but for a
backbone, drawn radially into the unit ball: v = u min(1, c / ||u||) / c for the public `clip_norm` c. Every map ends
alike: the mapped vector h with ||h|| <= 1 is scaled by sqrt(1 - beta^2) and a constant coordinate beta (the bias) is
appended, so that ||phi(x)||^2 <= (1 - beta^2) + beta^2 = 1.

- identity: h = v.
- fourier: h = (cos(Omega v), sin(Omega v)) / sqrt(k) with k = D/2 public random frequencies: ||h|| = 1, as
  cos^2 + sin^2 = 1 for each (Rahimi and Recht 2007). Omega has N(0, 1/bandwidth^2) entries.
- relu: h = relu(Omega v) sqrt(2/D), drawn radially into the unit ball. Omega has N(0, 1) entries.
- backbone: h = b min(1, c / ||b||) / c, where b is what a frozen public network makes of u.

Rounding: every result is shrunk by 1 - 2^-30, more than the relative error of a norm over 2^22 coordinates, so
the vector of doubles that is really used also has norm <= 1. `evaluation_error` bounds how far that vector is
from the one of exact arithmetic, whatever the order of summation.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

NORM_BOUND = 1.0
"""R: no row's features are longer than this, whatever the map."""

_SHRINK = 1.0 - 2.0**-30
_UNIT_ROUNDOFF = 2.0**-53
_LARGEST_DIMENSION = 2**22
_CLIP_NORMS = (2.0**-20, 2.0**20)
"""Within these no square that matters underflows or overflows when a norm is computed."""


class FeatureMap(BaseModel):
    """What every map has in common; also its part of the certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lower: tuple[float, ...]
    """The declared lower bound of each of the d features."""
    upper: tuple[float, ...]
    """The declared upper bound of each of the d features."""
    clip_norm: float = Field(ge=_CLIP_NORMS[0], le=_CLIP_NORMS[1], allow_inf_nan=False)
    """Scaled rows longer than this are drawn back to it."""
    bias: float = Field(ge=0, lt=1)
    """The constant last coordinate."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not 0 < len(self.lower) == len(self.upper) < _LARGEST_DIMENSION:
            raise ValueError(
                f"there must be a lower and an upper bound for each of up to {_LARGEST_DIMENSION} features"
            )
        for low, high in zip(self.lower, self.upper, strict=True):
            if not (low < high and math.isfinite(low) and math.isfinite(high - low)):
                raise ValueError(f"bounds must be finite and in order, not {low:g}:{high:g}")
        return self

    @property
    def dimension(self) -> int:
        """How many coordinates phi(x) has, the bias among them."""
        return len(self.lower) + 1

    def evaluation_error(self, tensors: dict[str, Floats]) -> float:
        """Return a bound on ||computed phi(x) - exact phi(x)||, for every row and these tensors."""
        del tensors
        return self._scaling_error

    def public_tensors(self) -> dict[str, Floats]:
        """The random tensors of the map, drawn from its public seed."""
        return {}

    def __call__(self, X: Floats, tensors: dict[str, Floats]) -> Floats:
        """Map rows within or beyond the declared bounds.

        X: (n, d). tensors: what `public_tensors` returned. Returns (n, dimension) with rows of norm at most 1.
        """
        hidden = self._hidden(self._scaled(X), tensors)
        phi = np.empty((len(X), self.dimension))
        phi[:, :-1] = hidden * (math.sqrt(1 - self.bias**2) * _SHRINK)
        phi[:, -1] = self.bias * _SHRINK
        return phi

    @property
    def _scaling_error(self) -> float:
        # A norm over k coordinates is off by at most (k/2 + 2) u, in any order of summation, and each map computes
        # one over the d scaled features and one over at most its own dimension.
        return 8 * (max(len(self.lower), self.dimension) + 8) * _UNIT_ROUNDOFF

    def _scaled(self, X: Floats) -> Floats:
        lower, upper, width = _bounds(self.lower, self.upper)
        scaled: Floats = (np.clip(X, lower, upper) - lower) / width
        return scaled

    def _into_unit_ball(self, vectors: Floats) -> Floats:
        return _clip_norm(vectors, self.clip_norm) / self.clip_norm

    def _hidden(self, u: Floats, tensors: dict[str, Floats]) -> Floats:
        raise NotImplementedError


class Identity(FeatureMap):
    """phi(x) is the scaled row itself."""

    kind: Literal["identity"] = "identity"

    def _hidden(self, u: Floats, tensors: dict[str, Floats]) -> Floats:
        del tensors
        return self._into_unit_ball(u)


class Fourier(FeatureMap):
    """Random Fourier features: inner products approximate exp(-||v - v'||^2 / (2 bandwidth^2))."""

    kind: Literal["fourier"] = "fourier"
    random_features: int = Field(ge=2, le=_LARGEST_DIMENSION, multiple_of=2)
    bandwidth: float = Field(ge=1e-6, le=1e6, allow_inf_nan=False)
    seed: int = Field(ge=0, lt=2**32)

    @property
    def dimension(self) -> int:
        """D random features and the bias."""
        return self.random_features + 1

    def evaluation_error(self, tensors: dict[str, Floats]) -> float:
        """Return a bound: an angle omega.v is off by (d u + error of v) ||omega||; cos and sin are 1-Lipschitz."""
        longest = float(np.sqrt((tensors["omega"] ** 2).sum(axis=1).max()))
        return self._scaling_error * (1 + longest)

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D/2, d)."""
        return {"omega": _standard_normal(self.seed, (self.random_features // 2, len(self.lower))) / self.bandwidth}

    def _hidden(self, u: Floats, tensors: dict[str, Floats]) -> Floats:
        angles = self._into_unit_ball(u) @ tensors["omega"].T
        return np.hstack([np.cos(angles), np.sin(angles)]) / math.sqrt(angles.shape[1])


class Relu(FeatureMap):
    """Random ReLU features: inner products approximate the arc-cosine kernel (Cho and Saul 2009)."""

    kind: Literal["relu"] = "relu"
    random_features: int = Field(ge=1, le=_LARGEST_DIMENSION)
    seed: int = Field(ge=0, lt=2**32)

    @property
    def dimension(self) -> int:
        """D random features and the bias."""
        return self.random_features + 1

    def evaluation_error(self, tensors: dict[str, Floats]) -> float:
        """Return a bound: Omega v is off by (d u + error of v) ||Omega||_F; relu and the clip are 1-Lipschitz."""
        norm = float(np.linalg.norm(tensors["omega"])) * math.sqrt(2 / self.random_features)
        return self._scaling_error * (1 + norm)

    def public_tensors(self) -> dict[str, Floats]:
        """omega: (D, d)."""
        return {"omega": _standard_normal(self.seed, (self.random_features, len(self.lower)))}

    def _hidden(self, u: Floats, tensors: dict[str, Floats]) -> Floats:
        v = self._into_unit_ball(u)
        return _clip_norm(np.maximum(v @ tensors["omega"].T, 0) * math.sqrt(2 / self.random_features), 1.0)


class Backbone(FeatureMap):
    """The features of a frozen public network, drawn radially into a ball of radius `clip_norm`.

    What the proofs need of it, although nobody bounds a deep network's rounding errors:

    - Training (`sensitivity.weight_sensitivity`): neighbouring data sets have the same features for the records that
      they share, of norm at most 1. Any function of the record alone will do, continuous or not. So b(x) is *defined*
      as the single-precision numbers that the device gives for x; `Extractor.apart` sees to it that they are a
      function of x alone, whatever other records there are. What follows, in doubles, is off by at most
      `evaluation_error` from the exact phi of that b: as for every map.
    - Answering (`sensitivity.logit_sensitivity_per_norm`): neighbouring weights meet the same phi, of a known norm.
      It depends on no private record, whatever shares its batch, and the doubles that are multiplied are the ones
      whose norm is taken. They need not be those that training would have computed: another device, another batch
      and another order of summation cost accuracy of the order of 1e-6, and no privacy.
    - Whatever the network gives, the norm is at most 1: numbers that are not finite count as a row of zeros.

    None of this holds if the weights themselves come from the private records: that is an assumption, which the
    certificate states.
    """

    kind: Literal["backbone"] = "backbone"
    architecture: str = Field(pattern=r"^[a-z0-9_-]{1,64}$")
    """Its name in `training.backbones.architectures`."""
    width: int = Field(ge=1, lt=_LARGEST_DIMENSION)
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the safetensors file with the public weights."""
    _extract: Callable[[Singles], Singles] | None = PrivateAttr(default=None)

    @property
    def dimension(self) -> int:
        """The network's features and the bias."""
        return self.width + 1

    def computed_by(self, extract: Callable[[Singles], Singles]) -> Self:
        """Return this map, computed by a network: from scaled rows (n, d) to features (n, width)."""
        attached = self.model_copy()
        attached._extract = extract
        return attached

    def _hidden(self, u: Floats, tensors: dict[str, Floats]) -> Floats:
        del tensors
        if self._extract is None:
            raise RuntimeError("a backbone computes nothing before its network is attached: see `computed_by`")
        b = self._extract(u.astype(np.float32)).astype(np.float64)
        b[~np.isfinite(b).all(axis=1)] = 0.0
        return self._into_unit_ball(b)


AnyFeatureMap = Annotated[Identity | Fourier | Relu, Field(discriminator="kind")]
"""Those that are computed from a seed."""

HeadFeatureMap = Annotated[Identity | Fourier | Relu | Backbone, Field(discriminator="kind")]
"""Those that a certified head may stand on."""


def _bounds(lower: tuple[float, ...], upper: tuple[float, ...]) -> tuple[Floats, Floats, Floats]:
    """Return the bounds and their differences, (d,) each: records are mapped one at a time, and this takes longer.

    Kept by which tuples they are: to hash a thousand floats takes longer than to map a row.
    """
    kept = _kept_bounds.get((id(lower), id(upper)))
    if kept is None:
        lows, highs = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        arrays = lows, highs, highs - lows
        for array in arrays:
            array.setflags(write=False)
        if len(_kept_bounds) >= _MOST_KEPT:
            _kept_bounds.clear()
        kept = _kept_bounds[id(lower), id(upper)] = lower, upper, arrays
    return kept[2]


_MOST_KEPT = 16
_kept_bounds: dict[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...], tuple[Floats, Floats, Floats]]] = {}
"""By the ids of tuples, which are kept with what was made of them, so that no other tuple has their ids meanwhile."""


def default_clip_norm(features: int) -> float:
    """Half the norm of the all-ones row: a public rule, because a quantile of the records' norms would be private."""
    return math.sqrt(features) / 2


def _standard_normal(seed: int, shape: tuple[int, int]) -> Floats:
    # NumPy promises never to change this generator's stream, so that every later version can check the tensors.
    return np.random.RandomState(seed).standard_normal(shape)


def _clip_norm(X: Floats, largest: float) -> Floats:
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", X, X))
    clipped: Floats = X * np.minimum(1.0, largest / np.maximum(norms, largest))[:, None]
    return clipped
