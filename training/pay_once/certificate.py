"""The certificate of a release that is paid for once: what it cost, in numbers that anyone can derive again.

Everything in it but the digest of the weights, the binding key, the lineage and the time is public, and `public`
leaves those out.
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field

from dpserve.accounting import sampling_error
from dpserve.accounting.arrays import Floats
from dpserve.accounting.losses import Cost
from dpserve.training.bundles.certificate import (
    FLOATING_POINT,
    NO_OTHER_FIGURE,
    ONE_BY_ONE,
    ONE_LINEAGE,
    ONE_RECORD,
    TRAINING_SUCCEEDED,
    UNIFORM_BITS,
    Declared,
    ProvenCertificate,
)
from dpserve.training.errors import BundleError
from dpserve.training.features.maps import HeadFeatureMap
from dpserve.training.fields import Several
from dpserve.training.pay_once.canaries import Canaries, CanaryPart, CanaryRun, read_run
from dpserve.training.pay_once.canary_verdict import check_again, judged, refuse_refuted
from dpserve.training.pay_once.chain import FeatureStep, Step, check
from dpserve.training.pay_once.prediction_sets import COUNTS, PredictionSets
from dpserve.training.pay_once.releases import Release, composed

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


class ReleaseCertificate(ProvenCertificate):
    """The common fields of pay-once models. A subclass states its public numbers and derives the cost from them.

    The model id also names the release in the ledger: holding it is paid for once.
    """

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = COMMON_ASSUMPTIONS
    PRIVATE: ClassVar[frozenset[str]] = ProvenCertificate.PRIVATE | {"binding_key"}
    PAYS_FOR_FEATURES: ClassVar[bool] = True
    STEPS: ClassVar[tuple[Step, ...]] = ()
    """The steps of the training, in their order: each release is one of theirs."""

    format_version: Literal[4] = 4
    release: str
    """Its kind: a Literal in each subclass, by which `dpserve.training.kinds.loading` finds the loader."""
    binding_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    """256 random bits that never leave the owner: see `drawn`. Private."""
    feature_map: HeadFeatureMap
    releases: Several[Release] = Field(min_length=1)
    """Everything that was released of the records for this model, in its order."""
    cost: str
    """The cost of holding all of it, as the text of a `Cost`: that of the releases, composed."""
    prediction_sets: PredictionSets | None = Field(default=None, exclude_if=lambda sets: sets is None)
    """Prediction sets, from records that were held back, if there are any."""
    canaries: Canaries | None = Field(default=None, exclude_if=lambda canaries: canaries is None)
    """The canaries of the same run, and what they show of it."""

    @classmethod
    def fresh(cls, name: str, declared: Declared, feature_map: object, lineage: str, **numbers: object) -> Self:
        """Return it with a binding key of its own, and the cost of `releases`, which are among the numbers."""
        given = {"binding_key": secrets.token_hex(32), "cost": ""} | numbers
        return super().fresh(name, declared, feature_map, lineage, **given)._with()

    def _with(self, **changed: object) -> Self:
        """Return it with fields changed, and those that follow from them."""
        made = self.model_copy(update=changed)
        return made.model_copy(update={"cost": str(made.whole_cost()), "assumptions": made.assumed()})

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
        """Return what the proof assumes: more for some steps."""
        of_steps = (assumption for step in self.STEPS if self.release_of(step) for assumption in step.assumptions)
        return (*super().assumed(), *of_steps)

    def shown_to_strangers(self) -> dict[str, object]:
        """Return `public` without what was released of the records, which is shown to whoever has paid for it.

        That is what each step says of its features, and the noisy counts of its prediction sets.
        """
        shown = self.public()
        if isinstance(sets := shown.get("prediction_sets"), dict):
            shown["prediction_sets"] = {name: value for name, value in sets.items() if name != "released"}
        for step in self.STEPS:
            if isinstance(step, FeatureStep) and self.release_of(step):
                shown["feature_map"] = step.shown_to_strangers(cast(dict[str, Any], shown["feature_map"]))
        return shown

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
        """Return the cost of all releases. Raises ValueError as `composed`."""
        return composed(self.releases)

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
