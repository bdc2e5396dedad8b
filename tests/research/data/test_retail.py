import numpy as np

from research.data import adult, retail
from research.data.labelled import LabelledSet


def test_baskets_are_read_and_never_called_purchase(tmp_path):
    bits = np.random.default_rng(0).integers(2, size=(5, 600)).astype(np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    np.savez(tmp_path / "retail100_proxy.npz", X_packed=np.packbits(bits, axis=1), n_features=600, y=labels)
    data = retail.read(tmp_path)
    assert np.array_equal(data.X, bits)
    assert list(data.y) == list(labels)
    assert "not Purchase-100" in data.source
    assert "purchase" not in data.name


def test_adult_has_104_features_with_dummy_variables():
    """A record in every documented place, and one with a missing work class, which goes."""
    X = np.zeros((3, 14), dtype=np.float32)
    X[0] = 1.0
    X[1] = 1.0
    X[1, 1] = 0.0
    X[2, [1, 6, 13]] = [1 / 8, 1 / 14, 1 / 41]
    found = adult.with_dummy_variables(LabelledSet("adult", X, np.array([1, 0, 1]), 2, "nowhere"))
    assert found.X.shape == (2, 104)
    assert list(found.y) == [1, 1]
    assert list(found.X.sum(axis=1)) == [5 + 8, 8]
