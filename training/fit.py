"""Training as a function: records and a request in, a fitted model out.

    request = Request(name="loans", lineage="loans", kind="class-sums", options={"price": 10**12})
    fitted = fit(records, request, Path("bundle"), state=state)

Nothing is printed here, and nothing is known of who asks: progress goes to `watcher`, what the owner should hear of
goes to `watcher.hear`. An error names a field of the request, its value,
the reason and what would do (`dpserve.training.errors.WrongOption`).
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from dpserve.accounting.messages import Message, named
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, mu_for, whole_picorho
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.block_choice import BlockChoice
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.drafts import draft_folder
from dpserve.training.errors import BundleError, TrainingError, WrongOption, WrongValue
from dpserve.training.feature_choice import FeatureChoice, compute_features
from dpserve.training.features import rules
from dpserve.training.features.images import OfImages
from dpserve.training.features.maps import Fourier, Quantiles
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.fields import NAME
from dpserve.training.inputs.blocks import noted_in_blocks
from dpserve.training.inputs.lineage import KnownRecords, advice, overlap
from dpserve.training.inputs.records import Records
from dpserve.training.kinds import registry as kinds
from dpserve.training.kinds.kind import Job, Kind, TrainingProgress
from dpserve.training.kinds.options import Declared, Options, fields_of
from dpserve.training.kinds.shared_options import RECORDS
from dpserve.training.pay_once.prediction_sets import By
from dpserve.training.pay_once.prediction_sets import one_in as one_in_of
from dpserve.training.sets_choice import SetsChoice
from dpserve.training.sets_choice import by_rule as sets_by_rule

Event = Any
"""`Warned` or `Planned`."""


@dataclass(frozen=True)
class Warned:
    """A warning for the owner, and nobody else: what no budget, or a second one, covers."""

    message: str


@dataclass(frozen=True)
class Planned:
    """The planner's recommendation for a budget. reason, warnings: sentences without an end."""

    reason: str
    warnings: tuple[str, ...]


class Watcher(TrainingProgress, Protocol):
    """Who watches a training: takes its progress, and what its owner should hear of."""

    def steps_with_progress(self, steps: int, what: str = "training", /) -> AbstractContextManager[Any]:
        """Give a function that takes how many of the steps are done."""

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that takes what is done now, and which share of all."""

    def hear(self, event: Event, /) -> None:
        """Take an event, as soon as it is known."""


class Unwatched:
    """Takes nothing."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del goal
        return nullcontext(lambda _: None)

    def steps_with_progress(self, steps: int, what: str = "", /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del steps, what
        return nullcontext(lambda _: None)

    def shares(self, what: str, /) -> AbstractContextManager[Any]:
        """Give a function that does nothing."""
        del what
        return nullcontext(lambda _, __: None)

    def hear(self, event: Event, /) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Options):
    """The options of a plan, beside its budget."""

    queries: Annotated[int | None, Declared("How many answers it is for.", least=1, default_text="no end")] = None


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """A budget for which the planner sets the options, and chooses the kind where none is named.

    budget: what all answers together may cost, in picorho or as a person writes a price. queries: how many answers
    there shall be; None for no end. public: reads public rows to simulate on, which is done once the private records
    are noted in their lineage; None for rules.
    """

    budget: int | str
    queries: int | None = None
    public: Callable[[], Records] | None = None

    def __post_init__(self) -> None:
        """Raise WrongOption for what is no price, and for what is no number of answers."""
        _picorho("budget", self.budget)
        object.__setattr__(self, "queries", PlanOptions(queries=self.queries).queries)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a training.

    name: the model's public name. lineage: the name of the records' lineage. kind: a name in the registry; None for the
    kind that is trained by default, or, with a plan, for the one that suits. options: the kind's, by name: those that
    were given, in a person's words or as values, which they become here. features, encoder: the feature map. plan: how
    options that are not given are found. sets: whether records are held back for prediction sets.
    blocks: the parts of the lineage that the records are in.
    overlapping_lineage_is_accepted: train although records are in
    another lineage.
    """

    name: str
    lineage: str
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    features: FeatureChoice = field(default_factory=FeatureChoice)
    encoder: bytes | None = None
    plan: BudgetPlan | None = None
    sets: SetsChoice = field(default_factory=SetsChoice)
    blocks: BlockChoice = field(default_factory=BlockChoice)
    overlapping_lineage_is_accepted: bool = False

    def __post_init__(self) -> None:
        """Raise WrongOption for names that are none, and for an option's value that its declaration does not allow."""
        for name in ("name", "lineage"):
            if not isinstance(value := getattr(self, name), str) or not NAME.fullmatch(value):
                requirement = "must be letters, digits, '.', '_' and '-', at most 64"
                raise WrongValue(name, requirement, value=value)
        object.__setattr__(self, "options", kinds.values_of(self.kind, self.options))
        _ = self.blocks.declaration

    @classmethod
    def of_model(cls, model: Options, **common: Any) -> "Request":
        """Return the request for a model whose options are all set, as a value of its kind's options."""
        kind = next(each for each in kinds.all_kinds().values() if each.options is type(model))
        given = {name: value for name in kind.fields if (value := getattr(model, name)) is not None}
        return cls(kind=None if kind is kinds.default_kind() else kind.name, options=given, **common)

    @property
    def made_kind(self) -> Kind:
        """The kind that is asked for."""
        return kinds.default_kind() if self.kind is None else kinds.kind_named(self.kind)

    @property
    def whole_price(self) -> int | None:
        """The most that all answers together may cost, in picorho; None where each answer is paid for by itself."""
        if self.plan is not None:
            return _picorho("budget", self.plan.budget)
        price: int | None = self.options.get("price")
        return price

    @property
    def quantile_share(self) -> float:
        """The share of the price that buys noisy quantiles; 0 for none."""
        if self.features.features != "quantiles":
            return 0.0
        return QUANTILE_SHARE if self.features.quantile_share is None else self.features.quantile_share

    @property
    def own_features(self) -> str | None:
        """The option by which the owner chose features that no rule has: an encoder, crosses, hog-fourier; or None."""
        if self.encoder is not None:
            return "encoder"
        if self.features.features == "hog-fourier":
            return "features"
        return next((name for name in ("cross", "cross_buckets") if getattr(self.features, name)), None)


