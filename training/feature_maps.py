"""Public feature maps phi with ||phi(x)|| <= 1 for every input, chosen without the private records.

Every map begins alike. A row x is clipped to its declared bounds and scaled to u in [0, 1]^d, then drawn
radially into the unit ball: v = u min(1, c / ||u||) / c for the public `clip_norm` c. Every map ends alike: the
mapped vector h with ||h|| <= 1 is scaled by sqrt(1 - beta^2) and a constant coordinate beta (the bias) is
appended, so that ||phi(x)||^2 <= (1 - beta^2) + beta^2 = 1.

- identity: h = v.
- fourier: h = (cos(Omega v), sin(Omega v)) / sqrt(k) with k = D/2 public random frequencies: ||h|| = 1, as
  cos^2 + sin^2 = 1 for each (Rahimi and Recht 2007). Omega has N(0, 1/bandwidth^2) entries.
- relu: h = relu(Omega v) sqrt(2/D), drawn radially into the unit ball. Omega has N(0, 1) entries.

Rounding: every result is shrunk by 1 - 2^-30, more than the relative error of a norm over 2^22 coordinates, so
the vector of doubles that is really used also has norm <= 1. `evaluation_error` bounds how far that vector is
from the one of exact arithmetic, whatever the order of summation.
"""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Floats = NDArray[np.float64]

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
        hidden = self._hidden(self._into_unit_ball(X), tensors)
        phi = np.empty((len(X), self.dimension))
        phi[:, :-1] = hidden * (math.sqrt(1 - self.bias**2) * _SHRINK)
        phi[:, -1] = self.bias * _SHRINK
        return phi

    @property
    def _scaling_error(self) -> float:
        # A norm over k coordinates is off by at most (k/2 + 2) u, in any order of summation, and each map computes
        # one over the d scaled features and one over at most its own dimension.
        return 8 * (max(len(self.lower), self.dimension) + 8) * _UNIT_ROUNDOFF

    def _into_unit_ball(self, X: Floats) -> Floats:
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        return _clip_norm((np.clip(X, lower, upper) - lower) / (upper - lower), self.clip_norm) / self.clip_norm

    def _hidden(self, v: Floats, tensors: dict[str, Floats]) -> Floats:
        raise NotImplementedError


class Identity(FeatureMap):
    """phi(x) is the scaled row itself."""

    kind: Literal["identity"] = "identity"

    def _hidden(self, v: Floats, tensors: dict[str, Floats]) -> Floats:
        del tensors
        return v


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

    def _hidden(self, v: Floats, tensors: dict[str, Floats]) -> Floats:
        angles = v @ tensors["omega"].T
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

    def _hidden(self, v: Floats, tensors: dict[str, Floats]) -> Floats:
        return _clip_norm(np.maximum(v @ tensors["omega"].T, 0) * math.sqrt(2 / self.random_features), 1.0)


AnyFeatureMap = Annotated[Identity | Fourier | Relu, Field(discriminator="kind")]


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
