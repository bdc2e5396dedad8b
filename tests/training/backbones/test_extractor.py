"""Rows that are private records are computed apart from each other: the property that training's proof rests on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from training.backbones.architectures import Network
from training.backbones.extractor import LARGEST_BATCH, Extractor, load_network, place_of
from training.errors import TrainingError

from .conftest import FEATURES, perceptron_weights
from .test_architectures import residual_weights

CONTENT = save(perceptron_weights(FEATURES, (64, 32)))


def rows_of(seed, n, features=FEATURES):
    return np.random.default_rng(seed).random((n, features)).astype(np.float32)


EXTRACTOR = Extractor(load_network("perceptron", CONTENT, FEATURES))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    removed=st.integers(0, 29),
    places=st.sampled_from([1, 3, 8]),
    order=st.integers(0, 2**32 - 1),
)
def test_a_record_that_comes_or_goes_moves_no_other_records_features(seed, n, removed, places, order):
    rows = rows_of(seed, n)
    whole = EXTRACTOR.apart(rows, places)
    kept = np.random.default_rng(order).permutation(np.delete(np.arange(n), removed % n))
    assert EXTRACTOR.apart(rows[kept], places).tobytes() == whole[kept].tobytes()


@pytest.mark.parametrize("places", [1, 2])
def test_it_holds_for_convolutions(places):
    network = load_network_of("resnet18")
    rows = rows_of(5, 3, 3 * 32 * 32)
    extractor = Extractor(network)
    whole = extractor.apart(rows, places)
    assert extractor.apart(rows[[2, 0]], places).tobytes() == whole[[2, 0]].tobytes()
    np.testing.assert_allclose(extractor.together(rows), whole, rtol=0, atol=1e-4 * np.abs(whole).max())


def load_network_of(name):
    return load_network(
        name, save({key: tensor.numpy() for key, tensor in residual_weights(name).items()}), 3 * 32 * 32
    )


class LooksAtItsCompanions(torch.nn.Module):
    """What batch normalisation does when it is left in training: a row's features depend on the batch."""

    def forward(self, x):
        return x - x.mean(dim=0)


class LooksAtItsPlace(torch.nn.Module):
    """What a kernel does that treats the edge of a batch otherwise."""

    def forward(self, x):
        return x * (1 + torch.arange(len(x), dtype=torch.float32)[:, None])


def test_a_network_whose_rows_look_at_each_other_is_refused():
    extractor = Extractor(Network(LooksAtItsCompanions(), (FEATURES,), FEATURES))
    with pytest.raises(TrainingError, match="change with the rows beside it"):
        extractor.apart(rows_of(0, 3), 8)


def test_a_kernel_that_looks_at_places_moves_nobody():
    """Batches filled in the records' order would fail here: this is why a row's place is its own."""
    extractor = Extractor(Network(LooksAtItsPlace(), (FEATURES,), FEATURES))
    rows = rows_of(1, 40)
    whole = extractor.apart(rows, 8)
    assert extractor.apart(rows[1:], 8).tobytes() == whole[1:].tobytes()
    assert not np.array_equal(extractor.together(rows[1:]), extractor.together(rows)[1:])


def test_places_are_a_rows_own_and_spread():
    rows = rows_of(2, 4000)
    places = np.array([place_of(row, 8) for row in rows])
    assert np.array_equal(places, [place_of(row.copy(), 8) for row in rows])
    # Binomial(4000, 1/8) has the standard deviation 21: seven of them are exceeded with probability below 1e-10.
    assert np.abs(np.bincount(places, minlength=8) - 500).max() < 150


def test_pytorch_is_left_as_it_was():
    assert not torch.are_deterministic_algorithms_enabled()
    Extractor(load_network("perceptron", CONTENT, FEATURES)).apart(rows_of(0, 2))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("n", [0, 1, LARGEST_BATCH, LARGEST_BATCH + 1, 3 * LARGEST_BATCH + 5])
def test_together_returns_every_row_where_it_was(n):
    rows = rows_of(3, n)
    one_by_one = [EXTRACTOR.together(row[None])[0] for row in rows]
    # Values of the order of 10 in single precision, whose sums take another order in another batch.
    np.testing.assert_allclose(EXTRACTOR.together(rows), np.reshape(one_by_one, (n, 32)), rtol=0, atol=1e-4)


def test_no_other_device_is_taken():
    network = load_network("perceptron", CONTENT, FEATURES)
    with pytest.raises(TrainingError, match="'cpu' or 'cuda'"):
        Extractor(network, "tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none():
    network = load_network("perceptron", CONTENT, FEATURES)
    with pytest.raises(TrainingError, match="no CUDA device"):
        Extractor(network, "cuda")


@pytest.mark.gpu
def test_a_gpu_gives_what_the_cpu_gives_and_keeps_records_apart():
    rows = rows_of(7, 3 * LARGEST_BATCH + 5, 3 * 32 * 32)
    on_cpu = Extractor(load_network_of("resnet18")).together(rows)
    on_gpu = Extractor(load_network_of("resnet18"), "cuda")
    np.testing.assert_allclose(on_gpu.together(rows), on_cpu, rtol=1e-2, atol=1e-2)
    whole = on_gpu.apart(rows)
    kept = np.random.default_rng(0).permutation(len(rows))[:-1]
    assert on_gpu.apart(rows[kept]).tobytes() == whole[kept].tobytes()
