import numpy as np
import pytest
from scipy import sparse

from dpserve.training.errors import DataError
from dpserve.training.inputs.npz_file import read_npz

X = np.arange(12.0).reshape(3, 2, 2)
Y = np.array([0, 1, 0])


def read(tmp_path, where=None, **arrays):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return read_npz(path, classes=("0", "1"), bounds=("0:11",), where=where)


def test_it_reads_and_flattens_records(tmp_path):
    records = read(tmp_path, X=X.astype(np.uint8), y=Y)
    assert records.X.tolist() == X.reshape(3, 4).tolist()
    assert records.declaration.feature_names == ("x0", "x1", "x2", "x3")


def test_it_unpacks_bits(tmp_path):
    bits = np.random.default_rng(0).integers(2, size=(3, 11))
    records = read(tmp_path, X_packed=np.packbits(bits.astype(np.uint8), axis=1), n_features=np.array(11), y=Y)
    assert records.X.tolist() == bits.tolist()


def test_it_picks_rows(tmp_path):
    records = read(tmp_path, where="is_train", X=X, y=Y, is_train=np.array([False, True, True]))
    assert records.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": Y}, "has no array 'X'; it has y"),
        ({"X": X}, "has no array 'y' of labels; it has X"),
        ({"X": X, "y": Y[:2]}, "X has 3 rows and y has 2"),
        ({"X": X * 2, "y": Y}, "row 1, column 'x2': 12 is above the declared bound 11"),
        ({"X": np.where(X == 0, np.nan, X), "y": Y}, "row 0, column 'x0': nan is not a finite number"),
        ({"X": X, "y": Y + 1}, "row 1: label '2' is not one of the declared classes 0, 1"),
        ({"X": np.array(["a", "b", "c"]), "y": Y}, "X must hold numbers"),
        ({"X_packed": np.zeros((3, 1), np.uint8), "n_features": np.array(9), "y": Y}, "does not hold 9 features"),
        ({"X": X[:0], "y": Y[:0]}, "there are no records"),
    ],
)
def test_errors_name_the_place(tmp_path, arrays, said):
    with pytest.raises(DataError, match=said):
        read(tmp_path, **arrays)


def test_pickled_objects_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"not an .npz archive of plain arrays"):
        read(tmp_path, X=np.array([{}, {}, {}], dtype=object), y=Y)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"not an .npz archive"):
        read_npz(tmp_path / "text.npz", classes=("0", "1"), bounds=("0:1",))
    with pytest.raises(DataError, match="cannot read"):
        read_npz(tmp_path / "none.npz", classes=("0", "1"), bounds=("0:1",))


def test_an_unknown_mask_is_refused(tmp_path):
    with pytest.raises(DataError, match="no boolean array 'is_train'"):
        read(tmp_path, where="is_train", X=X, y=Y)


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_it_reads_a_sparse_matrix(tmp_path, kind):
    values = np.random.default_rng(0).random((20, 7))
    X = sparse.csr_array(np.where(values < 0.3, values, 0.0)).asformat(kind)
    sparse.save_npz(tmp_path / "sparse.npz", X)
    with np.load(tmp_path / "sparse.npz") as saved:
        np.savez(tmp_path / "own.npz", **saved, y=np.arange(20) % 2)
    records = read_npz(tmp_path / "own.npz", classes=("0", "1"), bounds=("0:1",))
    np.testing.assert_array_equal(records.X, X.toarray())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": b"coo"}, "must be in the format csr or csc, not 'coo'"),
        ({"indices": np.array([9, 0])}, "holds no sparse matrix"),
        ({"indptr": np.array([0, 9, 1])}, "holds no sparse matrix"),
        ({"shape": np.array([2, 10**12])}, "holds no sparse matrix"),
        ({"data": np.array(["a", "b"])}, "holds no sparse matrix"),
    ],
)
def test_a_damaged_sparse_matrix_is_refused(tmp_path, changes, said):
    good = {"format": b"csr", "shape": np.array([2, 3]), "data": np.ones(2), "indices": np.array([0, 1])}
    np.savez(tmp_path / "own.npz", **good | {"indptr": np.array([0, 1, 2])} | changes, y=[0, 1])
    with pytest.raises(DataError, match=said):
        read_npz(tmp_path / "own.npz", classes=("0", "1"), bounds=("0:1",))
