"""The arrays of a pay-once model, with a description of what is computed from them, for readers of other languages."""

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dpserve.training.pay_once.classifier import BEYOND_BOUNDS, ReleasedClassifier
from dpserve.training.pay_once.model import CLOSEST

_COMPUTES = f"""\
Values of x beyond feature_map.lower and feature_map.upper of the certificate are {BEYOND_BOUNDS}.
phi = feature_map(x): see the certificate's feature_map and its documentation; omega is among the arrays. Where there is
a centre, phi is divided by its length, the centre is subtracted, and the rest is divided by its length, or by {CLOSEST}
where it is shorter. Then for each layer values = values @ weights + biases, with tanh between layers, for one or more
networks, and softmax of the sum of their last layers' values: the arrays of network K are weights.K.LAYER and
biases.K.LAYER. The calibration is part of the last layers: scales are multiplied into the weights and biases, and
offsets are in the biases."""


def safetensors_file(classifier: ReleasedClassifier) -> bytes:
    """Return the file. Its metadata says in words what the arrays are for, beside `ReleasedClassifier.metadata`."""
    arrays: dict[str, NDArray[np.generic]] = {f"feature_map.{name}": each for name, each in classifier.tensors.items()}
    for place, layers in enumerate(classifier.networks):
        for index, (weights, biases) in enumerate(layers):
            arrays |= {f"weights.{place}.{index}": weights, f"biases.{place}.{index}": biases}
    if classifier.centre is not None:
        arrays["centre"] = classifier.centre
    described = {"computes": _COMPUTES}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, metadata=classifier.metadata | described)
