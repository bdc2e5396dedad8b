"""Every reader on small files in its publisher's format, and on wrong and truncated ones."""

import gzip
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from dpserve.training.errors import DataError
from research.data import adult, benchmarks, cifar, location, mnist
from research.data.labelled import LabelledSet

RNG = np.random.default_rng(0)


def bits(n: int, features: int) -> np.ndarray:
    return RNG.integers(0, 2, size=(n, features))


def binary_csv(path: Path, X: np.ndarray, labels: list[int], quote: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for row, digits in enumerate(X.tolist()):
        lines.append(",".join([f"{quote}{labels[row]}{quote}", *map(str, digits)]))
    path.write_text("\n".join(lines) + "\n")


def edit_line(path: Path, number: int, change: tuple[str, str]) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = lines[number - 1].replace(*change, 1)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", benchmarks.READERS)
def test_what_is_missing_is_named_with_where_it_goes(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"'{name}' is missing: put {tmp_path}"):
        benchmarks.read(name, tmp_path)
    with pytest.raises(ValueError, match=r"no data set 'iris'.*retail-100"):
        benchmarks.read("iris", tmp_path)


# Location: a text file of 0 and 1


def test_location_is_read(tmp_path: Path) -> None:
    X = bits(4, location.FEATURES)
    binary_csv(tmp_path / "bangkok", X, [1, 30, 7, 7], quote='"')
    found = benchmarks.read("location", tmp_path)
    np.testing.assert_array_equal(found.X, X)
    assert found.y.tolist() == [0, 29, 6, 6]
    assert (found.classes, found.X.dtype) == (30, np.float32)


def test_location_is_read_from_npz(tmp_path: Path) -> None:
    X = bits(3, location.FEATURES).astype(np.uint8)
    np.savez(
        tmp_path / "location30.npz", X_packed=np.packbits(X, axis=1), n_features=np.int32(446), y=np.uint8([0, 5, 29])
    )
    found = benchmarks.read("location", tmp_path)
    np.testing.assert_array_equal(found.X, X)
    assert found.y.tolist() == [0, 5, 29]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"7"', '"31"'), r"bangkok, line 3: label '31' is not in 1\.\.30"),
        ((",0,", ",2,"), r"bangkok, line 3, column \d+: '2' is neither 0 nor 1"),
        ((",0,", ","), r"bangkok, line 3: 445 features, not 446; a truncated file"),
    ],
)
def test_a_wrong_line_is_named(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "bangkok"
    binary_csv(path, bits(4, location.FEATURES), [1, 30, 7, 7], quote='"')
    edit_line(path, 3, change)
    with pytest.raises(DataError, match=said):
        location.read(tmp_path)


# Adult

ADULT_LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, {}"
)


def adult_files(directory: Path) -> None:
    train = [
        ADULT_LINE.format("United-States, <=50K"),
        ADULT_LINE.replace("State-gov", "?").format("Outlying-US(Guam-USVI-etc), >50K"),
    ]
    (directory / "adult.data").write_text("\n".join(train) + "\n\n")
    (directory / "adult.test").write_text("|1x3 Cross validator\n" + ADULT_LINE.format("?, >50K.") + "\n")


def test_adult_is_read(tmp_path: Path) -> None:
    adult_files(tmp_path)
    found = benchmarks.read("adult", tmp_path)
    assert found.X.shape == (3, 14)
    assert found.y.tolist() == [0, 1, 1]
    assert found.X[0, 0] == pytest.approx((39 - 17) / 73)
    assert found.X[:, 1].tolist() == pytest.approx([7 / 8, 0, 7 / 8])
    assert found.X[2, 13] == 0


