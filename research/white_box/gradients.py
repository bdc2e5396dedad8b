"""The gradients of single records, which training never holds: it clips and sums them layer by layer."""

import numpy as np

from dpserve.accounting.arrays import Floats, Labels
from dpserve.training.fitting.network import Network


def record_gradients(network: Network, parameters: Floats, inputs: Floats, labels: Labels) -> Floats:
    """Return every record's own gradient (n, size)."""
    gradients = np.empty((len(inputs), network.size))
    start = 0
    for a, d in network.gradient_factors(parameters, inputs, labels):
        if not isinstance(a, np.ndarray):
            raise TypeError("single gradients are of dense inputs")
        count = a.shape[1] * d.shape[1]
        np.einsum("ni,nj->nij", a, d, out=gradients[:, start : start + count].reshape(len(a), *a.shape[1:], -1))
        gradients[:, start + count : start + count + d.shape[1]] = d
        start += count + d.shape[1]
    return gradients
