"""The step that cuts numbers at their noisy quantiles."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from dpserve.accounting.losses import Cost
from dpserve.accounting.picorho import to_rho
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.errors import WrongOption
from dpserve.training.features.maps import FeatureMap, Quantiles
from dpserve.training.features.quantiles import QUANTILE_SHARE, price_of_counts
from dpserve.training.fitting.histograms import cut_at_quantiles
from dpserve.training.inputs.records import AnyRecords, Declaration
from dpserve.training.pay_once.chain import FeatureStep
from dpserve.training.pay_once.releases import Release

if TYPE_CHECKING:
    from dpserve.training.pay_once.certificate import ReleaseCertificate


@dataclass(frozen=True)
class Cuts(FeatureStep):
    """Cuts at noisy quantiles of each number: `QuantileRelease.vector` and its `cost` have the proof.

    quantiles: the share of the price that buys them; 0 for even cuts, which are public.
    """

    quantiles: float = QUANTILE_SHARE

    name = "quantiles"

    def at_share(self, share: float) -> Self:
        """Return it with this share."""
        return replace(self, quantiles=share)

    def share(self, price: int, declaration: Declaration, feature_map: FeatureMap) -> int:
        """Return the part of the price that buys quantiles of the numbers that have no public cuts.

        Raises TrainingError for bounds that make no histogram, and WrongOption for a price that is too small.
        """
        if not isinstance(feature_map, Quantiles) or not self.quantiles or not feature_map.counted:
            return 0
        feature_map.check_ranges(declaration.feature_names)
        try:
            return price_of_counts(price, len(feature_map.counted), self.quantiles)
        except ValueError as error:
            reason = f"cannot be had at a price of rho:{to_rho(price)!r}: {error}"
            raise WrongOption("quantile_share", reason, remedy="take bins, or a larger price") from error

    def run(
        self, records: AnyRecords, feature_map: FeatureMap, share: int, price: int, randomness: Randomness
    ) -> tuple[FeatureMap, Release]:
        """Return the map cut at the quantiles."""
        assert isinstance(feature_map, Quantiles)
        made = cut_at_quantiles(feature_map, records, share, price, randomness)
        return made, self.bought(Cost(made.losses))

    def shown_to_strangers(self, feature_map: dict[str, Any]) -> dict[str, Any]:
        """Return all of it: the type of the map's cuts says whose they are."""
        return feature_map

    def is_needed_by(self, certificate: "ReleaseCertificate") -> bool:
        """Return whether the features were cut at quantiles."""
        return bool(certificate.feature_map.losses)

    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:  # noqa: ARG002 - the map has its mu
        """Return what the feature map's cuts cost."""
        return Cost(certificate.feature_map.losses)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The owner's word for the counts."""
        return (
            "The cuts of the numbers follow from noisy counts of the records, which the cost covers, and from public "
            "numbers. The counts were drawn once and deleted, unseen: that is the owner's word.",
        )


CUTS = Cuts()
