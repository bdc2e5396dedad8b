"""Rows of unit length, and exact sums of them: what one record adds is a function of that record alone, bit for bit."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats, Integers, Singles
from dpserve.training.exact.products import on_grid, squared_lengths
from dpserve.training.features.cut_rows import CutRows
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.rows import MappedRows
from dpserve.training.features.whole_steps import STEP
from dpserve.training.inputs.sums import COMPACT_BLOCK, Rows

GRID = 2**28
"""Sums of MOST_RECORDS terms, in steps of 2^-28, stay below 2^53, so that they are exact as doubles."""
SHORTEST_ROW = 2.0**-300
"""A row that is no longer has no direction: its squares might underflow."""
_SHRINK = 1.0 - 2.0**-30


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


def rows_of(feature_map: FeatureMap) -> Rows:
    """Return what sums are made of: directions (n, D), or phi itself, whose length is 1 or a hair less, if compact."""
    features = MappedRows(feature_map, compact=True)
    return Rows(features, at_once=COMPACT_BLOCK) if features.are_compact else Rows(Directions(features))


@dataclass(frozen=True, eq=False)
class Directions:
    """Map rows (n, d) to their directions u = phi/||phi||, (n, D), in STEP: rounded towards zero, 32 bits hold them."""

    features: Callable[[Floats], Floats]

    def __call__(self, X: Floats) -> Singles:
        """Return the directions."""
        rows = unit(self.features(X))
        rows /= STEP
        np.trunc(rows, out=rows)
        rows *= STEP
        return rows.astype(np.float32)


def phi_of(rows: Any) -> Floats | CutRows:
    """Return rows that sums keep as models take phi: of rows on cuts their codes, or else dense ones."""
    if isinstance(rows, CutRows):
        return rows
    dense: Floats = (rows if isinstance(rows, np.ndarray) else rows.toarray()).astype(np.float64)
    return dense


def term_sum(u: Any, weights: Floats | None, count: float = 0.0) -> Integers:
    """Return the sum of `grid_terms` of rows u (n, D), dense or compact, exactly: (D,).

    count: b, for terms (sqrt(1 - b^2) u, b), and their sum (D + 1,).

    The numbers that a compact row holds are rounded as a dense row's are, and it counts as nothing by the same exact
    sum: zeros add nothing to either, and a number that is in several coordinates counts as often.
    """
    kept = math.sqrt(1 - count**2)
    if isinstance(u, np.ndarray):
        with_count = np.empty((len(u), u.shape[1] + bool(count)))
        np.multiply(u, kept, out=with_count[:, : u.shape[1]], dtype=np.float64)
        with_count[:, u.shape[1] :] = count * _SHRINK
        dense: Integers = grid_terms(with_count, weights).sum(axis=0).astype(np.int64)
        return dense
    if isinstance(u, CutRows):
        values, often = u.packed()
        values *= kept
        if count:
            values = np.hstack([values, np.full((len(u), 1), count * _SHRINK)])
            often = np.append(often, 1.0)
        terms = grid_terms(values, weights, often)
        sums = u.scattered(terms[:, : len(often) - bool(count)]).astype(np.int64)
        return np.append(sums, terms[:, -1].sum().astype(np.int64)) if count else sums
    # Each row's numbers in as many columns as the fullest has, and its count last.
    counts = np.diff(u.indptr)
    of_rows = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(of_rows)) - np.repeat(u.indptr[:-1], counts)
    packed = np.zeros((len(counts), int(counts.max(initial=0)) + bool(count)))
    packed[of_rows, at] = u.data * kept
    if count:
        packed[:, -1] = count * _SHRINK
    terms = grid_terms(packed, weights)
    # At most 2^12 numbers of at most 2^28: exact in doubles.
    total: Integers = np.bincount(u.indices, terms[of_rows, at], u.shape[1]).astype(np.int64)
    return np.append(total, terms[:, -1].sum().astype(np.int64)) if count else total


def grid_terms(vectors: Floats, weights: Floats | None = None, often: Floats | None = None) -> Floats:
    """Return the records' vectors (n, D) in steps of 1/GRID, rounded towards zero, so that none becomes longer.

    weights: (n,), from 0 to 1, by which each is multiplied, as a record of a privacy unit is. often: (D,), in how many
    coordinates each number is, or its negative; None for once.

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
    own, other = (high, low) if often is None else (high * often, low * often)
    squared = np.einsum("ij,ij->i", own, high) * 2.0**28
    squared += np.einsum("ij,ij->i", own, low) * 2.0**15
    squared += np.einsum("ij,ij->i", other, low)
    steps[~(squared <= GRID**2 * (1 - 2.0**-40))] = 0.0
    if weights is not None:
        steps *= weights[:, None]
        np.trunc(steps, out=steps)
    return steps
