"""Every kind of model that an owner may train: how it is trained and saved, and which options say how."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mechanisms.gaussian_vector import mu_for, whole_picorho
from mechanisms.randomness import SystemRandomness
from training.bundles.certificate import Certificate, LambdaChoice
from training.errors import TrainingError, WrongOption
from training.features.maps import FeatureMap
from training.fitting.sensitivity import Convexity
from training.inputs.lineage import owner_key
from training.inputs.records import Records
from training.kinds.head.recipe import DEFAULT_TOLERANCE, Recipe
from training.kinds.teachers.certificate import TeachersCertificate
from training.pay_once.certificate import ReleaseCertificate
from training.planning import rules

Certified = Certificate | ReleaseCertificate | TeachersCertificate

OBJECTIVES = ("sum", "convexified")
"""What a head is trained on: the sum of losses, or n_min times their log-mean-exp with alpha."""

_PRICES = "rho:R, noise-multiplier:M or epsilon:E@DELTA, for all answers together"


class Progress(Protocol):
    """Who shows how far a training is."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Callable[[float], None]]:
        """Give a function that takes the gradient norm. goal: the norm to reach."""

    def steps_with_progress(self, steps: int, /) -> AbstractContextManager[Callable[[int], None]]:
        """Give a function that takes how many of the steps are done."""


@dataclass(frozen=True)
class Job:
    """What to train, and where. options: those that were given, by name. state: the folder of the owner's secrets.

    choice: how Lambda was chosen, where it was by results on the records.
    """

    records: Records
    name: str
    lineage: str
    feature_map: FeatureMap
    out: Path
    options: Mapping[str, Any]
    state: Path
    progress: Progress
    choice: LambdaChoice | None = None

    def records_declared(self) -> int:
        """Return about how many records there are. Raises WrongOption where that is not said."""
        if "records_declared" not in self.options:
            raise WrongOption("records_declared", f"is needed: {_NEEDED['records_declared']}")
        declared: int = self.options["records_declared"]
        return declared

    def price(self) -> int:
        """Return the price of all answers together, in picorho."""
        return whole_picorho(self.options["price"])

    def recipe(self) -> Recipe:
        """Return how a head is trained."""
        tolerance = self.options.get("tolerance", DEFAULT_TOLERANCE)
        convexity = convexity_of(self.options)
        return Recipe(self.name, self.feature_map, self.options["lam"], tolerance, self.choice, convexity)


@dataclass(frozen=True)
class Kind:
    """How a kind of model is trained and saved, and which options say how. needed: those without which it cannot be.

    choosable: those among whose values `training.choosing` may choose.
    """

    train: Callable[[Job], Certified]
    options: tuple[str, ...]
    needed: tuple[str, ...] = ()
    choosable: tuple[str, ...] = ()


def train(kind: str | None, job: Job) -> Certified:
    """Train and save a model; return its certificate. kind: of `KINDS`; None for a head.

    Raises WrongOption, as `check` does, and TrainingError.
    """
    check(kind, job.options)
    return (HEAD if kind is None else KINDS[kind]).train(job)


def check(kind: str | None, options: Mapping[str, Any]) -> None:
    """Raise WrongOption for options that a kind of model does not take, and for those that it needs and has not."""
    made = HEAD if kind is None else KINDS[kind]
    for name in options:
        if name not in made.options:
            releases = [each for each in PAY_ONCE if name in KINDS[each].options]
            others = [f"--release {' or '.join(releases)}"] if releases else []
            others += ["--teachers"] if name in KINDS["teachers"].options else []
            raise WrongOption(name, f"goes with {' or '.join(others)}")
    if "objective" in made.options:
        convexity_of(options)
    for name in made.needed:
        if name not in options:
            raise WrongOption(name, f"is needed: {_NEEDED[name]}")


def convexity_of(options: Mapping[str, Any]) -> Convexity | None:
    """Return the choices of the convexified objective; None for the sum of losses. Raises WrongOption."""
    objective = options.get("objective", OBJECTIVES[0])
    if objective not in OBJECTIVES:
        raise WrongOption("objective", f"must be one of {', '.join(OBJECTIVES)}, not {objective!r}")
    own = {name: options.get(name) for name in ("alpha", "least_records")}
    for name, value in own.items():
        if objective == OBJECTIVES[0] and value is not None:
            raise WrongOption(name, "goes with --objective convexified")
        if objective != OBJECTIVES[0] and value is None:
            raise WrongOption(name, f"is needed: {_NEEDED[name]}")
    if objective == OBJECTIVES[0]:
        return None
    try:
        return Convexity(float(options["alpha"]), int(options["least_records"]))
    except ValueError as error:
        raise TrainingError(f"--objective convexified: {error}") from error


def _train_head(job: Job) -> Certificate:
    # The optimiser takes as long to import as a service to start, and serving does not need it.
    from training.kinds.head.bundle import save_bundle
    from training.kinds.head.train import train as train_head

    recipe = job.recipe()
    with job.progress.minimising(recipe.tolerance) as report:
        return save_bundle(job.out, train_head(job.records, recipe, job.lineage, report))


def _train_weights(job: Job) -> ReleaseCertificate:
    from training.kinds.head.train import train as train_head
    from training.kinds.weights.model import release_weights, save_weights

    prices, recipe = tiers(job.options), job.recipe()
    with job.progress.minimising(recipe.tolerance) as report:
        head = train_head(job.records, recipe, job.lineage, report)
    return save_weights(job.out, release_weights(head, prices, job.lineage, SystemRandomness(), job.records))


