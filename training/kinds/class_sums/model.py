"""Noisy class sums: the sum of the records' directions in each class, released once, and a classifier made of them.

The model of few records per class: one record moves the sums by at most 1, whatever is trained from them.

What is released, in this order, each on exact integer-grid noise (`dpserve.mechanisms.gaussian_vector`), by
`dpserve.training.kinds.class_sums.steps`:
1. the centre: the sum over the records of (sqrt(1 - b^2) u, b), with u = phi(x)/||phi(x)|| and b = COUNT_COORDINATE.
   From it follows the noisy mean m = total / count, scaled into the unit ball. All records share m, and inner
   products with it drown what tells classes apart.
2. the class sums: for each class the sum of v = (u - m)/||u - m|| over its records.

3. gradient steps from the sums' directions, where the price allows it: `dpserve.training.kinds.class_sums.continued`.
4. how far to trust what came of it: `dpserve.training.pay_once.calibration`.

What is computed from that is post-processing: the classes' directions under the noise
(`dpserve.training.kinds.class_sums.shrinkage`), and for a row x the softmax of the calibrated <w_c, v(x)>, where w_c is
what the steps led to, or TEMPERATURE times the direction of class c where there were none. The constants that steps add
to the logits are among the calibration's.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.answer_noise import AnswerNoise, AnyNoise, UnknownNoise
from dpserve.mechanisms.elementary import row_sums, softmax
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices
from dpserve.training.features.cut_rows import CutRows
from dpserve.training.fitting.unit_rows import SHORTEST_ROW
from dpserve.training.kinds.class_sums.shrinkage import shrunk, unit_rows
from dpserve.training.kinds.class_sums.sums import mean_of
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import CanaryRun
from dpserve.training.pay_once.model import CentredProducts, rounded

if TYPE_CHECKING:
    from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate

TEMPERATURE = 8.0
"""The temperature of the cosines, before they are calibrated."""

_OF_STEPS = UnknownNoise(
    "gradient steps followed the class sums, each with noise: nothing is proved of how far all of it moved an answer"
)


@dataclass(frozen=True, eq=False)
class ReleasedClassSums:
    """Released class sums as a classifier. centre: (D + 1,), sums: (C, D), both noisy; tensors: the map's public ones.

    calibration: of its logits. stepped: the weights (C, D) that gradient steps led to, or None.
    arithmetic: what computes its products. canaries: what was released of canaries in the same run.

    Nothing in it but the certificate's lineage and digest is private.
    """

    certificate: "ClassSumsCertificate"
    centre: Floats
    sums: Floats
    tensors: dict[str, Floats]
    calibration: Calibration
    stepped: Floats | None = None
    arithmetic: Arithmetic = NUMPY
    canaries: CanaryRun | None = None

    def values(self, X: Floats) -> Floats:
        """Return the softmax of the calibrated logits, (n, C)."""
        return softmax(self.calibration(self.logits(X)))

    def answers(self, X: Floats) -> tuple[Floats, AnyNoise]:
        """See `dpserve.training.pay_once.model.ReleasedModel`.

        Let S be the sums, T = S + N those released, N of standard deviation s on each number, and l_c the length of row
        c once T was shrunk. With b the calibration's scale, logit c of T as it was released is

            r_c = (TEMPERATURE b / l_c) <T_c, v> + a public number,

        and as v is at most 1 long and computed from the centre, which N is independent of, its noise is Gaussian of
        standard deviation TEMPERATURE b s / l_c at most, and independent of the other classes'. So r is what has known
        noise, and an interval holds what the same scales and offsets give of S. The answer itself comes of the shrunk
        sums, which are nearer to S, but how near depends on S: an interval reaches to the answer, and that makes it
        wider. l and b were computed after N was drawn: they are taken as if they did not depend on it. l_c hangs on
        the one number <N_c, v> among D; that intervals hold what they should all the same is tested on sums of noise
        alone.

        Where gradient steps were taken from the sums nothing is proved: see `dpserve.training.kinds.dpsgd.model`.
        """
        if self.stepped is not None:
            return self.values(X), _OF_STEPS
        phi = self.certificate.feature_map(X, self._public)
        logits, released = (self.calibration(each.products(phi)) for each in (self._scores, self._released))
        return softmax(logits), AnswerNoise(GAUSSIAN, self.calibration.scale * self._noise[None, :], logits=released)

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C), before calibration."""
        return self.logits_of(self.certificate.feature_map(X, self._public))

    def logits_of(self, phi: Floats | CutRows) -> Floats:
        """Return the logits (n, C) of phi(x), (n, D), before calibration."""
        return self._scores.products(phi)

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)

    @functools.cached_property
    def _scores(self) -> CentredProducts:
        return CentredProducts.mean(self.mean, self.weights, self.arithmetic)

    @property
    def weights(self) -> Floats:
        """The matrix that v is multiplied by, `rounded` for exact products: (C, D). `_scores` keeps a copy."""
        return rounded(TEMPERATURE * self.directions if self.stepped is None else self.stepped)

    @functools.cached_property
    def _released(self) -> CentredProducts:
        """`answers`' r, before calibration."""
        released = rounded(TEMPERATURE * self.sums / self._lengths[:, None])
        return CentredProducts.mean(self.mean, released, self.arithmetic)

    @functools.cached_property
    def _noise(self) -> Floats:
        """The noise of r before calibration, (C,)."""
        noise: Floats = TEMPERATURE * self._standard_deviation / self._lengths
        return noise

    @property
    def _lengths(self) -> Floats:
        return self._shrunk[1]

    @functools.cached_property
    def _shrunk(self) -> tuple[Floats, Floats]:
        """The directions of the shrunk sums' rows, (C, D), and their lengths, (C,).

        A length is the noisy row's where nothing is left of it.
        """
        kept = shrunk(self.sums, self._standard_deviation)
        lengths, noisy = (np.sqrt(row_sums(rows * rows)) for rows in (kept, self.sums))
        return unit_rows(kept), np.maximum(np.where(lengths > SHORTEST_ROW, lengths, noisy), SHORTEST_ROW)

    @property
    def _standard_deviation(self) -> float:
        return self.certificate.standard_deviation()

    @functools.cached_property
    def mean(self) -> Floats:
        """m: the noisy mean of the records' directions, (D,)."""
        return mean_of(self.centre)

    @property
    def directions(self) -> Floats:
        """The direction of each class, (C, D)."""
        return self._shrunk[0]
