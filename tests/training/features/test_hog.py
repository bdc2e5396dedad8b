import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.features import hog
from dpserve.training.features.maps import Hog, HogFourier
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.class_sums.bundle import save_class_sums
from dpserve.training.kinds.class_sums.train import train_class_sums
from dpserve.training.kinds.dpsgd.bundle import save_dpsgd
from dpserve.training.kinds.dpsgd.choices import Choices
from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd
from dpserve.training.kinds.head.bundle import save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.train import release_weights
from tests.seeded import Seeded
from tests.training.features.lengths import squared_length


def map_of(*shape, low=0.0, high=255.0, bias=0.0, centred=False):
    columns = shape[0] * shape[1] * shape[2]
    return Hog(lower=(low,) * columns, upper=(high,) * columns, bias=bias, image_shape=shape, centred=centred)


def map_with_waves(*shape, low=0.0, high=255.0, bias=0.0):
    declared = {"lower": (low,) * int(np.prod(shape)), "upper": (high,) * int(np.prod(shape)), "image_shape": shape}
    return HogFourier(**declared, bias=bias, random_features=10, bandwidth=0.5, seed=3)


MAPS = [
    map_of(12, 14, 1, bias=0.3),
    map_of(15, 12, 3, low=-1.0, high=1.0),
    map_of(28, 28, 1),
    map_of(28, 28, 1, centred=True),
    map_of(15, 12, 3, low=-1.0, high=1.0, bias=0.3, centred=True),
    map_with_waves(28, 28, 1),
    map_with_waves(15, 37, 3, low=-1.0, high=1.0, bias=0.3),
]
IDS = ["grey", "colour", "digit", "centred digit", "centred colour", "digit with waves", "colour with waves"]


def mapped(feature_map, X):
    return feature_map(X, feature_map.public_tensors())


def images(feature_map, count, seed=0):
    """Noise, noise in two shades, and an image of one shade."""
    generator = np.random.default_rng(seed)
    lower, upper = np.array(feature_map.lower), np.array(feature_map.upper)
    X = generator.uniform(lower, upper, (count, len(lower)))
    X[::2] = lower + (upper - lower) * (X[::2] > upper / 2)
    X[0] = upper
    return X


@pytest.mark.parametrize("feature_map", MAPS, ids=IDS)
@settings(max_examples=100, derandomize=True, deadline=None)
@given(data=st.data())
def test_no_row_is_longer_than_one(feature_map, data):
    values = st.floats(allow_nan=False) | st.sampled_from([0.0, 1.0, 255.0])
    row = data.draw(arrays(np.float64, (1, len(feature_map.lower)), elements=values))
    phi = mapped(feature_map, row)
    assert phi.shape == (1, feature_map.dimension)
    assert squared_length(phi[0]) <= 1


@pytest.mark.parametrize("feature_map", MAPS, ids=IDS)
def test_no_image_is_longer_than_one(feature_map):
    for row in mapped(feature_map, images(feature_map, 40)):
        length = squared_length(row)
        assert length <= 1
        assert length >= Fraction(1) - Fraction(1, 2**12) or not row[:-1].any()


@pytest.mark.parametrize("feature_map", MAPS, ids=IDS)
def test_a_row_is_mapped_alike_alone_and_in_any_batch(feature_map):
    X = images(feature_map, 400)  # more of them than are computed at once, of digits
    phi = mapped(feature_map, X) + 0.0
    order = np.random.default_rng(1).permutation(len(X))
    assert (mapped(feature_map, X[order]) + 0.0).tobytes() == phi[order].tobytes()
    for index in range(0, len(X), 7):
        assert (mapped(feature_map, X[index : index + 1]) + 0.0).tobytes() == phi[index].tobytes()


def test_no_kernel_or_instruction_set_changes_a_bit():
    program = (
        "import hashlib, numpy as np; from tests.training.features.test_hog import MAPS, images, mapped\n"
        "for each in MAPS: print(hashlib.sha256((mapped(each, images(each, 50)) + 0.0).tobytes()).hexdigest())"
    )
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(found), "OPENBLAS_CORETYPE": "Prescott"}
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | more, capture_output=True, text=True, check=True
        ).stdout
        for more in ({}, plain)
    ]
    assert printed[0] == printed[1]
    # A question keeps its noise for ever: a change needs another `NOISE_VERSION`.
    first = ["c3d6e792d69ea336", "ab8f0cfaa372b1b0", "375ef0ac9cde1820", "bb2fde8fe3b7f896", "20d319c82001beb1"]
    first += ["c1ce959f44ecc18e", "1d8e0ec3664f85d9"]
    assert [each[:16] for each in printed[0].split()] == first