@dataclass(frozen=True)
class FittedModel:
    """A model that was trained. folder: its bundle. warning: of a second budget for the same records."""

    certificate: ProvenCertificate
    folder: Path
    warning: str | None


def kind_asked(release: str | None) -> str | None:
    """Return the name of the kind that is asked for; None for the default. Raises WrongOption for an unknown name."""
    if release is not None and release not in (names := kinds.release_names()):
        raise WrongValue("release", f"must be one of {', '.join(names)}", value=release)
    return release


def check(request: Request, *, unit: str | None, on_ray: bool = False) -> None:
    """Raise WrongOption for what does not go together, before any record is read. unit: the column of units."""
    check_options(request)
    check_together(request, unit=unit, on_ray=on_ray)


def check_options(request: Request) -> None:
    """Raise WrongOption for options that the kind does not take, needs, or has wrong, where nothing sets others.

    Raises MissingExtra where the kind needs what is not installed.
    """
    request.made_kind.check_installed()
    _check_canaries(request)
    if request.plan is None:
        kinds.check(request.kind, request.options)


def _check_canaries(request: Request) -> None:
    """Raise WrongOption for canaries where they cannot be, with why."""
    if request.options.get("canaries") is None:
        return
    if (lack := request.made_kind.lack("canaries", request.options)) is not None:
        raise WrongOption("canaries", lack)


def check_together(request: Request, *, unit: str | None, on_ray: bool = False) -> None:
    """Raise WrongOption for fields that do not go with each other. unit: the column of units."""
    plan = request.plan
    _check_abilities(request, unit=unit, on_ray=on_ray)
    if on_ray and request.blocks.declaration is not None:
        raise WrongOption("engine", "has no blocks: records that are in blocks are read here")
    if on_ray and (plan is not None or request.encoder is not None):
        raise WrongOption("engine", Message("goes with neither {budget} nor {encoder}"))
    if plan is None and request.quantile_share and request.made_kind.answers != "once":
        raise WrongOption(
            "features",
            "has quantiles for pay-once models alone: a model each of whose answers is paid for has no price that they "
            "could be part of",
            remedy=Message("take bins, or {quantile_share:0} for even cuts"),
        )
    if request.encoder is not None:
        _check_encoder(request)
    if plan is not None:
        _check_plan(request, plan)


