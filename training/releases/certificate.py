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

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from accounting import sampling_error
from accounting.losses import Cost
from training.certificate import (
    FLOATING_POINT,
    NO_OTHER_FIGURE,
    ONE_LINEAGE,
    ONE_RECORD,
    TRAINING_SUCCEEDED,
    UNIFORM_BITS,
    Declared,
    ProvenCertificate,
)
from training.errors import BundleError
from training.feature_maps import HeadFeatureMap

Floats = NDArray[np.float64]

COMMON_ASSUMPTIONS = (
    ONE_RECORD,
    "Bounds, classes, columns and their names and encodings, feature map and every number of the training were chosen "
    "without looking at the private records. Choosing any of them by results on the private records is not covered.",
    TRAINING_SUCCEEDED,
    ONE_LINEAGE,
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
"""What every release assumes; a subclass adds its own."""


@dataclass(frozen=True)
class Tier:
    """A precision that a client can hold. `cost` is what it costs beyond the tier before it."""

    name: str
    cost: Cost


class ReleaseCertificate(ProvenCertificate):
    """What all releases have in common. A subclass states its public numbers and derives the cost from them.

    The model id also names the release in the ledger: holding it is paid for once.
    """

    ASSUMPTIONS: ClassVar[tuple[str, ...]] = COMMON_ASSUMPTIONS
    PRIVATE: ClassVar[frozenset[str]] = ProvenCertificate.PRIVATE | {"binding_key"}

    format_version: Literal[3] = 3
    """2 had no calibration."""
    release: str
    """Its kind: a Literal in each subclass, by which `training.loading` finds the loader."""
    binding_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    """256 random bits that never leave the owner: see `drawn`. Private."""
    feature_map: HeadFeatureMap
    cost: str
    """What holding all of it costs, as the text of a `Cost`."""

    @classmethod
    def fresh(cls, name: str, declared: Declared, feature_map: object, lineage: str, **numbers: object) -> Self:
        """Return it with a binding key of its own."""
        return super().fresh(name, declared, feature_map, lineage, binding_key=secrets.token_hex(32), **numbers)

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
        """Return the cost. A subclass adds its other derived fields. Raises ValueError for numbers that have none."""
        cost = self.derived_cost()
        for tier in self.tiers:
            sampling_error.check_release_rho(tier.cost.rho)
        for loss in cost.losses:
            # Each has draws of its own, and the reserve counts them by the least price.
            sampling_error.check_release_rho(loss.rho)
        return {"cost": str(cost)}

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The precisions that can be held, the coarsest first; here one, the whole release."""
        return (Tier("full", Cost.parse(self.cost)),)


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
