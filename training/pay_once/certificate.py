"""The certificate of a release that is paid for once: what it cost, in numbers that anyone can derive again.

The type of each field says who may see it (`dpserve.accounting.disclosure`): strangers, or who has paid for the model.
"""

import hmac
import json
import math
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.disclosure import Declared, DisclosedModel, Private, Released
from dpserve.accounting.losses import Cost
from dpserve.mechanisms.gaussian_vector import GaussianVector
from dpserve.training.bundles.certificate import (
    FLOATING_POINT,
    NO_OTHER_FIGURE,
    ONE_BY_ONE,
    ONE_LINEAGE,
    ONE_RECORD,
    TRAINING_SUCCEEDED,
    UNIFORM_BITS,
    DeclaredRecords,
    ProvenCertificate,
)
from dpserve.training.errors import BundleError
from dpserve.training.features.maps import HeadFeatureMap
from dpserve.training.fields import Several
from dpserve.training.pay_once.canaries import Canaries, CanaryPart, CanaryRun, read_run
from dpserve.training.pay_once.canary_verdict import check_again, judged, refuse_refuted
from dpserve.training.pay_once.chain import FeatureStep, Step, check
from dpserve.training.pay_once.prediction_sets import COUNTS, PredictionSets
from dpserve.training.pay_once.releases import TRAINING, Release, composed

COMMON_ASSUMPTIONS = (
    ONE_RECORD,
    "Bounds, classes, columns and their names and encodings, feature map, price and every number of the training were "
    "chosen without looking at the private records. Choosing any of them by results on the private records is not "
    "covered.",
    TRAINING_SUCCEEDED,
    ONE_LINEAGE,
    ONE_BY_ONE,
    "The bundle and the lineage key stay with the owner; what leaves it is paid for.",
    "The training was the one that this certificate describes, and its numbers and model id are the owner's word: the "
    "values released refute some false ones (a grid that is another), and not all.",
    UNIFORM_BITS,
    FLOATING_POINT,
    "HMAC-SHA256 under a key that stays with the owner is taken for a pseudorandom function, where receipts name what "
    "was released.",
    "Training again on the same records is another release, with noise of its own, and is paid for again.",
    NO_OTHER_FIGURE,
)
"""Assumptions of every pay-once model; a subclass adds its own."""


MOST_CANDIDATES = 16

FEATURES = "features"
"""The option of which each value may have a cost of its own."""

CHOSEN_ASSUMPTIONS = (
    "One option was chosen among candidates by noisy scores, which the cost covers. The candidates, and every other "
    "number, were chosen without looking at the private records.",
    "The other candidates' models were paid for with this one and were deleted, unseen, and so were the exact scores: "
    "that is the owner's word. The noisy scores and the choice are seen with this certificate: the lineage has paid "
    "for them, and the account of a client who does not hold the model has not.",
)
"""Further assumptions of a model that was chosen among several."""


class ChosenAmong(DisclosedModel):
    """The choice of a model among several of one kind, all of them paid for (`dpserve.training.choosing`)."""

    model_config = ConfigDict(extra="forbid")

    option: Declared[str]
    candidates: Declared[Several[str]] = Field(min_length=2, max_length=MOST_CANDIDATES)
    """Its values."""
    costs: Declared[Several[str]]
    """The cost of training each, as the text of a `Cost`; where features are chosen, of these and of the training."""
    by: Declared[Literal["right answers less wrong ones on the records that validate, with Gaussian noise"]] = (
        "right answers less wrong ones on the records that validate, with Gaussian noise"
    )
    scores: Annotated[Several[float], Released("scores")]
    """Each candidate's, as released: the greatest one's model was kept."""
    scores_mu: Declared[float]
    """The cost of all scores together for a record that validates: mu-GDP."""
    validating: Declared[Literal["one in 6, by a keyed hash of the record or its unit"]] = (
        "one in 6, by a keyed hash of the record or its unit"
    )

    @property
    def chosen(self) -> str:
        """The candidate of the greatest score."""
        return self.candidates[self.scores.index(max(self.scores))]

    @property
    def vector(self) -> GaussianVector:
        """The noise on all scores together. A record adds 1 or -1 to each, and so moves them by sqrt(k) in L2."""
        size = len(self.candidates)
        return GaussianVector(self.scores_mu, size, math.sqrt(size) * (1 + 2.0**-40))

    def beside(self, own: Cost) -> tuple[Release, ...]:
        """Return what was released beside the chosen model, for the choice: the other candidates, and the scores.

        own: what training the chosen one cost. `composed` has the proof for both parts. Of the scores: a record's keyed
        hash, a function of it alone, says whether it validates. Given the candidates' models, its term in each of the k
        scores is 1 or -1, a function of this record and a model alone, bit for bit, and no other term changes. In whole
        steps of 2^-28, sums of at most MOST_RECORDS (`dpserve.training.inputs.sums`) terms are exact: the scores move
        by at most sqrt(k) in L2, and their release is scores_mu-GDP (`GaussianVector`). The choice follows from them,
        and candidates, models and deleted ones alike, are functions of the records that train.

        Features that all candidates have may be bought of all records, those that validate among them, which then lose
        these and the scores. So the scores cost at most what the candidates do without them.

        It composes with other releases of the lineage as training does, since to one record each choice is either of
        the two. The number of records, of either part, enters nowhere else: neither divides a score.

        Units: neighbours differ by all records of one unit, the hash is of its name, and all of them are in one part.
        Each one's terms are multiplied by its weight and rounded towards zero, and weights add up to at most 1
        (`dpserve.training.inputs.records.Units`): a unit's term in a score is at most 1.

        `dpserve.accounting.sampling_error` counts the draws of one of the two, too. The others are draws from the same
        law on both sides, sampler and all, given what came before.

        Raises ValueError for numbers that are not so.
        """
        if not len(self.candidates) == len(set(self.candidates)) == len(self.costs) == len(self.scores):
            raise ValueError("a choice has a cost and a score for each of its candidates, and each candidate once")
        scores, step = np.array(self.scores), self.vector.step
        if not np.array_equal(np.rint(scores / step) * step, scores):
            raise ValueError("the scores do not lie on the grid of noise that their mu gives")
        others = dict(zip(self.candidates, self.costs, strict=True))
        if others.pop(self.chosen) != str(own):
            raise ValueError(f"the choice of {self.option} = {self.chosen} does not cost {str(own)!r}")
        candidates = Cost(tuple(loss for cost in self.costs for loss in Cost.parse(cost).losses))
        if self.vector.cost.rho > candidates.rho:
            raise ValueError(f"scores of mu = {self.scores_mu:.6g} cost more than training the candidates")
        return (
            *(Release(name=f"candidate {place}", cost=cost) for place, cost in enumerate(others.values(), 1)),
            Release(name="scores", cost=str(self.vector.cost), part="validating"),
        )


