"""Noisy class sums: the sum of the records' directions in each class, released once, and a classifier made of them.

The model of few records per class: one record moves the sums by at most 1, whatever is trained from them.

What is released, in this order, each on exact integer-grid noise (`dpserve.mechanisms.gaussian_vector`):
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
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpserve.accounting import picorho, sampling_error
from dpserve.accounting.arrays import Floats, Integers
from dpserve.mechanisms.answer_noise import AnswerNoise, AnyNoise, UnknownNoise
from dpserve.mechanisms.elementary import row_sums, softmax
from dpserve.mechanisms.gaussian_vector import LEAST_PRICE, mu_for
from dpserve.mechanisms.laws import GAUSSIAN
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.bundles.sealing import checked_tensors, load_sealed, one_line, save_sealed, with_public_tensors
from dpserve.training.devices import NUMPY, Arithmetic, Matrix, matrices
from dpserve.training.errors import TrainingError
from dpserve.training.exact.products import on_grid, squared_lengths
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.rows import Features
from dpserve.training.fitting.around import around
from dpserve.training.fitting.network import check_shards
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import Rows, Shard, Sums, check_count
from dpserve.training.kinds.class_sums import continued
from dpserve.training.kinds.class_sums.certificate import SPARSE_LENGTH, ClassSumsCertificate, cost_of
from dpserve.training.kinds.class_sums.shrinkage import SHORTEST_ROW, shrunk, unit_rows
from dpserve.training.pay_once import calibration
from dpserve.training.pay_once.calibration import Calibration
from dpserve.training.pay_once.canaries import (
    CanaryRun,
    Coins,
    columns_of,
    included_records,
    one_hot,
    tensor_shapes,
)
from dpserve.training.pay_once.certificate import check_on_grid
from dpserve.training.pay_once.model import Around, rounded

CENTRE_SHARE = Fraction(1, 20)
"""The share that the centre is paid from of what calibration leaves of mu^2, at most."""

CENTRE_NOISE = 0.1
"""Length of the mean's noise beside rows of length 1: with less of it answers are no better."""

COUNT_COORDINATE = 0.2
TEMPERATURE = 8.0
"""The temperature of the cosines, before they are calibrated."""

GRID = 2**28
"""Sums of MOST_RECORDS terms, in steps of 2^-28, stay below 2^53, so that they are exact as doubles."""
_SHRINK = 1.0 - 2.0**-30


_OF_STEPS = UnknownNoise(
    "gradient steps followed the class sums, each with noise: nothing is proved of how far all of it moved an answer"
)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Released class sums as a classifier. centre: (D + 1,), sums: (C, D), both noisy; tensors: the map's public ones.

    calibration: of its logits. stepped: the weights (C, D) that gradient steps led to, or None.
    arithmetic: what computes its products. canaries: what was released of canaries in the same run.

    Nothing in it but the certificate's lineage and digest is private.
    """

    certificate: ClassSumsCertificate
    centre: Floats
    sums: Floats
    tensors: dict[str, Floats]
    calibration: Calibration
    stepped: Floats | None = None
    arithmetic: Arithmetic = NUMPY
    canaries: CanaryRun | None = None

    def probabilities(self, X: Floats) -> Floats:
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
            return self.probabilities(X), _OF_STEPS
        both = self._both.products(self.certificate.feature_map(X, self._public))
        classes = both.shape[1] // 2
        logits = self.calibration(both[:, :classes])
        noise = self.calibration.scale * self._noise[None, :]
        return softmax(logits), AnswerNoise(GAUSSIAN, noise, logits=self.calibration(both[:, classes:]))

    def logits(self, X: Floats) -> Floats:
        """Return the logits (n, C), before calibration."""
        return self._scores.products(self.certificate.feature_map(X, self._public))

    @functools.cached_property
    def _public(self) -> dict[str, Matrix]:
        return matrices(self.arithmetic, self.tensors)

    @functools.cached_property
    def _scores(self) -> Around:
        return Around.mean(self.mean, self.weights, self.arithmetic)

    @functools.cached_property
    def weights(self) -> Floats:
        """The matrix that v is multiplied by, `rounded` for exact products: (C, D)."""
        return rounded(TEMPERATURE * self.directions if self.stepped is None else self.stepped)

    @functools.cached_property
    def _both(self) -> Around:
        """The logits, and behind them `answers`' r, before calibration."""
        released = rounded(TEMPERATURE * self.sums / self._lengths[:, None])
        return Around.mean(self.mean, np.vstack([self.weights, released]), self.arithmetic)

    @functools.cached_property
    def _noise(self) -> Floats:
        """The noise of r before calibration, (C,)."""
        noise: Floats = TEMPERATURE * self._standard_deviation / self._lengths
        return noise

    @functools.cached_property
    def _lengths(self) -> Floats:
        """Length of each row of the shrunk sums, (C,): the noisy row's where nothing is left of it."""
        shrunk, noisy = (np.sqrt(row_sums(rows * rows)) for rows in (self._shrunk, self.sums))
        lengths: Floats = np.maximum(np.where(shrunk > SHORTEST_ROW, shrunk, noisy), SHORTEST_ROW)
        return lengths

    @functools.cached_property
    def _shrunk(self) -> Floats:
        return shrunk(self.sums, self._standard_deviation)

    @property
    def _standard_deviation(self) -> float:
        return self.certificate.standard_deviation()

    @functools.cached_property
    def mean(self) -> Floats:
        """m: the noisy mean of the records' directions, (D,)."""
        return mean_of(self.centre)

    @functools.cached_property
    def directions(self) -> Floats:
        """The direction of each class, (C, D)."""
        return unit_rows(self._shrunk)


