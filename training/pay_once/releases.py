"""The releases that a training made of the records, as one list: each with what it cost, and what all cost together.

A certificate has this list. Releases of the same records follow one another, and each may depend on what the ones
before gave; releases of records that were kept apart, by coins or by a keyed hash, stand beside these.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from dpserve.accounting.disclosure import Declared, DisclosedModel
from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss

RecordsPart = Literal["training", "held back", "validating"]
"""The records that a release was computed from: those that train, or others, which trained nothing."""

TRAINING: RecordsPart = "training"


def _checked(text: str) -> str:
    if str(Cost.parse(text)) != text or not text:
        raise ValueError(f"{text!r} is no cost")
    return text


class Release(DisclosedModel):
    """One release: what it is called, and what it cost. Its proof is the docstring of the step of that name."""

    model_config = ConfigDict(extra="forbid")

    name: Declared[str] = Field(pattern=r"^[a-z][a-z0-9 ._-]{0,63}$")
    cost: Declared[Annotated[str, AfterValidator(_checked)]]
    """Its cost to a record that it was computed from, given all releases before it, as the text of a `Cost`."""
    part: Declared[RecordsPart] = Field(default=TRAINING, exclude_if=lambda part: part == TRAINING)
    """The records that it was computed from."""

    @property
    def price(self) -> Cost:
        """The cost as a value."""
        return Cost.parse(self.cost)

    @property
    def mu(self) -> float:
        """The mu of its one loss. Raises ValueError for a release that has none, or several."""
        match self.price.losses:
            case (GaussianLoss(mu),) | (ApproximateGaussianLoss(mu, _),):
                return mu
        raise ValueError(f"the release of {self.name} has no mu: it costs {self.cost!r}")


def composed(releases: Iterable[Release]) -> Cost:
    """Return the cost of all releases together. Raises ValueError where no proof covers them.

    Sequential. Releases of the records that train depend on earlier ones through what these gave alone: adaptive
    composition adds their losses up (Dong, Roth and Su 2022, Corollary 3.3; zCDP: Bun and Steinke 2016, Lemma 2.3; with
    coins: `dpserve.accounting.losses.ApproximateGaussianLoss`).

    Parallel. Let neighbouring sets differ by one record. A coin of its own, or a keyed hash of the record alone, says
    in which part it is, and all other records are in the same parts in both sets. Given these:

    It trains. The other parts are the same in both sets, and what is released of them, given the releases of the
    training, is a function of these and of noise of its own: post-processing of what costs the sum.
    It is in another part. The records that train are the same, and so is the law of what was released of them. Given
    that, what is released of its part costs the sum there. Both sums are Gaussian, this one without coins. Its mu^2/2
    is at most the rho of the training, the squares of a composition's mus add up, the trade-off function of mu-GDP
    falls with mu, and coins of losses only lower it: it costs no more than the training.

    So whichever part the record is in, a test of one set against the other has at most the power g(level) that the
    training's cost allows. A set without the record has no such coin: with the coin unseen the power is an average of
    powers at the same level, each at most g(level). Coins of the others, averaged or seen, change nothing. For Renyi
    divergences, and so zCDP, the same follows from their quasi-convexity in the first argument and, for the reverse, in
    the second. The cost of all is that of the training.

    Units: neighbours differ by all records of one unit, which has one coin, or one hash, and is in one part.
    """
    by_part: dict[RecordsPart, list[Release]] = {TRAINING: []}
    for release in releases:
        by_part.setdefault(release.part, []).append(release)
    costs = {part: _summed(made) for part, made in by_part.items()}
    training = costs.pop(TRAINING)
    for part, cost in costs.items():
        if not (cost.is_gaussian and not cost.coins and training.is_gaussian and cost.rho <= training.rho):
            raise ValueError(f"what was released of the records that are {part} costs more than the training")
    return training


def _summed(releases: Iterable[Release]) -> Cost:
    return Cost(tuple(loss for release in releases for loss in release.price.losses))
