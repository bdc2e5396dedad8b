"""The steps of class sums: the centre, the sums, and gradient steps from their directions."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Self

import numpy as np

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import LEAST_PRICE, GaussianVector
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fitting.around import SparseCentred, around
from dpserve.training.fitting.dense_around import DenseCentred
from dpserve.training.fitting.unit_rows import Directions, phi_of, rows_of
from dpserve.training.inputs.records import AnyRecords
from dpserve.training.inputs.sums import Rows, Sums
from dpserve.training.kinds.class_sums import continued
from dpserve.training.kinds.class_sums.model import ReleasedClassSums
from dpserve.training.kinds.class_sums.sums import centre_of, mean_of, sparse_sums_of, sums_of
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import CanaryRun, Coins, columns_of, included_records, one_hot
from dpserve.training.pay_once.chain import ModelStep, PublicNumbers
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.pay_once.certificate import ReleaseCertificate

CENTRE_SHARE = Fraction(1, 20)
"""The share that the centre is paid from of what calibration leaves of mu^2, at most."""

CENTRE_NOISE = 0.1
"""Length of the mean's noise beside rows of length 1: with less of it answers are no better."""


@dataclass(frozen=True)
class Training:
    """A training of class sums on its way. constants: (C,), what gradient steps add to the logits.

    rows: the directions of the records' rows, as sums see them, which are kept from step to step.
    records_declared: about how many records there are, None where that is not known. coins: of canaries, if there are
    any.
    """

    records: AnyRecords
    model: ReleasedClassSums
    constants: Floats
    rows: Rows
    records_declared: int | None = None
    coins: Coins | None = None

    @property
    def sums(self) -> Sums:
        """The records."""
        return self.records.sums

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.constants)

    @property
    def feature_map(self) -> FeatureMap:
        """The model's."""
        return self.model.certificate.feature_map

    @property
    def logits(self) -> Rows:
        """The model's logits (m, C) before calibration, of the directions that are kept."""
        model, constants = self.model, self.constants  # a term takes them along to where the records are
        return Rows(lambda kept: model.logits_of(phi_of(kept)) + constants, source=self.rows, at_once=self.rows.at_once)

    def with_calibration(self, calibration: Calibration) -> Self:
        """Return it with the calibration of these logits."""
        offsets = calibration.scale * self.constants + calibration.offsets
        whole = Calibration(calibration.scale, offsets)
        return replace(self, model=replace(self.model, calibration=whole))


def centre_law(mu: float, dimension: int) -> GaussianVector:
    """Return how the centre is released (`Centre`). Raises ValueError where it cannot be."""
    return GaussianVector(mu, dimension + 1, 1.0)


def sums_law(mu: float, classes: int, dimension: int) -> GaussianVector:
    """Return how the class sums are released (`ClassTotals`). Raises ValueError where they cannot be."""
    return GaussianVector(mu, classes * dimension, 1.0)


class Centre(ModelStep[Training]):
    """The noisy sum over the records of (sqrt(1 - b^2) u, b): mu-GDP.

    Proof. A neighbour has one record more or less. Its term is the vector `grid_terms` returns for (sqrt(1 - b^2) u,
    b), a multiple of the grid of norm at most 1, and all other terms are the same, bit for bit, because a term depends
    on its own record alone. Sums of at most MOST_RECORDS multiples of 2^-28 are exact, so the computed centres differ
    by exactly that term: the L2 sensitivity is 1.

    Privacy units. Let a neighbour have all n records of one unit more or less, each with the weight w <= 1/n that
    `dpserve.training.inputs.records.Units` gives it, a function of n alone: no other unit's terms change. The unit's
    term is the sum of its records' w times theirs, rounded towards zero: by the triangle inequality at most n w <= 1
    long. (One record of the unit more or less moves the terms of the n - 1 others by their weights' change, 1/(n (n -
    1)) each, and adds its own, 1/n: at most 2/n <= 1.)
    """

    name = "centre"
    is_needed = True

    def share(self, price: int, numbers: PublicNumbers) -> int:
        """Return CENTRE_SHARE of the price, or what the least release costs if that is more.

        Or as much less as leaves CENTRE_NOISE in the mean of so many records. Raises ValueError for too little.
        """
        if price < 2 * LEAST_PRICE:
            raise ValueError(
                f"class sums are two releases, and cost at least {2 * sampling_error.LEAST_RELEASE_RHO:g} rho, not "
                f"{price / picorho.PICORHO_PER_RHO:g}"
            )
        centre = price * CENTRE_SHARE.numerator // CENTRE_SHARE.denominator
        if numbers.n is not None:
            mu = math.sqrt(numbers.feature_map.dimension) / (CENTRE_NOISE * max(numbers.n, 1))
            centre = min(centre, math.ceil(mu * mu / 2 * picorho.PICORHO_PER_RHO))
        return max(centre, LEAST_PRICE)

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError for a mu that no centre can have."""
        return centre_law(mu, certificate.feature_map.dimension).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state with a centre."""
        law = centre_law(release.mu, state.feature_map.dimension)
        centre = law.release(centre_of(state.sums, state.rows), randomness)
        return replace(state, model=replace(state.model, centre=centre))