def train_class_sums(
    records: Records,
    name: str,
    feature_map: FeatureMap,
    whole: int,
    lineage: str,
    randomness: Randomness,
    progress: Callable[[int], None] = lambda _: None,
    records_declared: int | None = None,
    canaries: int | None = None,
) -> ClassSums:
    """Release the class sums of the records for at most `whole` picorho, continue them, and certify the model.

    progress is told how many rows are done, of two passes over them. records_declared: about how many records there
    are, as a public number; without it there are no gradient steps. canaries: how many there are. Raises TrainingError
    for a price that cannot be, for more than MOST_RECORDS records, and where canaries refute the certificate.
    """
    check_count(len(records))
    classes = len(records.declaration.classes)
    coins = None if canaries is None else Coins.drawn(canaries, randomness)
    certificate = _certified(records, name, feature_map, whole, lineage, records_declared, coins)
    rows = rows_of(feature_map)
    model = _released(certificate, records, rows, randomness, progress, coins)
    constants = np.zeros(classes)
    if certificate.steps_mu and records_declared is not None:
        stepped, constants, beside = continued.descended(
            continued.START * math.sqrt(classes) * model.directions,
            records.sums,
            _centred(rows, model.mean, feature_map),
            certificate.steps_mu,
            records_declared,
            randomness,
            None if coins is None else _canary_gradient(coins, classes, feature_map),
        )
        model = replace(model, stepped=stepped)
        if model.canaries is not None and beside is not None:
            model = replace(model, canaries=model.canaries.with_part("steps", beside))
    model = replace(model, certificate=certificate.with_canaries(model.canaries))

    def logits(X: Floats) -> Floats:
        return model.logits(X) + constants

    found = calibration.calibrated(records.sums, logits, classes, certificate.calibration_mu, randomness)
    return replace(model, calibration=Calibration(found.scale, found.scale * constants + found.offsets))


def _centred(rows: Rows, mean: Floats, feature_map: FeatureMap) -> Rows:
    """Return rows around a mean, as steps see them."""
    return around(rows, mean) if is_sparse(feature_map) else Rows(Centred(rows.make, mean))


def _canary_sums(coins: Coins, classes: int, feature_map: FeatureMap) -> Floats:
    """Return the class sums of the included canaries at their own coordinates, (C, columns), as records' are computed.

    Around a mean that is 0 there: see `ClassSumsCertificate.canary_parts`.
    """
    columns = columns_of(len(coins.included), classes)
    add = sparse_sums_of if is_sparse(feature_map) else sums_of
    records = included_records(coins, classes, columns)
    return add(records, _canary_rows(columns, feature_map), classes, np.zeros(columns))


def _canary_gradient(coins: Coins, classes: int, feature_map: FeatureMap) -> Floats:
    """Return what the included canaries add to each step, (N, C)."""
    number = len(coins.included)
    rows = _centred(_canary_rows(number, feature_map), np.zeros(number), feature_map)
    return continued.canary_gradient(included_records(coins, classes, number), rows, number, classes)


def _canary_rows(columns: int, feature_map: FeatureMap) -> Rows:
    rows = one_hot(columns, sparse=is_sparse(feature_map))
    return rows if is_sparse(feature_map) else Rows(Directions(rows.make))


