"""DP-SGD: a linear model, perhaps with a network beside it, trained by noisy steps on clipped gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpserve.accounting.gaussian_envelope import LARGEST_NOISE, LEAST_NOISE, MOST_STEPS
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.training.features.maps import FeatureMap
from dpserve.training.kinds.dpsgd.noisy_step import LARGEST_NORM, LEAST_NORM
from dpserve.training.kinds.figures import Figures
from dpserve.training.kinds.kind import Ability, Job, PayOnceKind, TrainAlike, declared_count, needed_price
from dpserve.training.kinds.likeness import Likeness, bought_before, network_likeness, price_of, releases_shown
from dpserve.training.kinds.planned import PlannedOption
from dpserve.training.kinds.shared_options import CANARIES
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    from dpserve.training.inputs.records import Declaration
    from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate
    from dpserve.training.kinds.dpsgd.choices import Choices
    from dpserve.training.kinds.dpsgd.model import DpSgdModel
    from dpserve.training.pay_once.classifier import ReleasedClassifier

NO_INTERVALS = "its answers come without intervals, because how far the noise moved them is not known"
"""Two ways to an interval can be proved, and neither is worth having.

A sure bound. Where no gradient is clipped, and the rate is at most 2 over the smoothness, a step on a convex loss takes
two vectors of weights no further apart. So the noise of T steps moves the last weights by at most the sum of the rates
times the lengths of the steps' noises, and a logit by that times its row's length. Independent noise moves the weights
along one row by the root of the sum of squares in one direction: for W weights the bound is sqrt(T W) times as wide,
about 450 times for 200 steps and 1,000 weights.

