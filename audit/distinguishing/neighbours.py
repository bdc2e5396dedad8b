"""Neighbouring models: trained with one record and without it, and the row at which they differ most.

The record is a natural one, an outlier, or a mislabelled canary that is searched for; or the adversary poisons: it
chooses all other records, too, as differential privacy lets it (Chadha, Jagielski, Papernot, Choquette-Choo and Nasr,
"Auditing private prediction", ICML 2024, find that what private answers tell hangs on whether it may). More than any of
them shows `Mechanism.worst_neighbours`, two rows of logits as far apart as the proof allows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.elementary import softmax
from dpserve.mechanisms.worlds import Worlds
from dpserve.training.exact.questions import MeteredModel
from dpserve.training.inputs.records import Declaration, Records, Units

Kind = Literal["natural", "outlier", "mislabelled", "poisoned"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_FINALISTS = 8
_PROPOSALS = 64
_ROUNDS = 60
_LIT = (0.25, 0.5)
_SHARED = (0.0, 0.125, 0.25, 0.375, 0.5)

AnyHead = TypeVar("AnyHead", bound=MeteredModel)
Train = Callable[[Records], AnyHead]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two heads that one record, or unit, makes the difference between. row: (d,), of it; label: its class."""

    kind: Kind
    head_in: MeteredModel
    head_out: MeteredModel
    row: Floats
    label: int

    def worlds(self, X: Floats) -> Worlds:
        """Return rows X, (n, d), as the two heads' logits, with the sensitivity that the head's certificate states.

        For a published network the features differ too, and the claimed sensitivity does not depend on them.
        """
        phi_in, phi_out = self.head_in.features(X), self.head_out.features(X)
        return Worlds(
            self.head_in.logits(phi_in), self.head_out.logits(phi_out), self.head_out.logit_sensitivity(phi_out)
        )

    def movement(self, X: Floats) -> Floats:
        """Return how far each row's logits move, in L2 and without what all share, over the sensitivity: (n,).

        0 for a row without features, whose logits are 0 whatever the records.
        """
        worlds = self.worlds(X)
        difference = worlds.logits_in - worlds.logits_out
        difference = difference - difference.mean(axis=1, keepdims=True)
        moved = np.sqrt((difference**2).sum(axis=1))
        shares: Floats = np.divide(moved, worlds.sensitivity, out=moved, where=(moved > 0) | (worlds.sensitivity > 0))
        return shares


def neighbours(kind: Kind, records: Records, train: Train[AnyHead], rng: np.random.Generator) -> Neighbours:
    """Train two neighbours. natural: a record drawn at random is left out; outlier: the one with the largest loss.

    mislabelled: a row with its least likely class is added. Of all records' rows and as many random ones within the
    declared bounds, the few with the largest gradient at the minimum are each trained with, and the one that moves the
    logits of some row most, for its sensitivity, is taken. poisoned: the records are replaced by as many that make the
    added one matter most (`_poison`). Where records have privacy units, all records of that
    record's unit are left out, and what is added is a unit of its own. Raises what training raises.
    """
    if kind == "mislabelled":
        return _mislabel(records, train, rng)
    if kind == "poisoned":
        return _poison(records, train, rng)
    head = train(records)
    if kind == "natural":
        index = int(rng.integers(len(records)))
    else:
        chances = softmax(head.logits(head.features(records.X)))[np.arange(len(records)), records.y]
        index = int(np.argmin(chances))
    rest = train(remove_record(records, index))
    return Neighbours(kind, head, rest, records.X[index], int(records.y[index]))


def _mislabel(records: Records, train: Train[AnyHead], rng: np.random.Generator) -> Neighbours:
    base = train(records)
    rows = np.concatenate([records.X, random_rows(records.declaration, len(records), rng)])
    probabilities = softmax(base.logits(base.features(rows)))
    labels = probabilities.argmin(axis=1)
    residual = probabilities - np.eye(probabilities.shape[1])[labels]
    norms = np.linalg.norm(base.features(rows), axis=1)
    finalists = np.argsort(-np.linalg.norm(residual, axis=1) * norms)[:_FINALISTS]
    tried = []
    for index in finalists:
        row, label = rows[index], int(labels[index])
        pair = Neighbours("mislabelled", train(with_record(records, row, label)), base, row, label)
        tried.append((float(pair.movement(np.concatenate([row[None], records.X])).max()), pair))
    return max(tried, key=lambda scored: scored[0])[1]


