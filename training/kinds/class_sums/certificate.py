"""The certificate of class sums: what was released of the records, and what that cost."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.features.rows import Features
from dpserve.training.fields import Several
from dpserve.training.kinds.class_sums import continued
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.canaries import CanaryPart, labels_of
from dpserve.training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate

SPARSE_LENGTH = 1.0 - 2.0**-12
"""The length of v for a sparse row (`dpserve.training.kinds.class_sums.model.sparse_sums_of`)."""
_RELATIVE = 1e-7
"""More than the lengths of directions and gradients are off by, relatively."""

STEPS_ASSUMPTIONS = (
    "In the gradient steps a record's gradient comes of products that round nothing, in any order, and exp gives the "
    "same bits for the same number wherever it stands in an array. That there were as many steps, with the noise that "
    "steps_mu says, is the owner's word, which the weights do not refute.",
)
"""Further assumptions of a model with gradient steps."""


def cost_of(centre_mu: float, sums_mu: float, steps_mu: float, calibration_mu: float) -> Cost:
    """Return the composition of all: what `ClassSumsCertificate.derived_cost` proves."""
    parts = (centre_mu, sums_mu, steps_mu, calibration_mu)
    return Cost(tuple(loss for mu in parts for loss in calibration.losses(mu)))


class ClassSumsCertificate(ReleaseCertificate):
    """The certificate of noisy class sums."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "A record's features and direction are computed from that record and released numbers alone, number by number "
        "or by sums that are exact, and the same arithmetic on the same numbers gives the same bits.",
    )

    release: Literal["class-sums"] = "class-sums"
    assumptions: Several[str] = ASSUMPTIONS
    centre_mu: float = Field(gt=0, allow_inf_nan=False)
    """The cost of the noisy centre: mu-GDP."""
    sums_mu: float = Field(gt=0, allow_inf_nan=False)
    """The cost of the noisy class sums, given the centre: mu-GDP."""
    steps_mu: float = Field(default=0.0, ge=0, allow_inf_nan=False, exclude_if=lambda mu: not mu)
    """The cost of the gradient steps, given both: mu-GDP; 0 where there are none."""
    calibration_mu: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The cost of the calibration, given all before: mu-GDP; 0 where there is none."""

    def assumed(self) -> tuple[str, ...]:
        """Return what the proof assumes: more where there were steps."""
        return (*super().assumed(), *(STEPS_ASSUMPTIONS if self.steps_mu else ()))

    def derived_cost(self) -> Cost:
        """Return centre_mu-GDP, sums_mu-GDP, steps_mu-GDP and calibration_mu-GDP, composed adaptively.

        Proof. A neighbour has one record more or less. Its term in the centre is the vector `grid_terms` returns for
        (sqrt(1 - b^2) u, b), a multiple of the grid of norm at most 1, and all other terms are the same, bit for bit,
        because a term depends on its own record alone. Sums of at most MOST_RECORDS multiples of 2^-28 are exact, so
        the computed centres differ by exactly that term: the L2 sensitivity is 1. Given the released centre, m is
        a public number, and the record's term in the class sums is again one vector of norm at most 1, in one row
        of the (C, D) matrix: its sensitivity is 1 (of sparse rows by `sparse_sums_of`). Both are released by
        `GaussianVector` with that sensitivity; the second depends on the first through its output alone, and adaptive
        composition adds the squares of the mus (Dong, Roth and Su 2022, Corollary 3.3). What steps and calibration cost
        beside them is proved in `dpserve.training.kinds.class_sums.continued` and
        `dpserve.training.pay_once.calibration`. Everything else is computed from these.

        Privacy units. Let a neighbour have all n records of one unit more or less, each with the weight w <= 1/n that
        `dpserve.training.inputs.records.Units` gives it, a function of n alone: no other unit's terms change. The
        unit's term in the centre is the sum of its records' w times theirs, rounded towards zero: by the triangle
        inequality at most n w <= 1 long. In the class sums its records may lie in several rows of the matrix, and the
        same inequality holds for the matrix. (One record of the unit more or less moves the terms of the n - 1 others
        by their weights' change, 1/(n (n - 1)) each, and adds its own, 1/n: at most 2/n <= 1.)
        """
        self.mechanisms()
        if self.steps_mu:
            continued.law(self.steps_mu, len(self.classes), self.feature_map.dimension)
        return cost_of(self.centre_mu, self.sums_mu, self.steps_mu, self.calibration_mu)

    def mechanisms(self) -> dict[str, GaussianVector]:
        """Return the mechanisms that release the centre and the sums. Raises ValueError for impossible ones."""
        dimension = self.feature_map.dimension
        sizes = {"centre": (self.centre_mu, dimension + 1), "sums": (self.sums_mu, len(self.classes) * dimension)}
        return {name: GaussianVector(mu, size, 1.0) for name, (mu, size) in sizes.items()}

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the sums, and the steps if there are any; canaries join after the centre, which is public then.

        A canary's v is the unit vector e of a coordinate of its own. That is the direction around the mean m of (m,
        sqrt(1 - |m|^2) e), which is chosen once m is known, as an adaptive adversary may. So it moves the number of its
        class and coordinate by 1, or by what sparse rows have of it. Those of different classes share a coordinate.
        """
        if self.canaries is None:
            return ()
        vector = self.mechanisms()["sums"]
        length = SPARSE_LENGTH if Features(self.feature_map, sparse=True).are_sparse else 1.0
        moved = np.full((self.canaries.number, 1), length)
        slack = _RELATIVE * math.sqrt(self.canaries.number)
        parts = [CanaryPart("sums", self.sums_mu, moved, vector.standard_deviation, vector.step, slack=slack)]
        if self.steps_mu:
            labels = labels_of(self.canaries.number, len(self.classes))
            parts.append(continued.canary_part(self.steps_mu, self.feature_map.dimension, len(self.classes), labels))
        return tuple(parts)

    def standard_deviation(self) -> float:
        """Return the standard deviation of the noise on each number of the sums."""
        return self.mechanisms()["sums"].standard_deviation