def _check_abilities(request: Request, *, unit: str | None, on_ray: bool) -> None:
    """Raise WrongOption for what the kind lacks."""
    kind, options = request.made_kind, request.options
    wanted: dict[str, str | None] = {
        "engine": kind.lack("ray", options) if on_ray else None,
        "unit": kind.lack("units", options) if unit is not None else None,
        "prediction_sets": _sets_lack(request, on_ray=on_ray)
        if request.sets.prediction_sets not in ("auto", "off")
        else None,
    }
    for name, lack in wanted.items():
        if lack:
            raise WrongOption(name, lack)


def _check_plan(request: Request, plan: BudgetPlan) -> None:
    _check_nothing_is_chosen_twice(request)
    if plan.public is not None and request.kind is not None:
        raise WrongOption("public", Message("chooses the mechanism: leave {release} out"))
    if plan.public is not None and request.own_features is not None:
        own = named(request.own_features)
        raise WrongOption("public", Message("simulates on features that follow from rules: leave {} out", own))


def _check_encoder(request: Request) -> None:
    chosen = request.features
    lack = request.made_kind.lack("encoder", request.options)
    others = chosen.image_shape or chosen.cross or chosen.cross_buckets or chosen.features not in ("auto", "identity")
    if lack or others:
        raise WrongOption(
            "encoder",
            Message(
                "goes with none of {features}, {image_shape}, {cross} and {cross_buckets}{}",
                Message("; {}", lack) if lack else "",
            ),
        )


def fit(
    records: Records,
    request: Request,
    out: Path,
    *,
    state: Path,
    watcher: Watcher | None = None,
) -> FittedModel:
    """Train what is asked for and write its bundle; note the records in their lineage.

    records: private. out: the bundle, a new folder. state: the folder of the owner's secrets. watcher: who hears of
    progress, warnings and plans; None for nobody. A pay-once model is not charged here, but when it is served or taken.

    Raises WrongOption for fields that are wrong or do not go together, and TrainingError for records that do not suit.
    """
    watcher = watcher or Unwatched()
    check(request, unit=records.unit)
    declared = request.blocks.declaration
    if records.declaration.blocks != (() if declared is None else declared.names):
        raise WrongOption("blocks", "is not what the records were read by")
    head = request.made_kind.centred_images
    feature_map = request.features.map_for(records.declaration, request.encoder, head=head)
    if request.quantile_share and isinstance(feature_map, Quantiles):
        # Other trainings need not count.
        from dpserve.training.pay_once.cuts import check_ranges

        check_ranges(feature_map, records.declaration)
    others = request.blocks.equal_rows_in_blocks_are_others == "yes"
    with (
        noted_in_lineage(
            records, request.lineage, state, accepted=request.overlapping_lineage_is_accepted, watcher=watcher
        ) as warning,
        noted_in_blocks(records, request.lineage, state, equal_rows_are_others=others),
    ):
        if request.encoder is not None:
            with watcher.steps_with_progress(len(records), "features") as done:
                compute_features(feature_map, records.X, done)
        job = Job(
            records,
            request.name,
            request.lineage,
            feature_map,
            out,
            dict(request.options),
            state,
            progress=watcher,
        )
        if (sets := _sets_of(request, records)) is None:
            certificate = _make_model(job, request, watcher)
        else:
            certificate = _train_with_sets(job, request, sets, watcher)
        _check_written(certificate, out)
    return FittedModel(certificate, out, warning)


def _check_written(certificate: ProvenCertificate, out: Path) -> None:
    """Derive the certificate as loading will, before anybody pays for the model.

    Raises TrainingError where it does not hold, and leaves no bundle: a kind's trainer made what its proof does not
    cover.
    """
    try:
        certificate.verify()
    except BundleError as error:
        shutil.rmtree(out, ignore_errors=True)
        raise TrainingError(f"the model that was trained has no proof, and was not kept: {error}") from error


def _make_model(job: Job, request: Request, watcher: Watcher) -> ProvenCertificate:
    """Train and save what is asked for; return its certificate."""
    kind, quantile_share = request.kind, request.quantile_share
    if request.plan is not None:
        kind, job, quantile_share = _planned(job, request, request.plan, watcher)
    made = kinds.default_kind() if kind is None else kinds.kind_named(kind)
    return kinds.train_and_save(kind, _with_features(job, made, quantile_share))


