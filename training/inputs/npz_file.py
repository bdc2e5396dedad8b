"""Records from a NumPy archive of the owner's own: `X` (n, d) or packed bits, and `y` (n,)."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats
from dpserve.training.errors import DataError
from dpserve.training.inputs.declared import Bounds, parse_bounds
from dpserve.training.inputs.records import Declaration, Records, check_records

Arrays = dict[str, NDArray[np.generic]]


def read_npz(
    path: Path,
    *,
    classes: Sequence[str],
    bounds: Sequence[str] | Bounds,
    where: str | None = None,
    clip: bool = False,
    values: Sequence[str] | None = None,
) -> Records:
    """Read `X` and `y` from an .npz archive; nothing in it may need pickle.

    X: (n, ...) numbers, every record flattened in C order; or `X_packed` (n, ceil(d/8)) of np.packbits with
    `n_features` = d; or the arrays of a sparse matrix (n, d) as `scipy.sparse.save_npz` names them. y: (n,). where: the
    name of a boolean array (n,) that picks the rows to use. clip: clip values to their bounds instead of refusing
    them. values: what each class is called in y, if not by its name. Features are called x0, x1, ... Raises DataError
    naming the row and the column.
    """
    arrays = _arrays(path)
    X = _features(path, arrays)
    if "y" not in arrays:
        raise DataError(f"{path.name} has no array 'y' of labels; it has {', '.join(sorted(arrays))}")
    labels = arrays["y"].reshape(-1)
    if len(labels) != len(X):
        raise DataError(f"{path.name}: X has {len(X)} rows and y has {len(labels)}")
    rows = np.arange(len(X))
    if where is not None:
        if where not in arrays or arrays[where].shape != (len(X),) or arrays[where].dtype != np.bool_:
            raise DataError(f"{path.name} has no boolean array {where!r} with one value for each row")
        rows = np.flatnonzero(arrays[where])
    names = tuple(f"x{index}" for index in range(X.shape[1]))
    lower, upper = parse_bounds(bounds, names)
    return check_records(
        X[rows],
        labels[rows],
        Declaration(names, lower, upper, tuple(classes), clips=clip),
        source=[row.tobytes() + str(label).encode() for row, label in zip(X + 0.0, labels, strict=True)],
        clip=clip,
        values=values,
        file_name=path.name,
        row_name=lambda index: f"row {rows[index]}",
    )


def _arrays(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise DataError(f"{path.name} is not an .npz archive of plain arrays: {error}") from error


def _features(path: Path, arrays: Arrays) -> Floats:
    if "X" in arrays:
        X = arrays["X"]
        if X.size == 0:
            raise DataError(f"{path.name}: there are no records in X, whose shape is {X.shape}")
        if X.ndim < 2 or X.dtype.kind not in "biuf":
            raise DataError(f"{path.name}: X must hold numbers in at least two dimensions, not {X.dtype} {X.shape}")
        return np.ascontiguousarray(X.reshape(len(X), -1), dtype=np.float64)
    if "X_packed" in arrays and "n_features" in arrays:
        features = int(np.asarray(arrays["n_features"], dtype=np.int64))
        packed = arrays["X_packed"].astype(np.uint8)
        if packed.ndim != 2 or not 0 < features <= 8 * packed.shape[1]:
            raise DataError(f"{path.name}: X_packed of shape {packed.shape} does not hold {features} features")
        return np.unpackbits(packed, axis=1)[:, :features].astype(np.float64)
    if {"format", "shape", "data", "indices", "indptr"} <= arrays.keys():
        return _sparse(path, arrays)
    raise DataError(f"{path.name} has no array 'X'; it has {', '.join(sorted(arrays))}")


def _sparse(path: Path, arrays: Arrays) -> Floats:
    # SciPy takes a moment to import, and only who reads such an archive should wait for it.
    from scipy import sparse

    kinds = {"csr": sparse.csr_array, "csc": sparse.csc_array}
    kind = bytes(arrays["format"].astype("S").item()).decode("ascii", "replace")
    if kind not in kinds:
        raise DataError(f"{path.name}: a sparse matrix must be in the format csr or csc, not {kind!r}")
    try:
        shape = tuple(int(side) for side in arrays["shape"].astype(np.int64))
        matrix = kinds[kind]((arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        dense: Floats = np.ascontiguousarray(matrix.toarray())
    except (ValueError, TypeError, MemoryError) as error:
        raise DataError(f"{path.name} holds no sparse matrix of numbers: {error}") from error
    if not dense.size:
        raise DataError(f"{path.name}: there are no records in the sparse matrix, whose shape is {dense.shape}")
    return dense
