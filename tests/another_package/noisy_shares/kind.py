"""The kind: its options, how it trains and loads, what the planner may say of it, how it leaves in a file."""

from dpserve.training.kinds.kind import PayOnceKind
from dpserve.training.kinds.planned import UNLIMITED, PlannedOption
from dpserve.training.options import Options, option


class Shares(Options):
    """The options of noisy shares."""

    smoothing: float = option(
        1.0, "Records of each class that are added before shares are taken.", unit="records", ge=0
    )


def _qualities(trial):
    from noisy_shares.model import train_shares

    case = trial.case
    chosen = trial.heads.feature_map("modality")
    model = train_shares(case.records, "compared", chosen, trial.whole, 1.0, "compared", trial.randomness("shares"))
    return {UNLIMITED: case.quality(*model.answers(case.asked))}


class SharesKind(PayOnceKind):
    """Noisy shares of the classes."""

    name = "shares"
    sentence = "noisy shares of the classes, the same answer to every row"
    options = Shares
    planned = (PlannedOption("shares", "noisy shares", "once", _qualities, "shares", "modality"),)
    limitations = PayOnceKind.limitations | {"intervals": "nobody worked out how far noise moves a share"}

    @property
    def certificate_type(self):
        """Return the type of its certificates."""
        from noisy_shares.model import SharesCertificate

        return SharesCertificate

    def train(self, job, options):
        """Count, add noise, and save."""
        from noisy_shares.model import save_shares, train_shares

        words = job.randomness
        asked = (job.records, job.name, job.feature_map, job.model_price, options.smoothing, job.lineage, words)
        return save_shares(job.out, train_shares(*asked, before=job.before))

    def load(self, folder, device):
        """Read and verify."""
        from noisy_shares.model import load_shares

        return load_shares(folder, device)

    def classifier(self, model):
        """Return a layer that ignores phi: its weights are 0, and its biases the logarithms of the shares."""
        import numpy as np

        from dpserve.training.pay_once.classifier import ReleasedClassifier

        layer = np.zeros((model.certificate.feature_map.dimension, len(model.shares))), np.log(model.shares)
        return ReleasedClassifier(model.certificate, model.tensors, ((layer,),))


KIND = SharesKind()
