"""Products on PyTorch's devices have NumPy's bits: each by itself, and in the answers of every kind of model."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.laplace import Laplace
from dpserve.mechanisms.published import Published
from dpserve.mechanisms.selected_neuron import SelectedNeuron
from dpserve.training import devices
from dpserve.training.devices import (
    NUMPY,
    TorchArithmetic,
    TorchMatrix,
    arithmetic_on,
    matrices,
    product,
    training_device,
)
from dpserve.training.errors import TrainingError
from dpserve.training.exact import products as grids
from dpserve.training.exact.network import exact_layers, logits, placed, rounded
from dpserve.training.exact.quantised import products, summands
from dpserve.training.features.maps import Bins, Fourier, Identity, Quantiles
from dpserve.training.kinds.head.bundle import save_bundle
from dpserve.training.kinds.kind import Job
from dpserve.training.kinds.loading import computed_by, load_model
from dpserve.training.kinds.published.bundle import PublishedNetwork
from dpserve.training.kinds.published.train import train_published
from dpserve.training.kinds.registry import train_and_save
from dpserve.training.pay_once.model import CentredProducts, ReleasedModel
from dpserve.training.pay_once.model import rounded as released
from dpserve.training.watchers import Unwatched
from tests.training.answering import answers
from tests.training.conftest import make_records, terms
from tests.training.exact.test_network import layers_of
from tests.training.exact.test_products import EXPONENTS, made
from tests.training.exact.test_quantised import hardest
from tests.training.exact.test_questions import published

SHARED = {"lower": (0.0,) * 4, "upper": (1.0,) * 4, "bias": 0.3}
MAPS = {
    "identity": Identity(**SHARED, clip_norm=0.9),
    "fourier": Fourier(**SHARED, clip_norm=0.9, random_features=300, bandwidth=0.4, seed=1),
    "bins": Bins(**SHARED),
    "quantiles": Quantiles(**SHARED),
}
METERED = {
    **{f"head-{name}": (None, name, {"lam": 0.1}) for name in MAPS},
    "convexified": (None, "identity", {"lam": 10.0, "objective": "convexified", "alpha": 0.01, "least_records": 50}),
}
PAY_ONCE = {
    "class-sums": ("class-sums", "fourier", {"price": "rho:0.5"}),
    "class-sums-continued": ("class-sums", "identity", {"price": "rho:4", "n": 2000}),
    "weights": ("weights", "fourier", {"lam": 1.0, "price": "rho:0.3"}),
    "dpsgd": ("dpsgd", "fourier", {"price": "rho:0.5", "n": 60, "steps": 5}),
    "dpsgd-network": ("dpsgd", "bins", {"price": "rho:0.5", "n": 60, "steps": 5, "hidden": 12}),
}
MECHANISMS = (Gaussian(2.0), Laplace(0.5), SelectedNeuron(0.25, Gaussian(2.0).cost.losses[0]))


@pytest.fixture(scope="session")
def bundles(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("kinds"), make_records()
    for name, (kind, feature_map, options) in (METERED | PAY_ONCE).items():
        own, more = terms(kind, options)
        job = Job(records, "model", "lineage", MAPS[feature_map], folder / name, folder / "state", Unwatched(), **more)
        train_and_save(own, job)
    return folder


def rows_beside(bounds, n=300):
    """Rows within and beyond the declared bounds."""
    generator = np.random.default_rng(4)
    return generator.uniform(np.asarray(bounds.lower) - 0.25, np.asarray(bounds.upper) + 0.25, (n, len(bounds.lower)))


@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.integers(1, 4),
    dimension=st.sampled_from([1, 2, 17, 64, 500]),
    shape=st.sampled_from(["even", "one", "random"]),
    copies=st.sampled_from([1, 3, 40]),
)
def test_a_heads_logits_have_the_same_bits(torch_arithmetic, seed, classes, dimension, shape, copies):
    weights, phi = hardest(np.random.default_rng(seed), classes, dimension, shape)
    questions = np.tile(phi, (copies, 1))
    questions[1::2] *= -1
    parts = summands(weights)
    assert products(questions, torch_arithmetic.matrix(parts)).tobytes() == products(questions, parts).tobytes()


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 40),
    exponent=EXPONENTS,
    other=EXPONENTS,
    spread=st.sampled_from([0, 2, 60]),
)
def test_products_on_grids_are_the_exact_numbers_there_too(torch_arithmetic, seed, width, exponent, other, spread):
    rows = grids.on_grid(made(seed, (3, width), exponent, spread))
    matrix = grids.matrix_on_grid(made(seed + 1, (width, 2), other, spread))
    found = grids.product(rows, torch_arithmetic.matrix(matrix))
    for row, answered in zip(rows.tolist(), found.tolist(), strict=True):
        for column, value in zip(matrix.T.tolist(), answered, strict=True):
            assert Fraction(value) == sum(Fraction(a) * Fraction(b) for a, b in zip(row, column, strict=True))
    assert found.tobytes() == grids.product(rows, matrix).tobytes()


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize("scale", [0.1, 1e3, 1e300])
def test_a_networks_logits_have_the_same_bits(torch_arithmetic, activation, scale):
    generator = np.random.default_rng(0)
    layers = exact_layers(layers_of(generator, (40, 33, 20, 5), scale))
    inputs = rounded(generator.uniform(-1, 1, (100, 40)))
    assert (
        logits(placed(layers, torch_arithmetic), inputs, activation).tobytes()
        == logits(layers, inputs, activation).tobytes()
    )


@given(seed=st.integers(0, 10**6), exponent=st.integers(-300, 300))
def test_released_matrices_and_directions_have_the_same_bits(torch_arithmetic, seed, exponent):
    generator = np.random.default_rng(seed)
    feature_map = MAPS["fourier"]
    phi = feature_map(generator.uniform(size=(20, 4)), feature_map.public_tensors())
    matrix = released(generator.normal(size=(3, 301)) * np.exp2(exponent + generator.integers(-30, 30, (3, 1))))
    assert product(phi, torch_arithmetic.matrix(matrix).T).tobytes() == product(phi, matrix.T).tobytes()
    mean = phi.mean(axis=0)
    here, moved = (
        CentredProducts.mean(mean, matrix, arithmetic).products(phi) for arithmetic in (NUMPY, torch_arithmetic)
    )
    assert here.tobytes() == moved.tobytes()


def test_features_have_the_same_bits(torch_arithmetic):
    feature_map, X = MAPS["fourier"], rows_beside(MAPS["fourier"])
    tensors = feature_map.public_tensors()
    assert feature_map(X, matrices(torch_arithmetic, tensors)).tobytes() == feature_map(X, tensors).tobytes()


@pytest.mark.parametrize("name", METERED)
def test_metered_models_answer_alike_with_noise_and_digests(torch_arithmetic, bundles, name):
    model = load_model(bundles / name)
    moved, X = computed_by(model, torch_arithmetic), rows_beside(model.certificate.feature_map)
    for mechanism in MECHANISMS:
        assert answers(moved, mechanism, X) == answers(model, mechanism, X)
        assert answers(moved, mechanism, X[:1]) == answers(model, mechanism, X)[:1]


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_published_networks_answer_alike_with_noise_and_digests(torch_arithmetic, activation):
    model = published(make_records(), activation)
    moved, X = computed_by(model, torch_arithmetic), rows_beside(model.certificate.feature_map)
    assert isinstance(moved, PublishedNetwork)
    for noise in ("laplace", "gaussian"):
        mechanism = Published(3, 1.0, noise)
        assert answers(moved, mechanism, X) == answers(model, mechanism, X)


@pytest.mark.parametrize("name", PAY_ONCE)
def test_pay_once_models_answer_alike(torch_arithmetic, bundles, name):
    model = load_model(bundles / name)
    moved, X = computed_by(model, torch_arithmetic), rows_beside(model.certificate.feature_map)
    assert isinstance(moved, ReleasedModel)
    assert isinstance(moved.arithmetic, TorchArithmetic)
    for n in (1, 2, 300):
        (expected, noise), (found, also) = model.answers(X[:n]), moved.answers(X[:n])
        assert found.tobytes() == expected.tobytes()
        assert repr(also) == repr(noise)


def test_no_product_is_minus_zero(torch_arithmetic):
    rows = np.array([[0.0, 0.0], [-0.0, -0.0], [1.0, -1.0]])
    matrix = np.array([[-1.0, 0.0], [-1.0, -0.0]])
    for place in (matrix, torch_arithmetic.matrix(matrix)):
        assert not np.signbit(product(rows, place)[rows @ matrix == 0]).any()


def test_no_rows_and_rows_of_any_layout_are_multiplied(torch_arithmetic):
    matrix = np.arange(12.0).reshape(4, 3)
    for rows in (np.empty((0, 4)), np.ones((6, 8))[::-2, ::2], np.asfortranarray(np.eye(4))):
        np.testing.assert_array_equal(product(rows, torch_arithmetic.matrix(matrix)), rows @ matrix)


class Faulty(TorchArithmetic):
    """A device that keeps so many bits of a result, as one that emulates doubles may."""

    bits = 52

    def matrix(self, values):
        bits = self.bits

        class Short(TorchMatrix):
            @property
            def T(self):  # noqa: N802
                return Short(self._values.T)

            def times(self, rows):
                mantissas, exponents = np.frexp(super().times(rows))
                return np.ldexp(np.rint(mantissas * 2.0**bits), exponents - bits)

        return Short(super().matrix(values)._values)


def test_a_device_that_drops_a_bit_is_refused():
    with pytest.raises(TrainingError, match="are not exact"):
        Faulty("cpu")


def test_a_model_that_a_device_answers_otherwise_is_refused(bundles, monkeypatch):
    monkeypatch.setattr(Faulty, "_try", lambda self: None)
    monkeypatch.setattr(Faulty, "bits", 24)
    for name in ("head-identity", "weights", "dpsgd"):
        with pytest.raises(TrainingError, match="other bits"):
            computed_by(load_model(bundles / name), Faulty("cpu"))


def test_emulated_doubles_are_refused_and_switched_off(monkeypatch):
    monkeypatch.setenv(devices._EMULATION, "1")
    with pytest.raises(TrainingError, match=devices._EMULATION):
        TorchArithmetic("cpu")
    monkeypatch.setenv(devices._EMULATION, "0")
    TorchArithmetic("cpu")
    assert os.environ[devices._EMULATION] == "0"


def test_a_device_is_one_that_is_there(monkeypatch):
    assert arithmetic_on(None) is arithmetic_on("cpu") is NUMPY
    with pytest.raises(TrainingError, match="'cpu' or 'cuda'"):
        arithmetic_on("abacus")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(devices._EMULATION, "0")
    with pytest.raises(TrainingError, match="no CUDA device"):
        arithmetic_on("cuda")


def test_a_bundle_is_loaded_onto_its_device(bundles, tmp_path, monkeypatch):
    assert load_model(bundles / "head-fourier", "cpu").arithmetic is NUMPY
    arithmetic = TorchArithmetic("cpu")
    monkeypatch.setattr("dpserve.training.kinds.loading.arithmetic_on", lambda device: arithmetic)
    for name in METERED | PAY_ONCE:
        assert load_model(bundles / name, "cuda").arithmetic is arithmetic
    head = load_model(bundles / "head-fourier", "cuda")
    assert save_bundle(tmp_path / "again", head) == head.certificate, "what is saved lies on no device"


@pytest.mark.parametrize(("available", "chosen"), [(True, "cuda"), (False, "cpu")])
def test_training_takes_cuda_where_there_is_one(monkeypatch, available, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert training_device("auto") == chosen
    assert training_device("cpu") == "cpu"
    if available:
        assert training_device("cuda") == "cuda"
    else:
        with pytest.raises(TrainingError, match="no CUDA device"):
            training_device("cuda")
    with pytest.raises(TrainingError, match="'auto', 'cpu' or 'cuda'"):
        training_device("abacus")


def test_a_network_is_not_trained_on_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="no CUDA device"):
        train_published(make_records(), "net", "lineage", hidden=(3,), epochs=1, device="cuda")


@pytest.mark.gpu
def test_a_network_is_trained_on_cuda():
    here, there = (
        train_published(make_records(), "net", "lineage", hidden=(3,), epochs=2, device=device)
        for device in ("cpu", "cuda")
    )
    for ours, theirs in zip(here.layers, there.layers, strict=True):
        np.testing.assert_allclose(theirs[0], ours[0], atol=1e-3)


def test_training_heads_needs_no_pytorch(monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    assert training_device("auto") == "cpu"
