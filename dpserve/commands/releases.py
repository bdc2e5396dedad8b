"""`dpserve train --release KIND`: models that are paid for once. One entry of `RELEASES` for each kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.command import Options, option
from dpserve.commands.console import minimising, steps_with_progress
from dpserve.commands.options import state_folder
from mechanisms.gaussian_vector import mu_for, whole_picorho
from mechanisms.randomness import SystemRandomness
from training.bundle import CertifiedHead
from training.data.records import Records
from training.errors import TrainingError
from training.feature_maps import FeatureMap
from training.lineage import owner_key
from training.planning import rules
from training.recipe import DEFAULT_TOLERANCE, Recipe
from training.releases.certificate import ReleaseCertificate
from training.teachers.certificate import TeachersCertificate

WITHOUT_RELEASE = ("lam", "tolerance")
"""The options below that also train a head whose answers are paid for one by one."""


DPSGD = "--release dpsgd"
TEACHERS = "--release teachers"


class ReleaseOptions(Options):
    """What to train, and the options that one kind of release or another takes."""

    lam: float | None = option(None, "Lambda: a larger one means less noise and a simpler model.")
    release: str | None = option(
        None,
        "Train a pay-once model, private itself and with unlimited answers: weights, class-sums, objective or dpsgd; "
        "or teachers, each of whose answers is paid for.",
        default_text="none, a head, each of whose answers is paid for",
        complete=options.release_names,
    )
    price: str | None = option(
        None, "--release: what all answers together cost: rho:R, noise-multiplier:M or epsilon:E@DELTA."
    )
    tolerance: float | None = option(
        None,
        "tau: the gradient norm that is reached, or training fails.",
        default_text=f"{DEFAULT_TOLERANCE:g}",
        panel="The solver",
    )
    tier: list[str] | None = option(
        None,
        "NAME=PRICE of one precision, from the coarsest to the finest, in place of --price.",
        panel="--release weights",
    )
    records_declared: int | None = option(
        None,
        "About how many records there are, as a number that may be public: not counted.",
        panel=DPSGD,
        ge=1,
    )
    hidden: list[int] | None = option(
        None, "A hidden layer's width; repeatable.", default_text="none, a linear head", panel=DPSGD, ge_each=0
    )
    activation: str | None = option(None, "tanh or relu.", default_text="tanh", panel=DPSGD)
    steps: int | None = option(None, "How many steps.", default_text="by rule", panel=DPSGD, ge=1)
    sampling_rate: float | None = option(
        None, "The probability with which a record joins a step.", default_text="by rule", panel=DPSGD
    )
    sampling: str | None = option(
        None, "How records join a step. Only 'poisson', each by itself, is covered.", panel=DPSGD
    )
    step_noise: float | None = option(
        None, "The noise multiplier of a step.", default_text="the least that costs the price", panel=DPSGD
    )
    gradient_clip: float | None = option(
        None, "The largest norm of a record's gradient.", default_text="by rule", panel=DPSGD
    )
    learning_rate: float | None = option(
        None, "The learning rate.", default_text="by rule from public numbers", panel=DPSGD
    )
    teachers: int | None = option(
        None,
        "On how many disjoint parts of the records a teacher each is trained. They also take --hidden (default: none), "
        "--activation, --steps (400) and --learning-rate (0.003).",
        default_text="250",
        panel=TEACHERS,
        ge=2,
    )
    rule: str | None = option(
        None, "What a teacher says of a row: votes or probabilities.", default_text="votes", panel=TEACHERS
    )

    def given(self) -> dict[str, Any]:
        """Return the options that were given, but for the kind of release."""
        return {name: value for name, value in self.model_dump(exclude={"release"}).items() if value not in (None, [])}


@dataclass(frozen=True)
class Training:
    """What was asked for. `options`: those of the release that were given, by the name of `train`'s parameter."""

    records: Records
    name: str
    lineage: str
    feature_map: FeatureMap
    out: Path
    options: Mapping[str, Any]

    def needed(self, name: str, why: str) -> Any:
        """Return an option, or raise BadParameter if it was not given."""
        if name not in self.options:
            raise typer.BadParameter(f"is needed: {why}", param_hint=f"--{name.replace('_', '-')}")
        return self.options[name]

    def recipe(self) -> Recipe:
        """Return how a head is trained."""
        lam = self.needed("lam", "a larger Lambda means less noise and a simpler model")
        return Recipe(self.name, self.feature_map, lam, self.options.get("tolerance", DEFAULT_TOLERANCE))


