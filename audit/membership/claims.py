"""The claim about the answers that an attack used, in the terms of the experiment that the attack makes.

A budget is about adding or removing one record. The experiment is not: members and others are compared on one model.
Where a member was asked about, the model has that record, and where another was, the model has some other record in its
place. That is one record removed and one added, two steps:

- mu-GDP gives 2 mu (Dong, Roth and Su 2022, Theorem 2.14), rho-zCDP gives 4 rho (Bun and Steinke 2016, Proposition
  27), epsilon gives 2 epsilon.
- The average over records that might be in its place changes nothing, because trade-off functions bound mixtures too.

The premise is that candidates are exchangeable: members were drawn at random, without replacement, from the same
records as the others, so that which of them were trained on is independent of what they are. Then an attacker who sees
no answers tells nothing, and the bounds for two steps hold. Without it they do not: where members have labels that
others lack, the label alone tells them apart, whatever the model answers and however much noise it adds. No claim is
about that. `Difference` tests the premise, and an attack whose candidates fail that test convicts nobody by its scores;
a difference that the test misses is measured as if the model leaked it.

The attacker has the records' files, and so a list of which the members are a known share. A claim holds for whatever an
attacker knows, and the bounds with it. A stranger without the list finds less (`spread_of_strangers`).

The bounds for one step are what the service states; an attack that exceeds them, and not the others, has refuted
nothing.

Privacy units. A model may protect all records of one unit together. Its claim is the same about one unit more or fewer,
so the experiment is the same with units in the place of records: units were drawn at random into members and others,
and a decision is about a unit.

- A decision sees the answers to all k rows of its unit that were asked about. Each is a release with the stated loss
  for a unit's presence, so that together they have the loss of k (`claim_of_releases`): rho adds up, adaptively chosen
  rows or not. Candidates have different k; all are held against the largest, as a trade-off curve of more releases
  lies below one of fewer. Of a model that was paid for once the claim is the release's, however many rows are asked.
- Records would be no members there. Let a sound model publish of each unit whether it was trained on, by a coin that is
  right with odds e^epsilon: epsilon-DP for units. Of a unit with 100 records all 100 decisions are then right at once,
  with that coin's probability, and limits that take them for 100 independent trials refute every epsilon. Decisions
  about units have independent noise: no row is asked about that two units have (`candidates.repeated`).
- What is known beforehand of a unit, as how many rows it has, is a part of what it is: exchangeable units have it as
  likely inside as outside.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpserve.accounting import conversions, identifiability, tradeoff
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import ApproximateGaussianLoss, ClaimedLoss, Cost, GaussianLoss, PrivacyLoss

STEPS = 2


def what_is_protected(model: Mapping[str, Any]) -> str:
    """Return what a model protects one of, and so what its members are: a record or a unit."""
    return "record" if model.get("unit") is None else "unit"


def spread_of_strangers(records: int, pool: int) -> float:
    """Return by how much more a stranger's models differ than shadow models of `records` of the `pool`'s records.

    The attacker of `Attack` knows a list, the candidates and the population, that holds whoever was trained on. Shadow
    models are drawn from it as the target was, so that a record's rates are exactly those of such an attacker. They are
    not a stranger's, who has other records of the same distribution: to first order a model's answer is a mean of what
    its n records contribute, and a mean of n of N numbers, drawn without replacement, has (1 - n/N) times the variance
    of a mean of n new ones (Cochran 1977, Theorem 2.2). The list's other records, of whom the target has fewer because
    it has these, make the difference. Noise that was added is no part of it. At n = N/2 the quotient of deviations is
    1.41: TPR at a low FPR is that of a signal 1.41 times as large as a stranger sees
    (arXiv 2605.25819 calls it the finite-population bias of LiRA).
    """
    return float((1 - records / pool) ** -0.5)


@dataclass(frozen=True)
class ClaimedReleases:
    """A composition of releases as what it is claimed to be. delta: at which its epsilon is stated.

    rho, pure: zCDP rho and pure epsilon, infinite where there is none; gaussian: whether the exact Gaussian curve with
    mu^2 = 2 rho describes it; failure: a probability with which nothing is claimed (`ApproximateGaussianLoss`).
    """

    rho: float
    pure: float
    gaussian: bool
    delta: float
    proven: bool
    failure: float = 0.0

    def epsilon(self, steps: int = 1) -> float:
        """The least epsilon at delta that is claimed for so many records added or removed."""
        if self.rho == 0:
            return 0.0
        return min(self.pure * steps, self._conversion(steps))

    def with_an_epsilon(self, steps: int) -> "ClaimedReleases":
        """Return the same claim at the least delta that is at least its own and leaves half of itself to an epsilon.

        At a delta that is no more than the failures of so many steps take, no epsilon is claimed, and none refuted.
        """
        return replace(self, delta=max(self.delta, min(0.5, 2 * self._slack(steps))))

    def advantage(self, steps: int = 1) -> float:
        """Return a bound of TPR - FPR, for so many records added or removed."""
        if self.rho == 0:
            return min(1.0, self._slack(steps))
        if self.gaussian:
            advantage = identifiability.gaussian_advantage(self._mu(steps))
        else:
            advantage = identifiability.zcdp_advantage(min(steps**2 * self.rho, conversions.LARGEST_RHO))
        if math.isfinite(self.pure):
            advantage = min(advantage, identifiability.advantage(steps * self.pure))
        return min(1.0, advantage + self._slack(steps))

    def power(self, false_positive_rates: Floats, steps: int = 1) -> Floats:
        """Return a bound of the true positive rate at each false positive rate."""
        if self.rho == 0:
            return np.minimum(1.0, false_positive_rates + self._slack(steps))
        if self.gaussian:
            least = tradeoff.gaussian(self._mu(steps), false_positive_rates)
        else:
            least = tradeoff.zcdp(min(steps**2 * self.rho, conversions.LARGEST_RHO), false_positive_rates)
        if math.isfinite(self.pure):
            epsilon = min(steps * self.pure, conversions.LARGEST_EPSILON)
            least = np.maximum(least, tradeoff.epsilon_delta(epsilon, 0.0, false_positive_rates))
        return np.minimum(1.0, 1 - least + self._slack(steps))

    def _slack(self, steps: int) -> float:
        """Return what the failures add to any power: one step has h(a) <= failure + g(a), g being the curve without it.

        g is concave with g(0) = 0, so that g(a + b) <= g(a) + g(b), and two steps have h(h(a)) <= failure +
        g(failure) + g(g(a)), in which g(g(a)) is the curve of two steps.
        """
        if not self.failure:
            return 0.0
        if steps == 1:
            return self.failure
        return self.failure + float(1 - tradeoff.gaussian(self._mu(1), np.array([self.failure]))[0])

    def _mu(self, steps: int) -> float:
        return min(steps * conversions.mu_of_rho(self.rho), conversions.LARGEST_MU)

    def _conversion(self, steps: int) -> float:
        left = self.delta - self._slack(steps)
        if left <= 0:
            return math.inf
        if self.gaussian:
            return conversions.gaussian_epsilon(self._mu(steps), left)
        return conversions.zcdp_epsilon(min(steps**2 * self.rho, conversions.LARGEST_RHO), left)


def claim_of_releases(cost: Cost, releases: int, delta: float) -> ClaimedReleases:
    """The claim for so many releases at one cost: what one decision of an attack has seen."""
    losses = [_claimed_loss(loss) for loss in cost.losses]
    rho = float(sum((loss.rho for loss in losses), start=0 * cost.rho) * releases)
    return ClaimedReleases(
        rho=math.nextafter(rho, math.inf) if rho else 0.0,
        pure=releases * math.fsum(loss.pure_epsilon for loss in losses),
        gaussian=all(isinstance(loss, GaussianLoss | ApproximateGaussianLoss) for loss in losses),
        delta=delta,
        proven=cost.is_proven,
        failure=min(1.0, releases * failure_of(cost)),
    )


def claim_of_accounts(accounts: Sequence[Mapping[str, Any]]) -> ClaimedReleases:
    """The claim for everything that these keys ever spent, from their `GET /budget`; delta is the first's.

    An account that counts pure epsilon has spent a total of it: epsilon-DP, hence epsilon^2/2-zCDP (Bun and Steinke
    2016, Proposition 3).
    """
    pure = [account["currency"] == "epsilon" for account in accounts]
    epsilons = [account["spent"]["epsilon"] for account, counts in zip(accounts, pure, strict=True) if counts]
    rho = math.fsum(account["spent"]["rho"] for account, counts in zip(accounts, pure, strict=True) if not counts)
    rho += math.fsum(epsilon**2 / 2 for epsilon in epsilons) * (1 + 2.0**-40)
    return ClaimedReleases(
        rho=math.nextafter(rho, math.inf) if rho else 0.0,
        pure=math.fsum(epsilons) if all(pure) else math.inf,
        gaussian=all(account["accepts"] == "gaussian" for account in accounts),
        delta=float(accounts[0]["delta"]),
        proven=all(account["status"] == "proven" for account in accounts),
    )


def failure_of(cost: Cost) -> float:
    """The probability with which a release claims nothing."""
    return math.fsum(loss.delta for loss in cost.losses if isinstance(loss, ApproximateGaussianLoss))


def _claimed_loss(loss: PrivacyLoss) -> PrivacyLoss:
    return loss.claim if isinstance(loss, ClaimedLoss) else loss
