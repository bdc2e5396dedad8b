"""A network as Lu et al. 2022 train it: unproven, and served only by its own mechanism."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dpserve.mechanisms.mechanism import Mechanism
from dpserve.training.errors import WrongOption, extra
from dpserve.training.kinds.figures import Figures, shortened
from dpserve.training.kinds.kind import Bounded, Job, MeteredKind
from dpserve.training.kinds.likeness import Likeness
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    from dpserve.training.kinds.published.bundle import PublishedNetwork, UnprovenCertificate


class Published(Options):
    """A network as Lu et al. 2022 train it: unproven."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = option((128,), "The width of each hidden layer.", unit="units")
    alpha: float = option(1.0, "The strength of the convexified loss.")
    epochs: int = option(100, "Passes over the records.", ge=1)
    seed: int = option(0, "Seed of the first weights and the order of the records.", ge=0)
    device: Literal["cpu", "cuda", "auto"] = option("cpu", "Where PyTorch trains; auto: on cuda where there is one.")


class PublishedKind(MeteredKind):
    """A network as Lu et al. train it, by a command of its own."""

    name = "published"
    sentence = "a network as Lu et al. 2022 train it: unproven"
    options = Published
    command = "train-published"
    table_title = "published network"
    limitations = {  # noqa: RUF012 - a constant of the class
        **MeteredKind.limitations,
        "units": "does not go with a network as Lu et al. train it",
        "ray": "does not go with a network as Lu et al. train it",
        "encoder": "a network as Lu et al. train it has numbers for its input",
    }

    def check_installed(self) -> None:
        """Raise MissingExtra without PyTorch."""
        with extra("torch", "training networks"):
            import torch  # noqa: F401

    @property
    def certificate_type(self) -> "type[UnprovenCertificate]":
        """Return the type of its certificates."""
        from dpserve.training.kinds.published.bundle import UnprovenCertificate

        return UnprovenCertificate

    def train(self, job: Job, options: Published) -> Any:
        """Train the network and save it."""
        from dpserve.training.inputs.records import Records
        from dpserve.training.kinds.published.bundle import save_published
        from dpserve.training.kinds.published.train import train_published

        assert isinstance(job.records, Records)  # it has no prediction sets, and does not go on a cluster
        if job.records.declaration.columns:
            raise WrongOption("schema", "does not go with a network as Lu et al. train it: its input is numbers")
        network = train_published(
            job.records,
            job.name,
            job.lineage,
            hidden=options.hidden,
            alpha=options.alpha,
            epochs=options.epochs,
            seed=options.seed,
            device=options.device,
        )
        return save_published(job.out, network)

    def load(self, folder: Path, device: str | None) -> "PublishedNetwork":
        """Read and verify a network."""
        from dpserve.training.kinds.published.bundle import load_published

        return load_published(folder, device)

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of the network, with the sensitivity that the published method claims."""
        from dpserve.training.kinds.published.bounds import Topology, claimed_sensitivities

        regulariser = float(public["l2_regulariser"])
        topology = Topology(len(public["feature_names"]), tuple(public["hidden"]), len(public["classes"]))
        return Likeness(
            hidden=topology.hidden,
            activation=public["activation"],
            objective=public["objective"],
            alpha=float(public["alpha"]),
            l2_regulariser=regulariser,
            sensitivity=claimed_sensitivities(topology, records, l2_regulariser=regulariser).neuron,
        )

    def figures(self, certificate: "UnprovenCertificate") -> Figures:
        """Return the network and what it was trained on."""
        topology = certificate.topology
        widths = " - ".join(map(str, topology.widths))
        return [
            ("network", f"{widths}, {certificate.activation}, {topology.weights:,} weights"),
            ("classes", f"{len(certificate.classes)}: " + shortened(", ".join(certificate.classes))),
            ("objective", f"{certificate.objective}, alpha = {certificate.alpha:g}"),
            ("L2 regulariser", f"{certificate.l2_regulariser:g}"),
            ("records (private)", f"{certificate.records:,}"),
        ]

    def claims(self, certificate: "UnprovenCertificate") -> Sequence[tuple[str, str, str]]:
        """Return what the published method claims: its sensitivities and its stability."""
        from dpserve.training.kinds.published.bounds import claimed_sensitivities, untruncated_probability

        claimed = claimed_sensitivities(
            certificate.topology, certificate.records, l2_regulariser=certificate.l2_regulariser
        )
        figures = (
            ("Lipschitz constant rho", claimed.lipschitz, "Proposition 1 (Eq. 21)"),
            ("sensitivity of all weights in L2", claimed.weights_l2, "Theorem 4 (Eq. 15)"),
            ("sensitivity of a weight, Delta omega", claimed.weight, "Eq. 18"),
            ("sensitivity of a logit, Delta z", claimed.neuron, "Corollary 1 (Eq. 19)"),
            ("sensitivity of a probability, Delta p", claimed.probability, "Corollary 2 (Eq. 20)"),
            ("exp(2 Delta z) - 1, not cut at 1", untruncated_probability(claimed.neuron), "Table VI, in brackets"),
            ("on-average-remove-one stability (OARO)", claimed.oaro, "Theorem 4 (Eq. 17)"),
        )
        return [(what, f"{figure:.6g}", source) for what, figure, source in figures]

    def bounded(self, model: "PublishedNetwork") -> Sequence[Bounded]:
        """Return all weights, each weight, and logits of some rows, with what is claimed of how far they move."""
        from dpserve.training.kinds.published.bounds import claimed_sensitivities

        certificate = model.certificate
        claimed = claimed_sensitivities(
            certificate.topology, certificate.records, l2_regulariser=certificate.l2_regulariser
        )
        weights = np.concatenate([weight.ravel() for weight, _ in model.layers])
        (logits,) = super().bounded(model)
        return (
            Bounded("all weights (Theorem 4)", weights, claimed.weights_l2),
            Bounded("a weight (Eq. 18)", weights, claimed.weight, np.inf),
            replace(logits, name="a logit (Corollary 1)", order=np.inf),
        )

    def check_mechanism(self, model: "PublishedNetwork", mechanism: Mechanism, *, accept_unproven: bool) -> None:
        """Raise NoCertificate for a proven mechanism, which needs a bound that this network lacks."""
        model.certificate.check_mechanism(mechanism, accept_unproven=accept_unproven)


KIND = PublishedKind()