def _sets_of(request: Request, records: Records) -> By | None:
    """Return how prediction sets are made; None where they are not: as asked for, or by public rules."""
    asked = request.sets.prediction_sets
    if asked != "auto":
        return None if asked == "off" else asked
    if _sets_lack(request) or not isinstance(records, Records):  # on a cluster there are none here
        return None
    options = request.options
    price = options.get("price") if request.plan is None else _picorho("budget", request.plan.budget)
    mu = None if price is None else mu_for(min(price, LARGEST_PRICE))
    return sets_by_rule(options.get("records_declared"), len(records.declaration.classes), mu)


def _sets_lack(request: Request, *, on_ray: bool = False) -> str | None:
    """Return why a request cannot have prediction sets; None where it can."""
    if on_ray:
        return "are made of records that are read here, not on a cluster"
    if request.plan is not None and request.kind is None:
        return None if request.plan.queries is None else Message("are for pay-once models, with {queries} left out")
    return request.made_kind.lack("sets", request.options)


def _train_with_sets(job: Job, request: Request, by: By, watcher: Watcher) -> ProvenCertificate:
    """Hold records back, train on the others, and save the model with prediction sets.

    Nothing before this has looked at which records there are: what is held back is a sample of all.
    """
    # Other trainings should not wait for what these import.
    from dpserve.training.holding_back import hold_back, with_sets

    declared = job.options.get("records_declared")
    one_in = one_in_of(declared)
    training, held = hold_back(job.records, one_in, SystemRandomness())
    options = dict(job.options)
    if declared is not None:
        # It was declared of all records, and about one in `one_in` of them trains nothing.
        options["records_declared"] = max(1, declared * (one_in - 1) // one_in)
    with draft_folder(job.state) as folder:
        draft = folder / "model"
        _make_model(replace(job, records=training, options=options, out=draft), request, watcher)
        return with_sets(draft, job.out, held, by, one_in, SystemRandomness())


@contextmanager
def noted_in_lineage(
    records: Records, lineage: str, state: Path, *, accepted: bool, watcher: Watcher
) -> Iterator[str | None]:
    """Note the records in the lineage while something is done, and for good when it has succeeded.

    Gives the warning of a second budget, which the watcher hears of, too. accepted: whether the owner accepts one.
    Raises TrainingError for records, or units, that are in another lineage, unless the owner accepts that.
    """
    known = KnownRecords(state)
    digests = known.digests(records)
    with known.noted(lineage, digests, records.unit) as elsewhere:
        warning: str | None = None
        if elsewhere:
            shared = overlap(lineage, digests, elsewhere)
            if not accepted:
                left = known.how_to_forget(elsewhere).rstrip(".")
                keep = advice(lineage, elsewhere, here=known.has_any(digests, lineage))
                raise TrainingError(Message("{}{}{}", shared, keep, f".{left}" if left else ""))
            warning = Message("WARNING: A SECOND BUDGET FOR THE SAME RECORDS. {}", shared)
            watcher.hear(Warned(warning))
        yield warning


def _picorho(name: str, price: int | str) -> int:
    """Return a field's price in picorho. Raises WrongOption for what is none."""
    try:
        return price if isinstance(price, int) else whole_picorho(price)
    except ValueError as error:
        raise WrongOption(name, str(error), value=price) from error


def _records_declared(options: Mapping[str, Any]) -> int:
    """Return about how many records there are. Raises WrongOption where that is not said."""
    if options.get("records_declared") is None:
        raise WrongOption("records_declared", "is needed", remedy=RECORDS.needed_text)
    declared: int = options["records_declared"]
    return declared


def _planned(job: Job, request: Request, plan: BudgetPlan, watcher: Watcher) -> tuple[str | None, Job, float]:
    """Return the kind of model and the job that the planner recommends for a budget; the watcher hears why.

    With them the share of the price that buys quantiles. Of a kind that the owner chose, the options are set for the
    budget. Raises TrainingError for public rows that are private records.
    """
    # A simulation needs what training needs and more.
    from dpserve.training.planning.recommendation import by_rule, by_simulation, numbers_to_cut, of_kind

    options, queries = job.options, plan.queries
    n = _records_declared(options)
    whole, declared = _picorho("budget", plan.budget), job.records.declaration
    shape = job.feature_map.image_shape if isinstance(job.feature_map, OfImages) else None
    modality = rules.modality_of(declared, shape)
    public = None if plan.public is None else plan.public()
    if public is not None and (shared := rows_in_both(public, job.records)):
        raise TrainingError(
            f"the public rows hold private records, {shared:,} of them: what a simulation on them tells is not "
            "covered by any budget. Put rows that are public into a file of their own"
        )
    own = request.own_features is not None
    if request.kind is not None:
        of_rule = None if own else modality
        found = of_kind(request.kind, of_rule, fourier=isinstance(job.feature_map, Fourier))
    elif own:
        found = by_rule(n, len(declared.classes), whole, own=True)
    elif public is not None:
        with watcher.shares("simulating") as progress:
            found = by_simulation(public, n=n, whole=whole, queries=queries, image_shape=shape, progress=progress)
    else:
        found = by_rule(n, len(declared.classes), whole, modality, numbers_to_cut(declared))
    watcher.hear(Planned(found.reason, found.warnings))
    made = found.training_options(n, whole, queries)
    chosen = found.chosen
    recommended = kinds.default_kind() if chosen.release is None else kinds.kind_named(chosen.release)
    made |= {name: options[name] for name in recommended.beside_budget if name in options}
    if "tolerance" in options and "tolerance" in recommended.fields:
        made["tolerance"] = options["tolerance"]
    if own:
        return chosen.release, replace(job, options=made), 0.0
    feature_map = rules.feature_map(chosen.features, declared, shape, head=recommended.centred_images)
    share = QUANTILE_SHARE if chosen.features == "quantiles" else 0.0
    return chosen.release, replace(job, feature_map=feature_map, options=made), share


def _with_features(job: Job, kind: Kind, quantile_share: float) -> Job:
    """Return the job with the features that the kind's steps buy, and the price less what these cost.

    Raises WrongOption for a price that is too small, and TrainingError.
    """
    # Other trainings need not count.
    from dpserve.training.pay_once.chain import FeatureStep, buy_features
    from dpserve.training.pay_once.cuts import Cuts

    steps = [
        replace(step, quantiles=quantile_share) if isinstance(step, Cuts) else step
        for step in kind.steps
        if isinstance(step, FeatureStep)
    ]
    if not steps or job.options.get("price") is None:
        return job
    price = _picorho("price", job.options["price"])
    bought, left = buy_features(steps, job.records, job.feature_map, price, SystemRandomness())
    options = {**job.options, "price": left}
    return replace(job, feature_map=bought.feature_map, before=bought.releases, options=options)


def _check_nothing_is_chosen_twice(request: Request) -> None:
    """Raise WrongOption for options in whose place the planner's rules would put their own.

    Of feature maps the rules have two, and an owner who names the kind chooses between these: `auto`, `fourier`.
    Images have a third, by their shape. Crosses of the owner's, an encoder, and hog-fourier with its own options, take
    the place of the rules' maps.
    """
    chooses = f"chooses {'the options' if request.kind else 'the mechanism and its options'}: leave"
    chosen = request.features
    free = {"hog"} if chosen.image_shape else {"fourier"} if request.kind is not None else set()
    names = ["features", "quantile_share", "bias", "random_features", "bandwidth", "seed"]
    if request.encoder is None:
        names.append("clip_norm")
    if request.own_features is not None:
        free |= {"bins", "hog-fourier"}
    if request.own_features == "features":
        names = ["features", "quantile_share", "bias", "clip_norm"]
    for name in names:
        value = getattr(chosen, name)
        if value not in (fields_of(FeatureChoice)[name].default, *(free if name == "features" else ())):
            raise WrongOption(
                "budget", Message("{} {} out. Its rules are for auto and fourier features", chooses, named(name))
            )
    beside = request.made_kind.beside_budget if request.kind is not None else ()
    for name in request.options:
        if name not in ("records_declared", "tolerance", *beside):
            raise WrongOption("budget", Message("{} {} out", chooses, named(name)))


def rows_in_both(rows: Records, private: Records) -> int:
    """Return how many of the rows are, in their columns and label, private records."""
    known = {row.tobytes() + label.tobytes() for row, label in zip(private.X, private.y, strict=True)}
    return sum(row.tobytes() + label.tobytes() in known for row, label in zip(rows.X, rows.y, strict=True))