@dataclass(frozen=True)
class Release:
    """How a kind of release is trained and saved, and which options say how."""

    train: Callable[[Training], ReleaseCertificate | TeachersCertificate]
    options: tuple[str, ...]


def train_release(kind: str, training: Training) -> ReleaseCertificate | TeachersCertificate:
    """Train and save a release. Raises BadParameter for a kind that there is not, and for options it does not take."""
    if kind not in RELEASES:
        raise typer.BadParameter(f"must be one of {', '.join(RELEASES)}, not {kind!r}", param_hint="--release")
    check_options(kind, training.options)
    return RELEASES[kind].train(training)


def check_options(kind: str | None, given: Mapping[str, Any]) -> None:
    """Raise BadParameter for an option that this release, or a head without one, does not take."""
    taken = RELEASES[kind].options if kind else WITHOUT_RELEASE
    for name in given:
        if name not in taken:
            kinds = [each for each, release in RELEASES.items() if name in release.options]
            raise typer.BadParameter(
                f"goes with --release {' or '.join(kinds)}" if kinds else f"does not go with --release {kind}",
                param_hint=f"--{name.replace('_', '-')}",
            )


def budget_hint(certificate: ReleaseCertificate, price: str) -> str:
    """Return the options that open a lineage with just what a release of this price takes, for what to do next."""
    return _opening(price, sum(tier.cost.picorho for tier in certificate.tiers))


def answers_hint(budget: str, queries: int) -> tuple[str, str]:
    """Return the options that price so many answers for a budget, and those that open a lineage with it."""
    whole = whole_picorho(budget)
    return f"--price rho:{to_rho(whole // queries)!r}", _opening(budget, whole)


def _opening(price: str, total: int) -> str:
    word, _, rest = price.partition("=")[-1 if "=" in price else 0].partition(":")
    amount, at, delta = rest.partition("@")
    if word == "epsilon" and at:
        return f"--epsilon {amount} --delta {delta}"
    return f"--rho {to_rho(total)!r} --delta 1e-5"


def train_with_progress(records: Records, recipe: Recipe, lineage: str) -> CertifiedHead:
    """Train with a line on the terminal that says how far the gradient norm is from the tolerance."""
    # The optimiser takes as long to import as a service to start, and serving does not need it.
    from training.train import train as train_head

    with minimising(recipe.tolerance) as report:
        return train_head(records, recipe, lineage, report)


def _train_weights(training: Training) -> ReleaseCertificate:
    from training.releases.weights import release_weights, save_weights

    prices = _tiers(training.options)
    head = train_with_progress(training.records, training.recipe(), training.lineage)
    model = release_weights(head, prices, training.lineage, SystemRandomness(), training.records)
    return save_weights(training.out, model)


def _train_dpsgd(training: Training) -> ReleaseCertificate:
    from training.releases.dpsgd.choices import by_rule
    from training.releases.dpsgd.model import save_dpsgd
    from training.releases.dpsgd.network import Network
    from training.releases.dpsgd.train import DpSgdRecipe, train_dpsgd

    price = training.needed("price", "what all answers together cost: rho:R, noise-multiplier:M or epsilon:E@DELTA")
    declared = training.needed(
        "records_declared",
        "about how many records there are, as a public number; counting them would say whether one is there",
    )
    whole = whole_picorho(price)
    made = rules.steps(training.feature_map) | _dpsgd_choices(training.options)
    widths = (training.feature_map.dimension, *made.get("hidden", ()), len(training.records.declaration.classes))
    choices = by_rule(declared, mu_for(whole), Network(widths).size, **made)
    recipe = DpSgdRecipe(
        training.name,
        training.feature_map,
        choices,
        whole,
        noise_multiplier=training.options.get("step_noise"),
        sampling=training.options.get("sampling", "poisson"),
    )
    with steps_with_progress(choices.steps) as report:
        model = train_dpsgd(training.records, recipe, training.lineage, SystemRandomness(), report)
    return save_dpsgd(training.out, model)