class ClassTotals(ModelStep[Training]):
    """The noisy sums over the records of each class of v = (u - m)/||u - m||: mu-GDP, given the centre.

    Proof. Given the released centre, m is a public number, and a record's term is one vector of norm at most 1, in one
    row of the (C, D) matrix, on the grid as the centre's are (`Centre`): its sensitivity is 1 (of sparse rows by
    `sparse_sums_of`). It depends on the centre through its output alone.

    Privacy units. A unit's records may lie in several rows of the matrix, and the triangle inequality holds for the
    matrix.
    """

    name = "sums"
    is_needed = True

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError for a mu that no sums can have."""
        return sums_law(mu, len(certificate.classes), certificate.feature_map.dimension).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state with sums."""
        mean = mean_of(state.model.centre)
        add = sparse_sums_of if state.feature_map.has_compact_rows else sums_of
        exact = add(state.sums, state.rows, state.classes, mean)
        law = sums_law(release.mu, state.classes, state.feature_map.dimension)
        sums, beside = law.release_beside(exact, _canary_sums(state), randomness)
        run = state.model.canaries
        if run is not None:
            run = run.with_part(self.name, beside.reshape(-1, 1)[: len(run.coins.included)])
        return replace(state, model=replace(state.model, sums=sums, canaries=run))


class Descent(ModelStep[Training]):
    """Gradient steps from the directions of the sums: `continued.law` has the proof."""

    name = "steps"

    def share(self, price: int, numbers: PublicNumbers) -> int:
        """Return `continued.share_of` the price."""
        dimension, degrees = numbers.feature_map.dimension, numbers.feature_map.degrees
        return continued.share_of(price, numbers.classes, dimension, numbers.n, degrees)

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost. Raises ValueError for a mu that no steps can have."""
        return continued.law(mu, len(certificate.classes), certificate.feature_map.dimension).cost

    def run(self, state: Training, release: Release, randomness: Randomness) -> Training:
        """Return the state after the steps."""
        assert state.records_declared is not None
        model, run = state.model, state.model.canaries
        stepped, constants, beside = continued.descended(
            continued.START * math.sqrt(state.classes) * model.directions,
            state.sums,
            _centred(state.rows, model.mean, state.feature_map),
            release.mu,
            state.records_declared,
            randomness,
            _canary_gradient(state),
        )
        if run is not None and beside is not None:
            run = run.with_part(self.name, beside)
        return replace(state, model=replace(model, stepped=stepped, canaries=run), constants=constants)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Exact gradients, and the owner's word."""
        return (
            "In the gradient steps a record's gradient comes of products that round nothing, in any order, and exp "
            "gives the same bits for the same number wherever it stands in an array. That there were as many steps, "
            "with the noise that their release says, is the owner's word, which the weights do not refute.",
        )


CENTRE, TOTALS, DESCENT = Centre(), ClassTotals(), Descent()


def _centred(rows: Rows, mean: Floats, feature_map: FeatureMap) -> Rows:
    """Return rows around a mean, as steps see them."""
    return around(rows, mean, centred=SparseCentred if feature_map.has_compact_rows else DenseCentred)


def _canary_sums(state: Training) -> Floats:
    """Return the class sums of the included canaries at their own coordinates, (C, columns), as records' are computed.

    Around a mean that is 0 there: see `ClassSumsCertificate.canary_parts`. No columns without canaries.
    """
    if state.coins is None:
        return np.empty((state.classes, 0))
    columns = columns_of(len(state.coins.included), state.classes)
    add = sparse_sums_of if state.feature_map.has_compact_rows else sums_of
    records = included_records(state.coins, state.classes, columns)
    return add(records, _canary_rows(columns, state.feature_map), state.classes, np.zeros(columns))


def _canary_gradient(state: Training) -> Floats | None:
    """Return what the included canaries add to each step, (N, C); None without canaries."""
    if state.coins is None:
        return None
    number = len(state.coins.included)
    rows = _centred(_canary_rows(number, state.feature_map), np.zeros(number), state.feature_map)
    records = included_records(state.coins, state.classes, number)
    return continued.canary_gradient(records, rows, number, state.classes)


def _canary_rows(columns: int, feature_map: FeatureMap) -> Rows:
    rows = one_hot(columns, sparse=feature_map.has_compact_rows)
    return rows if feature_map.has_compact_rows else Rows(Directions(rows.make))


def begun(
    model: ReleasedClassSums,
    records: AnyRecords,
    records_declared: int | None,
    coins: Coins | None,
) -> Training:
    """Return a training of a model of which nothing was released yet."""
    if coins is not None:
        model = replace(model, canaries=CanaryRun(coins, {}))
    constants = np.zeros(len(records.declaration.classes))
    return Training(records, model, constants, rows_of(model.certificate.feature_map), records_declared, coins)
