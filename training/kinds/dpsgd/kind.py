"""DP-SGD: a linear model or a network, trained by noisy steps on clipped gradients, released once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mechanisms.gaussian_vector import mu_for
from mechanisms.randomness import SystemRandomness
from training.kinds.kind import Job, PayOnceKind
from training.kinds.options import Declared, Options
from training.kinds.shared_options import PRICE, RECORDS, Activation, widths
from training.pay_once.classifier import Classifier

if TYPE_CHECKING:
    from training.kinds.dpsgd.certificate import DpSgdCertificate
    from training.kinds.dpsgd.model import DpSgdModel

_HIDDEN = Declared(
    "The width of each hidden layer.",
    unit="units",
    least=0,
    default_text="none, a linear head",
    chosen_by_score=True,
)
_STEPS = Declared("How many steps.", least=1, default_text="by rule", chosen_by_score=True)
_RATE = Declared("The learning rate.", above=0, default_text="by rule from public numbers", chosen_by_score=True)
_SAMPLING_RATE = Declared(
    "The probability with which a record joins a step.", above=0, most=1, default_text="by rule", chosen_by_score=True
)
_NOISE = Declared("The noise multiplier of a step.", above=0, default_text="the least that costs the price")
_CLIP = Declared("The largest norm of a record's gradient.", above=0, default_text="by rule", chosen_by_score=True)


@dataclass(frozen=True, kw_only=True)
class DpSgdOptions(Options):
    """The options of DP-SGD; None for what its rules set from public numbers."""

    price: Annotated[int, PRICE]
    records_declared: Annotated[int, RECORDS]
    hidden: Annotated[tuple[int, ...], _HIDDEN] = ()
    activation: Annotated[Activation, Declared("What hidden units compute: tanh or relu.", chosen_by_score=True)] = (
        "tanh"
    )
    steps: Annotated[int | None, _STEPS] = None
    learning_rate: Annotated[float | None, _RATE] = None
    sampling_rate: Annotated[float | None, _SAMPLING_RATE] = None
    sampling: Annotated[str, Declared("How records join a step. Only 'poisson', each by itself, is covered.")] = (
        "poisson"
    )
    step_noise: Annotated[float | None, _NOISE] = None
    gradient_clip: Annotated[float | None, _CLIP] = None


class DpSgdKind(PayOnceKind):
    """DP-SGD."""

    name = "dpsgd"
    sentence = "a linear model or a network, trained by noisy steps"
    options = DpSgdOptions
    beside_budget = ("hidden",)

    def train(self, job: Job, options: DpSgdOptions) -> "DpSgdCertificate":
        """Train by DP-SGD and save the model."""
        from training.fitting.network import Network
        from training.kinds.dpsgd.choices import by_rule, steps_for
        from training.kinds.dpsgd.model import save_dpsgd
        from training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

        made: dict[str, Any] = steps_for(job.feature_map) | {"activation": options.activation}
        for name in ("sampling_rate", "steps", "learning_rate"):
            if (value := getattr(options, name)) is not None:
                made[name] = value
        if options.gradient_clip is not None:
            made["clip_norm"] = options.gradient_clip
        hidden = widths(options.hidden)
        network = Network((job.feature_map.dimension, *hidden, len(job.records.declaration.classes)))
        choices = by_rule(options.records_declared, mu_for(options.price), network.size, hidden=hidden, **made)
        recipe = DpSgdRecipe(
            job.name,
            job.feature_map,
            choices,
            options.price,
            noise_multiplier=options.step_noise,
            sampling=options.sampling,
        )
        with job.progress.steps_with_progress(choices.steps) as report:
            return save_dpsgd(job.out, train_dpsgd(job.records, recipe, job.lineage, SystemRandomness(), report))

    def load(self, folder: Path, device: str | None) -> "DpSgdModel":
        """Read and verify a model."""
        from training.kinds.dpsgd.model import load_dpsgd

        return load_dpsgd(folder, device)

    def classifier(self, model: "DpSgdModel", tier: str) -> Classifier:
        """Return the calibrated layers around the released centre."""
        certificate, mu = model.certificate, model.certificate.calibration_mu
        (weights, biases), *others = model.layers
        layers = ((weights * certificate.input_norm, biases), *others)
        return Classifier(certificate, tier, model.tensors, layers, mu, certificate.activation, model.centre)


KIND = DpSgdKind()
