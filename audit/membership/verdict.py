"""The success of an attack, with confidence, compared with what is claimed.

Thresholds are chosen on a first share of the scores, which nothing is counted on afterwards
(`dpserve.audit.estimators.choose_threshold`).

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
- The bound of pairs (`bound_of_pairs`) has no such step: its confidence is exact, and it is compared with what is
  claimed of all answers together.

Three bounds may convict, and the test of noise (`dpserve.audit.noise`). That takes a hundred-millionth of the doubt,
which is more than it needs, and each bound a third of the rest, so that all of them hold together.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy.special
from sklearn.metrics import roc_auc_score, roc_curve

from dpserve.accounting import domains
from dpserve.accounting.arrays import Floats
from dpserve.audit.estimators import (
    SELECTION_SHARE,
    Errors,
    choose_threshold,
    epsilon_delta,
    epsilon_delta_of_errors,
    errors_at,
    gdp_of_errors,
    largest_met,
    upper_limit,
)
from dpserve.audit.membership.claims import STEPS, ClaimedReleases
from dpserve.audit.membership.plan import confidence_of_bound
from dpserve.audit.membership.scoring import Scores, best_threshold

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
"""Which shares of the pairs may be guessed, the others being passed over."""

LOWER_BOUND = "the lower bound of epsilon"
CORNER = "a point of the ROC beyond the claim's curve"
PAIRS = "guesses about pairs"
"""The bounds that convict, by name."""

_LARGEST = 1e300
_LARGEST_EPSILON = 700.0


@dataclass(frozen=True)
class PairBound:
    """The epsilon that guesses refute, for replacing one record, of all answers together. right: of the guesses."""

    epsilon: float
    pairs: int
    guesses: int
    right: int


def bound_of_pairs(members: Floats, others: Floats, confidence: float, *, delta: float, seed: int) -> PairBound:
    """Return a lower bound of epsilon whose confidence is exact, although one model answers about all candidates.

    For pairs of a member and another it is guessed which is which: the one with the larger score. members, others:
    scores (n,) and (m,) in random orders, larger for those that look like members. The first pairs choose how many of
    the others are guessed: their coins are taken as known, which leaves the others fair. Pairs with the largest
    differences are guessed, and ties by a coin.

    Why it is exact. Given the pairs, which of the two is the member is a fair coin of its own, independent of the
    others. Proof: let S be the members, any n of 2n exchangeable records with equal probability, and let the pairing be
    drawn uniformly from the n! that put one member into each pair. A set of pairs is consistent with 2^n sets of
    members, one for each choice of a side, and each of those has the same probability and leads to the pairing with the
    same probability 1/n!. So given the pairs all 2^n choices are equally likely.

    The premise is about draws that were made: candidates are exchangeable, which the owner's split decides, and the
    pairing is uniform given the split. It follows from the order of the scores, whose seed is independent of the plan's
    and of the endpoint's noise only as far as seeds derived from one by different words are.

    To turn one coin replaces one record of the model by another: two steps. Steinke, Nasr and Jagielski 2023 then bound
    how many coins can be guessed from everything that was answered (`epsilon_of_guesses`), whatever the answers have to
    do with each other. What is refuted is therefore a claim about *all* answers together.
    """
    pairs = min(len(members), len(others))
    difference = np.clip(members[:pairs], -_LARGEST, _LARGEST) - np.clip(others[:pairs], -_LARGEST, _LARGEST)
    coins = np.random.default_rng(seed).random(pairs) < 0.5
    surest = np.abs(difference)
    right = np.where(difference == 0, coins, difference > 0)
    first = round(SELECTION_SHARE * pairs)
    rest = pairs - first
    if rest < 1:
        return PairBound(0.0, rest, 0, 0)

    def expected(share: float) -> float:
        """The epsilon if the others are guessed as well as the first ones, half a guess less sure."""
        some = np.argsort(-surest[:first], kind="stable")[: max(1, round(share * first))]
        rate = (right[:first][some].sum() + 0.5) / (len(some) + 1)
        guesses = max(1, round(share * rest))
        return epsilon_of_guesses(rest, guesses, int(rate * guesses), confidence, delta)

    share = max(SHARES, key=expected) if first else 1.0
    guesses = max(1, round(share * rest))
    correct = int(right[first:][np.argsort(-surest[first:], kind="stable")[:guesses]].sum())
    return PairBound(epsilon_of_guesses(rest, guesses, correct, confidence, delta), rest, guesses, correct)


def epsilon_of_guesses(canaries: int, guesses: int, right: int, confidence: float, delta: float) -> float:
    """Return the largest epsilon, or 0, whose p-value for `right` of `guesses` is at most 1 - confidence.

    Auditing in one run (Steinke, Nasr and Jagielski 2023): many canaries, each in or out by a fair coin. The attacker
    sees one output and says of some canaries whether they are in. Under (epsilon, delta)-DP the number of right guesses
    is hardly larger than what guessing with a coin of bias e^epsilon/(1 + e^epsilon) would give. How many are guessed
    must be fixed without looking at the coins.
    """
    domains.require_between("the confidence", confidence, 0, 1)
    doubt = 1 - confidence

    def excess(epsilon: float) -> float:
        return p_value_of_guesses(canaries, guesses, right, epsilon, delta) - doubt

    return largest_met(excess, 0.0, _LARGEST_EPSILON, 1e-9)


def p_value_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return a bound of P(at least `right` of `guesses` are right) under (epsilon, delta)-DP.

    With W ~ Binomial(guesses, q), q = 1/(1 + e^-epsilon), it is P(W >= right) + 2 canaries delta max over i >= 1 of
    P(right - i <= W < right)/i (Steinke, Nasr and Jagielski 2023, Theorem 5.2 and its evaluation in Appendix D). Why,
    for delta = 0: given the output and the coins of the canaries before, each canary's coin falls either way with odds
    within e^epsilon, so each guess is right with probability at most q, and the sum is dominated by W.
    """
    if not 0 <= right <= guesses <= canaries or guesses == 0:
        raise ValueError(f"{right} right of {guesses} guesses about {canaries} canaries cannot be")
    domains.require_up_to("delta", delta, 1)
    q = float(scipy.special.expit(epsilon))
    if right == 0:
        return 1.0
    tail = float(scipy.special.betainc(right, guesses - right + 1, q))
    if delta == 0:
        return min(1.0, tail)
    # P(W <= k) for k = -1, ..., right - 1.
    below = np.concatenate([[0.0], scipy.special.bdtr(np.arange(right), guesses, q)])
    spans = np.arange(1, right + 1)
    share = float(np.max((below[-1] - below[right - spans]) / spans))
    return min(1.0, tail + 2 * canaries * delta * share)


