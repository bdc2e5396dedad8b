import numpy as np
import pytest
import torch
from safetensors.numpy import save

from training.backbones.architectures import build, names, untrained
from training.backbones.extractor import Extractor, load_network
from training.errors import TrainingError

from .conftest import FEATURES, perceptron_weights


def residual_weights(name, seed=0):
    """What PyTorch draws for a new network."""
    torch.manual_seed(seed)
    module = untrained(name, 3 * 32 * 32).module
    weights = {key: tensor for key, tensor in module.state_dict().items() if not key.endswith("num_batches_tracked")}
    return {key: tensor.contiguous() for key, tensor in weights.items()}


def test_a_perceptron_is_products_and_relus(content):
    X = np.random.default_rng(1).random((5, FEATURES)).astype(np.float32)
    h = X
    weights = perceptron_weights()
    for index in range(2):
        h = np.maximum(h @ weights[f"{index}.weight"].T + weights[f"{index}.bias"], 0)
    np.testing.assert_allclose(Extractor(load_network("perceptron", content, FEATURES)).together(X), h, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "width", "parameters"), [("resnet18", 512, 11_176_512), ("resnet50", 2048, 23_508_032)]
)
def test_residual_networks_have_the_published_shapes(name, width, parameters):
    """The counts of parameters are the published ones, 11,689,512 and 25,557,032, less the classifiers'."""
    weights = residual_weights(name) | {"fc.weight": torch.zeros(1000, width), "fc.bias": torch.zeros(1000)}
    network = build(name, weights, 3 * 32 * 32)
    assert sum(tensor.numel() for tensor in network.module.parameters()) == parameters
    assert "layer4.0.downsample.1.running_var" in weights
    features = network.module(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, width)
    assert not features.requires_grad
    assert not network.module.training


def test_a_residual_block_is_what_its_paper_says():
    """The first block of ResNet-18, computed again with plain functions from the weights."""
    weights = residual_weights("resnet18", seed=3)
    for key, tensor in weights.items():
        if key.endswith("running_mean"):
            tensor.uniform_(-0.1, 0.1)
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 2)
    module = build("resnet18", weights, 3 * 32 * 32).module
    x = torch.rand(2, 64, 8, 8)

    def normalised(h, name):
        mean, var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        scaled = (h - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    def convolved(h, name):
        return torch.nn.functional.conv2d(h, weights[f"{name}.weight"], padding=1)

    h = torch.relu(normalised(convolved(x, "layer1.0.conv1"), "layer1.0.bn1"))
    h = torch.relu(normalised(convolved(h, "layer1.0.conv2"), "layer1.0.bn2") + x)
    torch.testing.assert_close(module.get_submodule("layer1.0")(x), h, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "features", "said"),
    [
        ("lenet", {}, FEATURES, "there are perceptron, resnet18, resnet50"),
        ("perceptron", {}, FEATURES + 1, "takes 4 values, and 5 are there"),
        ("perceptron", {"0.weight": None}, FEATURES, r"lack '0.weight'"),
        ("perceptron", {"1.bias": None}, FEATURES, r"lack '1.bias'"),
        ("perceptron", {"7.weight": np.zeros((1, 1), np.float32)}, FEATURES, r"have '7.weight'"),
        ("perceptron", {"1.bias": np.zeros(3, np.float32)}, FEATURES, r"shape \(3,\)"),
        ("perceptron", {"1.bias": np.full(8, np.nan, np.float32)}, FEATURES, "not finite"),
        ("resnet18", {}, FEATURES, "square images"),
        ("resnet18", {}, 3 * 32 * 32, "another network's"),
    ],
)
def test_weights_that_do_not_fit_are_refused(name, changes, features, said):
    weights = {key: tensor for key, tensor in (perceptron_weights() | changes).items() if tensor is not None}
    with pytest.raises(TrainingError, match=said):
        load_network(name, save(weights), features)


def test_what_is_no_safetensors_file_is_refused():
    with pytest.raises(TrainingError, match="no safetensors file"):
        load_network("perceptron", b"\x80\x04pickle", FEATURES)


def test_the_names_are_registered():
    assert names() == ("perceptron", "resnet18", "resnet50")