def _certified(
    records: Records,
    name: str,
    feature_map: FeatureMap,
    whole: int,
    lineage: str,
    records_declared: int | None,
    coins: Coins | None,
) -> ClassSumsCertificate:
    """Return the certificate of a training before it is made, from public numbers alone. Raises TrainingError."""
    declaration = records.declaration
    classes, dimension = len(declaration.classes), feature_map.dimension
    try:
        for_calibration, others = calibration.divided(whole)
        for_steps, for_sums = continued.divided(others, classes, dimension, records_declared, feature_map.degrees)
        centre_mu, sums_mu = shares(for_sums, dimension, records_declared)
        steps_mu = mu_for(for_steps) if for_steps else 0.0
        calibration_mu = calibration.mu_of(for_calibration)
        certificate = ClassSumsCertificate.fresh(
            name,
            declaration,
            feature_map,
            lineage,
            unit=records.unit,
            cost=str(cost_of(centre_mu, sums_mu, steps_mu, calibration_mu)),
            centre_mu=centre_mu,
            sums_mu=sums_mu,
            steps_mu=steps_mu,
            calibration_mu=calibration_mu,
            canaries=None if coins is None else coins.certified(),
        )
        certificate.whole_cost()
    except ValueError as error:
        raise TrainingError(f"these class sums are not possible: {one_line(error)}") from error
    return certificate


def _released(
    certificate: ClassSumsCertificate,
    records: Records,
    rows: Rows,
    randomness: Randomness,
    progress: Callable[[int], None],
    coins: Coins | None,
) -> ClassSums:
    """Release the centre and the sums; return the model so far."""
    feature_map, classes = certificate.feature_map, len(certificate.classes)
    tensors, uncalibrated = feature_map.public_tensors(), Calibration.none(classes)
    run = None if coins is None else CanaryRun(coins, {})
    releases = certificate.mechanisms()
    centre = releases["centre"].release(centre_of(records.sums, rows, progress), randomness)
    add = sparse_sums_of if is_sparse(feature_map) else sums_of
    exact = add(records.sums, rows, classes, mean_of(centre), lambda done: progress(len(records) + done))
    beside = np.empty((classes, 0)) if coins is None else _canary_sums(coins, classes, feature_map)
    sums, beside = releases["sums"].release_beside(exact, beside, randomness)
    if run is not None:
        run = run.with_part("sums", beside.reshape(-1, 1)[: len(run.coins.included)])
    return ClassSums(certificate, centre, sums, tensors, uncalibrated, canaries=run)


def shares(whole: int, dimension: int = 0, records_declared: int | None = None) -> tuple[float, float]:
    """Return the mus of the centre and the sums, which cost at most `whole` picorho together.

    The centre gets CENTRE_SHARE, or as much less as leaves CENTRE_NOISE in the mean of so many records, a public
    number; or what the least release costs if that is more. Raises ValueError for too little.
    """
    centre = whole * CENTRE_SHARE.numerator // CENTRE_SHARE.denominator
    if records_declared is not None:
        mu = math.sqrt(dimension) / (CENTRE_NOISE * max(records_declared, 1))
        centre = min(centre, math.ceil(mu * mu / 2 * picorho.PICORHO_PER_RHO))
    centre = max(centre, LEAST_PRICE)
    if whole < 2 * LEAST_PRICE:
        raise ValueError(
            f"class sums are two releases, and cost at least {2 * sampling_error.LEAST_RELEASE_RHO:g} rho, not "
            f"{whole / picorho.PICORHO_PER_RHO:g}"
        )
    return mu_for(centre), mu_for(whole - centre)


def unit(rows: Floats) -> Floats:
    """Return rows (n, D) scaled to length 1, a hair less; a row without a direction is zero.

    A row's direction is a function of that row alone, bit for bit: it is rounded to a grid first on which its length is
    exact in any order (`exact.on_grid`), and the rest is done number by number. It is at most 1 - 2^-31 long.
    """
    whole = on_grid(rows)
    lengths = np.sqrt(squared_lengths(whole))
    scales = np.where(lengths > SHORTEST_ROW, _SHRINK / np.maximum(lengths, SHORTEST_ROW), 0.0)
    whole *= scales[:, None]
    return whole


def is_sparse(feature_map: FeatureMap) -> bool:
    """Return whether sums over this map's rows are computed without their zeros."""
    return Features(feature_map, sparse=True).are_sparse


def rows_of(feature_map: FeatureMap) -> Rows:
    """Return what sums are made of: directions (n, D), or phi itself, whose length is 1 or a hair less, if sparse."""
    features = Features(feature_map, sparse=True)
    return Rows(features if features.are_sparse else Directions(features))