LOW_RATES = (0.001, 0.01)


@dataclass(frozen=True)
class Corner:
    """A point of the ROC with confidence: at most this false positive rate, at least this true positive rate.

    allowed: the largest true positive rate at such a false positive rate, by the claim for replacing one record.
    """

    false_positive_rate: float
    true_positive_rate: float
    allowed: float

    @property
    def exceeds_claim(self) -> bool:
        """Whether it lies beyond the claim's curve."""
        return self.true_positive_rate > self.allowed


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The success of one attack.

    Every figure is of the candidates that chose no threshold and no attack. threshold: of the decisions counted in
    `errors`. low, high: of the interval of the advantage. true_positive_rates: at the rates of LOW_RATES (`rate_at`),
    None where there are too few others to see such a rate. epsilon: the lower bound at the claim's delta, for replacing
    one record. corner: at a threshold of its own. scores: that it was found from, of all candidates.
    """

    attack: str
    threshold: float
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
        """Share of the decisions about members that are right."""
        return 1 - self.errors.false_negatives / self.errors.positives

    @property
    def false_positive_rate(self) -> float:
        """Share of the decisions about others that are wrong."""
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
        """The claim for replacing one record, with which the lower bound is compared."""
        return self.decision.epsilon(STEPS)

    @property
    def epsilon(self) -> float:
        """The largest lower bound for what one decision saw; that of pairs where this is all that was answered."""
        return max(self.best.epsilon, self.pairs.epsilon) if self.decision == self.total else self.best.epsilon

    @property
    def convicted(self) -> bool:
        """Whether the lower bound exceeds the claim, the ROC its curve, or guesses what is claimed of all answers."""
        return bool(self.convictions)

    @property
    def convictions(self) -> tuple[str, ...]:
        """The bounds that exceed the claim, by name."""
        convictions = {
            LOWER_BOUND: self.best.epsilon > self.claimed_epsilon,
            CORNER: self.best.corner.exceeds_claim,
            PAIRS: self.convicted_exactly,
        }
        return tuple(name for name, exceeds in convictions.items() if exceeds)

    @property
    def powerless(self) -> tuple[str, ...]:
        """The bounds, by name, that refute nothing with so few candidates, however right an attack is."""
        errors, level = self.best.errors, confidence_of_bound(self.confidence)
        none = Errors(0, errors.positives, 0, errors.negatives)
        alpha, beta = none.upper_limits(level)
        pairs = self.pairs.pairs
        largest = epsilon_of_guesses(pairs, pairs, pairs, level, self.total.delta) if pairs else 0.0
        powerless = {
            LOWER_BOUND: epsilon_delta_of_errors(none, level, self.decision.delta) <= self.claimed_epsilon,
            CORNER: 1 - beta <= float(self.decision.power(np.array([alpha]), STEPS)[0]),
            PAIRS: largest <= self.total.epsilon(STEPS),
        }
        return tuple(name for name, cannot in powerless.items() if cannot)

    @property
    def convicted_exactly(self) -> bool:
        """Whether the guesses about pairs exceed what is claimed of all answers together."""
        return self.pairs.epsilon > self.total.epsilon(STEPS)


def verdict(
    scores: list[Scores], decision: ClaimedReleases, total: ClaimedReleases, confidence: float, seed: int = 0
) -> Verdict:
    """Judge every attack. seed: of coins for ties. Raises ValueError for scores that are too few or not numbers."""
    results = tuple(_result(scored, decision, confidence) for scored in scores)
    best = max(results, key=lambda result: result.selection_advantage)
    level = confidence_of_bound(confidence)
    pairs = bound_of_pairs(best.scores.members, best.scores.others, level, delta=total.delta, seed=seed)
    return Verdict(results, best, decision, total, pairs, confidence)


def _result(scores: Scores, decision: ClaimedReleases, confidence: float) -> AttackResult:
    some_in, rest_in = np.split(scores.members, [round(SELECTION_SHARE * len(scores.members))])
    some_out, rest_out = np.split(scores.others, [round(SELECTION_SHARE * len(scores.others))])
    chosen = best_threshold(
        np.concatenate([some_in, some_out]), np.repeat([True, False], [len(some_in), len(some_out)])
    )
    at_selection = errors_at(some_in, some_out, chosen)
    errors = errors_at(rest_in, rest_out, chosen)
    low, high = advantage_interval(errors, confidence)
    false_positives, true_positives, auc = curve(rest_in, rest_out)
    level = confidence_of_bound(confidence)
    bound = epsilon_delta(scores.members, scores.others, level, delta=decision.delta)
    return AttackResult(
        attack=scores.attack,
        threshold=chosen,
        errors=errors,
        low=low,
        high=high,
        auc=auc,
        true_positive_rates=tuple(rate_at(rate, rest_in, rest_out) for rate in LOW_RATES),
        epsilon=bound.value,
        corner=_corner(scores, decision, level),
        selection_advantage=1
        - at_selection.false_negatives / at_selection.positives
        - at_selection.false_positives / at_selection.negatives,
        false_positive_curve=false_positives,
        true_positive_curve=true_positives,
        scores=scores,
    )


def curve(members: Floats, others: Floats) -> tuple[Floats, Floats, float]:
    """Return the ROC of scores, as false and true positive rates, and the area under it."""
    membership = np.repeat([1, 0], [len(members), len(others)])
    scores = np.concatenate([members, others])
    false_positives, true_positives, _ = roc_curve(membership, scores, drop_intermediate=False)
    return false_positives, true_positives, float(roc_auc_score(membership, scores))


def _corner(scores: Scores, decision: ClaimedReleases, confidence: float) -> Corner:
    """At the threshold that the first share finds worth most, as mu; limits of both rates from the others."""
    _, errors = choose_threshold(scores.members, scores.others, None, lambda errors: gdp_of_errors(errors, confidence))
    alpha, beta = errors.upper_limits(confidence)
    return Corner(alpha, 1 - beta, float(decision.power(np.array([alpha]), STEPS)[0]))


def advantage_interval(errors: Errors, confidence: float) -> tuple[float, float]:
    """An interval that holds TPR - FPR with the confidence: both rates' Clopper-Pearson limits, by a union bound."""
    missed, alarms = errors.false_negatives, errors.false_positives
    ends = ((missed, errors.positives), (alarms, errors.negatives))
    doubt = (1 - confidence) / 4
    low = 1 - sum(upper_limit(wrong, count, doubt) for wrong, count in ends)
    high = sum(upper_limit(count - wrong, count, doubt) for wrong, count in ends) - 1
    return low, high


def rate_at(rate: float, members: Floats, others: Floats) -> float | None:
    """Return the TPR of a threshold whose false positive rate for one more other is at most `rate`; None of too few.

    members, others: scores. The threshold is the k-th largest score of the m others, k = floor(rate (m + 1)), and what
    exceeds it is accused. One more other that is exchangeable with them is as likely to have each rank among all m + 1,
    and exceeds the threshold only if it is one of the k largest: with a probability of at most k/(m + 1) <= rate. To
    count false alarms among the others themselves, k <= rate m, would take the next score as threshold, which one more
    other exceeds with (k + 1)/(m + 1): an attack that guesses would show 2/(m + 1) where 1/m is asked for.
    """
    allowed = math.floor(rate * (len(others) + 1) * (1 + 2.0**-40))
    return None if allowed < 1 else float((members > np.sort(others)[-allowed]).mean())
