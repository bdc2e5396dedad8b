"""What a bundle of a published network says about itself: what is claimed, that it is unproven, and why.

It has the shape of a certified head's certificate where a service reads it, and status "unproven" everywhere.
"""

import math
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mechanisms.mechanism import Mechanism
from training.certificate import ModelCertificate
from training.errors import TrainingError
from training.published.bounds import Topology, claimed_sensitivities
from training.published.setting import Activation, Objective

OBJECTIONS = (
    "With three or more classes the answer shows the differences of all logits but one exactly, so that neighbouring "
    "models' answers lie on different sets and no finite epsilon holds, whatever the noise.",
    "The claimed sensitivities are no worst-case bounds: they spread an L2 bound evenly over the weights, keep the "
    "hidden layer fixed, and are those of the exact minimiser of a mean of convex losses, which no trained network is.",
    "The claimed sensitivities depend on the number of records, which is private, and so does the scale of the noise.",
    "The epsilon that is charged for an answer is the claimed one. It bounds nothing that was proved.",
)


class NoCertificate(TrainingError):
    """What was asked for needs a proof that this network does not have."""


class ScaledInputs(BaseModel):
    """How a row becomes the network's input: clipped to the declared bounds and scaled to [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["scaled"] = "scaled"
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.lower) != len(self.upper) or not self.lower:
            raise ValueError("there must be one lower and one upper bound for each feature")
        for low, high in zip(self.lower, self.upper, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"bounds must be finite and in order, not {low:g}:{high:g}")
        return self


class UnprovenCertificate(ModelCertificate):
    """What the published method claims for one trained network."""

    CLAIMED: ClassVar[frozenset[str]] = frozenset(
        {"claimed_lipschitz", "claimed_weight_sensitivity", "claimed_neuron_sensitivity"}
    )
    PRIVATE: ClassVar[frozenset[str]] = ModelCertificate.PRIVATE | CLAIMED | {"records"}
    """n is private, and the claims show it."""

    status: Literal["unproven"] = "unproven"
    objective: Objective
    alpha: float = Field(gt=0, allow_inf_nan=False)
    """The risk factor; cross-entropy does not use it."""
    feature_map: ScaledInputs
    hidden: tuple[int, ...] = Field(min_length=1)
    activation: Activation
    records: int = Field(ge=1)
    """n."""
    l2_regulariser: float = Field(gt=0, allow_inf_nan=False)
    """In Keras' convention: times ||W||^2, without a half."""
    claimed_lipschitz: float
    claimed_weight_sensitivity: float
    """Theorem 4: of all weights in L2."""
    claimed_neuron_sensitivity: float
    """Corollary 1: Delta z, which the noise is scaled to."""
    objections: tuple[str, ...] = OBJECTIONS

    @property
    def topology(self) -> Topology:
        """The network's widths."""
        return Topology(len(self.feature_names), self.hidden, len(self.classes))

    def derived(self) -> dict[str, float]:
        """Return the claimed numbers, derived again: none of them is a bound."""
        return claims(self.topology, self.records, self.l2_regulariser)

    def differences(self) -> list[str]:
        """Return what differs, missing objections among it."""
        missing = [] if self.objections == OBJECTIONS else ["the objections to the claim are not all there"]
        return super().differences() + missing

    def check_mechanism(self, mechanism: Mechanism, *, accept_unproven: bool) -> None:
        """Refuse to serve this network with a proven mechanism, or without the owner's acceptance in so many words.

        Raises NoCertificate saying what is missing and what would be needed.
        """
        if mechanism.status == "proven":
            raise NoCertificate(
                f"the mechanism {mechanism.name!r} needs a certificate: a proven bound on how far one record can move "
                "the logits. There is none for this network: it is no minimiser of a strongly convex objective. "
                "Train a certified head on the same records with 'dpserve train', or serve this network as the paper "
                "does with --mechanism published --accept-unproven"
            )
        if not accept_unproven:
            raise NoCertificate(
                f"the mechanism {mechanism.name!r} is unproven: {OBJECTIONS[0]} "
                "Say --accept-unproven to serve it all the same"
            )


def claims(topology: Topology, records: int, l2_regulariser: float) -> dict[str, float]:
    """The certificate's claimed numbers by name."""
    claimed = claimed_sensitivities(topology, records, l2_regulariser=l2_regulariser)
    return {
        "claimed_lipschitz": claimed.lipschitz,
        "claimed_weight_sensitivity": claimed.weights_l2,
        "claimed_neuron_sensitivity": claimed.neuron,
    }
