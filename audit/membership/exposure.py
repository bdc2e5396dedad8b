"""Vulnerability by record: how sure an attacker can be of each candidate, by the candidate's own null.

A threshold for all candidates together accuses records that any model is sure of and spares others: at a pooled false
positive rate of 1 % single records are accused by chance in far more, and far fewer, of a hundred models (arXiv
2605.25819). So each candidate is compared with itself: with what models say of it that were not trained on it.

For one record the likelihood ratios of `dpserve.audit.membership.scoring` and RMIA are one test. With a variance that
is the same in and out, each grows with the confidence in the true class, x, and with nothing else of the answer: they
differ in how they compare records. So the test is of x. Large x speak for a member.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from dpserve.accounting.arrays import Floats, Integers, Labels, Mask

_LEAST_VARIANCE = 1e-6
_MOST_FREEDOM = 1e6


@dataclass(frozen=True, eq=False)
class OwnNull:
    """Each candidate's false positive rate: the chance that, not trained on, the model is as sure of it.

    rates: (c,), by a fitted law where there is one, or else as `limits`. limits: (c,), by rank alone: no smaller rate
    can be seen. compared: (c,), with how many models, or other records, each was compared.
    """

    rates: Floats
    limits: Floats
    compared: Integers


def own_null(confidences: Floats, shadow: Floats, seen: Mask, *, normal: bool = True) -> OwnNull:
    """Return false positive rates by the shadow models that were not trained on a candidate.

    confidences: (c,), the target's. shadow: (k, c), the shadow models'. seen: (k, c), who was trained on whom. normal:
    whether noise leaves confidences nearly normal, so that a law may be fitted.

    limits: (1 + of m such models how many are as sure)/(m + 1). They are exact: P(limit <= a) <= a for every a. Given
    that the target was not trained on x, its records are a draw from the others in the files, and so are those of each
    of the m; all were trained and answer alike. So the target's confidence is as likely to have each rank among all
    m + 1. Premises: members were drawn from the files at random, and shadow models differ from the target in nothing
    else (the report lists in what they do).

    rates: the tail of Student's t for one more number from a normal law whose mean is estimated from m: t = (x - mean)/
    (deviation sqrt(1 + 1/m)). A variance from ten models is poor, and one for all records wrong for single ones. So
    each record's is shrunk to what the variances of all records have in common, as a prior that they teach (Smyth 2004,
    "Linear models and empirical Bayes methods", Sections 3 and 6.2): where they hardly differ t has many degrees of
    freedom, and else the record's own m - 1. Far beyond 1/m this trusts the normal law.
    """
    out = ~seen
    count = out.sum(axis=0)
    limits = (1 + ((shadow >= confidences) & out).sum(axis=0)) / (count + 1)
    if not normal or not (count > 1).any():
        return OwnNull(limits, limits, count)
    mean = np.where(out, shadow, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = np.where(out, np.square(shadow - mean), 0.0).sum(axis=0)
    variance, freedom = shrunk_variances(squares, count - 1)
    t = (confidences - mean) / np.sqrt(variance * (1 + 1 / np.maximum(count, 1)))
    return OwnNull(np.where(count > 0, scipy.stats.t.sf(t, freedom), 1.0), limits, count)


def shrunk_variances(squares: Floats, freedom: Integers) -> tuple[Floats, Floats]:
    """Return variances and their degrees of freedom after a scaled inverse chi-square prior that all of them teach.

    squares: (c,), sums of squares around means. freedom: (c,), of each, at least 1 of one of them. The prior's own
    freedom and scale follow from the mean and the variance of the logarithms (Smyth 2004, Section 6.2).
    """
    own = np.maximum(freedom, 0)
    known = own > 0
    half = own[known] / 2
    logs = np.log(np.maximum(squares[known] / own[known], _LEAST_VARIANCE)) - scipy.special.digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) if len(logs) > 1 else 0.0) - float(scipy.special.polygamma(1, half).mean())
    prior = _MOST_FREEDOM
    if excess > scipy.special.polygamma(1, _MOST_FREEDOM / 2):
        prior = 2 * scipy.optimize.brentq(
            lambda value: float(scipy.special.polygamma(1, value)) - excess, 1e-6, _MOST_FREEDOM
        )
    scale = float(np.exp(logs.mean() + scipy.special.digamma(prior / 2) - np.log(prior / 2)))
    shrunk: Floats = (prior * scale + np.where(known, squares, 0.0)) / (prior + own)
    return np.maximum(shrunk, _LEAST_VARIANCE), prior + own


def holm(p_values: Floats) -> Floats:
    """Return p-values after Holm's correction (1979), which holds however they depend on each other: (c,).

    Whoever picks the records of the smallest of c rates picks by chance, too. If all with a corrected value of at most
    a are called members, any of them is none with a probability of at most a.
    """
    order = np.argsort(p_values, kind="stable")
    steps = (len(p_values) - np.arange(len(p_values))) * p_values[order]
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return corrected


@dataclass(frozen=True, eq=False)
class Exposure:
    """The finding of an attack about each of c candidates, in the order of the files, members first.

    member: (c,). row: (c,), its number in its file, from 1; of a unit that of its first row. score: (c,), of the attack
    that counts. allowed: (c,), the largest rate at which the claim lets a member be so exposed; None without a claim.
    confidence: of what is said of records together. null: in words, the chance that rates are.
    """

    member: Mask
    row: Integers
    score: Floats
    own: OwnNull
    allowed: Floats | None
    confidence: float
    null: str

    @property
    def corrected(self) -> Floats:
        """Each rate after Holm's correction: of how sure "a member" is, said of all down to this one."""
        return holm(self.own.rates)

    @property
    def beyond_claim(self) -> Mask:
        """The members that are more exposed than the claim allows, all of them together with the confidence.

        A claim bounds by f(a) the probability that a member's rate is at most a, f being its trade-off curve as a
        power: P(f(rate) <= u) <= u. So f(rate) is a p-value of the claim, for each member by itself, and Holm's
        correction holds for all of them. It convicts nobody: rates may be of a fitted law.
        """
        beyond = np.zeros(len(self.member), dtype=np.bool_)
        if self.allowed is not None and self.member.any():
            beyond[self.member] = holm(self.allowed[self.member]) <= 1 - self.confidence
        return beyond

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a file of records, each (c,)."""
        columns: dict[str, NDArray[Any]] = {
            "file": np.where(self.member, "members", "non-members"),
            "row": self.row,
            "score": self.score,
            "fpr": self.own.rates,
            "fpr_by_rank": self.own.limits,
            "compared_with": self.own.compared,
            "fpr_corrected": self.corrected,
        }
        if self.allowed is not None:
            columns |= {"tpr_allowed": self.allowed, "beyond_claim": self.beyond_claim}
        return columns

    def shares(self, rate: float) -> tuple[float, float]:
        """Return the shares of members and of others whose own rate is at most `rate`: what is seen, and by chance."""
        exposed = self.own.rates <= rate
        return float(exposed[self.member].mean()), float(exposed[~self.member].mean())


def exposure(
    member: Mask,
    place: Integers,
    score: Floats,
    own: OwnNull,
    confidence: float,
    null: str,
    power: Callable[[Floats], Floats] | None = None,
    *,
    of: Labels | None = None,
) -> Exposure:
    """Return what is said of candidates, in the order of their files.

    member, place: (n,), of each row whether it is a member's, and its place in its file, from 0. of: (n,), each row's
    candidate, from 0; None where each is one. score and own: of candidates. power: of the claim, at false positive
    rates.
    """
    first = np.arange(len(member)) if of is None else np.unique(of, return_index=True)[1]
    order = np.lexsort((place[first], ~member[first]))
    rates = OwnNull(own.rates[order], own.limits[order], own.compared[order])
    allowed = None if power is None else power(rates.rates)
    return Exposure(member[first][order], place[first][order] + 1, score[order], rates, allowed, confidence, null)
