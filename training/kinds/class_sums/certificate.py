"""The certificate of class sums: what was released of the records, what that cost, and what it was added to."""

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from accounting.losses import Cost
from mechanisms.gaussian_vector import GaussianVector
from training.features.rows import Features
from training.fields import Several
from training.kinds.class_sums import continued
from training.pay_once import calibration
from training.pay_once.canaries import CanaryPart, labels_of
from training.pay_once.certificate import COMMON_ASSUMPTIONS, ReleaseCertificate

SPARSE_LENGTH = 1.0 - 2.0**-12
"""The length of v for a sparse row (`training.kinds.class_sums.model.sparse_sums_of`)."""
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


class AddedSums(BaseModel):
    """Earlier class sums, of other records around the same centre, that a model's own were added to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mu: float = Field(gt=0, allow_inf_nan=False)
    """Their cost: mu-GDP."""
    records: float = Field(ge=0, allow_inf_nan=False)
    """About how many records they are of: the noisy count that was released with them, or the number declared."""


class ClassSumsCertificate(ReleaseCertificate):
    """The certificate of noisy class sums."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = (
        *COMMON_ASSUMPTIONS,
        "A record's features and direction are computed from that record and released numbers alone, number by number "
        "or by sums that are exact, and the same arithmetic on the same numbers gives the same bits.",
    )

    release: Literal["class-sums"] = "class-sums"
    assumptions: Several[str] = ASSUMPTIONS
    centre_mu: float = Field(ge=0, allow_inf_nan=False)
    """The cost of the noisy centre: mu-GDP; 0 where it is an earlier model's."""
    sums_mu: float = Field(ge=0, allow_inf_nan=False)
    """The cost of the noisy class sums, given the centre: mu-GDP; 0 where steps begin at an earlier model's weights."""
    added: Several[AddedSums] = Field(default=(), exclude_if=lambda added: not added)
    """Earlier sums that its own were added to."""
    records_declared: int | None = Field(default=None, ge=1, exclude_if=lambda records: records is None)
    """About how many records its own sums are of, where they were added: a public number."""
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
        beside them is proved in `training.kinds.class_sums.continued` and `training.pay_once.calibration`. Everything
        else is computed from these.

        Privacy units. Let a neighbour have all n records of one unit more or less, each with the weight w <= 1/n that
        `training.inputs.records.Units` gives it, a function of n alone: no other unit's terms change. The unit's term
        in the centre is the sum of its records' w times theirs, rounded towards zero: by the triangle inequality at
        most n w <= 1 long. In the class sums its records may lie in several rows of the matrix, and the same inequality
        holds for the matrix. (One record of the unit more or less moves the terms of the n - 1 others by their weights'
        change, 1/(n (n - 1)) each, and adds its own, 1/n: at most 2/n <= 1.)
        """
        self._check_earlier()
        self.mechanisms()
        if self.steps_mu:
            continued.law(self.steps_mu, len(self.classes), self.feature_map.dimension)
        return cost_of(self.centre_mu, self.sums_mu, self.steps_mu, self.calibration_mu)

    def _check_earlier(self) -> None:
        """Raise ValueError unless what was released of these records is what the role of the earlier model leaves."""
        role = self.earlier[0].role if self.earlier else None
        released = (self.centre_mu > 0, self.sums_mu > 0, bool(self.added))
        if released != {None: (True, True, False), "sums": (False, True, True)}.get(role, (False, False, False)):
            raise ValueError("the centre, the sums and those added are not what the models that it names leave to it")
        if role == "weights" and not self.steps_mu:
            raise ValueError("a model that begins at another one's weights takes steps from there")
        if bool(self.added) != (self.records_declared is not None):
            raise ValueError("the number of records is declared of sums that are added, and of those alone")
        if role == "sums" and not all(each.apart for each in self.earlier):
            raise ValueError("sums are added of records that were found to be apart, and of no others")

    def mechanisms(self) -> dict[str, GaussianVector]:
        """The mechanisms that release the centre and the sums, those there are. Raises ValueError for impossible ones.

        Neither changes where the centre is an earlier model's: the sums' proof takes any public mean.
        """
        dimension = self.feature_map.dimension
        sizes = {"centre": (self.centre_mu, dimension + 1), "sums": (self.sums_mu, len(self.classes) * dimension)}
        return {name: GaussianVector(mu, size, 1.0) for name, (mu, size) in sizes.items() if mu}

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the sums and the steps, as far as there are any; canaries join after the centre, which is public then.

        A canary's v is the unit vector e of a coordinate of its own. That is the direction around the mean m of (m,
        sqrt(1 - |m|^2) e), which is chosen once m is known, as an adaptive adversary may. So it moves the number of its
        class and coordinate by 1, or by what sparse rows have of it. Those of different classes share a coordinate.
        """
        if self.canaries is None:
            return ()
        parts: list[CanaryPart] = []
        if self.sums_mu:
            vector = self.mechanisms()["sums"]
            length = SPARSE_LENGTH if Features(self.feature_map, sparse=True).are_sparse else 1.0
            moved = np.full((self.canaries.number, 1), length)
            slack = _RELATIVE * math.sqrt(self.canaries.number)
            parts.append(CanaryPart("sums", self.sums_mu, moved, vector.standard_deviation, vector.step, slack=slack))
        if self.steps_mu:
            labels = labels_of(self.canaries.number, len(self.classes))
            parts.append(continued.canary_part(self.steps_mu, self.feature_map.dimension, len(self.classes), labels))
        return tuple(parts)

    def standard_deviation(self) -> float:
        """Return the standard deviation of the noise on each number of all sums together.

        The noises of sums that were added were drawn apart, each Gaussian: the squares add up. A record of either part
        is in one of the sums alone, so that no sum costs it more than its own mu (`earlier.cost_beside`); who has all
        of them knows each part's, whose noise is what its mu says, and not what this returns.
        """
        size = len(self.classes) * self.feature_map.dimension
        mus = (*(each.mu for each in self.added), *((self.sums_mu,) if self.sums_mu else ()))
        return math.hypot(*(GaussianVector(mu, size, 1.0).standard_deviation for mu in mus))

    def fresh_sums_are_better(self) -> bool:
        """Tell whether sums of these records alone would say more of them than with those that were added.

        A sum of n records alike has a signal that grows with n, and noise s: sums that are added have
        sum(n)/sqrt(sum(s^2)), these alone n/s, from public numbers and noisy counts.
        """
        own = self.mechanisms()["sums"].standard_deviation
        records = self.records_declared or 0
        together = records + sum(each.records for each in self.added)
        return records / own > together / self.standard_deviation()