Several heads. Of k heads, each for a k-th of the price, the median of the law of one head's logit lies between the
least and the largest of the k, but for a probability of 2^(1-k), whatever the law is. That interval is exact, and it is
one of a head that had a sixth of the price (k = 6): the mean of the six shares its bias, which no spread shows.
"""


_FEW_STEPS, _FEW_JOIN = 8, 0.9
"""Steps of a training that is shortened, and the probability with which a record joins one."""


class DPSGD(Options):
    """DP-SGD: a linear model, and perhaps a network beside it, trained by noisy steps. None stands for what its rules
    set from public numbers."""

    hidden: int | None = option(
        None,
        "How many hidden units the network beside the linear model has; 0 for no network.",
        unit="units",
        ge=0,
        le=2**16,
        default_text="by rule from public numbers",
    )
    steps: int | None = option(None, "How many steps.", ge=1, le=MOST_STEPS, default_text="by rule")
    learning_rate: float | None = option(
        None, "The learning rate of the linear model.", gt=0, default_text="by rule from public numbers"
    )
    sampling_rate: float | None = option(
        None,
        "The probability with which a record joins a step, of a network half of it.",
        gt=0,
        le=1,
        default_text="by rule",
    )
    noise_multiplier: float | None = option(
        None,
        "The noise multiplier of a step of the linear model.",
        gt=LEAST_NOISE,
        lt=LARGEST_NOISE,
        default_text="the least that costs the price",
    )
    gradient_clip: float | None = option(
        None, "The largest norm of a record's gradient.", ge=LEAST_NORM, le=LARGEST_NORM, default_text="by rule"
    )
    canaries: int | None = CANARIES()


class DpSgdKind(PayOnceKind):
    """DP-SGD."""

    name = "dpsgd"
    sentence = "a linear model, and perhaps a network beside it, trained by noisy steps"
    options = DPSGD
    needs_n = True
    limitations = {**PayOnceKind.limitations, "intervals": NO_INTERVALS}  # noqa: RUF012 - a constant of the class

    def limitation(self, ability: Ability, options: Options | None = None) -> str | None:
        """Return what it lacks: canaries, in a network."""
        if ability == "canaries" and isinstance(options, DPSGD) and options.hidden:
            return (
                "go with a linear head alone: in a network each would have as many numbers in every step as the first "
                "layer has units, and what it moves there would depend on the other layers' weights"
            )
        return super().limitation(ability, options)

    def train(self, job: Job, options: DPSGD) -> "DpSgdCertificate":
        """Train by DP-SGD and save the model."""
        from dpserve.training.kinds.dpsgd.bundle import save_dpsgd
        from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

        choices = self._choices(job, options)
        recipe = DpSgdRecipe(
            job.name,
            job.feature_map,
            choices,
            job.model_price,
            noise_multiplier=options.noise_multiplier,
            before=job.before,
            certificate_type=self.certificate_type,
        )
        model = train_dpsgd(
            job.records, recipe, job.lineage, job.randomness, job.progress.report, canaries=options.canaries
        )
        return save_dpsgd(job.out, model)

    def _choices(self, job: Job, options: DPSGD) -> "Choices":
        """Return the choices of a run: those of its options, and by rule."""
        from dpserve.training.kinds.dpsgd.choices import choices_by_rule

        names = ("sampling_rate", "steps", "learning_rate", "gradient_clip")
        made = {name: value for name in names if (value := getattr(options, name)) is not None}
        # Canaries stand in the columns of a linear head.
        hidden, terms = 0 if options.canaries else options.hidden, job.terms
        n, mu, classes = declared_count(terms.n), mu_for(needed_price(terms.price)), len(terms.declaration.classes)
        return choices_by_rule(n, mu, terms.feature_map, classes, hidden, **made)

    def shortened(self, job: Job, options: DPSGD, share: float) -> tuple[DPSGD, Mapping[str, tuple[float, float]]]:
        """Return a few steps that most of the records join, so that few records are no small part of a block."""
        del share
        from dpserve.training.kinds.dpsgd.steps import NETWORK_STEPS, NOISY_STEPS

        whole = self._choices(job, options)
        times = whole.steps / _FEW_STEPS
        few = options.replaced(hidden=0, steps=_FEW_STEPS, sampling_rate=_FEW_JOIN, noise_multiplier=None)
        longer = {NOISY_STEPS.name: (times * whole.sampling_rate / _FEW_JOIN, times)}
        if whole.beside is not None:
            few = few.replaced(hidden=whole.beside.hidden)
            longer[NETWORK_STEPS.name] = (times * whole.beside.sampling_rate / (_FEW_JOIN / 2), times)
        return few, longer

    @property
    def certificate_type(self) -> "type[DpSgdCertificate]":
        """Return the type of its certificates."""
        from dpserve.training.kinds.dpsgd.certificate import DpSgdCertificate

        return DpSgdCertificate

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from dpserve.training.kinds.dpsgd.planned import PLANNED

        return PLANNED

    def check_planned(
        self, option: PlannedOption, n: int, whole: int, declaration: "Declaration", feature_map: FeatureMap
    ) -> None:
        """Raise where there are too many records, or no certificate for what the rules choose."""
        from dpserve.training.inputs.sums import check_count
        from dpserve.training.kinds.dpsgd.choices import choices_by_rule
        from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, certify

        check_count(n)
        hidden = option.settings.get("hidden")
        choices = choices_by_rule(n, mu_for(whole), feature_map, len(declaration.classes), hidden)
        certify(DpSgdRecipe("planned", feature_map, choices, whole), declaration, "planned")

    def figures(self, certificate: "DpSgdCertificate") -> Figures:
        """Return what its certificate says, with the network beside the linear model."""
        figures, beside = super().figures(certificate), certificate.beside
        if beside is not None:
            said = f"{beside.hidden} tanh units, sampling rate {beside.sampling_rate:g}, "
            said += f"noise multiplier {beside.noise_multiplier:.4g}, learning rate {beside.learning_rate:.4g}"
            figures.append(("network beside the linear model", said))
        return figures

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of its network."""
        del records
        return network_likeness(public)

    def trainer_alike(self, public: Mapping[str, Any], feature_map: FeatureMap) -> "TrainAlike | None":
        """Return a training by as many steps, as clipped, sampled and noisy."""
        from dpserve.training.kinds.dpsgd.choices import Choices, NetworkChoices
        from dpserve.training.kinds.dpsgd.steps import CENTRE, NETWORK_STEPS, NOISY_STEPS
        from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

        if (price := price_of(public)) is None:
            return None
        named = {field.name: public[field.name] for field in fields(Choices) if field.name in public}
        paid = {release.name: release.price.rho for release in releases_shown(public)}
        centre, steps = float(paid.get(CENTRE.name, 0)), float(paid[NOISY_STEPS.name])
        network, beside = float(paid.get(NETWORK_STEPS.name, 0)), public.get("beside")
        if beside is not None:
            share = network / (centre + steps + network) * (1 - 1e-6)
            beside = NetworkChoices(
                beside["hidden"], beside["sampling_rate"], beside["learning_rate"], beside["first_weights_seed"], share
            )
        # A hair less, so that rounding leaves the steps no less than their noise costs.
        share = centre / (centre + steps) * (1 - 1e-6)
        choices = Choices(**named | {"beside": beside, "centre_share": share})
        noise = float(public["noise_multiplier"])
        before = bought_before(public, feature_map)
        recipe = DpSgdRecipe("alike", feature_map, choices, price, noise_multiplier=noise, before=before)
        return lambda records, randomness: train_dpsgd(records, recipe, "alike", randomness)

    def load(self, folder: Path, device: str | None) -> "DpSgdModel":
        """Read and verify a model."""
        from dpserve.training.kinds.dpsgd.bundle import load_dpsgd

        return load_dpsgd(folder, device, self.certificate_type)

    def classifier(self, model: "DpSgdModel") -> "ReleasedClassifier":
        """Return the calibrated layers around the released centre."""
        from dpserve.training.pay_once.classifier import ReleasedClassifier

        length = model.certificate.input_norm
        branches = [((weights * length, biases), *others) for (weights, biases), *others in model.layers]
        return ReleasedClassifier(model.certificate, model.tensors, tuple(branches), model.centre)


KIND = DpSgdKind()