def test_adult_from_npz_is_the_same_set(tmp_path: Path) -> None:
    adult_files(tmp_path)
    from_text = benchmarks.read("adult", tmp_path)
    (tmp_path / "adult.data").unlink()
    numbers = {
        "age": 39,
        "fnlwgt": 77516,
        "education-num": 13,
        "capital-gain": 2174,
        "capital-loss": 0,
        "hours-per-week": 40,
    }
    categories = {
        "workclass": ["State-gov", "?", "State-gov"],
        "education": ["Bachelors"] * 3,
        "marital-status": ["Never-married"] * 3,
        "occupation": ["Adm-clerical"] * 3,
        "relationship": ["Not-in-family"] * 3,
        "race": ["White"] * 3,
        "sex": ["Male"] * 3,
        "native-country": ["United-States", "Outlying-US(Guam-USVI-etc)", "?"],
    }
    levels = {name: sorted(set(values)) for name, values in categories.items()}
    np.savez(
        tmp_path / "adult.npz",
        X_num=np.int32([list(numbers.values())] * 3),
        num_names=np.array(list(numbers)),
        X_cat=np.uint8([[levels[name].index(categories[name][row]) for name in categories] for row in range(3)]),
        cat_names=np.array(list(categories)),
        y=np.uint8([0, 1, 1]),
        **{f"levels_{name}": np.array(values) for name, values in levels.items()},
    )
    found = benchmarks.read("adult", tmp_path)
    np.testing.assert_allclose(found.X, from_text.X)
    assert found.y.tolist() == from_text.y.tolist()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("39", "16"), r"adult\.data, line 2, column 'age': '16' is not a whole number in 17\.\.90"),
        (("Bachelors", "Batchelors"), r"line 2, column 'education': 'Batchelors'"),
        ((">50K", ">50"), r"line 2: label '>50'"),
        ((", 40", ""), r"line 2: 14 values, not 15; a truncated file"),
    ],
)
def test_a_wrong_line_of_adult_is_named(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    adult_files(tmp_path)
    edit_line(tmp_path / "adult.data", 2, change)
    with pytest.raises(DataError, match=said):
        adult.read(tmp_path)


# MNIST


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def mnist_files(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = RNG.integers(0, 256, size=(5, 28, 28)), np.array([0, 9, 3, 4, 4])
    (directory / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:3])))
    (directory / "train-labels-idx1-ubyte").write_bytes(idx(labels[:3]))
    (directory / "t10k-images.idx3-ubyte").write_bytes(idx(images[3:]))
    (directory / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[3:])))
    return images, labels


def test_mnist_is_read_gzipped_or_not(tmp_path: Path) -> None:
    images, labels = mnist_files(tmp_path)
    found = benchmarks.read("mnist", tmp_path)
    np.testing.assert_allclose(found.X, images.reshape(5, 784) / 255, rtol=1e-6)
    assert found.y.tolist() == labels.tolist()


def test_mnist_is_read_from_npz(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, size=(2, 28, 28)).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", X=images, y=np.uint8([1, 2]))
    np.testing.assert_allclose(mnist.read(tmp_path).X, images.reshape(2, 784) / 255, rtol=1e-6)


