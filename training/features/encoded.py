"""The features of a public ONNX model."""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from dpserve.accounting.arrays import Floats, Singles
from dpserve.accounting.disclosure import Declared
from dpserve.training.devices import Matrix
from dpserve.training.errors import BundleError
from dpserve.training.features.encoder import OnnxEncoder
from dpserve.training.features.feature_map import FeatureMap, bounds_of
from dpserve.training.features.whole_steps import LARGEST_DIMENSION, into_ball
from dpserve.training.regular_files import read_regular

ENCODER_FILE = "encoder.onnx"
"""In a bundle."""


class Encoder(FeatureMap):
    """The features of a frozen public ONNX model, scaled radially into a ball of radius `clip_norm`.

    What the proofs need of it, although nobody bounds a deep network's rounding errors:

    - Training (`sensitivity.weight_sensitivity`): neighbouring data sets have the same features for the records that
      they share, of norm at most 1. Any function of the record alone will do, continuous or not. So b(x) is *defined*
      as the single-precision numbers that the device gives for x; `OnnxEncoder.apart` sees to it that they are a
      function of x alone, whatever other records there are.
    - Answering (`sensitivity.logit_sensitivity_per_norm`): neighbouring weights meet the same phi, of a known norm.
      It depends on no private record, whatever shares its batch. It need not be the one that training would have
      computed: another device, another batch and another order of summation cost accuracy of the order of 1e-6, and
      no privacy. But phi is the question: one that differs in a step is another, with noise of its own, and charged.
    - Whatever the model gives, the norm is at most 1: numbers that are not finite count as a row of zeros.

    None of this holds if the model itself comes from the private records: that is an assumption, which the
    certificate states.
    """

    kind: Declared[Literal["encoder"]] = "encoder"
    width: Declared[int] = Field(ge=1, lt=LARGEST_DIMENSION)
    model_sha256: Declared[str] = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the ONNX file."""
    input_range: Declared[tuple[float, float] | None] = None
    """The range that declared bounds are scaled to for the model; None: it gets the rows as they are, clipped."""
    _compute: Callable[[Floats], Singles] | None = PrivateAttr(default=None)
    _source: bytes | Path | None = PrivateAttr(default=None)
    """The model, or the file that it is in."""

    @model_validator(mode="after")
    def _range_is_in_order(self) -> Self:
        if self.input_range is not None and not -math.inf < self.input_range[0] < self.input_range[1] < math.inf:
            raise ValueError("the range of the encoder's inputs must be finite and in order")
        return self

    @functools.cached_property
    def dimension(self) -> int:
        """The model's features and the bias."""
        return self.width + 1

    @property
    def _rows_at_once(self) -> None:
        """All: how rows are put together is the model's."""
        return None

    def computed_by(self, compute: Callable[[Floats], Singles], content: bytes | None = None) -> Self:
        """Return this map with its model: from the model's inputs (n, d) to features (n, width). content: its file."""
        attached = self.model_copy()
        attached._compute, attached._source = compute, content
        return attached

    def files(self) -> dict[str, bytes]:
        """Return the model's file too."""
        content = self._source.read_bytes() if isinstance(self._source, Path) else self._source
        self._check(content)
        return super().files() | {ENCODER_FILE: content or b""}

    def open_files(self, folder: Path, device: str | None = None) -> None:
        """Open the model too, to answer: rows are computed together."""
        super().open_files(folder)
        path = folder / ENCODER_FILE
        try:
            content = read_regular(path)
        except OSError as error:
            raise BundleError(f"{folder} lacks its encoder: cannot read {path}: {error.strerror}") from error
        self._check(content)
        encoder = OnnxEncoder(content, len(self.lower), device or "cpu")
        if encoder.width != self.width:
            raise BundleError(f"the encoder gives {encoder.width} features, and the certificate says {self.width}")
        self._compute, self._source = encoder.together, path

    def _check(self, content: bytes | None) -> None:
        found = None if content is None else hashlib.sha256(content).hexdigest()
        if found != self.model_sha256:
            raise BundleError(f"the encoder has the SHA-256 {found}, and the certificate says {self.model_sha256}")

    def _scaled(self, X: Floats) -> Floats:
        lower, upper, _ = bounds_of(self.lower, self.upper)
        if self.input_range is None:
            return np.clip(X, lower, upper)
        low, high = self.input_range
        return low + (high - low) * super()._scaled(X)

    def _hidden(self, u: Floats, tensors: Mapping[str, Matrix], length: float) -> Floats:
        del tensors
        if self._compute is None:
            raise RuntimeError("an encoder computes nothing before its model is attached: see `computed_by`")
        b = self._compute(u).astype(np.float64)
        b[~np.isfinite(b).all(axis=1)] = 0.0
        return into_ball(b, self.clip_norm, length)
