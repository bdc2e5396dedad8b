import os
import subprocess
import sys
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from dpserve.mechanisms.gaussian_vector import whole_picorho
from dpserve.training.features import hog
from dpserve.training.features.maps import Hog, HogFourier
from dpserve.training.features.whole_steps import STEP
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
    assert sum(Fraction(value) ** 2 for value in phi[0]) <= 1
    assert all((Fraction(value) / Fraction(STEP)).denominator == 1 for value in phi[0])


@pytest.mark.parametrize("feature_map", MAPS, ids=IDS)
def test_no_image_is_longer_than_one(feature_map):
    for row in mapped(feature_map, images(feature_map, 40)):
        length = sum(Fraction(value) ** 2 for value in row)
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


@pytest.mark.parametrize("feature_map", MAPS, ids=IDS)
def test_features_are_those_of_the_formula_but_for_their_steps(feature_map):
    for x, phi in zip(images(feature_map, 4), mapped(feature_map, images(feature_map, 4)), strict=True):
        with mpmath.workdps(40):
            off = mpmath.norm([mpmath.mpf(value) - e for value, e in zip(phi, exact(feature_map, x), strict=True)])
        table = np.pi * 2.0**-16 if isinstance(feature_map, HogFourier) else 0.0  # half of one of 2^16 angles
        assert off <= np.sqrt(feature_map.dimension) * STEP + 2.0**-22 + table


def exact(feature_map, x):
    """phi, pixel by pixel and in as many digits as it takes."""
    height, width, channels = feature_map.image_shape
    low, high = feature_map.lower[0], feature_map.upper[0]
    pixels = [round(float((value - low) / (high - low) * 1020)) for value in x]

    def pixel(row, column, channel):
        return pixels[(row * width + column) * channels + channel]

    def directed(numbers):
        length = mpmath.norm(numbers)
        return [value / length if length else value for value in numbers]

    blocks = blocks_of(cells_of(pixel, *feature_map.image_shape))
    b = [block[cell][direction] for cell in range(4) for direction in range(8) for block in blocks]
    if channels == 3:
        b += colours(pixel, height, width, len(blocks))
    if isinstance(feature_map, HogFourier):
        b = directed(b)
        omega = feature_map.public_tensors()["omega"]
        angles = [2 * mpmath.pi * mpmath.fsum(map(mpmath.fmul, map(mpmath.mpf, row), b)) for row in omega.tolist()]
        waves = [wave(angle) for wave in (mpmath.cos, mpmath.sin) for angle in angles]
        b = b + directed(means(pixel, height, width, channels)) + directed(waves)
    elif feature_map.centred:
        parts = [range(block, 32 * len(blocks), len(blocks)) for block in range(len(blocks))]
        parts += [range(start, start + 64) for start in range(32 * len(blocks), len(b), 64)]
        for part in parts:
            mean = mpmath.fsum(b[place] for place in part) / len(part)
            for place in part:
                b[place] -= mean
    bias, shrink = mpmath.mpf(feature_map.bias), 1 - mpmath.mpf(2) ** -30
    return [value * mpmath.sqrt(1 - bias**2) * shrink for value in directed(b)] + [bias * shrink]


def means(pixel, height, width, channels):
    """The mean of the pixels in each cell of a grid of at most 16 a side, by channels."""
    down, across = min(height // 2, 16), min(width // 2, 16)
    cells = {cell: [] for cell in product(range(down), range(across), range(channels))}
    for row, column, channel in product(range(height), range(width), range(channels)):
        cells[row * down // height, column * across // width, channel].append(pixel(row, column, channel))
    return [mpmath.mpf(sum(values)) / len(values) for values in cells.values()]


def cells_of(pixel, height, width, channels):
    """The votes in each cell, by the row and the column where it begins."""

    def starts(side):
        return range((side - 8) % 4 // 2, side - 7, 4)

    def gradient(row, column, channel):
        across = pixel(row, column + 1, channel) - pixel(row, column - 1, channel)
        return across, pixel(row + 1, column, channel) - pixel(row - 1, column, channel)

    cells = {(r, c): [0] * 8 for r in starts(height) for c in starts(width)}
    for row, column in product(range(1, height - 1), range(1, width - 1)):
        each = [gradient(row, column, channel) for channel in range(channels)]
        voted = votes(*max(each, key=lambda one: one[0] ** 2 + one[1] ** 2))
        for (r, c), cell in cells.items():
            weight = hat(row - r) * hat(column - c)
            for direction, vote in voted.items():
                cell[direction] += weight * vote
    return cells


def blocks_of(cells):
    """Return the four cells of each block, with the roots of their shares."""
    blocks = []
    for r, c in cells:
        if (r + 4, c + 4) in cells:
            four = [cells[each] for each in ((r, c), (r, c + 4), (r + 4, c), (r + 4, c + 4))]
            whole = sum(map(sum, four)) + 5 * 32**2 * 1020 // 50
            blocks.append([[mpmath.sqrt(mpmath.mpf(each) / whole) for each in cell] for cell in four])
    return blocks


def hat(place):
    return max(2 * min(place, 7 - place) + 1, 0)


def votes(x, y):
    """Return the parts of (x, y) in the two of eight directions between which it lies, 7/5 being sqrt(2)."""
    around = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
    for first in range(8):
        (a, b), (c, d) = around[first], around[(first + 1) % 8]
        one, other = (x * d - y * c) / (a * d - b * c), (a * y - b * x) / (a * d - b * c)
        if one >= 0 and other >= 0:
            lengths = {first: one, (first + 1) % 8: other}
            return {each: int(value) * (7 if each % 2 else 5) for each, value in lengths.items()}
    raise AssertionError


def colours(pixel, height, width, blocks):
    counts = [0] * 256
    for row in range(height):
        for column in range(width):
            red, green, blue = (min(pixel(row, column, channel) * 4 // 1020, 3) for channel in range(3))
            quarter = 2 * (row * 2 // height) + column * 2 // width
            counts[64 * quarter + red + 4 * green + 16 * blue] += 1
    scale = mpmath.mpf(hog.COLOUR_SHARE) * mpmath.sqrt(mpmath.mpf(blocks) / (height * width))
    return [mpmath.sqrt(count) * scale for count in counts]


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
        answers = model.probabilities(records.X)
    assert (answers.argmax(axis=1) == records.y).mean() > 0.9
