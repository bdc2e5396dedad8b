"""MNIST: 70,000 digits of 28 x 28 grey values (LeCun, Cortes and Burges).

Distributed as four IDX files, gzipped or not. IDX: two zero bytes, a type byte (8: unsigned bytes), the number of
dimensions, each dimension as a big-endian 32-bit number, then the data.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.training.errors import DataError
from research.data.labelled import LabelledSet, first_existing, missing, read_npz

CLASSES, SIDE = 10, 28
_NPZ = "mnist.npz"
_PARTS = ("train", "t10k")
_UNSIGNED_BYTES = 8


def read(directory: Path) -> LabelledSet:
    """Read the publisher's files, or `mnist.npz`: both parts in one set. Raises DataError for what is wrong."""
    found = [(_idx_file(directory, f"{part}-images", 3), _idx_file(directory, f"{part}-labels", 1)) for part in _PARTS]
    parts = [(images, labels) for images, labels in found if images is not None and labels is not None]
    if len(parts) == len(_PARTS):
        pairs = [_images_and_labels(images, labels) for images, labels in parts]
        images, y = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return _scaled(images, y, str(parts[0][0].parent))
    npz = first_existing(directory, _NPZ)
    if npz is None:
        names = [f"{part}-{what}-ubyte[.gz]" for part in _PARTS for what in ("images-idx3", "labels-idx1")]
        raise missing("mnist", directory, ", ".join(names), _NPZ)
    arrays = read_npz(npz, "X", "y")
    return _scaled(arrays["X"], arrays["y"], str(npz))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes. Raises DataError naming the file and the byte."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read, truncated perhaps ({error})") from None
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        raise DataError(f"{path}, byte 0: no IDX file of unsigned bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(f"{path}: {expected} bytes are announced but {len(content)} are there; a truncated file?")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _idx_file(directory: Path, name: str, dimensions: int) -> Path | None:
    stems = (f"{name}-idx{dimensions}-ubyte", f"{name}.idx{dimensions}-ubyte")
    return first_existing(
        directory, *(f"{folder}{s}{z}" for folder in ("", "mnist/") for s in stems for z in ("", ".gz"))
    )


def _images_and_labels(images_path: Path, labels_path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(f"{images_path} holds {len(images)} images and {labels_path} {len(labels)} labels")
    return images, labels


def _scaled(images: NDArray[np.generic], y: NDArray[np.generic], source: str) -> LabelledSet:
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE) or images.dtype != np.uint8:
        raise DataError(f"{source}: images are {SIDE} x {SIDE} unsigned bytes, not {images.dtype} {images.shape[1:]}")
    X = images.reshape(len(images), SIDE * SIDE).astype(np.float32) / np.float32(255)
    return LabelledSet("mnist", X, y.astype(np.int64), CLASSES, source)