@dataclass(frozen=True, eq=False)
class Directions:
    """Map rows (n, d) to their directions u = phi/||phi||, (n, D)."""

    features: Callable[[Floats], Floats]

    def __call__(self, X: Floats) -> Floats:
        """Return the directions."""
        return unit(self.features(X))


@dataclass(frozen=True, eq=False)
class Centred:
    """Map rows (n, d) to their directions around the mean, v = (u - m)/||u - m||, (n, D)."""

    directions: Callable[[Floats], Floats]
    mean: Floats

    def __call__(self, X: Floats) -> Floats:
        """Return them."""
        return unit(self.directions(X) - self.mean)


def centre_of(records: Sums, rows: Rows, progress: Callable[[int], None] = lambda _: None) -> Floats:
    """Return the sum over the rows u of (sqrt(1 - b^2) u, b), exactly as `derived_cost` says: (D + 1,)."""
    total: Integers = records.total(functools.partial(_centre_term, rows=rows), progress=progress)
    return total / GRID


def _centre_term(shard: Shard, _: None, *, rows: Rows) -> Integers:
    """Return a shard's part of the centre, (D + 1,), in steps."""
    parts = [term_sum(u, weights, COUNT_COORDINATE) for u, _y, weights in shard.blocks(rows)]
    total: Integers = np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros((), dtype=np.int64)
    return total


def term_sum(u: Any, weights: Floats | None, count: float = 0.0) -> Integers:
    """Return the sum of `grid_terms` of rows u (n, D), dense or sparse, exactly: (D,).

    count: b, for terms (sqrt(1 - b^2) u, b), and their sum (D + 1,).

    A sparse row's numbers that are not 0 are rounded as a dense row's are, and it counts as nothing by the same exact
    sum: zeros add nothing to either.
    """
    kept = math.sqrt(1 - count**2)
    if isinstance(u, np.ndarray):
        with_count = np.empty((len(u), u.shape[1] + bool(count)))
        np.multiply(u, kept, out=with_count[:, : u.shape[1]])
        with_count[:, u.shape[1] :] = count * _SHRINK
        dense: Integers = grid_terms(with_count, weights).sum(axis=0).astype(np.int64)
        return dense
    # Each row's numbers in as many columns as the fullest has, and its count last.
    counts = np.diff(u.indptr)
    of_rows = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(of_rows)) - np.repeat(u.indptr[:-1], counts)
    packed = np.zeros((len(counts), int(counts.max(initial=0)) + bool(count)))
    packed[of_rows, at] = u.data * kept
    if count:
        packed[:, -1] = count * _SHRINK
    terms = grid_terms(packed, weights)
    # At most 2^10 numbers of at most 2^28: exact in doubles.
    total: Integers = np.bincount(u.indices, terms[of_rows, at], u.shape[1]).astype(np.int64)
    return np.append(total, terms[:, -1].sum().astype(np.int64)) if count else total


def mean_of(centre: Floats) -> Floats:
    """Return the noisy mean m of the directions, (D,), from the noisy centre: in the unit ball, as every mean is."""
    count = max(float(centre[-1]) / COUNT_COORDINATE, 1.0)
    mean = centre[:-1] / (math.sqrt(1 - COUNT_COORDINATE**2) * count)
    scaled: Floats = mean / max(1.0, math.sqrt(float(row_sums((mean * mean)[None])[0])))
    return scaled


def sums_of(
    records: Sums, rows: Rows, classes: int, mean: Floats, progress: Callable[[int], None] = lambda _: None
) -> Floats:
    """Return for each class the sum of v over its rows u, dense ones, exactly as `derived_cost` says: (C, D)."""
    total: Integers = records.total(
        functools.partial(_sums_term, rows=rows, classes=classes, mean=mean), progress=progress
    )
    return total / GRID


def _sums_term(shard: Shard, _: None, *, rows: Rows, classes: int, mean: Floats) -> Integers:
    """Return a shard's part of the class sums, (C, D), in steps: products with 0 and 1, which are exact."""
    total = np.zeros((classes, len(mean)), dtype=np.int64)
    for u, y, weights in shard.blocks(rows):
        terms = grid_terms(unit(u - mean), weights)
        for each in np.unique(y):
            total[each] += terms[y == each].sum(axis=0).astype(np.int64)
    return total


