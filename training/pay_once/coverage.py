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
held back, F' and K' those with the one more, and q = 1 - a. `PrefixSums.excess` of a cell b is at most F(b) - q K +
Z(b), with Z(b) = sigma(b) N(b) + r(b): a standard normal number N(b) that does not depend on the records, and r(b) for
rounding. Cell b passes where the excess, less a margin s(b), is at least q; the last cell passes always. Halving finds
a cell B: between one that did not pass, at first none, and one that did, at first the last, the middle is tried, at
most `_TRIES` times.
1. Let G(b) = F'(b) - q K', and let B' be the cell that halving finds if other cells pass: those with
   G(b) + Z(b) >= s(b), and the last. As K_(n+1) <= 1 and W >= 0, F(b) - q K <= G(b) + q: whatever passes for B passes
   for B', too. So B' <= B: where the two halvings first differ, a cell passes for B' alone; B' is at most that cell,
   and B above it. B' does not depend on the order of the n + 1, so that
       E W_(n+1)(B) >= E W_(n+1)(B') = E F'(B')/(n + 1),
   and if E[G(B') | records] >= 0 the last is at least q E K'/(n + 1) = q E K_(n+1): the first is P(cell at most B and
   class c), and E K_(n+1) = P(class c). (Vovk, Gammerman and Shafer 2005; for classes Vovk 2012; for units Lee, Barber
   and Willett 2023.) n enters nowhere: it is private, and need not be known.
2. E G(B') >= 0 for all records. Let T be such that P(N > T) = min(a / _TRIES, 1 / cells), e the sum over the cells of
   sigma(b) E max(N(b) - T, 0), and s(b) = T sigma(b) + r(b) + e. G rises from cell to cell, from -q K' or more to
   G(last) = a K'.
   - Where a K' <= e, a cell passes only where sigma(b) N(b) >= s(b) - r(b) - a K', so that N(b) >= T. While none does,
     halving tries the same cells, `_TRIES` at most: with a probability of at least 1 - a none passes, and G(B') = a K'.
     Otherwise G(B') >= -q K'. So E G(B') >= (1 - a) a K' - a q K' = 0.
   - Where a K' > e: if B' passed by its noise, G(B') >= s(b) - Z(b) >= e - max(sigma(b) (N(b) - T), 0) for b = B', and
     otherwise G(B') = a K' > e. In each case G(B') >= e - sum of max(sigma(b) (N(b) - T), 0), whose mean is 0.
3. The set of B takes p_c >= least_in(B): those whose cell is at most B. Where B is the last cell, all of them.

T is the least that the first case allows, or where the mean of s over the cells is least.
A sampler's law is off by 2^-75 for all draws together, and G by that times at most 2^24 records. Taking 2^-40 off the
tail, and adding 2^-40 of e and 2^-10 of a record to e, covers that and the rounding of normal tails.

Not taken: counting the records that train (Wu and others 2026, arXiv 2604.14621). If model and counts are mu-GDP
together, a further record is outside its set with a probability of at most Phi(Phi^-1(m) + mu), m being the mean share
of the records that train and are outside theirs: one more record is exchangeable with them, and its being there changes
the law of set and model by mu. At mu = 0.27 a coverage of 0.9 asks for 0.94 of the records that train. With three
tenths of the price for counts, for as much training as one in six held back leaves, 1,000 records have sets for 0.98 of
all, where one in four held back has 0.99; 2,500 have 0.956 and here 0.954; with a larger mu it is further behind.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.prefix_sums import PrefixSums
from dpserve.training.pay_once.scores import SETS

LEAST_COVERAGE, MOST_COVERAGE, PER_MILLE = 0.5, 0.999, 1000
"""The coverages that can be asked for, which are rounded up to whole thousandths."""

_CELLS = len(SETS)
_TRIES = math.ceil(math.log2(_CELLS))
_NORMAL = NormalDist()


def thousandths(coverage: float) -> int:
    """Return a coverage in thousandths, rounded up. Raises ValueError for one that cannot be asked for."""
    if not LEAST_COVERAGE <= coverage <= MOST_COVERAGE:
        raise ValueError(f"a coverage is a number from {LEAST_COVERAGE} to {MOST_COVERAGE}, not {coverage:g}")
    return math.ceil(coverage * PER_MILLE - 1e-9)  # 1e-9 so that 0.9 is 900


def least_probabilities(sums: PrefixSums, noisy: Floats, coverage: int, groups: Sequence[Sequence[int]]) -> list[float]:
    """Return the least probability of a class in a set, for each of some groups of histograms.

    noisy: (sums.groups, cells), released by `sums`. coverage: in thousandths. groups: the histograms that count
    together: all at once for one threshold, or each by itself for thresholds by class. The module has the proof.
    """
    return [SETS.least_in(_first_cell(sums, noisy[list(group)], coverage)) for group in groups]


def margins(sums: PrefixSums, coverage: int, groups: int) -> list[float]:
    """Return s of the proof for each cell but the last, in records. groups: how many histograms count together."""
    share, tail = coverage / PER_MILLE, _tail(coverage)
    quantile = -_NORMAL.inv_cdf(tail)
    further = _NORMAL.pdf(quantile) - quantile * tail
    tried = range(_CELLS - 1)
    mean = further * sum(sums.deviation(cell, share, groups) for cell in tried) * (1 + 2.0**-40) + 2.0**-10
    return [sums.bound(cell, share, groups, quantile) + mean for cell in tried]


def _tail(coverage: int) -> float:
    error = (PER_MILLE - coverage) / PER_MILLE
    return min(error / _TRIES, 1 / _CELLS) * (1 - 2.0**-40)


def _first_cell(sums: PrefixSums, noisy: Floats, coverage: int) -> int:
    share, margin = coverage / PER_MILLE, margins(sums, coverage, len(noisy))
    return halved(lambda cell: sums.excess(noisy, cell, share) - margin[cell] >= share)


def halved(passes: Callable[[int], bool]) -> int:
    """Return the cell that halving finds between one that does not pass and one that does: the last, at first."""
    failed, passed = -1, _CELLS - 1
    while passed - failed > 1:
        middle = (failed + passed) // 2
        if passes(middle):
            passed = middle
        else:
            failed = middle
    return passed
