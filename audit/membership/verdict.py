"""What an attack achieved, with confidence, beside what is claimed.

Thresholds are chosen on a first share of the scores, which nothing is counted on afterwards
(`audit.estimators.errors`).

What the confidence is about. One model was trained on all members and answers about all candidates.

- The interval of TPR - FPR, the lower bound of epsilon and the comparison with the claim's curve are about *this
  model's* own error rates. Given the model, the answers to different rows have independent noise, and so have the
  decisions: the number of errors is a sum of independent indicators, of unequal means. Clopper and Pearson's limits for
  their mean hold for such sums, too, because below its mean less one such a sum's lower tail is no heavier than the
  binomial's (Hoeffding 1956, Theorem 4; a limit within 1/n of 1 is left out, and shows nothing). A threshold from the
  first share depends on other noise only.
- A claim about one decision bounds the mean of those rates over the draw of the members. By how much one draw may
  exceed the mean it does not say: answers may depend on the other members in a way that makes all decisions right at
  once. So a conviction by these figures has *nominal* confidence: none for the step from this model to the mean.
- The bound of pairs (`audit.membership.pairs`) has no such step: its confidence is exact, and it is held against what
  is claimed of all answers together.

Three bounds may convict. Each is made with a third of the doubt, so that all of them hold together.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from audit.estimators import (
    SELECTION_SHARE,
    Errors,
    clopper_pearson,
    confidence_of_each,
    epsilon_delta,
    errors_at,
    gdp_of_errors,
    thresholded,
)
from audit.membership.claims import STEPS, ClaimedReleases
from audit.membership.pairs import PairBound, bound_of_pairs
from audit.membership.plan import BOUNDS
from audit.membership.signals import best_threshold

Floats = NDArray[np.float64]

LOW_RATES = (0.001, 0.01)


@dataclass(frozen=True, eq=False)
class Scores:
    """One attack's scores. members, others: (n,) each, in a random order. threshold: None if it has none of its own.

    An attack's own threshold comes from shadow models, never from these scores.
    """

    attack: str
    members: Floats
    others: Floats
    threshold: float | None = None


@dataclass(frozen=True)
class Corner:
    """A point of the ROC with confidence: at most this false positive rate, at least this true positive rate.

    allowed: the largest true positive rate at such a false positive rate, by the claim for replacing one record.
    """

    false_positive_rate: float
    true_positive_rate: float
    allowed: float

    @property
    def beyond(self) -> bool:
        """Whether it lies beyond the claim's curve."""
        return self.true_positive_rate > self.allowed


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What one attack achieved.

    threshold: of the decisions counted in `errors`; own_threshold: whether the attack brought it. low, high: of the
    interval of the advantage. true_positive_rates: at the rates of LOW_RATES, None where there are too few others to
    see such a rate. epsilon: the lower bound at the claim's delta, for replacing one record. corner: at a threshold of
    its own. scores: that it was found from.
    """

    attack: str
    threshold: float
    own_threshold: bool
    errors: Errors
    low: float
    high: float
    auc: float
    true_positive_rates: tuple[float | None, ...]
    epsilon: float
    corner: Corner
    selection_advantage: float
    false_positive_curve: Floats
    true_positive_curve: Floats
    scores: Scores

    @property
    def true_positive_rate(self) -> float:
        """Of the decisions."""
        return 1 - self.errors.false_negatives / self.errors.positives

    @property
    def false_positive_rate(self) -> float:
        """Of the decisions."""
        return self.errors.false_positives / self.errors.negatives

    @property
    def advantage(self) -> float:
        """TPR - FPR: Priv_Leak."""
        return self.true_positive_rate - self.false_positive_rate

    @property
    def precision(self) -> float | None:
        """Which share of those accused are members, if as many members as others are asked about."""
        accused = self.true_positive_rate + self.false_positive_rate
        return self.true_positive_rate / accused if accused > 0 else None


@dataclass(frozen=True, eq=False)
class Verdict:
    """All attacks, the one that counts, and whether it contradicts the claim.

    best: chosen by what it achieved where thresholds were chosen, not where it is counted. decision: what is claimed of
    what one decision saw. total: of all that was answered. pairs: the bound of the best attack's guesses, to be held
    against `total`. confidence: of each interval, and of the bounds that convict together.
    """

    found: tuple[AttackResult, ...]
    best: AttackResult
    decision: ClaimedReleases
    total: ClaimedReleases
    pairs: PairBound
    confidence: float

    @property
    def claimed_epsilon(self) -> float:
        """What the lower bound is held against: the claim for replacing one record."""
        return self.decision.epsilon(STEPS)

    @property
    def convicted(self) -> bool:
        """Whether the lower bound exceeds the claim, the ROC its curve, or guesses what is claimed of all answers."""
        return self.best.epsilon > self.claimed_epsilon or self.best.corner.beyond or self.convicted_exactly

    @property
    def convicted_exactly(self) -> bool:
        """Whether the guesses about pairs exceed what is claimed of all answers together."""
        return self.pairs.epsilon > self.total.epsilon(STEPS)


def verdict(
    scores: list[Scores], decision: ClaimedReleases, total: ClaimedReleases, confidence: float, seed: int = 0
) -> Verdict:
    """Judge every attack. seed: of coins for ties. Raises ValueError for scores that are too few or not numbers."""
    found = tuple(_found(one, decision, confidence) for one in scores)
    best = max(found, key=lambda one: one.selection_advantage)
    each = confidence_of_each(confidence, BOUNDS)
    pairs = bound_of_pairs(best.scores.members, best.scores.others, each, delta=total.delta, seed=seed)
    return Verdict(found, best, decision, total, pairs, confidence)


def _found(scores: Scores, decision: ClaimedReleases, confidence: float) -> AttackResult:
    some_in, rest_in = np.split(scores.members, [round(SELECTION_SHARE * len(scores.members))])
    some_out, rest_out = np.split(scores.others, [round(SELECTION_SHARE * len(scores.others))])
    chosen = scores.threshold
    if chosen is None:
        chosen = best_threshold(
            np.concatenate([some_in, some_out]), np.repeat([True, False], [len(some_in), len(some_out)])
        )
    at_selection = errors_at(some_in, some_out, chosen)
    errors = errors_at(rest_in, rest_out, chosen)
    low, high = advantage_interval(errors, confidence)
    known = np.repeat([1, 0], [len(scores.members), len(scores.others)])
    everyone = np.concatenate([scores.members, scores.others])
    false_positives, true_positives, _ = roc_curve(known, everyone, drop_intermediate=False)
    each = confidence_of_each(confidence, BOUNDS)
    bound = epsilon_delta(scores.members, scores.others, each, delta=decision.delta)
    return AttackResult(
        attack=scores.attack,
        threshold=chosen,
        own_threshold=scores.threshold is not None,
        errors=errors,
        low=low,
        high=high,
        auc=float(roc_auc_score(known, everyone)),
        true_positive_rates=tuple(_at(rate, false_positives, true_positives, len(scores.others)) for rate in LOW_RATES),
        epsilon=bound.value,
        corner=_corner(scores, decision, each),
        selection_advantage=1
        - at_selection.false_negatives / at_selection.positives
        - at_selection.false_positives / at_selection.negatives,
        false_positive_curve=false_positives,
        true_positive_curve=true_positives,
        scores=scores,
    )


def _corner(scores: Scores, decision: ClaimedReleases, confidence: float) -> Corner:
    """At the threshold that the first share finds worth most, as mu; limits of both rates from the others."""
    _, errors = thresholded(scores.members, scores.others, None, lambda errors: gdp_of_errors(errors, confidence))
    alpha, beta = errors.upper_limits(confidence)
    return Corner(alpha, 1 - beta, float(decision.power(np.array([alpha]), STEPS)[0]))


def advantage_interval(errors: Errors, confidence: float) -> tuple[float, float]:
    """An interval that holds TPR - FPR with the confidence: both rates' Clopper-Pearson limits, by a union bound."""
    each = 1 - (1 - confidence) / 4
    low = (
        1
        - clopper_pearson(errors.false_negatives, errors.positives, each)
        - clopper_pearson(errors.false_positives, errors.negatives, each)
    )
    right, refused = errors.positives - errors.false_negatives, errors.negatives - errors.false_positives
    high = clopper_pearson(right, errors.positives, each) - (1 - clopper_pearson(refused, errors.negatives, each))
    return low, high


def _at(rate: float, false_positives: Floats, true_positives: Floats, others: int) -> float | None:
    """The largest TPR at a false positive rate of at most `rate`; None where one false alarm exceeds it."""
    if others * rate < 1:
        return None
    return float(true_positives[false_positives <= rate].max())