def _poison(records: Records, train: Train[AnyHead], rng: np.random.Generator) -> Neighbours:
    """Return neighbours of records that the adversary chose, as many as there are: only their declaration is used.

    To first order one record x of class y moves the weights by H^-1 (p - e_y) x^T, where H is Lambda and the curvature
    that the others add along x: the sum of p (1 - p) <z, x>^2 over their rows z. The proof allows for p_y = 0 and no
    curvature. Copies of x with another class bring p_y to 0, but their curvature grows with the margin that they make.
    Rows that share a small part c of x and little with one another push the weights along x by c each, and add c^2 of
    curvature: many of them bring p_y near 0, and leave H near Lambda. So the rows are corners of the declared bounds, x
    with some features at their upper bound, and each of the others with a part of these and as many more features as
    make it as long. The share that moves the logits most is taken, as trained.
    """
    declaration, pairs = records.declaration, []
    lower, upper, features = np.asarray(declaration.lower), np.asarray(declaration.upper), declaration.features
    order = rng.permutation(features)
    for lit, shared in sorted({(math.ceil(lit * features), share) for lit in _LIT for share in _SHARED}):
        bright, rest = order[:lit], order[lit:]
        count = min(round(shared * lit), lit)
        picked = np.zeros((len(records), features), bool)
        for row in picked:
            row[rng.choice(bright, count, replace=False)] = True
            row[rng.choice(rest, min(lit - count, len(rest)), replace=False)] = True
        others = _declared(records, np.where(picked, upper, lower))
        x = np.where(np.isin(np.arange(features), bright), upper, lower)
        pair = Neighbours("poisoned", train(with_record(others, x, 0)), train(others), x, 0)
        pairs.append((float(pair.movement(x[None])[0]), pair))
    return max(pairs, key=lambda scored: scored[0])[1]


def _declared(records: Records, X: Floats) -> Records:
    """Return rows X of the last class, each a unit of its own where the records have units."""
    units = None if records.units is None else Units(records.units.column, np.arange(len(X)))
    y = np.full(len(X), len(records.declaration.classes) - 1)
    return Records(X, y, records.declaration, records.source, units)


def remove_record(records: Records, index: int) -> Records:
    """Return the records but one, or but all of its unit."""
    of = np.arange(len(records)) if records.units is None else records.units.of
    kept = of != of[index]
    units = None if records.units is None else Units(records.units.column, np.unique(of[kept], return_inverse=True)[1])
    return Records(records.X[kept], records.y[kept], records.declaration, records.source, units)


def with_record(records: Records, row: Floats, label: int) -> Records:
    """Return the records and one more, which is a unit of its own."""
    of = None if records.units is None else np.append(records.units.of, records.units.of.max() + 1)
    units = None if records.units is None or of is None else Units(records.units.column, of)
    X = np.concatenate([records.X, row[None]])
    return Records(X, np.append(records.y, label), records.declaration, records.source, units)


def random_rows(declaration: Declaration, count: int, rng: np.random.Generator) -> Floats:
    """Return rows (count, d) drawn evenly from within the bounds."""
    rows: Floats = rng.uniform(declaration.lower, declaration.upper, (count, declaration.features))
    return rows


def strongest_row(pair: Neighbours, declaration: Declaration, X: Floats, rng: np.random.Generator) -> Floats:
    """Return a row (1, d) within the bounds at which the two heads differ most for the noise that it would get.

    From the best of X and of the record's own row, a climb by random changes of some of the features, each round
    keeping the best of the proposals if it is better.
    """
    lower, upper = np.asarray(declaration.lower), np.asarray(declaration.upper)
    rows = np.concatenate([pair.row[None], X])
    best = rows[int(np.argmax(pair.movement(rows)))]
    for turn in range(_ROUNDS):
        reach = (upper - lower) * 0.5 ** (1 + 6 * turn / _ROUNDS)
        changed = rng.random((_PROPOSALS, len(best))) < rng.random((_PROPOSALS, 1))
        moves = np.where(changed, rng.normal(size=changed.shape) * reach, 0.0)
        proposals = np.concatenate([best[None], np.clip(best + moves, lower, upper)])
        best = proposals[int(np.argmax(pair.movement(proposals)))]
    strongest: Floats = best[None]
    return strongest
