"""A public encoder: any ONNX model, run by ONNX Runtime on a CPU or a CUDA device.

A row's values are the model's inputs in their order; sizes, types and the pixels' range come from the model. Private
records are computed one at a time, which the proof of training needs; rows to answer are computed together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Singles
from dpserve.training.errors import TrainingError
from dpserve.training.onnx_runtime import first_line, open_session

LARGEST_BATCH = 64
"""Number of rows that the model computes at a time when it answers."""

_TYPES: dict[str, type[np.generic]] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
_PIXEL_RANGES = {
    "NominalRange_0_255": (0.0, 255.0),
    "NominalRange_16_235": (16.0, 235.0),
    "Normalized_0_1": (0.0, 1.0),
    "Normalized_1_1": (-1.0, 1.0),
}
"""Values that ONNX's standard metadata `Image.NominalPixelRange` can have."""


@dataclass(frozen=True)
class _Input:
    """One input of the model. shape: of one row, without the batch."""

    name: str
    type: type[np.generic]
    shape: tuple[int, ...]


class OnnxEncoder:
    """Computes a model's features on one device. Safe to call from several threads.

    width: how many features a row has: the values of the model's first output. input_range: what the model's metadata
    says that pixels are scaled to, or None.
    """

    def __init__(self, content: bytes, features: int, device: str = "cpu") -> None:
        """Load a model from the bytes of its one file. features: how many values a row has.

        Raises TrainingError for a device that is not there, for what is no such model, and for inputs that do not fit.
        """
        self._session = open_session(content, device)
        given = self._session.get_inputs()
        if not given or features % len(given):
            raise TrainingError(
                f"{features} values of a row cannot be shared out among {len(given)} inputs of the encoder"
            )
        self._inputs = [_input_of(node, features // len(given)) for node in given]
        self._batch = 1 if any(node.shape[0] == 1 for node in given) else LARGEST_BATCH
        self._features = features
        self._output = self._session.get_outputs()[0].name
        self._checked = False
        self.input_range = _PIXEL_RANGES.get(
            self._session.get_modelmeta().custom_metadata_map.get("Image.NominalPixelRange", "")
        )
        self.width = self._run(np.zeros((1, features))).shape[1]

    def apart(self, rows: Floats) -> Singles:
        """Return the features (n, width) of rows (n, d), each a function of its own row and of nothing else.

        Rows are computed one at a time: in a batch, a row's last bits change with its place and its companions, so a
        record that comes or goes would move others' features. Raises TrainingError for rows that the model cannot
        compute, and for a model found to break this on public rows, as one that draws random numbers does.
        """
        if not self._checked:
            self._check_apart()
            self._checked = True
        return self._in_batches(rows, 1)

    def together(self, rows: Floats) -> Singles:
        """Return the features (n, width) of rows (n, d), as fast as the device allows.

        A row that the model cannot compute, such as one with a token that it does not know, has features that are no
        numbers, whatever rows share its batch.
        """
        try:
            return self._in_batches(rows, self._batch)
        except TrainingError:
            return np.concatenate([self._or_nothing(row[None]) for row in rows])

    def _or_nothing(self, row: Floats) -> Singles:
        try:
            return self._run(row)
        except TrainingError:
            return np.full((1, self.width), np.nan, dtype=np.float32)

    def _in_batches(self, rows: Floats, size: int) -> Singles:
        features = np.empty((len(rows), self.width), dtype=np.float32)
        for start in range(0, len(rows), size):
            features[start : start + size] = self._run(rows[start : start + size])
        return features

    def _run(self, rows: Floats) -> Singles:
        parts = np.split(rows, len(self._inputs), axis=1)
        feeds = {
            given.name: _typed(part, given.type).reshape(len(rows), *given.shape)
            for given, part in zip(self._inputs, parts, strict=True)
        }
        try:
            output = np.asarray(self._session.run([self._output], feeds)[0])
            return output.astype(np.float32).reshape(len(rows), math.prod(output.shape) // len(rows))
        except Exception as error:
            raise TrainingError(f"the encoder cannot compute these rows: {first_line(error)}") from error

    def _check_apart(self) -> None:
        """Compute public rows in two orders. Whatever comes of it, it says nothing of any record."""
        rows = np.random.RandomState(0).uniform(size=(4, self._features))
        if self._in_batches(rows, 1).tobytes() != self._in_batches(rows[::-1], 1)[::-1].tobytes():
            raise TrainingError(
                "the encoder gives other features for the same row, so that one record would move others' features, "
                "which no proof here covers: export it for inference, without random numbers"
            )


def _input_of(given: Any, size: int) -> _Input:
    """Return an input that takes `size` values of each row. Sizes that the model leaves open are taken as equal."""
    if given.type not in _TYPES:
        raise TrainingError(f"the encoder's input {given.name!r} takes {given.type}, and rows hold numbers")
    batch, sides = (given.shape or [0])[0], given.shape[1:]
    if isinstance(batch, int) and batch != 1:
        raise TrainingError(f"the encoder takes {batch} rows at a time: export it with an open batch size, or with 1")
    known = math.prod(side for side in sides if isinstance(side, int))
    open_ = sum(not isinstance(side, int) for side in sides)
    side = round((size / known) ** (1 / open_)) if open_ and known else 0
    shape = tuple(length if isinstance(length, int) else side for length in sides)
    if math.prod(shape) != size:
        raise TrainingError(f"the encoder's input {given.name!r} takes {_written(sides)} values, and a row has {size}")
    return _Input(given.name, _TYPES[given.type], shape)


def _typed(values: Floats, kind: type[np.generic]) -> NDArray[np.generic]:
    """Return the values as the model takes them; whole numbers are rounded, and cut to what their type holds."""
    if np.issubdtype(kind, np.integer):
        limits = np.iinfo(kind)  # type: ignore[type-var]
        values = np.clip(np.rint(values), limits.min, limits.max)
    with np.errstate(over="ignore"):
        return values.astype(kind)


def _written(sides: Sequence[object]) -> str:
    return " x ".join(str(side) if isinstance(side, int) else "any" for side in sides)
