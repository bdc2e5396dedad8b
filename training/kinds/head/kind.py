"""The certified head: a linear model on public features, each of whose answers gets noise and is paid for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mechanisms.gaussian_vector import mu_for
from mechanisms.randomness import SystemRandomness
from training.bundles.certificate import CONVEXIFIED_NO_UNITS, Certificate, LambdaChoice
from training.errors import WrongOption
from training.features import rules
from training.features.maps import NORM_BOUND
from training.fitting.sensitivity import LARGEST_ALPHA, MOST_LEAST_RECORDS, SMALLEST_ALPHA, Convexity
from training.inputs.lineage import owner_key
from training.kinds.figures import Figures, choice_figures, convexified_figures, features_figures, shortened
from training.kinds.head.recipe import DEFAULT_TOLERANCE, Recipe
from training.kinds.kind import Ability, Job, MeteredKind, Pay
from training.kinds.likeness import Likeness, head_likeness
from training.kinds.options import Declared, Options, fields_of
from training.kinds.planned import Plan, PlannedOption
from training.kinds.shared_options import LAMBDA, TOLERANCE

if TYPE_CHECKING:
    from training.kinds.head.bundle import CertifiedHead

ALPHA = Declared(
    "How much more large losses count: 0.01 costs little, 1 a great deal.",
    least=SMALLEST_ALPHA,
    most=LARGEST_ALPHA,
    default_text="none",
    needed_text="how much the largest losses count; 0.01 costs little, 1 a great deal",
)
LEAST_RECORDS = Declared(
    "n_min, a public number that there are no fewer records than: with fewer nothing is trained. Not the number of "
    "records declared, which may be too high.",
    unit="records",
    least=2,
    most=MOST_LEAST_RECORDS,
    default_text="none",
    needed_text="a number that there are no fewer records than, which may be public; counting them would say whether "
    "one is there",
)
OBJECTIVE = Declared(
    "What is minimised: sum, of the losses, or convexified, n_min times their log-mean-exp, which large losses count "
    "more in."
)


@dataclass(frozen=True, kw_only=True)
class HeadOptions(Options):
    """The options of a certified head."""

    lam: Annotated[float, LAMBDA]
    tolerance: Annotated[float, TOLERANCE] = DEFAULT_TOLERANCE
    objective: Annotated[Literal["sum", "convexified"], OBJECTIVE] = "sum"
    alpha: Annotated[float | None, ALPHA] = None
    least_records: Annotated[int | None, LEAST_RECORDS] = None

    def __post_init__(self) -> None:
        """Raise WrongOption for a wrong value, and for choices of an objective that is not asked for, or lacks them."""
        super().__post_init__()
        for name, declared in (("alpha", ALPHA), ("least_records", LEAST_RECORDS)):
            value = getattr(self, name)
            if self.objective == "sum" and value is not None:
                raise WrongOption(name, "goes with the convexified objective", value=value)
            if self.objective != "sum" and value is None:
                raise WrongOption(name, "is needed", remedy=declared.needed_text)

    @property
    def convexity(self) -> Convexity | None:
        """The choices of the convexified objective; None for the sum of losses."""
        if self.alpha is None or self.least_records is None:
            return None
        return Convexity(self.alpha, self.least_records)


def recipe_for(job: Job, options: HeadOptions) -> Recipe:
    """Return the public choices of a head's training. Raises TrainingError for what has no certificate."""
    return Recipe(job.name, job.feature_map, options.lam, options.tolerance, job.choice, options.convexity)


def choose_lambda(job: Job, lams: Sequence[float], whole: int, pay: Pay) -> tuple[LambdaChoice, float]:
    """Choose Lambda among heads (`training.kinds.head.choice`), as `Kind.choose` does."""
    # It needs the solver.
    from training.kinds.head.choice import choice_for, choose

    head = {name: value for name, value in job.options.items() if name in fields_of(HeadOptions)}
    recipe = recipe_for(job, HeadOptions.from_given(head | {"lam": lams[0]}))
    declared, classes = job.options["records_declared"], len(job.records.declaration.classes)
    choice = choice_for(lams, declared, whole, recipe, classes)
    key = owner_key(job.state / "lineage.key")
    with job.progress.steps_with_progress(len(lams), "choosing") as report:
        chosen = choose(job.records, job.feature_map, choice, key, SystemRandomness(), pay=pay, progress=report)
    return chosen, choice.noise


class HeadKind(MeteredKind):
    """The kind that is trained where no other is asked for."""

    name = "head"
    sentence = "a linear model, each of whose answers gets noise and is paid for"
    options = HeadOptions
    asked_by = None
    chosen_apart = ("lam",)
    centred_images = True

    def lack(self, ability: Ability, given: Mapping[str, Any]) -> str | None:
        """Return what a head lacks: with the convexified objective, units and choosing."""
        return convexified_lack(ability, given) or super().lack(ability, given)

    def train(self, job: Job, options: HeadOptions) -> Certificate:
        """Minimise the objective and save the head."""
        # The optimiser takes as long to import as a service to start, and serving does not need it.
        from training.kinds.head.bundle import save_bundle
        from training.kinds.head.train import train_head

        recipe = recipe_for(job, options)
        with job.progress.minimising(recipe.tolerance) as report:
            return save_bundle(job.out, train_head(job.records, recipe, job.lineage, report))

    def choose(self, job: Job, values: Sequence[Any], whole: int, pay: Pay) -> tuple[LambdaChoice, float]:
        """Choose Lambda among heads."""
        return choose_lambda(job, values, whole, pay)

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """Return the options that the planner may recommend."""
        from training.kinds.head.planned import PLANNED

        return PLANNED

    def planned_sensitivity(self, certificate: Certificate) -> float:
        """Return the sensitivity of its logits."""
        return certificate.weight_sensitivity * NORM_BOUND

    def settings(self, option: PlannedOption, plan: Plan) -> dict[str, Any]:
        """Return the Lambda that suits the price of an answer."""
        return super().settings(option, plan) | {"lam": rules.strong_convexity(mu_for(plan.share))}

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:
        """Return the likeness of a regularised linear model."""
        del records
        return head_likeness(public)

    def load(self, folder: Path, device: str | None) -> "CertifiedHead":
        """Read and verify a head."""
        from training.kinds.head.bundle import load_bundle

        return load_bundle(folder, device)

    def figures(self, certificate: Certificate) -> Figures:
        """Return the objective, the features, and the sensitivity with all that it follows from."""
        return [
            ("objective", certificate.objective),
            *features_figures(certificate),
            ("classes", f"{len(certificate.classes)}: " + shortened(", ".join(certificate.classes))),
            ("feature norm bound R", f"{certificate.feature_norm_bound:g}"),
            ("Lambda", f"{certificate.strong_convexity:g}"),
            *choice_figures(certificate),
            ("tolerance tau", f"{certificate.tolerance:g}"),
            ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
            ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
            *convexified_figures(certificate.convexified),
        ]


def convexified_lack(ability: Ability, given: Mapping[str, Any]) -> str | None:
    """Return what a head lacks with the convexified objective, if that is what is asked for."""
    return _CONVEXIFIED_LACKS.get(ability) if given.get("objective") == "convexified" else None


_CONVEXIFIED_LACKS: Mapping[Ability, str] = {
    "units": CONVEXIFIED_NO_UNITS,
    "choosing": "a choice by noisy scores is proved for the sum of losses, and not for the convexified objective",
}

KIND = HeadKind()
