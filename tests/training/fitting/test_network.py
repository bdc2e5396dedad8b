"""Clipped sums against explicit gradients of single records, against finite differences, and against Opacus."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpserve.mechanisms.elementary import softmax
from dpserve.training.fitting.network import SUM_ERROR, Network
from research.white_box.gradients import record_gradients


def example(network: Network, records: int, seed: int, spread: float = 0.5):
    generator = np.random.default_rng(seed)
    parameters = generator.normal(size=network.size) * spread
    inputs = generator.normal(size=(records, network.widths[0]))
    labels = generator.integers(network.widths[-1], size=records)
    return parameters, inputs, labels


NETWORKS = [Network((6, 3)), Network((5, 8, 4)), Network((5, 8, 4), "relu"), Network((4, 6, 5, 3)), Network((1, 2, 2))]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_gradients_are_the_slopes_of_the_cross_entropy(network):
    parameters, inputs, labels = example(network, 1, 0)
    (gradient,) = record_gradients(network, parameters, inputs, labels)

    def loss(at):
        return -np.log(softmax(network.logits(at, inputs)))[0, labels[0]]

    steps = np.eye(network.size) * 1e-6
    slopes = [(loss(parameters + step) - loss(parameters - step)) / 2e-6 for step in steps]
    assert np.allclose(gradient, slopes, atol=1e-8)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e3])
def test_the_sum_is_that_of_the_clipped_gradients(network, clip_norm):
    parameters, inputs, labels = example(network, 2500, 1)
    gradients = record_gradients(network, parameters, inputs, labels)
    norms = np.linalg.norm(gradients, axis=1)
    expected = (gradients * np.minimum(1, clip_norm / norms)[:, None]).sum(axis=0)
    found = network.clipped_sum(parameters, inputs, labels, clip_norm)
    assert np.linalg.norm(found - expected) <= 1e-8 * norms.clip(max=clip_norm).sum()


@given(
    seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 1e-200, 1e-3, 1.0, 30.0, 1e150]), records=st.integers(0, 5)
)
def test_no_record_moves_the_sum_by_more_than_the_norm(seed, spread, records):
    """Also where gradients vanish, saturate or overflow: such a record contributes nothing rather than NaN."""
    network = Network((3, 4, 3), "relu")
    parameters, inputs, labels = example(network, records + 1, seed, spread)
    with np.errstate(all="ignore"):
        with_it = network.clipped_sum(parameters, inputs, labels, 0.5)
        without = network.clipped_sum(parameters, inputs[:-1], labels[:-1], 0.5)
    assert np.isfinite(with_it).all()
    assert np.linalg.norm(with_it - without) <= 0.5 * (1 + 2**-17)


@pytest.mark.parametrize(
    "network", [Network((60, 3)), Network((785, 33, 10)), Network((30, 17, 9, 4), "relu")], ids=str
)
def test_a_record_s_gradient_is_the_same_bits_whatever_stands_beside_it(network):
    """For every number of records up to a block, and at places in it that a kernel treats apart."""
    parameters, inputs, labels = example(network, 2048, 3, 0.1)
    inputs[7::50] = 0.0
    if network.activation == "relu":
        _cancel(network, parameters, inputs)
    wanted = network.gradient_factors(parameters, inputs, labels)
    for start, end in [(0, 1), (1, 2), (0, 3), (1, 2048), (2040, 2048), (5, 18), (17, 50), (1, 100), (3, 1030)]:
        found = network.gradient_factors(parameters, inputs[start:end], labels[start:end])
        for pair, pair_wanted in zip(found, wanted, strict=True):
            for part, part_wanted in zip(pair, pair_wanted, strict=True):
                assert np.array_equal(part, part_wanted[start:end])


def _cancel(network: Network, parameters, inputs) -> None:
    """Make the first neuron's value of every record cancel to about its last bit, with either sign."""
    ((weights, biases), *_) = network.layers(parameters)
    biases[:] = 0.0
    along = weights[:, 0] / np.linalg.norm(weights[:, 0])
    for _ in range(2):
        inputs -= np.outer(inputs @ along, along)