def test_brightness_changes_nothing_and_contrast_little():
    feature_map = map_of(28, 28, 1)
    X = np.random.default_rng(2).integers(0, 100, (5, 784)).astype(float)
    phi = feature_map(X, {})
    assert (feature_map(X + 50, {}) == phi).all()
    np.testing.assert_allclose(feature_map(2 * X, {}), phi, atol=0.01)


@pytest.mark.parametrize("centred", [False, True])
def test_an_image_of_one_shade_has_no_gradients(centred):
    assert not map_of(28, 28, 1, centred=centred)(np.full((1, 784), 77.0), {}).any()


def test_the_colours_of_an_image_of_one_shade_are_left():
    gradients = hog.width_of((12, 12, 3)) - 256
    phi = map_of(12, 12, 3)(np.full((1, 432), 77.0), {})[0]
    assert not phi[:gradients].any()
    assert (phi > 0).sum() == 4


def test_the_numbers_of_a_block_are_centred_exactly():
    feature_map = MAPS[-1]
    u = (images(feature_map, 20) + 1) / 2
    b = hog.centred(hog.described(u, feature_map.image_shape), feature_map.image_shape)
    edges, colours = b[:, :-256].reshape(20, 32, -1), b[:, -256:].reshape(20, 4, 64)
    assert not any(sum(map(Fraction, edges[row, :, block])) for row in range(20) for block in range(edges.shape[2]))
    assert not any(sum(map(Fraction, quarter)) for row in colours for quarter in row)


def test_only_a_centred_map_s_certificate_says_so():
    assert "centred" not in MAPS[2].model_dump()
    assert MAPS[3].model_dump()["centred"]


def test_the_documented_width():
    assert map_of(28, 28, 1).dimension == 801
    assert map_of(32, 32, 3).dimension == 36 * 32 + 256 + 1


@pytest.mark.parametrize(
    ("shape", "columns", "said"),
    [
        ((28, 28, 2), 1568, "images have 1 channel or 3, not 2"),
        ((28, 11, 1), 308, "at least 12 pixels high and wide, not 28 by 11"),
        ((28, 28, 1), 783, "28 by 28 pixels and 1 channel have 784 values, and a record has 783"),
        ((28, 28, 3), 784, "28 by 28 pixels and 3 channels have 2,352 values, and a record has 784"),
        ((-28, -28, 1), 784, "at least 12"),
        ((1025, 1024, 1), 12, "up to 1,048,576 pixels"),
    ],
)
def test_a_shape_that_the_rows_do_not_have_is_refused(shape, columns, said):
    with pytest.raises(ValidationError, match=said):
        Hog(lower=(0.0,) * columns, upper=(1.0,) * columns, bias=0.0, image_shape=shape)


def some_records(feature_map):
    """Two classes: shades across, and shades down."""
    generator = np.random.default_rng(5)
    y = generator.integers(2, size=200)
    ramp = np.linspace(0, 200, 12)
    shades = np.where(y[:, None, None] == 1, ramp[:, None], ramp) + generator.uniform(0, 55, (200, 12, 12))
    names = tuple(f"p{index}" for index in range(144))
    return Records(
        shades.reshape(200, 144), y, Declaration(names, feature_map.lower, feature_map.upper, ("a", "d")), ()
    )


def trained(kind, records, feature_map, folder):
    words, price = Seeded(0), whole_picorho("rho:2")
    match kind:
        case "class-sums":
            return save_class_sums(folder, train_class_sums(records, "m", feature_map, price, "l", words))
        case "dpsgd":
            choices = Choices(records_declared=200, sampling_rate=0.2, steps=20, learning_rate=0.5)
            return save_dpsgd(folder, train_dpsgd(records, DpSgdRecipe("m", feature_map, choices, price), "l", words))
    head = train_head(records, Recipe("m", feature_map, 1.0), "l")
    if kind == "head":
        return save_bundle(folder, head)
    return save_weights(folder, release_weights(head, price, "l", words))


@pytest.mark.parametrize("kind", ["head", "centred head", "class-sums", "weights", "dpsgd"])
def test_every_kind_of_model_stands_on_it(kind, tmp_path):
    feature_map = map_of(12, 12, 1, centred=kind.startswith("centred"))
    kind = kind.removeprefix("centred ")
    records = some_records(feature_map)
    trained(kind, records, feature_map, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.certificate.feature_map == feature_map
    answers = model.logits(model.features(records.X)) if kind == "head" else None
    if answers is None:
        answers = model.values(records.X)
    assert (answers.argmax(axis=1) == records.y).mean() > 0.9
