"""CIFAR-10: 60,000 colour images of 32 x 32 (Krizhevsky 2009).

Distributed as Python pickles of dictionaries with `data`, (n, 3072) unsigned bytes, and `labels`. A
pickle can run any program, so that nothing but NumPy arrays is allowed to come out of these.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpserve.training.errors import DataError
from research.data.labelled import LabelledSet, first_existing, missing, read_npz

FEATURES = 3072
_BATCHES_10 = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
_JPEG_NPZ = "cifar10_jpeg.npz"


def read_10(directory: Path) -> LabelledSet:
    """CIFAR-10 from its six batches, or from `cifar10_jpeg.npz`, which is lossy and says so."""
    if all((directory / name).exists() for name in _BATCHES_10):
        return _from_batches("cifar-10", [directory / name for name in _BATCHES_10], "labels", 10)
    npz = first_existing(directory, _JPEG_NPZ)
    if npz is None:
        lacking = next(name for name in _BATCHES_10 if not (directory / name).exists())
        raise missing("cifar-10", directory, lacking, _JPEG_NPZ)
    return _from_jpeg(npz)


class _ArraysOnly(pickle.Unpickler):
    """Builds dictionaries, lists, numbers, bytes and NumPy arrays, and refuses every other name."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """Resolve an allowed name."""
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _from_batches(name: str, paths: list[Path], label_key: str, classes: int) -> LabelledSet:
    parts = [_batch(path, label_key) for path in paths]
    X = np.concatenate([data for data, _ in parts]).astype(np.float32) / np.float32(255)
    y = np.concatenate([labels for _, labels in parts])
    return LabelledSet(name, X, y, classes, str(paths[0].parent))


def _batch(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        ImportError,
        pickle.UnpicklingError,
    ) as error:
        raise DataError(f"{path}: no readable batch, truncated perhaps ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: a batch is a dictionary, not {type(content).__name__}")
    by_name = {
        key.decode("ascii", "replace") if isinstance(key, bytes) else key: value for key, value in content.items()
    }
    data, labels = by_name.get("data"), by_name.get(label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != FEATURES:
        raise DataError(f"{path}: 'data' must be (n, {FEATURES}) unsigned bytes")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path}: {label_key!r} must list one number for each of {len(data)} images")
    return data, np.array(labels, dtype=np.int64)


def _from_jpeg(path: Path) -> LabelledSet:
    from PIL import Image, UnidentifiedImageError

    arrays = read_npz(path, "header", "data", "lengths", "y")
    header, data = arrays["header"].tobytes(), arrays["data"].tobytes()
    ends = np.cumsum(arrays["lengths"].astype(np.int64))
    if len(ends) == 0 or ends[-1] != len(data):
        raise DataError(f"{path}: the images' lengths add up to {ends[-1] if len(ends) else 0}, not {len(data)} bytes")
    X = np.empty((len(ends), FEATURES), dtype=np.float32)
    start = 0
    for row, end in enumerate(ends.tolist()):
        try:
            image = np.asarray(Image.open(io.BytesIO(header + data[start:end])).convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise DataError(f"{path}, image {row + 1}: no JPEG stream ({error})") from None
        if image.size != FEATURES:
            raise DataError(f"{path}, image {row + 1}: {image.shape} instead of 32 x 32 x 3")
        X[row] = image.transpose(2, 0, 1).reshape(-1)
        start = end
    X /= 255
    y = arrays["y"].astype(np.int64)
    return LabelledSet("cifar-10", X, y, 10, f"{path} (lossy: JPEG, quality 75)")