class ReleaseCertificate(ProvenCertificate):
    """The common fields of pay-once models. A subclass states its public numbers and derives the cost from them.

    The model id also names the release in the ledger: holding it is paid for once.
    """

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = COMMON_ASSUMPTIONS
    PAYS_FOR_FEATURES: ClassVar[bool] = True
    STEPS: ClassVar[tuple[Step, ...]] = ()
    """The steps of the training, in their order: each release is one of theirs."""

    format_version: Declared[Literal[5]] = 5
    release: Declared[str]
    """Its kind: a Literal in each subclass, by which `dpserve.training.kinds.loading` finds the loader."""
    binding_key: Private[str] = Field(pattern=r"^[0-9a-f]{64}$")
    """256 random bits that never leave the owner: see `drawn`. Private."""
    feature_map: Declared[HeadFeatureMap]
    releases: Declared[Several[Release]] = Field(min_length=1)
    """Everything that was released of the records for this model, in its order."""
    cost: Declared[str]
    """The cost of holding all of it, as the text of a `Cost`: that of the releases, composed."""
    chosen_among: Declared[ChosenAmong | None] = Field(default=None, exclude_if=lambda among: among is None)
    """Among which candidates it was chosen by results on the records, if it was: all are in its cost."""
    prediction_sets: Declared[PredictionSets | None] = Field(default=None, exclude_if=lambda sets: sets is None)
    """Prediction sets, from records that were held back, if there are any."""
    canaries: Declared[Canaries | None] = Field(default=None, exclude_if=lambda canaries: canaries is None)
    """The canaries of the same run, and what they show of it."""

    @classmethod
    def fresh(cls, name: str, declared: DeclaredRecords, feature_map: object, lineage: str, **numbers: object) -> Self:
        """Return it with a binding key of its own, and the cost of `releases`, which are among the numbers."""
        given = {"binding_key": secrets.token_hex(32), "cost": ""} | numbers
        return super().fresh(name, declared, feature_map, lineage, **given)._with()

    def _with(self, **changed: object) -> Self:
        """Return it with fields changed, and those that follow from them."""
        made = self.model_copy(update=changed)
        return made.model_copy(update={"cost": str(made.whole_cost()), "assumptions": made.assumed()})

    def chosen_by(self, among: ChosenAmong) -> Self:
        """Return the certificate of the same model, chosen so. Raises ValueError, as `ChosenAmong.beside`."""
        return self._with(chosen_among=among)

    def with_prediction_sets(self, sets: PredictionSets) -> Self:
        """Return the certificate of the same model with prediction sets. Raises ValueError for those of another."""
        return self._with(prediction_sets=sets, releases=(*self.releases, COUNTS.bought(sets.sums.cost)))

    def release_of(self, step: Step) -> Release | None:
        """Return the release of a step; None where the model was trained without it."""
        return next((release for release in self.releases if release.name == step.name), None)

    def mu_of(self, step: Step) -> float:
        """Return the mu of a step's release; 0 where there is none."""
        release = self.release_of(step)
        return 0.0 if release is None else release.mu

    def cost_as_candidate(self, option: str) -> Cost:
        """Return what this model adds to the cost of a choice: of its features, too, where these are the option."""
        left_out = {step.name for step in self.STEPS if isinstance(step, FeatureStep) and option != FEATURES}
        return composed(
            release for release in self.releases if release.part == TRAINING and release.name not in left_out
        )

    def canary_parts(self) -> tuple[CanaryPart, ...]:
        """Return the releases that canaries went through, from public numbers alone; none without canaries."""
        return ()

    def with_canaries(self, run: CanaryRun | None) -> Self:
        """Return it with what a run shows of its canaries. Raises ClaimRefuted where that refutes the claim."""
        if run is None or self.canaries is None:
            return self
        verdict = judged(self.canaries, self.canary_parts(), run, self.whole_cost())
        return self.model_copy(update={"canaries": refuse_refuted(verdict)})

    def checked_canaries(self, tensors: Mapping[str, Floats]) -> CanaryRun | None:
        """Return the run that a bundle's tensors hold, judged again. Raises BundleError for another judgement."""
        if self.canaries is None:
            return None
        parts = self.canary_parts()
        run = read_run(self.canaries, parts, tensors)
        check_again(self.canaries, judged(self.canaries, parts, run, self.whole_cost()))
        return run

    def assumed(self) -> tuple[str, ...]:
        """Return what the proof assumes: more for some steps, and where it was chosen."""
        chosen = CHOSEN_ASSUMPTIONS if self.chosen_among else ()
        of_steps = (assumption for step in self.STEPS if self.release_of(step) for assumption in step.assumptions)
        return (*super().assumed(), *chosen, *of_steps)

    def shown_to_strangers(self) -> dict[str, Any]:
        """Return what may be shown to everybody: of features that were bought, what their steps say of them."""
        seen = super().shown_to_strangers()
        for step in self.STEPS:
            if isinstance(step, FeatureStep) and self.release_of(step):
                seen["feature_map"] = step.shown_to_strangers(seen["feature_map"])
        return seen

    @property
    def drawn(self) -> bytes:
        """HMAC-SHA256 of the model file's digest under the binding key: what the ledger's id of it stands on.

        With the model id alone, a second release that was given the first one's id would be served for nothing. Under
        one key two files have one value only if SHA-256 collides. Clients see hashes of receipts, in which the
        question's id is. A bare digest would let a client test a guess of what was drawn, though only one of all of it,
        noise included. HMAC-SHA256 under a
        key that nobody else has is taken for a pseudorandom function, as `COMMON_ASSUMPTIONS` says: its values say
        nothing about the file.
        """
        return hmac.digest(bytes.fromhex(self.binding_key), bytes.fromhex(self.weights_sha256), "sha256")

    def seal(self, content: Mapping[str, object]) -> str:
        """HMAC-SHA256 of an evaluation and the model file's digest under the binding key: says nothing of the file."""
        written = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        sealed = b"dpserve: an evaluation\0" + bytes.fromhex(self.weights_sha256) + written
        return hmac.digest(bytes.fromhex(self.binding_key), sealed, "sha256").hex()

    def whole_cost(self) -> Cost:
        """Return the cost of all releases, and of what was released for a choice. Raises ValueError as `composed`."""
        beside: tuple[Release, ...] = ()
        if (among := self.chosen_among) is not None:
            beside = among.beside(self.cost_as_candidate(among.option))
        return composed((*self.releases, *beside))

    def derived_cost(self) -> Cost:
        """Return the whole cost, once each release was checked by its step. Raises ValueError where one is wrong."""
        check(self.STEPS, self.releases, self)
        return self.whole_cost()

    def derived(self) -> Mapping[str, object]:
        """Return the cost. A subclass adds its other derived fields. Raises ValueError for numbers that have none."""
        cost = self.derived_cost()
        sampling_error.check_release_rho(cost.rho)
        for loss in cost.losses:
            # Each has draws of its own, and the reserve counts them by the least price.
            sampling_error.check_release_rho(loss.rho)
        return {"cost": str(cost)}

    @property
    def price(self) -> Cost:
        """The cost of it, paid once."""
        return Cost.parse(self.cost)


def check_on_grid(name: str, values: Floats, step: float) -> None:
    """Raise BundleError unless every value is a float64 nearest to a whole multiple of `step`, as drawn ones are.

    A release with exact noise lies on the grid that its certificate's numbers give. Most certificates that were changed
    to cost less have another grid, which the values refute; not all. With half the mu, or a quarter, the noise has
    twice the steps and the grid stays: its scale S is a power of two and g is close to sensitivity / (S mu)
    (`grid.gaussian_scale`). Grids that told powers of two apart would not end it: sensitivity and mu can be changed
    together, and g is a function of their ratio, whatever function it is. So the check finds certificates that belong
    to another release, and one that an owner wrote to cost less is the owner's false word (`COMMON_ASSUMPTIONS`).
    |k| < 2^51, so that the rounded quotient is k itself.
    """
    if not np.array_equal(np.rint(values / step) * step, values):
        raise BundleError(
            f"the tensor {name} does not lie on the grid of noise that the certificate describes: it was drawn with "
            "other numbers, and cost something else"
        )
