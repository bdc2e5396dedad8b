import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from dpserve.training.bundles.sealing import CERTIFICATE_FILE, MODEL_FILE
from dpserve.training.errors import BundleError
from dpserve.training.features.maps import Fourier
from dpserve.training.kinds.head.bundle import load_bundle, save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head


@pytest.fixture
def folder(head, tmp_path):
    save_bundle(tmp_path / "bundle", head)
    return tmp_path / "bundle"


def change_certificate(folder, **changes):
    path = folder / CERTIFICATE_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, tensors):
    """Change the model and have the certificate agree with the change, as a forger would."""
    with safe_open(folder / MODEL_FILE, framework="numpy") as former:
        model = save(tensors, metadata=former.metadata())
    (folder / MODEL_FILE).write_bytes(model)
    change_certificate(folder, weights_sha256=hashlib.sha256(model).hexdigest())


def test_it_loads_what_it_saved(head, folder):
    loaded = load_bundle(folder)
    assert (loaded.weights == head.weights).all()
    assert loaded.noise_key == head.noise_key
    assert loaded.certificate.model_copy(update={"weights_sha256": "0" * 64}) == head.certificate


def test_only_its_owner_can_read_it(folder):
    assert folder.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())
    assert sorted(file.name for file in folder.iterdir()) == [CERTIFICATE_FILE, MODEL_FILE]


def test_it_is_never_overwritten(head, folder):
    with pytest.raises(BundleError, match="exists already"):
        save_bundle(folder, head)


def test_a_changed_weight_is_found(folder):
    model = bytearray((folder / MODEL_FILE).read_bytes())
    model[-1] ^= 1
    (folder / MODEL_FILE).write_bytes(model)
    with pytest.raises(BundleError, match="changed after it was certified"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format_version": 1}, "format 1, and this version of dpserve reads format 2.*train again"),
        ({"strong_convexity": -1}, "strong_convexity"),
        ({"surprise": 1}, "surprise"),
        ({"classes": ["0", "0", "1"]}, "a class is named twice"),
        ({"feature_names": ["x0"]}, "one pair of bounds"),
    ],
)
def test_a_broken_certificate_is_refused(folder, changes, said):
    change_certificate(folder, **changes)
    with pytest.raises(BundleError, match=said):
        load_bundle(folder)


@pytest.mark.parametrize("field", ["lineage", "name"])
def test_a_certificate_belongs_to_its_weights(folder, field):
    """Nothing but the seal ties these to the weights, and another lineage would be a fresh budget."""
    change_certificate(folder, **{field: "another"})
    with pytest.raises(BundleError, match="not the certificate that these weights were given"):
        load_bundle(folder)


def test_public_tensors_must_be_those_of_the_seed(records, tmp_path):
    lower, upper = records.declaration.lower, records.declaration.upper
    shared = {"lower": lower, "upper": upper, "clip_norm": 1.0, "bias": 0.0}
    feature_map = Fourier(**shared, random_features=4, bandwidth=0.5, seed=5)
    folder = tmp_path / "random"
    save_bundle(folder, train_head(records, Recipe("random", feature_map, 1.0), "lineage-of-tests"))
    load_bundle(folder)
    tensors = load((folder / MODEL_FILE).read_bytes())
    change_tensors(folder, tensors | {"feature_map.omega": tensors["feature_map.omega"] + 1})
    with pytest.raises(BundleError, match="not the one that the public seed draws"):
        load_bundle(folder)


def test_a_forged_model_is_refused(folder):
    tensors = load((folder / MODEL_FILE).read_bytes())
    for forged, said in [
        (tensors | {"weights": tensors["weights"][:1]}, "the certificate describes"),
        (tensors | {"extra": np.zeros(1)}, "the certificate describes"),
        (tensors | {"weights": tensors["weights"].astype(np.float32)}, "float64"),
        (tensors | {"weights": tensors["weights"] * np.nan}, "finite"),
        (tensors | {"weights": tensors["weights"] * 1e9}, "norm is above"),
        (tensors | {"weights": tensors["weights"] + 2.0**-45}, "no multiples of"),
        ({"weights": tensors["weights"]}, "no noise key"),
        (tensors | {"noise_key": tensors["noise_key"][1:]}, "no noise key: a noise key has 32 bytes, not 31"),
    ]:
        change_tensors(folder, forged)
        with pytest.raises(BundleError, match=said):
            load_bundle(folder)


def test_what_is_no_bundle_is_refused(tmp_path, folder):
    with pytest.raises(BundleError, match="is not a bundle"):
        load_bundle(tmp_path)
    (folder / CERTIFICATE_FILE).write_text("{")
    with pytest.raises(BundleError, match="is not a certificate"):
        load_bundle(folder)


def test_a_damaged_model_is_refused(folder):
    (folder / MODEL_FILE).write_bytes(b"damaged")
    change_certificate(folder, weights_sha256=hashlib.sha256(b"damaged").hexdigest())
    with pytest.raises(BundleError, match=r"is damaged: .* Copy the bundle again from where it was trained"):
        load_bundle(folder)


def test_the_noise_key_is_neither_in_the_certificate_nor_printed(head, folder):
    secret = head.noise_key.secret
    certificate = (folder / CERTIFICATE_FILE).read_bytes()
    for written in (secret, secret.hex().encode(), repr(secret).encode()):
        assert written not in certificate
        assert written.decode("latin-1") not in repr(head)
