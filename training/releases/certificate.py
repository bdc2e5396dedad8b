"""The certificate of a release that is paid for once: what it cost, in numbers that anyone can derive again.

Everything in it but the digest of the weights, the lineage and the time is public, and `public` leaves those out.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from accounting import sampling_error
from accounting.losses import Cost
from training.certificate import NAME
from training.errors import BundleError
from training.feature_maps import AnyFeatureMap
from training.sealing import SealedCertificate

COMMON_ASSUMPTIONS = (
    "Neighbouring data sets differ by the addition or removal of one record; a person with several records is "
    "protected for each of them, and for all together only by the composition of their number.",
    "Bounds, classes, columns and their names and encodings, feature map and every number of the training were chosen "
    "without looking at the private records. Choosing any of them by results on the private records is not covered.",
    "Training succeeded. That it does, rather than be refused for a bad value, can depend on one record, and is not "
    "hidden from whoever sees that a model is served.",
    "The records of one person are not also in another lineage. Sets that overlap belong in one named lineage.",
    "The bundle and the lineage key stay with the owner; what leaves it is paid for.",
    "Training again on the same records is another release, with noise of its own, and is paid for again.",
    "Accuracy, the number of records and any other figure computed from the private records are not covered if "
    "they are published.",
)
"""What every release assumes; a subclass adds its own."""


@dataclass(frozen=True)
class Tier:
    """A precision that a client can hold. `cost` is what it costs beyond the tier before it."""

    name: str
    cost: Cost


class ReleaseCertificate(SealedCertificate):
    """What all releases have in common. A subclass states its public numbers and derives the cost from them."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = COMMON_ASSUMPTIONS

    format_version: Literal[1] = 1
    status: Literal["proven"] = "proven"
    release: str
    """Its kind: a Literal in each subclass, by which `training.loading` finds the loader."""
    name: str = Field(pattern=f"^{NAME.pattern}$")
    model_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random, not derived from the weights. It also names the release in the ledger: holding it is paid for once."""
    created: AwareDatetime
    neighbouring: Literal["add or remove one record"] = "add or remove one record"
    classes: tuple[str, ...] = Field(min_length=2, max_length=1024)
    feature_names: tuple[str, ...] = Field(min_length=1)
    feature_map: AnyFeatureMap
    cost: str
    """What holding all of it costs, as the text of a `Cost`."""
    assumptions: tuple[str, ...]
    lineage: str = Field(pattern=f"^{NAME.pattern}$")

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        features = len(self.feature_names)
        if not len(self.feature_map.lower) == len(self.feature_map.upper) == features:
            raise ValueError(f"the feature map has other numbers of bounds than there are feature names ({features})")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named twice")
        return self

    @abstractmethod
    def derived_cost(self) -> Cost:
        """Return the cost, derived again from the certificate's other public numbers, with its proof.

        Raises ValueError for numbers that have none.
        """

    def derived(self) -> Mapping[str, object]:
        """Return the certificate's other derived fields by name. Raises ValueError for numbers that have none."""
        return {}

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The precisions that can be held, the coarsest first; here one, the whole release."""
        return (Tier("full", Cost.parse(self.cost)),)

    def verify(self) -> None:
        """Derive every number again. Returns nothing, or raises BundleError saying all that differs."""
        try:
            derived = {"cost": str(self.derived_cost()), **self.derived()}
            for tier in self.tiers:
                sampling_error.check_release_rho(tier.cost.rho)
        except ValueError as error:
            raise BundleError(f"the certificate does not hold: {error}") from error
        differs = [
            f"{name} is {getattr(self, name)!r} and should be {value!r}"
            for name, value in derived.items()
            if getattr(self, name) != value
        ]
        if self.assumptions != self.ASSUMPTIONS:
            differs.append("the assumptions are not those that the proof makes")
        if differs:
            raise BundleError("the certificate does not hold: " + "; ".join(differs))

    def public(self) -> dict[str, object]:
        """Return what may be shown to clients, ready for JSON."""
        return self.model_dump(mode="json", exclude={"weights_sha256", "lineage", "created"})