def _dpsgd_choices(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices that the owner made, by their names in `Choices`."""
    made = {
        name: options[name] for name in ("sampling_rate", "steps", "activation", "learning_rate") if name in options
    }
    if "gradient_clip" in options:
        made["clip_norm"] = options["gradient_clip"]
    if "hidden" in options:
        made["hidden"] = tuple(width for width in options["hidden"] if width)
    return made


def _train_class_sums(training: Training) -> ReleaseCertificate:
    from training.releases.class_sums import save_class_sums, train_class_sums

    whole = whole_picorho(training.needed("price", _PRICES))
    with steps_with_progress(2 * len(training.records)) as progress:
        model = train_class_sums(
            training.records,
            training.name,
            training.feature_map,
            whole,
            training.lineage,
            SystemRandomness(),
            progress,
            training.options.get("records_declared"),
        )
    return save_class_sums(training.out, model)


def _train_objective(training: Training) -> ReleaseCertificate:
    from training.releases import objective

    whole = whole_picorho(training.needed("price", _PRICES))
    classes = len(training.records.declaration.classes)
    choices = objective.perturbation_for(whole, classes, training.options.get("lam"))
    tolerance = training.options.get("tolerance", objective.DEFAULT_TOLERANCE)
    with minimising(tolerance) as progress:
        model = objective.train_perturbed(
            training.records,
            training.name,
            training.feature_map,
            choices,
            tolerance,
            training.lineage,
            SystemRandomness(),
            progress,
        )
    return objective.save_perturbed(training.out, model)


def _train_teachers(training: Training) -> TeachersCertificate:
    from training.teachers.bundle import save_teachers
    from training.teachers.networks import Schedule
    from training.teachers.train import TeachersRecipe, train_teachers

    given = training.options
    try:
        schedule = Schedule(**{name: given[name] for name in ("steps", "learning_rate", "activation") if name in given})
    except ValueError as error:
        raise TrainingError(str(error)) from error
    recipe = TeachersRecipe(
        training.name,
        training.feature_map,
        teachers=given.get("teachers", 250),
        hidden=tuple(width for width in given.get("hidden", ()) if width),
        rule=given.get("rule", "votes"),
        schedule=schedule,
    )
    key = owner_key(state_folder() / "lineage.key")
    with steps_with_progress(schedule.steps) as progress:
        model = train_teachers(training.records, recipe, training.lineage, key, progress)
    return save_teachers(training.out, model)


def _tiers(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the price of each tier, in picorho, by name and from the coarsest to the finest."""
    if ("price" in options) == ("tier" in options):
        raise typer.BadParameter(
            "give either --price P, or --tier NAME=P for each precision; P is rho:R, noise-multiplier:M or "
            "epsilon:E@DELTA, for all answers together",
            param_hint="--price",
        )
    if "price" in options:
        return {"full": whole_picorho(options["price"])}
    return tier_prices(options["tier"])


def tier_prices(words: Sequence[str]) -> dict[str, int]:
    """Return the price of each tier, in picorho, by name, from NAME=PRICE. Raises TrainingError, ValueError."""
    prices: dict[str, int] = {}
    for word in words:
        name, equals, price = word.partition("=")
        if not equals or name in prices:
            raise TrainingError(f"a tier is written NAME=PRICE, each name once, not {word!r}")
        prices[name] = whole_picorho(price)
    return prices


_PRICES = "rho:R, noise-multiplier:M or epsilon:E@DELTA, for all answers together"

RELEASES: Mapping[str, Release] = {
    "class-sums": Release(_train_class_sums, ("price", "records_declared")),
    "objective": Release(_train_objective, ("lam", "tolerance", "price")),
    "weights": Release(_train_weights, ("lam", "tolerance", "price", "tier")),
    "teachers": Release(_train_teachers, ("teachers", "rule", "hidden", "activation", "steps", "learning_rate")),
    "dpsgd": Release(
        _train_dpsgd,
        (
            "price",
            "records_declared",
            "hidden",
            "activation",
            "steps",
            "sampling_rate",
            "sampling",
            "step_noise",
            "gradient_clip",
            "learning_rate",
        ),
    ),
}
