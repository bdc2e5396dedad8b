"""The least probability with which a class is in a prediction set, from noisy counts of held-back records.

The promise. Let records be exchangeable: those held back, each by a coin of its own, and one more, of class Y, that
nothing was trained on. For a coverage 1 - a that is chosen without looking at noisy counts, `least_probabilities` gives
t with

    P(p_Y >= t_Y) >= 1 - a,   and by class   P(p_Y >= t_Y and Y = c) >= (1 - a) P(Y = c)   for every class c,

over the records, coins, training and noise, p being the model's probabilities of the one more record: the prediction
set {c: p_c >= t_c} holds its class. Without classes apart t is one number, and the first line alone holds.

Proof. Given what was trained, p is a fixed function of a record, and so is the cell of p_Y, from high to low
probabilities (`dpserve.training.pay_once.scores`). Fix a class c, or let c stand for any class. For a held-back
record k let W_k(b) be 1 if it is of class c and its cell is at most b, and K_k = W_k(last). Where a unit's records
count together, W_k(b) and K_k are sums of the unit's records with weights that add up to 1, units are exchangeable, and
the one more record is a record of one more unit, drawn by these weights. Let F and K be the sums over the n that are
held back, and q = 1 - a + a/SPARED.
1. Let B be the first cell with F(b) >= q (K + 1), or the last. With the one more record among them, let B' be the
   first cell with F(b) + W_(n+1)(b) >= q (K + K_(n+1)), which is there as 1 >= q. As K_(n+1) <= 1 and W >= 0, B >= B'.
   B' does not depend on the order of the n + 1, so that
       E W_(n+1)(B) >= E W_(n+1)(B') = E[F(B') + W_(n+1)(B')]/(n + 1) >= q E[K + K_(n+1)]/(n + 1) = q E K_(n+1),
   and the first is P(cell at most B and class c), the last q P(class c). (Vovk, Gammerman and Shafer 2005; for classes
   Vovk 2012; for units Lee, Barber and Willett 2023.) n enters nowhere: it is private, and need not be known.
2. B is a function of exact counts. A cell B^ of noisy ones is found by halving: between a cell that did not pass, at
   first none, and one that did, at first the last, the middle is tried, and passes where `PrefixSums.excess` of it,
   less its `bound`, is at least q. A cell below B has F(b) - q K < q, so that it passes only where the noise is above
   its bound: call that a false pass. Before the first false pass every cell tried below B failed, and every one at B
   or above passed, or else only cells above B were left: so the cells tried are those that halving tries on its way to
   B by exact counts, at most `_TRIES`, and a function of these counts alone. The noise does not depend on the records.
   Hence P(B^ < B | records) <= _TRIES tail, and with tail = a / SPARED / _TRIES
       P(cell at most B^ and class c) >= q P(class c) - (a/SPARED) P(class c) = (1 - a) P(class c).
3. The set of B^ takes p_c >= least_in(B^): those whose cell is at most B^. Where B^ is the last cell, all of them.

What a sampler's law is off (2^-75 for all draws together), and what a normal quantile is rounded, is covered by
taking 2^-40 of the tail off.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.prefix_sums import PrefixSums
from dpserve.training.pay_once.scores import CELLS, least_in

LEAST_COVERAGE, MOST_COVERAGE, PER_MILLE = 0.5, 0.999, 1000
"""The coverages that can be asked for, which are rounded up to whole thousandths."""

SPARED = 64
"""The part of the error for which noise may be larger than its bound: less makes the bound wider."""

_TRIES = math.ceil(math.log2(CELLS))


def thousandths(coverage: float) -> int:
    """Return a coverage in thousandths, rounded up. Raises ValueError for one that cannot be asked for."""
    if not LEAST_COVERAGE <= coverage <= MOST_COVERAGE:
        raise ValueError(f"a coverage is a number from {LEAST_COVERAGE} to {MOST_COVERAGE}, not {coverage:g}")
    return math.ceil(coverage * PER_MILLE - 1e-9)  # 1e-9 so that 0.9 is 900


def least_probabilities(sums: PrefixSums, noisy: Floats, coverage: int, groups: Sequence[Sequence[int]]) -> list[float]:
    """Return the least probability of a class in a set, for each of some groups of histograms.

    noisy: (sums.groups, CELLS), released by `sums`. coverage: in thousandths. groups: the histograms that count
    together: all at once for one threshold, or each by itself for thresholds by class. The module has the proof.
    """
    share, quantile = asked_of_counts(coverage)
    return [least_in(_first_cell(sums, noisy[list(group)], share, quantile)) for group in groups]


def asked_of_counts(coverage: int) -> tuple[float, float]:
    """Return q of the proof, and the normal quantile of noise's bound in each try. coverage: in thousandths."""
    error = (PER_MILLE - coverage) / PER_MILLE
    return 1 - error * (1 - 1 / SPARED), -NormalDist().inv_cdf(error / SPARED / _TRIES * (1 - 2.0**-40))


def _first_cell(sums: PrefixSums, noisy: Floats, share: float, quantile: float) -> int:
    failed, passed = -1, CELLS - 1
    while passed - failed > 1:
        middle = (failed + passed) // 2
        bound = sums.bound(middle, share, len(noisy), quantile)
        if sums.excess(noisy, middle, share) - bound >= share:
            passed = middle
        else:
            failed = middle
    return passed
