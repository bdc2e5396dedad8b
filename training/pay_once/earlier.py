"""Models that a pay-once model was computed from: begun at the weights of one, or added to its sums.

What was released of them is theirs, and paid for. This module says what that leaves for the new model to cost.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss
from accounting.sampling_error import LEAST_RELEASE_RHO
from training.fields import NAME

EARLIER_ASSUMPTIONS = (
    "The models that this one was computed from are those that it names, each private itself. That the values taken "
    "were theirs is the owner's word. Those of other lineages were charged to these before this one was trained, and "
    "those of its own lineage are charged with it to whoever does not hold them.",
    "Records that are said to be apart from an earlier model's are: none of them, and no unit, had a digest in that "
    "model's lineage when this one was trained.",
)
"""Further assumptions of a model that was computed from earlier ones."""

Role = Literal["weights", "sums", "before"]
"""The part that an earlier model had: its weights were begun at, its sums added to, or one of both came of it."""


class EarlierModel(BaseModel):
    """A pay-once model that another one was computed from, directly or through the model that this one names too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Role
    model_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    release: str
    """Its kind."""
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of its model file. Private, as it is in its own certificate."""
    drawn: str = Field(pattern=r"^[0-9a-f]{64}$")
    """`ReleaseCertificate.drawn`, by which the ledger knows that it is held. Private."""
    lineage: str = Field(pattern=f"^{NAME.pattern}$")
    """Private."""
    cost: str
    """The cost of holding it, as the text of a `Cost`."""
    blocks: tuple[str, ...] = Field(default=(), exclude_if=lambda blocks: not blocks)
    """The blocks of its lineage that it was trained on, which pay for holding it."""
    block_budget: str = Field(default="", exclude_if=lambda budget: not budget)
    """The budget that these open with, if nobody was charged for it yet. Private."""
    apart: bool
    """Whether the records that trained the new model were found to be none of its lineage's."""

    def public(self) -> dict[str, object]:
        """Return what may be shown to clients."""
        return self.model_dump(mode="json", include={"role", "model_id", "release", "cost", "apart"})


def cost_beside(own: Cost, earlier: Sequence[EarlierModel], lineage: str) -> Cost:
    """Return what a model costs its lineage, and who holds it, beside the earlier models of the same lineage.

    own: what the records that trained it lose to what was newly released of them. lineage: theirs. Raises ValueError
    for an earlier model of another lineage that may hold the same records.

    Proof. The model is a function F(A, B): A are the earlier releases, B what was newly released of the records that
    trained it, given A. Let neighbours differ by one record, or one unit.
    It is in another lineage M, whose earlier models together are A_M. None of the records that trained the model is
    in M (`apart`), so the record is not among them, and B given A has one law in both sets: it is post-processing of
    A_M and of releases that no record of M enters. What is lost is at most the composition of the costs of A_M, which
    M has paid. Of a client's account it is this model that says so: its cost must be at least that.
    It is in this lineage. Given A, it loses `own` to B, and to the earlier models of this lineage their costs, by
    adaptive composition. The ledger charges these beside this one, each once (`HoldRequest.earlier`): what is
    returned need not hold them.
    Both cannot be, for a record that is in M is in no other lineage here by `apart`; a new record loses `own` alone.
    So a cost is enough that is at least `own`, and at least the composition of the earlier costs of each other
    lineage (`at_least_both`): parallel composition (McSherry 2009, Theorem 4; adaptive: Feldman and Zrnic 2021).
    """
    by_lineage: dict[str, list[Cost]] = {}
    for each in earlier:
        if each.lineage == lineage:
            continue
        if not each.apart:
            raise ValueError(f"the records may be in the model {each.model_id} of another lineage, too")
        by_lineage.setdefault(each.lineage, []).append(Cost.parse(each.cost))
    cost = own
    for others in by_lineage.values():
        cost = at_least_both(cost, Cost(tuple(loss for each in others for loss in each.losses)))
    return cost


def at_least_both(one: Cost, other: Cost) -> Cost:
    """Return a cost that is at least each of two.

    Where both are Gaussian but for coins, it is the one of the larger coin, and a Gaussian loss more where the other
    has the larger rho. Proof: the composition of losses of these kinds is a coin of delta = 1 - product(1 - delta_i)
    beside mu-GDP, mu^2 = sum(mu_i^2) = 2 rho, and its profile grows with both (`ApproximateGaussianLoss`). Of others it
    is the composition, which is at least each part of it.
    """
    if not (one.is_gaussian and other.is_gaussian):
        return Cost((*one.losses, *other.losses))
    first, second = sorted((one, other), key=lambda cost: (_coin(cost), cost.rho), reverse=True)
    missing = second.rho - first.rho
    if missing <= 0:
        return first
    if _coin(first) == _coin(second):
        return second
    mu = math.sqrt(2 * max(float(missing), LEAST_RELEASE_RHO) * (1 + 2.0**-40))
    return Cost((*first.losses, GaussianLoss(mu)))


def _coin(cost: Cost) -> Fraction:
    """Return the probability of all coins of a cost together, exactly."""
    none = Fraction(1)
    for loss in cost.losses:
        if isinstance(loss, ApproximateGaussianLoss):
            none *= 1 - Fraction(loss.delta)
    return 1 - none


def losses_by_part(own: Cost, earlier: Sequence[EarlierModel]) -> Mapping[str, Cost]:
    """Return what a record loses to the model and those before it, by which of their records it is.

    own: as for `cost_beside`. The keys are "new" for the records that trained the model, and the ids of earlier models
    for theirs. A record of an earlier model loses that model's cost, and `own` besides where it may be among the new
    ones; a record of several earlier models loses the composition of what they say. So does a new one that may be
    theirs.
    """
    losses = {each.model_id: Cost.parse(each.cost) for each in earlier}
    mixed = [Cost.parse(each.cost) for each in earlier if not each.apart]
    new = Cost(tuple(loss for each in (*mixed, own) for loss in each.losses))
    return {"new": new} | losses
