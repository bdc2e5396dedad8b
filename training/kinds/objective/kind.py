"""Objective perturbation: a head that minimises its objective plus noise, released once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mechanisms.randomness import SystemRandomness
from training.features.maps import FeatureMap
from training.kinds.kind import Job, PayOnceKind, TrainAlike
from training.kinds.likeness import Likeness, head_likeness, price_of
from training.kinds.objective.bound import NO_UNITS
from training.kinds.options import Options
from training.kinds.planned import PlannedOption
from training.kinds.shared_options import LAMBDA_AMONG_VALUES, PRICE, TOLERANCE

NO_CANARIES = (
    "are read where noise is added to a result: here it is added to what is minimised, so that a canary's column is no "
    "linear function of its noise, and the law of its score has not been derived"
)

if TYPE_CHECKING:
    from training.inputs.records import Declaration
    from training.kinds.objective.model import ObjectiveCertificate, PerturbedHead
    from training.pay_once.classifier import Classifier

DEFAULT_TOLERANCE = 1e-4
"""Reached for 100,000 records. The noise on the weights has 71 times the tolerance over Lambda on each."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(Options):
    """The options of objective perturbation."""

    price: Annotated[int, PRICE]
    lam: Annotated[float | None, LAMBDA_AMONG_VALUES] = None
    tolerance: Annotated[float, TOLERANCE] = DEFAULT_TOLERANCE


class ObjectiveKind(PayOnceKind):
    """Objective perturbation."""

    name = "objective"
    sentence = "a linear model that minimises its objective plus noise"
    options = ObjectiveOptions
    lacks = {**PayOnceKind.lacks, "units": NO_UNITS, "canaries": NO_CANARIES}  # noqa: RUF012 - a constant of the class

    def train(self, job: Job, options: ObjectiveOptions) -> "ObjectiveCertificate":
        """Minimise the perturbed objective and save the head."""
        from training.kinds.objective import model as objective

        tolerance, words = options.tolerance, SystemRandomness()
        choices = objective.perturbation_for(options.price, len(job.records.declaration.classes), options.lam)
        with job.progress.minimising(tolerance) as report:
            model = objective.train_perturbed(
                job.records, job.name, job.feature_map, choices, tolerance, job.lineage, words, report
            )
        return objective.save_perturbed(job.out, model)

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from training.kinds.objective.planned import PLANNED

        return PLANNED

    def check_planned(
        self, option: PlannedOption, n: int, whole: int, declaration: "Declaration", feature_map: FeatureMap
    ) -> None:
        """Raise where there are too many records, or the price is too small for two releases."""
        from mechanisms.gaussian_vector import GaussianNoise
        from training.inputs.sums import check_count
        from training.kinds.objective.model import perturbation_for

        del option
        check_count(n)
        classes = len(declaration.classes)
        GaussianNoise(perturbation_for(whole, classes).noise, classes * feature_map.dimension)

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of a regularised linear model."""
        del records
        return head_likeness(public)

    def trainer_alike(self, public: Mapping[str, Any], feature_map: FeatureMap) -> "TrainAlike | None":
        """Return a minimisation with as much noise."""
        from training.kinds.objective.model import Perturbation, train_perturbed

        if price_of(public) is None:
            return None
        choices = Perturbation(**{each.name: float(public[each.name]) for each in fields(Perturbation)})
        tolerance = float(public["tolerance"])
        return lambda records, randomness: train_perturbed(
            records, "alike", feature_map, choices, tolerance, "alike", randomness
        )

    def load(self, folder: Path, device: str | None) -> "PerturbedHead":
        """Read and verify a perturbed head."""
        from training.kinds.objective.model import load_perturbed

        return load_perturbed(folder, device)

    def classifier(self, model: "PerturbedHead", tier: str) -> "Classifier":
        """Return the calibrated head."""
        from training.pay_once.classifier import Classifier, calibrated_layer
        from training.pay_once.model import rounded

        head = calibrated_layer(rounded(model.weights), model.calibration)
        return Classifier(model.certificate, tier, model.tensors, (head,), model.certificate.calibration_mu)


KIND = ObjectiveKind()
