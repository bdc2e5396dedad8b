"""Noisy class sums: the sum of the records' directions in each class, released once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpserve.mechanisms.randomness import Randomness
from dpserve.training.features.maps import FeatureMap
from dpserve.training.features.quantiles import price_of_counts
from dpserve.training.kinds.kind import Job, PayOnceKind, TrainAlike
from dpserve.training.kinds.likeness import bought_before, price_of, releases_shown
from dpserve.training.kinds.planned import PlannedOption, PlanTerms
from dpserve.training.kinds.shared_options import CANARIES
from dpserve.training.options import Options

if TYPE_CHECKING:
    from dpserve.training.inputs.records import Declaration, Records
    from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate
    from dpserve.training.kinds.class_sums.model import ReleasedClassSums
    from dpserve.training.pay_once.classifier import ReleasedClassifier


AFTER_STEPS = (
    "its answers come without intervals, because gradient steps follow the sums of so many records, and how far the "
    "noise moved them is then not known"
)


class ClassSums(Options):
    """Noisy sums of the records of each class, good for few records."""

    canaries: int | None = CANARIES()


class ClassSumsKind(PayOnceKind):
    """Noisy class sums."""

    name = "class-sums"
    sentence = "noisy sums of the records of each class, good for few records"
    options = ClassSums

    def train(self, job: Job, options: ClassSums) -> "ClassSumsCertificate":
        """Release the sums and save the model."""
        from dpserve.training.kinds.class_sums.bundle import save_class_sums
        from dpserve.training.kinds.class_sums.train import train_class_sums

        model = train_class_sums(
            job.records,
            job.name,
            job.feature_map,
            job.model_price,
            job.lineage,
            job.randomness,
            job.progress.report,
            job.n,
            options.canaries,
            before=job.before,
            certificate_type=self.certificate_type,
        )
        return save_class_sums(job.out, model)

    @property
    def certificate_type(self) -> "type[ClassSumsCertificate]":
        """Return the type of its certificates."""
        from dpserve.training.kinds.class_sums.certificate import ClassSumsCertificate

        return ClassSumsCertificate

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from dpserve.training.kinds.class_sums.planned import PLANNED

        return PLANNED

    def planned_without_intervals(self, option: PlannedOption, plan: PlanTerms, classes: int) -> str | None:
        """Return that steps would follow the sums, as they do from so many records on where rows are not too wide."""
        from dpserve.training.kinds.class_sums.continued import share_of

        try:
            counts = price_of_counts(plan.share, 1) if option.features == "quantiles" else 0
        except ValueError:  # too little for quantiles, and so for steps
            return None
        return AFTER_STEPS if share_of(plan.share - counts, classes, 1, plan.n) else None

    def check_planned(
        self, option: PlannedOption, n: int, whole: int, declaration: "Declaration", feature_map: FeatureMap
    ) -> None:
        """Raise where there are too many records, or the price is too small for two releases."""
        from dpserve.training.inputs.sums import check_count
        from dpserve.training.kinds.class_sums.steps import CENTRE, TOTALS, centre_law, sums_law
        from dpserve.training.pay_once.chain import PublicNumbers, divided

        del option
        check_count(n)
        classes, dimension = len(declaration.classes), feature_map.dimension
        centre, sums = divided((CENTRE, TOTALS), whole, PublicNumbers(classes, feature_map))
        centre_law(centre.mu, dimension)
        sums_law(sums.mu, classes, dimension)

    def trainer_alike(self, public: Mapping[str, Any], feature_map: FeatureMap) -> "TrainAlike | None":
        """Return a release of sums at the same price, with steps where it took steps."""
        from dpserve.training.kinds.class_sums.steps import DESCENT
        from dpserve.training.kinds.class_sums.train import train_class_sums

        if (price := price_of(public)) is None:
            return None
        steps = any(release.name == DESCENT.name for release in releases_shown(public))

        def train(records: "Records", randomness: Randomness) -> "ReleasedClassSums":
            declared = len(records) if steps else None
            return train_class_sums(
                records,
                "alike",
                feature_map,
                price,
                "alike",
                randomness,
                records_declared=declared,
                before=bought_before(public, feature_map),
            )

        return train

    def load(self, folder: Path, device: str | None) -> "ReleasedClassSums":
        """Read and verify class sums."""
        from dpserve.training.kinds.class_sums.bundle import load_class_sums

        return load_class_sums(folder, device, self.certificate_type)

    def classifier(self, model: "ReleasedClassSums") -> "ReleasedClassifier":
        """Return the calibrated head around the released centre."""
        from dpserve.training.pay_once.classifier import ReleasedClassifier, calibrated_layer

        head = calibrated_layer(model.weights, model.calibration)
        return ReleasedClassifier(model.certificate, model.tensors, ((head,),), model.mean)


KIND = ClassSumsKind()
