"""Certificates one of whose releases was changed."""

from dpserve.accounting.losses import ApproximateGaussianLoss, Cost, GaussianLoss
from dpserve.training.pay_once.certificate import ReleaseCertificate


def with_mu(certificate: ReleaseCertificate, name: str, mu: float) -> ReleaseCertificate:
    """Return it with another mu of a release, and the cost that follows; without the release for 0."""
    releases = []
    for release in certificate.releases:
        if release.name != name:
            releases.append(release)
        elif mu:
            (loss,) = release.price.losses
            other = (
                ApproximateGaussianLoss(mu, loss.delta)
                if isinstance(loss, ApproximateGaussianLoss)
                else GaussianLoss(mu)
            )
            releases.append(release.model_copy(update={"cost": str(Cost((other,)))}))
    made = certificate.model_copy(update={"releases": tuple(releases)})
    return made.model_copy(update={"cost": str(made.whole_cost())})
