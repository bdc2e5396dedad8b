"""The certificate of a release that is paid for once: what it cost, in numbers that anyone can derive again.

Everything in it but the digest of the weights, the binding key, the lineage and the time is public, and `public`
leaves those out.
"""

import hmac
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from accounting import sampling_error
from accounting.losses import Cost
from training.certificate import FLOATING_POINT, NAME, OTHER_ASSUMPTIONS, UNIFORM_BITS
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
    "The training was the one that this certificate describes, and its numbers and model id are the owner's word: the "
    "values released refute some false ones (a grid that is another), and not all.",
    UNIFORM_BITS,
    FLOATING_POINT,
    "HMAC-SHA256 under a key that stays with the owner is taken for a pseudorandom function, where receipts name what "
    "was released.",
    "Training again on the same records is another release, with noise of its own, and is paid for again.",
    "Accuracy, the number of records and any other figure computed from the private records are not covered if "
    "they are published.",
)
"""What every release assumes; a subclass adds its own."""


def fresh_ids() -> dict[str, str]:
    """Return a new release's model id and binding key, from the operating system's randomness."""
    return {"model_id": secrets.token_hex(16), "binding_key": secrets.token_hex(32)}


@dataclass(frozen=True)
class Tier:
    """A precision that a client can hold. `cost` is what it costs beyond the tier before it."""

    name: str
    cost: Cost


class ReleaseCertificate(SealedCertificate):
    """What all releases have in common. A subclass states its public numbers and derives the cost from them."""

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = COMMON_ASSUMPTIONS

    format_version: Literal[2] = 2
    status: Literal["proven"] = "proven"
    release: str
    """Its kind: a Literal in each subclass, by which `training.loading` finds the loader."""
    name: str = Field(pattern=f"^{NAME.pattern}$")
    model_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    """Random, not derived from the weights. It also names the release in the ledger: holding it is paid for once."""
    binding_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    """256 random bits that never leave the owner: see `drawn`. Private."""
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
            raise ValueError(f"the feature map lacks one pair of bounds for each of the {features} feature names")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named twice")
        return self

    @property
    def drawn(self) -> bytes:
        """HMAC-SHA256 of the model file's digest under the binding key: what the ledger's ids of its steps stand on.

        With the model id alone, a second release that was given the first one's id would be served for nothing. Under
        one key two files have one value only if SHA-256 collides. The model file holds the finer tiers too, which some
        clients have not paid for, and clients see hashes of receipts, in which the steps' ids are. A bare digest would
        let a client test a guess of what was drawn, though only one of all of it, noise included. HMAC-SHA256 under a
        key that nobody else has is taken for a pseudorandom function, as `COMMON_ASSUMPTIONS` says: its values say
        nothing about the file.
        """
        return hmac.digest(bytes.fromhex(self.binding_key), bytes.fromhex(self.weights_sha256), "sha256")

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
            cost = self.derived_cost()
            derived = {"cost": str(cost), **self.derived()}
            for tier in self.tiers:
                sampling_error.check_release_rho(tier.cost.rho)
            for loss in cost.losses:
                # Each has draws, or a coin, of its own, and the reserve counts one of either to each least price.
                sampling_error.check_release_rho(loss.rho)
        except ValueError as error:
            raise BundleError(f"the certificate does not hold: {error}") from error
        differs = [
            f"{name} is {getattr(self, name)!r} and should be {value!r}"
            for name, value in derived.items()
            if getattr(self, name) != value
        ]
        if self.assumptions != self.ASSUMPTIONS:
            differs.append(OTHER_ASSUMPTIONS)
        if differs:
            raise BundleError("the certificate does not hold: " + "; ".join(differs))

    def public(self) -> dict[str, object]:
        """Return what may be shown to clients, ready for JSON."""
        return self.model_dump(mode="json", exclude={"weights_sha256", "binding_key", "lineage", "created"})
