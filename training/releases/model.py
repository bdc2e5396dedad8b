"""What a service needs of a model that is private itself."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from training.releases.certificate import ReleaseCertificate

Floats = NDArray[np.float64]


@runtime_checkable
class ReleasedModel(Protocol):
    """A model whose release was paid for once: what is computed from it is post-processing and costs nothing."""

    @property
    def certificate(self) -> ReleaseCertificate:
        """What it cost, and what it is."""
        ...

    def probabilities(self, X: Floats) -> Floats:
        """Return the answers (n, C) to rows (n, d) within or beyond the declared bounds.

        The same for every caller, and bit for bit the same for a row whatever other rows are asked: see
        `each_row_alone`.
        """
        ...


@runtime_checkable
class TieredModel(ReleasedModel, Protocol):
    """A released model of several precisions, `certificate.tiers`. Its own answers are the finest's."""

    def at(self, tier: str) -> ReleasedModel:
        """Return the model of one tier. Raises KeyError for an unknown name."""
        ...


@runtime_checkable
class NoisyLogits(ReleasedModel, Protocol):
    """A released model whose logits are those of the trained one, and Gaussian noise of a known scale."""

    def logit_noise(self, X: Floats) -> Floats:
        """Return the standard deviation of the noise on each logit of rows (n, d), one for each row: (n,). Public."""
        ...


def each_row_alone(answer: Callable[[Floats], Floats], X: Floats) -> Floats:
    """Return `answer` of every row, computed for (1, d) at a time and put together: (n, C).

    A product of matrices may add in another order when it has more rows, and so differ in the last bit. Asked
    for alone a row gives the same bits every time.
    """
    return np.concatenate([answer(row[None, :]) for row in X])