def test_wrong_idx_files_are_named(tmp_path: Path) -> None:
    mnist_files(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    for content, said in (
        (whole[:-1], "train-labels-idx1-ubyte: 11 bytes are announced but 10 are there; a truncated file"),
        (b"\x00\x00\x0d\x01" + whole[4:], "train-labels-idx1-ubyte, byte 0: no IDX file"),
        (b"", "byte 0"),
        (idx(np.array([1, 2])), "3 images and .* 2 labels"),
        (idx(np.array([1, 2, 10])), "record 3: label 10"),
    ):
        labels.write_bytes(content)
        with pytest.raises(DataError, match=said):
            mnist.read(tmp_path)
    compressed = tmp_path / "train-images-idx3-ubyte.gz"
    compressed.write_bytes(compressed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cannot be read, truncated"):
        mnist.read(tmp_path)


# CIFAR


def cifar_batch(path: Path, key: bytes, labels: list[int]) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = RNG.integers(0, 256, size=(len(labels), 3072)).astype(np.uint8)
    path.write_bytes(pickle.dumps({b"data": data, key: labels, b"batch_label": b"one"}, protocol=2))
    return data


def cifar_10_files(directory: Path) -> list[Path]:
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return [directory / "cifar-10-batches-py" / name for name in names]


def test_cifar_10_is_read(tmp_path: Path) -> None:
    data = [cifar_batch(path, b"labels", [0, 9]) for path in cifar_10_files(tmp_path)]
    found = benchmarks.read("cifar-10", tmp_path)
    np.testing.assert_allclose(found.X, np.concatenate(data) / 255, rtol=1e-6)
    assert found.y.tolist() == [0, 9] * 6


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    paths = cifar_10_files(tmp_path)
    for path in paths:
        cifar_batch(path, b"labels", [1])

    class Calls:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (print, ("this must never be printed",))

    paths[2].write_bytes(pickle.dumps({b"data": Calls()}, protocol=2))
    with pytest.raises(DataError, match=r"data_batch_3: no readable batch.*builtin.*print"):
        cifar.read_10(tmp_path)


def test_wrong_batches_are_named(tmp_path: Path) -> None:
    paths = cifar_10_files(tmp_path)
    for path in paths:
        cifar_batch(path, b"labels", [1, 2])
    whole = paths[4].read_bytes()
    for content, said in (
        (whole[: len(whole) // 2], "data_batch_5: no readable batch, truncated"),
        (b"", "data_batch_5: no readable batch"),
        (pickle.dumps([1]), "data_batch_5: a batch is a dictionary, not list"),
        (pickle.dumps({b"data": np.zeros((1, 5), np.uint8)}, protocol=2), r"data_batch_5: 'data' must be \(n, 3072\)"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)}, protocol=2), "data_batch_5: 'labels' must list"),
    ):
        paths[4].write_bytes(content)
        with pytest.raises(DataError, match=said):
            cifar.read_10(tmp_path)


def test_lossy_cifar_says_so(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    buffers = []
    for level in (10, 200):
        buffer = io.BytesIO()
        image_module.fromarray(np.full((32, 32, 3), level, dtype=np.uint8)).save(buffer, "JPEG", quality=75)
        buffers.append(buffer.getvalue())
    assert buffers[0][:100] == buffers[1][:100]
    header, streams = buffers[0][:100], [buffer[100:] for buffer in buffers]
    arrays = {
        "header": np.frombuffer(header, dtype=np.uint8),
        "data": np.frombuffer(b"".join(streams), dtype=np.uint8),
        "lengths": np.uint16([len(stream) for stream in streams]),
        "y": np.uint8([3, 4]),
    }
    np.savez(tmp_path / "cifar10_jpeg.npz", **arrays)
    found = benchmarks.read("cifar-10", tmp_path)
    assert "lossy" in found.source
    np.testing.assert_allclose(found.X, np.repeat([[10 / 255], [200 / 255]], 3072, axis=1), atol=0.02)
    np.savez(tmp_path / "cifar10_jpeg.npz", **(arrays | {"lengths": np.uint16([5, 5])}))
    with pytest.raises(DataError, match="lengths add up to 10"):
        cifar.read_10(tmp_path)


# .npz files in general


def test_wrong_npz_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "location30.npz"
    whole = {"X_packed": np.zeros((1, 56), np.uint8), "n_features": np.int32(446), "y": np.uint8([1])}
    for wrong, said in (
        ({"X_packed": None}, r"location30\.npz: there is no array 'X_packed'"),
        ({"X_packed": np.zeros((1, 5), np.uint8)}, "need 56 bytes"),
        ({"n_features": np.int32(9)}, "has 446 features"),
        ({"y": np.uint8([1, 2])}, "do not fit"),
        ({"X_packed": np.array([{}], dtype=object)}, "no readable"),
    ):
        np.savez(path, **{name: array for name, array in (whole | wrong).items() if array is not None})
        with pytest.raises(DataError, match=said):
            location.read(tmp_path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"location30\.npz: no readable \.npz file, truncated"):
        location.read(tmp_path)


def test_a_set_checks_itself() -> None:
    with pytest.raises(DataError, match="no records"):
        LabelledSet("x", np.zeros((0, 2), np.float32), np.zeros(0, np.int64), 2, "file")
    with pytest.raises(DataError, match=r"\[0, 1\] once scaled"):
        LabelledSet("x", np.full((1, 2), 2, np.float32), np.zeros(1, np.int64), 2, "file")
