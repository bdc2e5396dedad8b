"""A model trained by DP-SGD as a service sees it. Serving it needs NumPy alone."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms import elementary
from dpserve.mechanisms.answer_noise import UnknownNoise
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices
from dpserve.training.exact.products import matrix_on_grid, on_grid, product
from dpserve.training.features.cut_rows import CutRows
from dpserve.training.pay_once.canaries import CanaryRun
from dpserve.training.pay_once.model import CentredProducts, rounded

if TYPE_CHECKING:
    from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate

UNKNOWN = UnknownNoise("every step of training had noise, and how far that moved an answer is not known")


@dataclass(frozen=True, eq=False)
class DpSgdModel:
    """A linear head, and perhaps a network beside it, on a public feature map; their logits add up.

    parameters: of each of the certificate's branches, (size,), as `Network` lays them out, the last layer calibrated.
    centre: (dimension,), what inputs are taken around, released before training; zeros where nothing was.
    tensors: the feature map's public ones; arithmetic: what computes its products. canaries: what was released of
    canaries in the same run.
    """

    certificate: "DpSgdCertificate"
    parameters: tuple[Floats, ...]
    centre: Floats
    tensors: dict[str, Floats]
    arithmetic: Arithmetic = NUMPY
    canaries: CanaryRun | None = None

    def values(self, X: Floats) -> Floats:
        """See `dpserve.training.pay_once.model.ReleasedModel`."""
        return elementary.softmax(self.logits(X))

    def answers(self, X: Floats) -> tuple[Floats, UnknownNoise]:
        """See `dpserve.training.pay_once.model.ReleasedModel`.

        Nothing is proved that would make an interval: a clipped step is a gradient step of no convex function where
        there are more than two classes, and with momentum none that brings two models closer, so that the noise of
        early steps may be damped or may grow. To add the steps' noise as if each were kept is no bound either way.
        """
        return self.values(X), UNKNOWN

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C) of rows (n, d): the same bits for a row whatever rows are beside it.

        By construction: every product of matrices is exact, whatever the order of its sums, and what is between them
        are functions of single numbers (`dpserve.mechanisms.elementary`), and of a row's largest (`exact.on_grid`).
        """
        return self.logits_of(self.certificate.feature_map(X, self._public))

    def logits_of(self, phi: Floats | CutRows) -> Floats:
        """Return the logits (n, C) of phi(x), (n, D), dense or, with the same bits, by the codes of cuts."""
        return functools.reduce(np.add, self.parts_of(phi))

    def parts_of(self, phi: Floats | CutRows) -> list[Floats]:
        """Return the logits (n, C) of each branch for phi(x), as `logits_of` takes it."""
        products = self.first_layer.products(phi) * self.certificate.input_norm
        parts, start = [], 0
        for ((_, biases), *_), later in zip(self.layers, self._later, strict=True):
            values = products[:, start : start + len(biases)] + biases
            start += len(biases)
            for weights, following in later:
                active = elementary.tanh(values)
                coarse = on_grid(active)
                both = product(np.concatenate([coarse, on_grid(active - coarse)]), weights)
                top, bottom = np.hsplit(both[: len(phi)], 2), np.hsplit(both[len(phi) :], 2)
                # The smallest first; each addition is rounded in one way.
                values = ((bottom[1] + bottom[0]) + top[1]) + top[0] + following
            parts.append(values)
        return parts

    @functools.cached_property
    def _later(self) -> list[list[tuple[Matrix, Floats]]]:
        """Each branch's later layers: weights as A beside B, (inputs, 2 outputs), A + B being them to 2^-50; biases."""
        later = []
        for _, *others in self.layers:
            coarse = [matrix_on_grid(weights) for weights, _ in others]
            both = [np.hstack([a, matrix_on_grid(w - a)]) for a, (w, _) in zip(coarse, others, strict=True)]
            later.append([(self.arithmetic.matrix(w), b) for w, (_, b) in zip(both, others, strict=True)])
        return later

    @functools.cached_property
    def layers(self) -> list[list[tuple[Floats, Floats]]]:
        """Each branch's layers: weights (inputs, outputs) and biases, the first `rounded` for exact products."""
        branches = []
        for branch, parameters in zip(self.certificate.branches, self.parameters, strict=True):
            (weights, biases), *others = branch.network.layers(parameters)
            branches.append([(rounded(weights.T).T, biases), *others])
        return branches

    @functools.cached_property
    def first_layer(self) -> CentredProducts:
        """The branches' first layers beside each other, on rows around the centre."""
        weights = np.hstack([first for (first, _), *_ in self.layers])
        return CentredProducts.mean(self.centre, weights.T, self.arithmetic)

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)
