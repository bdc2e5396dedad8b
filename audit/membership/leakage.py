"""An attack on answers without a claim: what a model of any kind tells about who was trained on it.

Nothing is known of the model but its probabilities: no price, no account and no certificate. So nothing is convicted;
TPR - FPR and a lower bound of epsilon are measured, each with confidence.

Scores, none of which knows who is a member:

- the loss (Yeom et al. 2018), and the loss less that of reference models which never saw the row (Watson et al. 2022):
  random forests, each fitted to four fifths of all candidates and asked about the rest;
- the confidence in the true class, less what the model says of such rows; and by quantile regression (Bertran et al.
  2023), where it lies in the law of what the model says of such rows (`expected_confidences`). Both take nothing but
  the model's answers.

On eleven models of three data sets each was the best somewhere, and entropies, and whether the label is right, nowhere
(`docs/attacks.md`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpserve.accounting.arrays import Floats, Labels, Mask
from dpserve.audit.estimators import SELECTION_SHARE, Errors, errors_at
from dpserve.audit.membership.candidates import Candidates, Difference, Labelled, difference, repeated
from dpserve.audit.membership.exposure import Exposure, OwnNull, exposure
from dpserve.audit.membership.plan import TooFewSamples, fewest, largest_epsilon
from dpserve.audit.membership.scoring import best_threshold, log_confidence, order_of, scaled_confidence
from dpserve.audit.membership.verdict import LOW_RATES, PairBound, advantage_interval, bound_of_pairs, curve, rate_at
from dpserve.audit.progress import OnStage

AskRows = Callable[[Floats], Floats]
"""Returns probabilities (n, C) of rows (n, d)."""

QUANTILES = "quantile regression"

_FOLDS = 5
_TREES = 200
_REGRESSION_TREES = 60
_LARGEST_CONFIDENCE = 15.0
"""Confidences beyond are this: probabilities of 0 and 1, as forests answer, say no more."""
_LEAST_RESIDUAL = 1e-3


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
    exposure: Exposure
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
    index = np.concatenate([places[0][:size], count + places[1][:size]])
    index = index[_order_of_values(both[index])]  # an order that does not say who is a member
    asked, member = both[index], index < count
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
    inside = member[order]
    attacks = tuple(_judged(name, of_all[order], inside, confidence) for name, of_all in scores.items())
    best = max(attacks, key=lambda attack: attack.selection_advantage)
    pairs = bound_of_pairs(best.members, best.others, confidence, delta=0.0, seed=seed)
    exposed = exposure(
        member,
        np.where(member, index, index - count),
        scores[best.attack],
        own_null_of_others(scores[QUANTILES], member),
        confidence,
        "the chance that a non-member's confidence is as far above what quantile regression expects of it",
    )
    return Leakage(attacks, best, exposed, pairs, apart, size, confidence)


def _scores(answers: Floats, asked: Labelled, everyone: Labelled, seed: int) -> dict[str, Floats]:
    loss, confidence = log_confidence(answers, asked.y), scaled_confidence(answers, asked.y)
    confidence = np.clip(confidence, -_LARGEST_CONFIDENCE, _LARGEST_CONFIDENCE)
    reference = _reference_losses(asked, everyone, answers.shape[1], seed)
    features = np.column_stack([asked.X, np.eye(answers.shape[1])[asked.y], reference])
    mean, deviation = expected_confidences(features, confidence, seed)
    return {
        "loss": loss,
        "loss, by reference models": loss - reference,
        "confidence, by regression": confidence - mean,
        QUANTILES: (confidence - mean) / deviation,
    }


def expected_confidences(features: Floats, confidence: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return the mean and the deviation of the confidence that are expected of each row: (n,) each.

    features: (n, d), of rows: their values, label, and how sure models are of it that never saw the row. confidence:
    (n,). Every quantile of a row is its mean and a number of deviations, the same for all rows (Bertran et al. 2023
    take the normal law's). Both are learnt from the rows of other folds, so that no row's own confidence calibrates its
    own quantiles; members and others alike, so that a score does not know who is a member: what members have more
    moves the mean of all rows, not their order. Residuals that teach the deviation are those of trees without the row.
    """
    from sklearn.ensemble import RandomForestRegressor

    mean, deviation = np.empty(len(confidence)), np.empty(len(confidence))
    folds = np.random.default_rng([seed, 2]).permutation(len(confidence)) % _FOLDS
    for fold in range(_FOLDS):
        fit, rows = folds != fold, folds == fold
        centre, spread = (
            RandomForestRegressor(
                _REGRESSION_TREES,
                min_samples_leaf=5,
                max_features=1 / 3,
                oob_score=outside,
                random_state=(seed + fold) % 2**32,
            )
            for outside in (True, False)
        )
        centre.fit(features[fit], confidence[fit])
        residuals = np.abs(confidence[fit] - centre.oob_prediction_)
        spread.fit(features[fit], np.log(residuals + _LEAST_RESIDUAL))
        mean[rows], deviation[rows] = centre.predict(features[rows]), np.exp(spread.predict(features[rows]))
    return mean, deviation


def own_null_of_others(score: Floats, member: Mask) -> OwnNull:
    """Return each row's false positive rate by its rank among non-members, without itself.

    score, member: (n,). Of m non-members (1 + how many have such a score)/(m + 1). That is exact for a non-member drawn
    like the others: the score does not know who is a member, so that non-members' scores are exchangeable, and each
    rank is as likely. It is a chance over records; that of one record as far as its expected confidence is right.
    """
    others = np.sort(score[~member])
    above = len(others) - np.searchsorted(others, score, side="left") - (~member)
    compared = len(others) - (~member).astype(np.int64)
    rates = (1 + above) / (compared + 1)
    return OwnNull(rates, rates, compared)


def _reference_losses(asked: Labelled, everyone: Labelled, classes: int, seed: int) -> Floats:
    """Return ln p_y of each row (n,) by forests that were fitted to other rows.

    A row that comes twice is in one fold with its copies, so that no forest saw it.
    """
    from sklearn.ensemble import RandomForestClassifier

    everyone = everyone[_order_of_values(everyone)]
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


def _order_of_values(records: Labelled) -> Labels:
    """Return an order of the records that follows from them alone: forests take rows by their place."""
    return np.lexsort(np.column_stack([records.y, records.X]).T)


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