@pytest.mark.parametrize("network", [Network((20, 3)), Network((20, 9, 3), "relu")], ids=str)
def test_a_record_moves_the_sum_of_many_by_its_own_gradient(network):
    """Many equal records whose gradients nearly cancel to nothing, where the sum's rounding shows."""
    for scale in (1.0, 1e3, 1e9):
        parameters, inputs, labels = example(network, 4103, 5, scale)
        if network.activation == "relu":
            _cancel(network, parameters, inputs)
        whole = network.clipped_sum(parameters, inputs, labels, 1.0)
        for place in (0, 2048, 4102):
            rest = network.clipped_sum(parameters, np.delete(inputs, place, 0), np.delete(labels, place), 1.0)
            own = network.clipped_sum(parameters, inputs[place : place + 1], labels[place : place + 1], 1.0)
            assert np.linalg.norm(whole - rest - own) <= 2 * 4103 * 2060 * 2.0**-53
            assert np.linalg.norm(whole - rest) <= 1 + SUM_ERROR


@pytest.mark.parametrize("exponent", [0, 100, 199, 250, 500, 510])
@pytest.mark.parametrize("logit", [-20.0, -200.0, -365.0, -378.0, -700.0])
def test_a_vanishing_error_beside_a_huge_input_is_clipped(exponent, logit):
    """Its square underflows where it is kept as it is, and a scale of 1 would leave a gradient of any length."""
    network, clip_norm = Network((1, 2)), 2.0**-60
    parameters = np.array([0.0, 0.0, logit, 0.0])
    for label in (0, 1):
        found = network.clipped_sum(parameters, np.array([[2.0**exponent]]), np.array([label]), clip_norm)
        assert np.linalg.norm(found) <= clip_norm


def test_no_records_sum_to_nothing():
    network = Network((3, 4, 3))
    assert not network.clipped_sum(network.initial(0), np.empty((0, 3)), np.empty(0, dtype=np.int64), 1.0).any()


def test_first_parameters_repeat_and_start_even():
    network = Network((7, 5, 3))
    assert np.array_equal(network.initial(4), network.initial(4))
    assert not np.array_equal(network.initial(4), network.initial(5))
    assert not network.logits(network.initial(4), np.ones((2, 7))).any()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_opacus_clips_to_the_same_sum(activation):
    torch = pytest.importorskip("torch")
    grad_sample = pytest.importorskip("opacus.grad_sample")
    network = Network((20, 16, 10), activation)
    parameters, inputs, labels = example(network, 64, 2)
    layers: list[torch.nn.Module] = []
    for weights, biases in network.layers(parameters):
        linear = torch.nn.Linear(*weights.shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weights.T.copy()))
            linear.bias.copy_(torch.from_numpy(biases.copy()))
        layers += [linear, torch.nn.Tanh() if activation == "tanh" else torch.nn.ReLU()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = grad_sample.GradSampleModule(torch.nn.Sequential(*layers[:-1]), loss_reduction="sum")
        logits = module(torch.from_numpy(inputs))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="sum").backward()
    per_layer = [parameter.grad_sample.flatten(1) for parameter in module.parameters()]
    norms = torch.stack([part.norm(dim=1) for part in per_layer]).norm(dim=0)
    clip_norm = float(norms.median())
    scales = (clip_norm / norms).clamp(max=1)
    sums = [(p.grad_sample.flatten(1) * scales[:, None]).sum(0).reshape(p.shape).numpy() for p in module.parameters()]
    theirs = np.concatenate([part.T.ravel() if part.ndim == 2 else part for part in sums])

    ours = network.clipped_sum(parameters, inputs, labels, clip_norm)
    assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


def test_what_is_no_network_is_refused():
    for widths in ((3,), (3, 0, 2), (3, 1)):
        with pytest.raises(ValueError, match="a network needs"):
            Network(widths)
