"""An attack on answers without a claim: what a model of any kind tells about who was trained on it.

Nothing is known of the model but its probabilities: no price, no account and no certificate. So nothing is convicted;
TPR - FPR and a lower bound of epsilon are measured, each with confidence.

Scores. Those of `dpserve.audit.membership.scoring` that need no shadow models, and the loss less that of reference
models which never saw the row (Watson et al. 2022): random forests, each fitted to four fifths of all candidates and
asked about the rest. No score knows who is a member.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.audit.estimators import SELECTION_SHARE, Errors, errors_at
from dpserve.audit.membership.candidates import Candidates, Difference, Labelled, difference, repeated
from dpserve.audit.membership.plan import TooFewSamples, fewest, largest_epsilon
from dpserve.audit.membership.scoring import (
    best_threshold,
    correctness,
    log_confidence,
    negative_entropy,
    negative_modified_entropy,
    order_of,
    scaled_confidence,
)
from dpserve.audit.membership.verdict import LOW_RATES, PairBound, advantage_interval, bound_of_pairs, curve, rate_at
from dpserve.audit.progress import OnStage

AskRows = Callable[[Floats], Floats]
"""Returns probabilities (n, C) of rows (n, d)."""

_FOLDS = 5
_TREES = 200


@dataclass(frozen=True, eq=False)
class MeasuredAttack:
    """The success of one attack, of the candidates that chose no threshold and no attack.

    low, high: of the interval of TPR - FPR. true_positive_rates: at `LOW_RATES`. members, others: all scores.
    """

    attack: str
    errors: Errors
    low: float
    high: float
    auc: float
    true_positive_rates: tuple[float | None, ...]
    false_positive_curve: Floats
    true_positive_curve: Floats
    selection_advantage: float
    members: Floats
    others: Floats

    @property
    def advantage(self) -> float:
        """TPR - FPR on the candidates that chose no threshold."""
        return (
            1
            - self.errors.false_negatives / self.errors.positives
            - self.errors.false_positives / self.errors.negatives
        )


@dataclass(frozen=True, eq=False)
class Leakage:
    """All attacks, and the best by what it achieved where thresholds were chosen. pairs: its bound, at delta 0.

    decided: how many members, and as many others.
    """

    attacks: tuple[MeasuredAttack, ...]
    best: MeasuredAttack
    pairs: PairBound
    difference: Difference
    decided: int
    confidence: float


def measure_leakage(
    ask: AskRows,
    candidates: Candidates,
    *,
    confidence: float = 0.95,
    most: int | None = None,
    at_once: int = 100,
    seed: int = 0,
    progress: OnStage = lambda _, __: None,
) -> Leakage:
    """Ask about as many members as others, and measure how well answers tell them apart.

    The bound of epsilon is exact for candidates that an owner split at random (`bound_of_pairs`): training of which
    epsilon, for replacing one record at delta 0, is smaller lets so many guesses be right with a probability of 1 -
    confidence at most. It holds for answers without noise, too: the coins are the split's.

    The interval of TPR - FPR is about this model's rates, over all its records and the population. Its errors are
    counts of a sample: without replacement such a count is distributed as a sum of independent indicators (Vatutin and
    Mikhailov 1982), for which Clopper and Pearson's limits hold (`dpserve.audit.membership.verdict`).

    Parameters: `most` candidates of each kind, `at_once` rows in a request. Raises TooFewSamples, and what `ask` does.
    """
    if not 0.5 <= confidence < 1:
        raise ValueError(f"the confidence must lie from 0.5 to below 1, not be {confidence}")
    progress("comparing members with non-members", 0.0)
    apart = difference(candidates.members, candidates.others, seed)
    both = candidates.members + candidates.others
    alone = ~repeated(both)
    generator = np.random.default_rng(seed)
    count = len(candidates.members)
    places = [
        generator.permutation(np.flatnonzero(alone[:count])),
        generator.permutation(np.flatnonzero(alone[count:])),
    ]
    size = min(len(places[0]), len(places[1]), len(both) if most is None else most)
    if size < 1 or largest_epsilon(size, confidence) <= 0:
        raise TooFewSamples(fewest(confidence), confidence, size, size, distinct=bool(alone.all()))
    asked = both[np.concatenate([places[0][:size], count + places[1][:size]])]
    turn = generator.permutation(2 * size)  # a server must not learn from the order who is a member
    answers: Floats | None = None
    for start in range(0, 2 * size, at_once):
        progress(f"asking, {start} of {2 * size} rows", start / (2 * size))
        rows = turn[start : start + at_once]
        replies = ask(asked.X[rows])
        if answers is None:
            answers = np.empty((2 * size, replies.shape[1]))
        answers[rows] = replies
    assert answers is not None
    progress("fitting reference models", 0.0)
    scores = _scores(answers, asked, candidates.everyone, seed)
    order = order_of(2 * size, seed)
    inside = order < size
    attacks = tuple(_judged(name, of_all[order], inside, confidence) for name, of_all in scores.items())
    best = max(attacks, key=lambda attack: attack.selection_advantage)
    pairs = bound_of_pairs(best.members, best.others, confidence, delta=0.0, seed=seed)
    return Leakage(attacks, best, pairs, apart, size, confidence)


def _scores(answers: Floats, asked: Labelled, everyone: Labelled, seed: int) -> dict[str, Floats]:
    y = asked.y
    scores = {
        "loss": log_confidence(answers, y),
        "scaled confidence": scaled_confidence(answers, y),
        "entropy": negative_entropy(answers, y),
        "modified entropy": negative_modified_entropy(answers, y),
        "gap": correctness(answers, y),
    }
    references = _reference_losses(asked, everyone, answers.shape[1], seed)
    return scores | {"loss, by reference models": scores["loss"] - references}


def _reference_losses(asked: Labelled, everyone: Labelled, classes: int, seed: int) -> Floats:
    """Return ln p_y of each row (n,) by forests that were fitted to other rows.

    A row that comes twice is in one fold with its copies, so that no forest saw it.
    """
    from sklearn.ensemble import RandomForestClassifier

    folds = {row: int(fold) for row, fold in _fold_of_rows(everyone, seed).items()}
    of_everyone, of_asked = (
        np.array([folds[row.tobytes()] for row in records.X + 0.0]) for records in (everyone, asked)
    )
    chances = np.zeros((len(asked), classes))
    for fold in range(_FOLDS):
        fit, rows = of_everyone != fold, np.flatnonzero(of_asked == fold)
        if fit.any() and len(rows):
            forest = RandomForestClassifier(_TREES, min_samples_leaf=2, random_state=seed % 2**32)
            forest.fit(everyone.X[fit], everyone.y[fit])
            chances[np.ix_(rows, forest.classes_.astype(np.int64))] = forest.predict_proba(asked.X[rows])
    smoothed: Floats = np.log((chances[np.arange(len(asked)), asked.y] * _TREES + 1) / (_TREES + classes))
    return smoothed


def _fold_of_rows(records: Labelled, seed: int) -> dict[bytes, int]:
    names = sorted({row.tobytes() for row in records.X + 0.0})
    folds: Labels = np.random.default_rng([seed, 1]).permutation(len(names)) % _FOLDS
    return dict(zip(names, folds.tolist(), strict=True))


def _judged(name: str, scores: Floats, inside: Mask, confidence: float) -> MeasuredAttack:
    members, others = scores[inside], scores[~inside]
    some_in, rest_in = np.split(members, [round(SELECTION_SHARE * len(members))])
    some_out, rest_out = np.split(others, [round(SELECTION_SHARE * len(others))])
    known = np.repeat([True, False], [len(some_in), len(some_out)])
    threshold = best_threshold(np.concatenate([some_in, some_out]), known)
    first, errors = errors_at(some_in, some_out, threshold), errors_at(rest_in, rest_out, threshold)
    false_positives, true_positives, auc = curve(rest_in, rest_out)
    return MeasuredAttack(
        name,
        errors,
        *advantage_interval(errors, confidence),
        auc,
        tuple(rate_at(rate, rest_in, rest_out) for rate in LOW_RATES),
        false_positives,
        true_positives,
        1 - first.false_negatives / first.positives - first.false_positives / first.negatives,
        members,
        others,
    )
