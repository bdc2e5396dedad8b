"""Released weights: a head's weights with noise drawn once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpserve.mechanisms.gaussian_vector import GaussianVector, mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.training.features import rules
from dpserve.training.features.maps import FeatureMap
from dpserve.training.kinds.head.kind import Head, convexified_limitation, recipe_for, smaller
from dpserve.training.kinds.kind import Ability, Job, PayOnceKind, TrainAlike
from dpserve.training.kinds.likeness import Likeness, bought_before, head_likeness, price_of
from dpserve.training.kinds.planned import PlannedOption, PlanTerms
from dpserve.training.kinds.shared_options import CANARIES
from dpserve.training.options import Options

if TYPE_CHECKING:
    from dpserve.training.inputs.records import Declaration, Records
    from dpserve.training.kinds.weights.certificate import WeightsCertificate
    from dpserve.training.kinds.weights.model import ReleasedWeights
    from dpserve.training.pay_once.classifier import ReleasedClassifier


class Weights(Head):
    """A head's weights with noise drawn once."""

    canaries: int | None = CANARIES()


class WeightsKind(PayOnceKind):
    """Released weights."""

    name = "weights"
    sentence = "a head's weights with noise drawn once"
    options = Weights

    def limitation(self, ability: Ability, options: Options | None = None) -> str | None:
        """Return what they lack: with the convexified objective, units and canaries."""
        if ability == "canaries" and isinstance(options, Weights) and options.alpha is not None:
            return "go with the sum of losses: in the convexified objective a canary changes every record's weight"
        return convexified_limitation(ability, options) or super().limitation(ability, options)

    def train(self, job: Job, options: Weights) -> "WeightsCertificate":
        """Train a head, add noise to its weights, and save them."""
        from dpserve.training.kinds.head.train import train_head
        from dpserve.training.kinds.weights.bundle import save_weights
        from dpserve.training.kinds.weights.train import release_weights

        recipe = recipe_for(job.name, job.feature_map, options, mu_for(job.model_price))
        head = train_head(job.records, recipe, job.lineage)
        released = release_weights(
            head,
            job.model_price,
            job.lineage,
            job.randomness,
            job.records,
            options.canaries,
            before=job.before,
            certificate_type=self.certificate_type,
        )
        return save_weights(job.out, released)

    def shortened(self, job: Job, options: Weights, share: float) -> tuple[Weights, Mapping[str, tuple[float, float]]]:
        """Return an objective that is as much smaller."""
        return smaller(options, recipe_for(job.name, job.feature_map, options, mu_for(job.model_price)), share)

    @property
    def certificate_type(self) -> "type[WeightsCertificate]":
        """Return the type of its certificates."""
        from dpserve.training.kinds.weights.certificate import WeightsCertificate

        return WeightsCertificate

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from dpserve.training.kinds.weights.planned import PLANNED

        return PLANNED

    def settings(self, option: PlannedOption, plan: PlanTerms) -> Weights:
        """Return the Lambda that suits the price."""
        return Weights(**option.settings, lam=rules.strong_convexity(mu_for(plan.share)))

    def check_planned(
        self, option: PlannedOption, n: int, whole: int, declaration: "Declaration", feature_map: FeatureMap
    ) -> None:
        """Raise where there are too many records to calibrate by, or the noise on so many weights has no grid."""
        from dpserve.training.inputs.sums import check_count
        from dpserve.training.pay_once import calibration

        del option
        if calibration.share_of(whole):
            check_count(n)
        GaussianVector(mu_for(whole), len(declaration.classes) * feature_map.declared.dimension, 1.0)

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of a regularised linear model."""
        del records
        return head_likeness(public)

    def trainer_alike(self, public: Mapping[str, Any], feature_map: FeatureMap) -> "TrainAlike | None":
        """Return a release of a head's weights."""
        from dpserve.training.kinds.head.recipe import Recipe
        from dpserve.training.kinds.head.train import train_head
        from dpserve.training.kinds.weights.train import release_weights

        if (price := price_of(public)) is None:
            return None
        alike = head_likeness(public)
        assert alike.strong_convexity is not None
        recipe = Recipe("alike", feature_map, alike.strong_convexity, convexity=alike.convexity)

        def train(records: "Records", randomness: Randomness) -> "ReleasedWeights":
            head = train_head(records, recipe, "alike")
            return release_weights(head, price, "alike", randomness, records, before=bought_before(public, feature_map))

        return train

    def load(self, folder: Path, device: str | None) -> "ReleasedWeights":
        """Read and verify released weights."""
        from dpserve.training.kinds.weights.bundle import load_weights

        return load_weights(folder, device, self.certificate_type)

    def classifier(self, model: "ReleasedWeights") -> "ReleasedClassifier":
        """Return the calibrated head."""
        from dpserve.training.pay_once.classifier import ReleasedClassifier, calibrated_layer

        head = calibrated_layer(model.weights, model.calibration)
        return ReleasedClassifier(model.certificate, model.tensors, ((head,),))


KIND = WeightsKind()
