"""The registered architectures: code of ours that public weights are loaded into, never code out of a file.

Each takes rows in [0, 1]^d, as a feature map scales them, and returns features. Weights of residual networks carry the
names that torchvision and timm give them, so that published files load as they are; a classifier that a file brings
along is left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.errors import TrainingError

Weights = Mapping[str, Tensor]

_MEAN, _STANDARD_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's colours: what the published weights of residual networks were trained behind."""


@dataclass(frozen=True, eq=False)
class Network:
    """A built network. module: from (n, *input_shape) to (n, width), in single precision."""

    module: nn.Module
    input_shape: tuple[int, ...]
    width: int


Builder = Callable[[Weights, int], Network]
_BUILDERS: dict[str, Builder] = {}


def architecture(name: str) -> Callable[[Builder], Builder]:
    """Register a builder of networks: it is given the weights, for their shapes, and the number of features of a row.

    It raises TrainingError for a number of features that it cannot take.
    """

    def register(builder: Builder) -> Builder:
        _BUILDERS[name] = builder
        return builder

    return register


def names() -> tuple[str, ...]:
    """Return the names of the registered architectures."""
    return tuple(sorted(_BUILDERS))


def untrained(name: str, features: int, weights: Weights | None = None) -> Network:
    """Return the network with random weights, of the shapes of these. Raises TrainingError for what cannot be built."""
    if name not in _BUILDERS:
        raise TrainingError(f"there is no architecture {name!r}; there are {', '.join(names())}")
    return _BUILDERS[name](weights or {}, features)


def build(name: str, weights: Weights, features: int) -> Network:
    """Return the network with these weights, frozen. Raises TrainingError saying what does not fit."""
    network = untrained(name, features, weights)
    expected = network.module.state_dict()
    given = {key: tensor for key, tensor in weights.items() if not key.startswith("fc.")}
    # Batch counters say how long a network was trained, and nothing of what it computes.
    counters = {key for key in expected if key.endswith("num_batches_tracked")}
    if missing := sorted(expected.keys() - given.keys() - counters):
        raise TrainingError(f"the weights lack {_some(missing)}, which {name} has: they are another network's")
    if unknown := sorted(given.keys() - expected.keys()):
        raise TrainingError(f"the weights have {_some(unknown)}, which {name} lacks: they are another network's")
    for key in expected.keys() - counters:
        if given[key].shape != expected[key].shape:
            raise TrainingError(
                f"the tensor {key} has the shape {tuple(given[key].shape)}, and {name} takes "
                f"{tuple(expected[key].shape)}"
            )
        if not torch.isfinite(given[key]).all():
            raise TrainingError(f"the tensor {key} holds numbers that are not finite")
    network.module.load_state_dict({key: given[key].float() for key in expected.keys() - counters}, strict=False)
    network.module.eval().requires_grad_(requires_grad=False)
    return network


@architecture("perceptron")
def _perceptron(weights: Weights, features: int) -> Network:
    """Fully connected layers `0.weight`, `0.bias`, `1.weight`, ... with relu after each, of the widths in the file."""
    layers, width = nn.ModuleList(), features
    while (tensor := weights.get(f"{len(layers)}.weight")) is not None and tensor.ndim == 2:
        if tensor.shape[1] != width:
            raise TrainingError(
                f"the tensor {len(layers)}.weight takes {tensor.shape[1]} values, and {width} are there for it"
            )
        layers.append(nn.Linear(width, len(tensor)))
        width = len(tensor)
    if not layers:
        raise TrainingError("the weights lack '0.weight', which perceptron has: they are another network's")
    return Network(_Perceptron(layers), (features,), width)


class _Perceptron(nn.ModuleList):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = torch.relu(layer(x))
        return x


@architecture("resnet18")
def _resnet18(weights: Weights, features: int) -> Network:
    """ResNet-18 without its classifier: 512 features of a square image, red first (He et al. 2016)."""
    del weights
    return Network(_ResNet(_Basic, (2, 2, 2, 2)), _image(features), 512)


@architecture("resnet50")
def _resnet50(weights: Weights, features: int) -> Network:
    """ResNet-50 without its classifier: 2048 features; strides in the 3x3 convolutions, as the published weights."""
    del weights
    return Network(_ResNet(_Bottleneck, (3, 4, 6, 3)), _image(features), 2048)


def _image(features: int) -> tuple[int, int, int]:
    side = math.isqrt(features // 3)
    if side < 32 or 3 * side * side != features:
        raise TrainingError(
            f"a residual network takes square images of three colours, 3 x S x S values with S at least 32, colour by "
            f"colour; {features} values are none"
        )
    return (3, side, side)


class _Basic(nn.Module):
    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(width_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.downsample = _downsample(width_in, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        h = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(h)))))
        return torch.relu(h + (x if self.downsample is None else self.downsample(x)))


def _downsample(width_in: int, width_out: int, stride: int) -> nn.Module | None:
    if stride == 1 and width_in == width_out:
        return None
    return nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))


class _ResNet(nn.Module):
    def __init__(self, block: type[_Basic] | type[_Bottleneck], depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        width_in = 64
        for index, depth in enumerate(depths):
            width = 64 * 2**index
            blocks = []
            for number in range(depth):
                blocks.append(block(width_in, width, 2 if index and not number else 1))
                width_in = width * block.expansion
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
        # Buffers, so that they move to a device with the rest, and not persistent: no file of weights has them.
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(_STANDARD_DEVIATION)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1((x - self.mean) / self.deviation))))
        for number in range(1, 5):
            h = self.get_submodule(f"layer{number}")(h)
        return h.mean(dim=(2, 3))


def _some(keys: list[str]) -> str:
    shown = ", ".join(map(repr, keys[:3]))
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
