"""A network as Lu et al. 2022 train it: unproven, and served only by its own mechanism."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from training.errors import extra
from training.kinds.kind import Job, Kind
from training.kinds.options import Declared, Options

if TYPE_CHECKING:
    from training.kinds.published.bundle import PublishedNetwork


@dataclass(frozen=True, kw_only=True)
class PublishedOptions(Options):
    """How a network is trained as Lu et al. 2022 do."""

    hidden: Annotated[tuple[int, ...], Declared("The width of each hidden layer.", unit="units", least=1)] = (128,)
    alpha: Annotated[float, Declared("The strength of the convexified loss.")] = 1.0
    epochs: Annotated[int, Declared("Passes over the records.", least=1)] = 100
    seed: Annotated[int, Declared("Seed of the first weights and the order of the records.", least=0)] = 0


class PublishedKind(Kind):
    """A network as Lu et al. train it, by a command of its own."""

    name = "published"
    sentence = "a network as Lu et al. 2022 train it: unproven"
    options = PublishedOptions
    answers = "metered"
    asked_by = "train-published"
    lacks = {  # noqa: RUF012 - a constant of the class
        "units": "does not go with a network as Lu et al. train it",
        "ray": "does not go with a network as Lu et al. train it",
        "encoder": "a network as Lu et al. train it has numbers for its input",
        "choosing": "nothing is proved of a network as Lu et al. train it",
        "budget": "nothing is proved of a network as Lu et al. train it",
    }

    def train(self, job: Job, options: PublishedOptions) -> Any:
        """Train the network and save it."""
        with extra("torch", "training networks"):
            from training.kinds.published.train import train_published
        from training.kinds.published.bundle import save_published

        network = train_published(
            job.records,
            job.name,
            job.lineage,
            hidden=options.hidden,
            alpha=options.alpha,
            epochs=options.epochs,
            seed=options.seed,
        )
        return save_published(job.out, network)

    def load(self, folder: Path, device: str | None) -> "PublishedNetwork":
        """Read and verify a network."""
        from training.kinds.published.bundle import load_published

        return load_published(folder, device)


KIND = PublishedKind()