def sparse_sums_of(
    records: Sums, rows: Rows, classes: int, mean: Floats, progress: Callable[[int], None] = lambda _: None
) -> Floats:
    """Return the sums of v for sparse rows u (n, D), each v `SPARSE_LENGTH` of what it is for dense ones: (C, D).

    One record, or all records of one unit with their weights, move what is computed by at most 1. Proof. v is at most
    SPARSE_LENGTH (1 + 2^-50) long, a function of its record and of the released mean (`AroundMean`), and its
    contribution is v in the row of its class: weights add up to at most 1, so that by the triangle inequality a unit
    moves the exact sums by no more. Rounding moves neighbours' sums apart by at most SUM_ERROR, as
    `Network.clipped_sum` counts it with c = 1: blocks, shards and records are the same, and the factors, at most 1 long
    for a row, are the classes' 0 and 1 in place of gradients. Together less than 1 - 2^-12 + 2^-50 + 2^-13 < 1.
    """
    check_shards(records)
    term = functools.partial(_sparse_sums_term, rows=around(rows, mean, SPARSE_LENGTH), classes=classes)
    total: Floats = records.total(term, progress=progress)
    return total.T


def _sparse_sums_term(shard: Shard, _: None, *, rows: Rows, classes: int) -> Floats:
    """Return a shard's part of the class sums, (D, C)."""
    total: Floats = np.zeros(())
    for v, y, weights in shard.blocks(rows):
        shares = np.zeros((len(y), classes))
        shares[np.arange(len(y)), y] = 1.0 if weights is None else weights
        total = total + v.summed(shares)
    return total


def grid_terms(vectors: Floats, weights: Floats | None = None) -> Floats:
    """Return the records' vectors (n, D) in steps of 1/GRID, rounded towards zero, so that none becomes longer.

    weights: (n,), from 0 to 1, by which each is multiplied, as a record of a privacy unit is.

    What is longer than 1 - 2^-41 all the same, which rounding of the norm excludes, counts as nothing: the sensitivity
    of a sum of such terms is 1 whatever happened before. The squared length is summed exactly, in two halves of 14
    bits: with |k| <= 2^28 and at most 2^22 coordinates no sum reaches 2^53. What is rounded then, number by number, is
    off by less than 2^-51 of itself. A weight's product is rounded by 2^-53 of itself and then towards zero: a unit's
    terms, whose weights add up to at most 1 (`dpserve.training.inputs.records.Units`), are at most 1 long together.
    """
    steps = np.trunc(np.clip(vectors * GRID, -GRID, GRID))
    low = np.abs(steps)
    high = np.floor(low * 2.0**-14)
    low -= high * 2.0**14
    squared = np.einsum("ij,ij->i", high, high) * 2.0**28
    squared += np.einsum("ij,ij->i", high, low) * 2.0**15
    squared += np.einsum("ij,ij->i", low, low)
    steps[~(squared <= GRID**2 * (1 - 2.0**-40))] = 0.0
    if weights is not None:
        steps *= weights[:, None]
        np.trunc(steps, out=steps)
    return steps


def save_class_sums(folder: Path, model: ClassSums) -> ClassSumsCertificate:
    """Write the bundle into a new folder; return its certificate with the digest. Raises BundleError."""
    own = {"centre": model.centre, "sums": model.sums, "calibration": model.calibration.numbers}
    if model.stepped is not None:
        own["stepped"] = model.stepped
    if model.canaries is not None:
        own |= model.canaries.tensors()
    return save_sealed(folder, with_public_tensors(own, model.tensors), model.certificate)


def load_class_sums(folder: Path, device: str | None = None) -> ClassSums:
    """Read and verify a bundle. device, and what is raised: as for `sealing.load_sealed`."""
    certificate, tensors = load_sealed(folder, ClassSumsCertificate, device)
    dimension, classes = certificate.feature_map.dimension, len(certificate.classes)
    shapes: dict[str, tuple[int, ...]] = {
        "centre": (dimension + 1,),
        "sums": (classes, dimension),
        "calibration": (classes + 1,),
    }
    if certificate.steps_mu:
        shapes["stepped"] = (classes, dimension)
    shapes |= tensor_shapes(certificate.canaries, certificate.canary_parts())
    public = certificate.feature_map.public_tensors()
    released = checked_tensors(tensors, shapes, public)
    for name, vector in certificate.mechanisms().items():
        check_on_grid(name, released[name], vector.step)
    return ClassSums(
        certificate,
        released["centre"],
        released["sums"],
        public,
        Calibration.read(released["calibration"]),
        released.get("stepped"),
        canaries=certificate.checked_canaries(released),
    )