def _train_dpsgd(job: Job) -> ReleaseCertificate:
    from training.fitting.network import Network
    from training.kinds.dpsgd.choices import by_rule
    from training.kinds.dpsgd.model import save_dpsgd
    from training.kinds.dpsgd.train import DpSgdRecipe, train_dpsgd

    whole, given = job.price(), job.options
    made = rules.steps(job.feature_map)
    made |= {name: given[name] for name in ("sampling_rate", "steps", "activation", "learning_rate") if name in given}
    if "gradient_clip" in given:
        made["clip_norm"] = given["gradient_clip"]
    hidden = _widths(given)
    network = Network((job.feature_map.dimension, *hidden, len(job.records.declaration.classes)))
    choices = by_rule(given["records_declared"], mu_for(whole), network.size, hidden=hidden, **made)
    recipe = DpSgdRecipe(
        job.name,
        job.feature_map,
        choices,
        whole,
        noise_multiplier=given.get("step_noise"),
        sampling=given.get("sampling", "poisson"),
    )
    with job.progress.steps_with_progress(choices.steps) as report:
        return save_dpsgd(job.out, train_dpsgd(job.records, recipe, job.lineage, SystemRandomness(), report))


def _train_class_sums(job: Job) -> ReleaseCertificate:
    from training.kinds.class_sums.model import save_class_sums, train_class_sums

    whole, declared = job.price(), job.options.get("records_declared")
    with job.progress.steps_with_progress(2 * len(job.records)) as report:
        model = train_class_sums(
            job.records, job.name, job.feature_map, whole, job.lineage, SystemRandomness(), report, declared
        )
    return save_class_sums(job.out, model)


def _train_objective(job: Job) -> ReleaseCertificate:
    from training.kinds.objective import model as objective

    classes = len(job.records.declaration.classes)
    choices = objective.perturbation_for(job.price(), classes, job.options.get("lam"))
    tolerance = job.options.get("tolerance", objective.DEFAULT_TOLERANCE)
    with job.progress.minimising(tolerance) as report:
        model = objective.train_perturbed(
            job.records, job.name, job.feature_map, choices, tolerance, job.lineage, SystemRandomness(), report
        )
    return objective.save_perturbed(job.out, model)


def _train_teachers(job: Job) -> TeachersCertificate:
    from training.kinds.teachers.bundle import save_teachers
    from training.kinds.teachers.networks import Schedule
    from training.kinds.teachers.train import TeachersRecipe, train_teachers

    given = job.options
    try:
        schedule = Schedule(**{name: given[name] for name in ("steps", "learning_rate", "activation") if name in given})
    except ValueError as error:
        raise TrainingError(str(error)) from error
    recipe = TeachersRecipe(
        job.name,
        job.feature_map,
        teachers=given.get("teachers", 250),
        hidden=_widths(given),
        rule=given.get("rule", "votes"),
        schedule=schedule,
    )
    key = owner_key(job.state / "lineage.key")
    with job.progress.steps_with_progress(schedule.steps) as report:
        return save_teachers(job.out, train_teachers(job.records, recipe, job.lineage, key, report))


def _widths(options: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(width for width in options.get("hidden", ()) if width)


def tiers(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the price of each tier, in picorho, by name and from the coarsest to the finest."""
    if ("price" in options) == ("tier" in options):
        raise WrongOption(
            "price", f"give either --price P, or --tier NAME=P for each precision; P is {_PRICES}; {_PLANNED}"
        )
    return {"full": whole_picorho(options["price"])} if "price" in options else tier_prices(options["tier"])


def tier_prices(words: Sequence[str]) -> dict[str, int]:
    """Return the price of each tier, in picorho, by name, from NAME=PRICE. Raises TrainingError, ValueError."""
    prices: dict[str, int] = {}
    for word in words:
        name, equals, price = word.partition("=")
        if not equals or name in prices:
            raise TrainingError(f"a tier is written NAME=PRICE, each name once, not {word!r}")
        prices[name] = whole_picorho(price)
    return prices


_PLANNED = "with --budget the planner chooses it"
_NEEDED = {
    "lam": f"a larger Lambda means less noise and a simpler model; {_PLANNED}",
    "alpha": "how much the largest losses count; 0.01 costs little, 1 a great deal",
    "least_records": "a number that there are no fewer records than, which may be public; counting them would say "
    "whether one is there",
    "price": f"what all answers together cost: {_PRICES}; {_PLANNED}",
    "records_declared": "about how many records there are, as a number that may be public; counting them would say "
    "whether one is there",
}
_OF_NETWORKS = ("hidden", "activation", "steps", "learning_rate")

_OF_HEADS = ("lam", "tolerance", "objective", "alpha", "least_records")

HEAD = Kind(_train_head, _OF_HEADS, ("lam",))
"""Each of whose answers is paid for."""

KINDS: Mapping[str, Kind] = {
    "class-sums": Kind(_train_class_sums, ("price", "records_declared"), ("price",)),
    "objective": Kind(_train_objective, ("lam", "tolerance", "price"), ("price",), ("lam",)),
    "weights": Kind(_train_weights, (*_OF_HEADS, "price", "tier"), ("lam",), ("lam",)),
    "teachers": Kind(_train_teachers, ("teachers", "rule", *_OF_NETWORKS)),
    "dpsgd": Kind(
        _train_dpsgd,
        ("price", "records_declared", *_OF_NETWORKS, "sampling_rate", "sampling", "step_noise", "gradient_clip"),
        ("price", "records_declared"),
        (*_OF_NETWORKS, "sampling_rate", "gradient_clip"),
    ),
}
"""By name: models that are private themselves, and teachers, each of whose answers is paid for."""

PAY_ONCE = tuple(kind for kind in KINDS if kind != "teachers")
"""What `dpserve train --release` takes."""
