"""Noisy class sums: the sum of the records' directions in each class, released once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mechanisms.randomness import SystemRandomness
from training.kinds.kind import Job, PayOnceKind
from training.kinds.options import Options
from training.kinds.shared_options import PRICE, RECORDS
from training.pay_once.classifier import Classifier, calibrated_layer

if TYPE_CHECKING:
    from training.kinds.class_sums.model import ClassSums, ClassSumsCertificate


@dataclass(frozen=True, kw_only=True)
class ClassSumsOptions(Options):
    """The options of class sums."""

    price: Annotated[int, PRICE]
    records_declared: Annotated[int | None, RECORDS] = None


class ClassSumsKind(PayOnceKind):
    """Noisy class sums."""

    name = "class-sums"
    sentence = "noisy sums of the records of each class, good for few records"
    options = ClassSumsOptions

    def train(self, job: Job, options: ClassSumsOptions) -> "ClassSumsCertificate":
        """Release the sums and save the model."""
        from training.kinds.class_sums.model import save_class_sums, train_class_sums

        words, declared = SystemRandomness(), options.records_declared
        with job.progress.steps_with_progress(2 * len(job.records)) as report:
            model = train_class_sums(
                job.records, job.name, job.feature_map, options.price, job.lineage, words, report, declared
            )
        return save_class_sums(job.out, model)

    def load(self, folder: Path, device: str | None) -> "ClassSums":
        """Read and verify class sums."""
        from training.kinds.class_sums.model import load_class_sums

        return load_class_sums(folder, device)

    def classifier(self, model: "ClassSums", tier: str) -> Classifier:
        """Return the calibrated head around the released centre."""
        head, mu = calibrated_layer(model.weights, model.calibration), model.certificate.calibration_mu
        return Classifier(model.certificate, tier, model.tensors, (head,), mu, centre=model.mean)


KIND = ClassSumsKind()
