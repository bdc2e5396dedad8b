import numpy as np
import pytest

torch = pytest.importorskip("torch")

from research.bernau2021.convolutional import ConvolutionalNetwork  # noqa: E402

NETWORK = ConvolutionalNetwork(12, 3, (2, 3))


def test_gradients_are_of_single_records_and_sums_are_clipped():
    draw = np.random.default_rng(0)
    images, labels = draw.random((4, 144)), np.array([0, 2, 1, 1])
    parameters = NETWORK.initial(1)
    assert parameters.shape == (NETWORK.size,)
    gradients = NETWORK.record_gradients(parameters, images, labels)
    alone = NETWORK.record_gradients(parameters, images[2:3], labels[2:3])
    assert np.allclose(gradients[2], alone[0], atol=1e-6)
    norms = np.linalg.norm(gradients, axis=1)
    clip_norm = float(np.median(norms))
    expected = (gradients * np.minimum(1, clip_norm / norms)[:, None]).sum(axis=0)
    assert np.allclose(NETWORK.clipped_sum(parameters, images, labels, clip_norm), expected)


def test_a_gradient_is_the_slope_of_the_loss():
    draw = np.random.default_rng(0)
    image, label = draw.random((1, 144)), np.array([1])
    parameters = NETWORK.initial(2)
    gradient = NETWORK.record_gradients(parameters, image, label)[0]
    towards = gradient / np.linalg.norm(gradient)
    module = torch.nn.CrossEntropyLoss()

    def loss(at):
        named, start = {}, 0
        for name, weights in NETWORK._module.named_parameters():
            part = torch.from_numpy(at[start : start + weights.numel()]).view(weights.shape)
            named[name], start = part, start + weights.numel()
        logits = torch.func.functional_call(NETWORK._module, named, (torch.from_numpy(image),))
        return float(module(logits, torch.from_numpy(label)))

    slope = (loss(parameters + 1e-6 * towards) - loss(parameters - 1e-6 * towards)) / 2e-6
    assert slope == pytest.approx(np.linalg.norm(gradient), rel=1e-4)


def test_first_parameters_follow_from_the_seed_and_leave_torch_alone():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    assert np.array_equal(NETWORK.initial(5), NETWORK.initial(5))
    assert not np.array_equal(NETWORK.initial(5), NETWORK.initial(6))
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_records_have_no_gradients():
    assert NETWORK.record_gradients(NETWORK.initial(0), np.zeros((0, 144)), np.zeros(0, dtype=np.int64)).shape == (
        0,
        NETWORK.size,
    )
