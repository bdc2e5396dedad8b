"""Released weights: a head's weights with noise drawn once, perhaps in several precisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mechanisms.randomness import SystemRandomness
from training.errors import WrongOption
from training.kinds.head.kind import HeadOptions, convexified_lack, recipe_for
from training.kinds.kind import Ability, Job, PayOnceKind
from training.kinds.shared_options import LAMBDA_AMONG_VALUES, PRICE, PRICE_FORM, TIERS
from training.pay_once.classifier import Classifier, calibrated_layer

if TYPE_CHECKING:
    from training.kinds.weights.model import ReleasedWeights, WeightsCertificate


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(HeadOptions):
    """The options of released weights: those of a head, and a price, or one for each precision."""

    lam: Annotated[float, LAMBDA_AMONG_VALUES]
    price: Annotated[int | None, PRICE] = None
    tier: Annotated[Mapping[str, int] | None, TIERS] = None

    def __post_init__(self) -> None:
        """Raise WrongOption as a head's options do, and for both a price and tiers, or neither."""
        super().__post_init__()
        if (self.price is None) == (self.tier is None):
            remedy = f"either one price, or one for each tier, as NAME=PRICE: {PRICE_FORM}, for all answers together"
            raise WrongOption("price", "is needed", value=self.price, remedy=remedy)

    @property
    def tiers(self) -> dict[str, int]:
        """The price of each tier, in picorho, by name and from the coarsest to the finest."""
        return {"full": self.price} if self.price is not None else dict(self.tier or {})


class WeightsKind(PayOnceKind):
    """Released weights."""

    name = "weights"
    sentence = "a head's weights with noise drawn once, if asked for in several precisions"
    options = WeightsOptions
    beside_budget = ("tier",)

    def lack(self, ability: Ability, given: Mapping[str, Any]) -> str | None:
        """Return what they lack: with the convexified objective, units and choosing."""
        return convexified_lack(ability, given) or super().lack(ability, given)

    def train(self, job: Job, options: WeightsOptions) -> "WeightsCertificate":
        """Train a head, add noise to its weights, and save them."""
        from training.kinds.head.train import train
        from training.kinds.weights.model import release_weights, save_weights

        recipe = recipe_for(job, options)
        with job.progress.minimising(recipe.tolerance) as report:
            head = train(job.records, recipe, job.lineage, report)
        return save_weights(job.out, release_weights(head, options.tiers, job.lineage, SystemRandomness(), job.records))

    def load(self, folder: Path, device: str | None) -> "ReleasedWeights":
        """Read and verify released weights."""
        from training.kinds.weights.model import load_weights

        return load_weights(folder, device)

    def classifier(self, model: "ReleasedWeights", tier: str) -> Classifier:
        """Return the calibrated head of one precision."""
        mu = model.certificate.precisions[model.level].calibration_mu
        head = calibrated_layer(model.weights, model.calibration)
        return Classifier(model.certificate, tier, model.tensors, (head,), mu)


KIND = WeightsKind()
