"""The certificate of class sums: what was released of the records, and what that cost."""

import math
from typing import ClassVar, Literal

import numpy as np

from dpserve.accounting.disclosure import Declared
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.fields import Several
from dpserve.training.kinds.class_sums import continued
from dpserve.training.kinds.class_sums.steps import CENTRE, DESCENT, TOTALS, centre_law, sums_law
from dpserve.training.kinds.class_sums.sums import SPARSE_LENGTH
from dpserve.training.pay_once.calibration import CALIBRATION
from dpserve.training.pay_once.canaries import CanaryPart, labels_of
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate
from dpserve.training.pay_once.chain import Step
from dpserve.training.pay_once.cuts import CUTS
from dpserve.training.pay_once.prediction_sets import COUNTS

_RELATIVE = 1e-7
"""More than the lengths of directions and gradients are off by, relatively."""


class ClassSumsCertificate(ReleaseCertificate):
    """The certificate of noisy class sums."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "A record's features and direction are computed from that record and released numbers alone, number by number "
        "or by sums that are exact, and the same arithmetic on the same numbers gives the same bits.",
    )

    STEPS: ClassVar[tuple[Step, ...]] = (CUTS, CENTRE, TOTALS, DESCENT, CALIBRATION, COUNTS)

    release: Declared[Literal["class-sums"]] = "class-sums"
    assumptions: Declared[Several[str]] = ASSUMPTIONS

    def mechanisms(self) -> dict[str, GaussianVector]:
        """Return the mechanisms that released the centre and the sums. Raises ValueError for impossible ones."""
        dimension = self.feature_map.dimension
        return {
            CENTRE.name: centre_law(self.mu_of(CENTRE), dimension),
            TOTALS.name: sums_law(self.mu_of(TOTALS), len(self.classes), dimension),
        }

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the sums, and the steps if there are any; canaries join after the centre, which is public then.

        A canary's v is the unit vector e of a coordinate of its own. That is the direction around the mean m of (m,
        sqrt(1 - |m|^2) e), which is chosen once m is known, as an adaptive adversary may. So it moves the number of its
        class and coordinate by 1, or by what sparse rows have of it. Those of different classes share a coordinate.
        """
        if self.canaries is None:
            return ()
        vector = self.mechanisms()[TOTALS.name]
        length = SPARSE_LENGTH if self.feature_map.has_compact_rows else 1.0
        moved = np.full((self.canaries.number, 1), length)
        slack = _RELATIVE * math.sqrt(self.canaries.number)
        parts = [CanaryPart(TOTALS.name, vector.mu, moved, vector.standard_deviation, vector.step, slack=slack)]
        if descent := self.release_of(DESCENT):
            labels = labels_of(self.canaries.number, len(self.classes))
            parts.append(continued.canary_part(descent.mu, self.feature_map.dimension, len(self.classes), labels))
        return tuple(parts)

    def standard_deviation(self) -> float:
        """Return the standard deviation of the noise on each number of the sums."""
        return self.mechanisms()[TOTALS.name].standard_deviation
