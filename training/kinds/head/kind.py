"""The certified head: a linear model on public features, each of whose answers gets noise and is paid for."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from dpserve.mechanisms.gaussian_vector import mu_for, whole_picorho
from dpserve.mechanisms.registry import DEFAULT, default_price
from dpserve.training.bundles.certificate import CONVEXIFIED_NO_UNITS, Certificate
from dpserve.training.errors import WrongOption
from dpserve.training.features import rules
from dpserve.training.features.feature_map import NORM_BOUND
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fitting.sensitivity import LARGEST_ALPHA, MOST_LEAST_RECORDS, SMALLEST_ALPHA, Convexity
from dpserve.training.kinds.figures import Figures, convexified_figures, features_figures, shortened
from dpserve.training.kinds.head.recipe import DEFAULT_TOLERANCE, Recipe
from dpserve.training.kinds.kind import Ability, Bounded, Job, MeteredKind
from dpserve.training.kinds.likeness import Likeness, head_likeness
from dpserve.training.kinds.planned import PlannedOption, PlanTerms
from dpserve.training.kinds.shared_options import LAMBDA, TOLERANCE
from dpserve.training.options import Options, declared, option

if TYPE_CHECKING:
    from dpserve.training.kinds.head.bundle import CertifiedHead


class Head(Options):
    """A linear model on public features, each of whose answers gets noise and is paid for."""

    lam: float | None = LAMBDA()
    tolerance: float = TOLERANCE(DEFAULT_TOLERANCE)
    objective: Literal["sum", "convexified"] = option(
        "sum",
        "What is minimised: sum, of the losses, or convexified, n_min times their log-mean-exp, which large losses "
        "count more in.",
    )
    alpha: float | None = option(
        None,
        "How much more large losses count: 0.01 costs little, 1 a great deal.",
        ge=SMALLEST_ALPHA,
        le=LARGEST_ALPHA,
        needed="how much the largest losses count; 0.01 costs little, 1 a great deal",
    )
    least_records: int | None = option(
        None,
        "n_min, a public number that there are no fewer records than: with fewer nothing is trained. Not the number of "
        "records declared, which may be too high.",
        unit="records",
        ge=2,
        le=MOST_LEAST_RECORDS,
        needed="a number that there are no fewer records than, which may be public; counting them would say whether "
        "one is there",
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        """Raise WrongOption for choices of an objective that is not asked for, or lacks them."""
        for name in ("alpha", "least_records"):
            value = getattr(self, name)
            if self.objective == "sum" and value is not None:
                raise WrongOption(name, "goes with the convexified objective", value=value)
            if self.objective != "sum" and value is None:
                raise WrongOption(name, "is needed", remedy=declared(type(self).model_fields[name], "needed"))
        return self

    @property
    def convexity(self) -> Convexity | None:
        """The choices of the convexified objective; None for the sum of losses."""
        if self.alpha is None or self.least_records is None:
            return None
        return Convexity(self.alpha, self.least_records)


def default_mu() -> float:
    """Return mu of an answer at the price that a service asks where its owner states none."""
    return mu_for(whole_picorho(default_price(DEFAULT)))


def recipe_for(name: str, feature_map: FeatureMap, options: Head, mu: float) -> Recipe:
    """Return the public choices of a head's training. Raises TrainingError for what has no certificate.

    mu: of an answer, or of the released weights, which Lambda follows from where none is given.
    """
    lam = rules.strong_convexity(mu) if options.lam is None else options.lam
    return Recipe(name, feature_map, lam, options.tolerance, options.convexity)


class HeadKind(MeteredKind):
    """The kind that is trained where no other is asked for."""

    name = "head"
    sentence = "a linear model, each of whose answers gets noise and is paid for"
    options = Head
    centred_images = True

    def limitation(self, ability: Ability, options: Options | None = None) -> str | None:
        """Return what a head lacks: with the convexified objective, units."""
        return convexified_limitation(ability, options) or super().limitation(ability, options)

    def train(self, job: Job, options: Head) -> Certificate:
        """Minimise the objective and save the head."""
        # The optimiser takes as long to import as a service to start, and serving does not need it.
        from dpserve.training.kinds.head.bundle import save_bundle
        from dpserve.training.kinds.head.train import train_head

        recipe = recipe_for(job.name, job.feature_map, options, default_mu())
        return save_bundle(job.out, train_head(job.records, recipe, job.lineage))

    def shortened(self, job: Job, options: Head, share: float) -> tuple[Head, Mapping[str, tuple[float, float]]]:
        """Return an objective that is as much smaller: it takes about as many passes over the records."""
        return smaller(options, recipe_for(job.name, job.feature_map, options, default_mu()), share)

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from dpserve.training.kinds.head.planned import PLANNED

        return PLANNED

    def planned_sensitivity(self, certificate: Certificate) -> float:
        """Return the sensitivity of its logits."""
        return certificate.weight_sensitivity * NORM_BOUND

    def settings(self, option: PlannedOption, plan: PlanTerms) -> Head:
        """Return the Lambda that suits the price of an answer."""
        return Head(**option.settings, lam=rules.strong_convexity(mu_for(plan.share)))

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of a regularised linear model."""
        del records
        return head_likeness(public)

    def bounded(self, model: "CertifiedHead") -> Sequence[Bounded]:
        """Return the weights."""
        return (Bounded("weights", model.weights.ravel(), model.certificate.weight_sensitivity),)

    def load(self, folder: Path, device: str | None) -> "CertifiedHead":
        """Read and verify a head."""
        from dpserve.training.kinds.head.bundle import load_bundle

        return load_bundle(folder, device)

    def figures(self, certificate: Certificate) -> Figures:
        """Return the objective, the features, and the sensitivity with all that it follows from."""
        bound = certificate.feature_norm_bound
        moved = certificate.logit_sensitivity_per_norm * bound
        return [
            ("objective", certificate.objective),
            *features_figures(certificate),
            ("classes", f"{len(certificate.classes)}: " + shortened(", ".join(certificate.classes))),
            ("feature norm bound R", f"{bound:g}"),
            ("Lambda", f"{certificate.strong_convexity:g}"),
            ("tolerance tau", f"{certificate.tolerance:g}"),
            ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
            *(
                [("Lipschitz constant of a record's loss, sqrt(2) R", f"{math.sqrt(2) * bound:.6g}")]
                if certificate.convexified is None
                else []
            ),
            ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
            ("logits of a row move by at most", f"{moved:.6g}"),
            ("log-odds of a class move by at most", f"{math.sqrt(2) * moved:.6g}"),
            *convexified_figures(certificate.convexified),
        ]


def smaller(options: Head, recipe: Recipe, share: float) -> tuple[Any, Mapping[str, tuple[float, float]]]:
    """Return the options with a share of the objective's Lambda, tolerance and records, as `Kind.shortened` says."""
    few = {"lam": share * recipe.strong_convexity, "tolerance": share * recipe.tolerance}
    if recipe.convexity is not None:
        few["least_records"] = max(2, int(share * recipe.convexity.least_records))
    return options.replaced(**few), {}


def convexified_limitation(ability: Ability, options: Options | None) -> str | None:
    """Return what a head lacks with the convexified objective, if that is what is asked for."""
    is_convexified = isinstance(options, Head) and options.objective == "convexified"
    return CONVEXIFIED_NO_UNITS if ability == "units" and is_convexified else None


KIND = HeadKind()
