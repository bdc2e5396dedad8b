"""What an attack achieved, with confidence, beside what is claimed.

Thresholds are chosen on a first share of the scores, which nothing is counted on afterwards
(`audit.estimators.attack`). Intervals are Clopper and Pearson's: they take the candidates for independent draws, as the
literature on black-box attacks does. They are not: one model was trained on all members and answers about all
candidates, so that decisions depend on each other through it. Nothing corrects for that: the confidence is nominal.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from audit.estimators import Errors, clopper_pearson, epsilon_delta, errors_at
from audit.membership.claims import STEPS, Claim
from audit.membership.plan import SELECTION_SHARE
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


@dataclass(frozen=True, eq=False)
class Found:
    """What one attack achieved.

    threshold: of the decisions counted in `errors`; own_threshold: whether the attack brought it. low, high: of the
    interval of the advantage. true_positive_rates: at the rates of LOW_RATES, None where there are too few others to
    see such a rate. epsilon: the lower bound at the claim's delta, for replacing one record.
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
    selection_advantage: float
    false_positive_curve: Floats
    true_positive_curve: Floats

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
    what one decision saw. total: of all that the keys ever spent. confidence: nominal, as decisions of one
    model are not independent.
    """

    found: tuple[Found, ...]
    best: Found
    decision: Claim
    total: Claim
    confidence: float

    @property
    def claimed_epsilon(self) -> float:
        """What the lower bound is held against: the claim for replacing one record."""
        return self.decision.epsilon(STEPS)

    @property
    def convicted(self) -> bool:
        """Whether the lower bound exceeds the claim."""
        return self.best.epsilon > self.claimed_epsilon


def verdict(scores: list[Scores], decision: Claim, total: Claim, confidence: float) -> Verdict:
    """Judge every attack. Raises ValueError for scores that are too few or not numbers."""
    found = tuple(_found(one, decision.delta, confidence) for one in scores)
    return Verdict(found, max(found, key=lambda one: one.selection_advantage), decision, total, confidence)


def _found(scores: Scores, delta: float, confidence: float) -> Found:
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
    return Found(
        attack=scores.attack,
        threshold=chosen,
        own_threshold=scores.threshold is not None,
        errors=errors,
        low=low,
        high=high,
        auc=float(roc_auc_score(known, everyone)),
        true_positive_rates=tuple(_at(rate, false_positives, true_positives, len(scores.others)) for rate in LOW_RATES),
        epsilon=epsilon_delta(
            scores.members, scores.others, confidence, delta=delta, selection_share=SELECTION_SHARE
        ).value,
        selection_advantage=1
        - at_selection.false_negatives / at_selection.positives
        - at_selection.false_positives / at_selection.negatives,
        false_positive_curve=false_positives,
        true_positive_curve=true_positives,
    )


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
