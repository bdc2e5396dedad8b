"""Compositions: which privacy losses a set of releases has, and how often each."""

import math
from collections import Counter
from collections.abc import Mapping

from accounting.losses import ApproximateGaussianLoss, ClaimedLoss, Cost, GaussianLoss, PrivacyLoss

MOST_RELEASES = 10**12

Composition = Counter[PrivacyLoss]
"""How often each privacy loss occurs."""


def composition_of(releases: Mapping[Cost, int]) -> Composition:
    """Return the losses of `releases`, the number of releases at each cost, with how often each occurs.

    A claimed loss counts as what is claimed: what is analysed is then a claim, too.
    """
    losses: Composition = Counter()
    for cost, count in releases.items():
        if not 0 <= count <= MOST_RELEASES:
            raise ValueError(f"a number of releases must lie between 0 and {MOST_RELEASES:g}, not be {count}")
        for loss in cost.losses:
            losses[loss.claim if isinstance(loss, ClaimedLoss) else loss] += count
    return +losses


def without_coins(losses: Composition) -> tuple[Composition, float]:
    """Return the composition with Gaussian losses for the approximate ones, and their deltas together, rounded up.

    Let delta'(epsilon) be valid for the first. Then coins + delta'(epsilon) is valid for `losses`: but for the event
    that some coin shows everything, whose probability is at most the sum of the deltas, whoever chose what on the
    way, the releases are those of the first (`ApproximateGaussianLoss`). The same goes for the power of any test.
    """
    rest: Composition = Counter()
    coins = []
    for loss, count in losses.items():
        if isinstance(loss, ApproximateGaussianLoss):
            rest[GaussianLoss(loss.mu)] += count
            coins.append(loss.delta * count)
        else:
            rest[loss] += count
    return rest, math.fsum(coins) * (1 + 2.0**-40)
