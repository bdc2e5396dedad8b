"""Training as a function: records and a request in, a fitted model out.

    request = Request(name="loans", lineage="loans", kind=ClassSums(), price=10**12)
    fitted = fit(records, request, Path("bundle"), state=state)

Nothing is printed here, and nothing is known of who asks: progress goes to `watcher`, what the owner should hear of
goes to `watcher.hear`. An error names a field of the request, its value,
the reason and what would do (`dpserve.training.errors.WrongOption`).
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from dpserve.accounting.messages import Message
from dpserve.mechanisms.gaussian_vector import LARGEST_PRICE, mu_for
from dpserve.mechanisms.randomness import Randomness, SystemRandomness
from dpserve.training.block_choice import Blocks
from dpserve.training.bundles.certificate import ProvenCertificate
from dpserve.training.bundles.drafts import draft_folder
from dpserve.training.errors import BundleError, ErrorList, TrainingError, WrongOption
from dpserve.training.feature_choice import AutoFeatures, EncoderFeatures, Features, compute_features
from dpserve.training.features.maps import Encoder
from dpserve.training.fields import checked_name
from dpserve.training.inputs.blocks import BlockDeclaration, noted_in_blocks
from dpserve.training.inputs.lineage import RecordRegistry, advice, overlap_text
from dpserve.training.inputs.records import Declaration, Records, check_declared
from dpserve.training.kinds import registry as kinds
from dpserve.training.kinds.kind import NEEDED_N, Ability, Job, Kind, declared_count, needed_price
from dpserve.training.options import Options, option
from dpserve.training.pay_once.prediction_sets import By, groups_of
from dpserve.training.pay_once.prediction_sets import one_in as one_in_of
from dpserve.training.planning.planner import PLANNED_KIND, Planner
from dpserve.training.sets_choice import sets_by_rule
from dpserve.training.watchers import SETS, Unwatched, Warned, Watcher

UNNAMED = "unnamed"
"""The lineage of a request that names none: it is refused before anything is trained."""
NEEDED_LINEAGE = "your name for these records: all models of records that overlap share one, and with it one budget"

Name = Annotated[str, AfterValidator(checked_name)]


class Request(Options):
    """A request for a training. Front ends have its fields as options."""

    name: Name = option(..., "The model's public name: letters, digits, '.', '_' and '-', at most 64.")
    lineage: Name = option(
        ..., "The name of the lineage of the records: all models of records that overlap share one, and its budget."
    )
    kind: Options = option(Planner(), "The kind of model, with its options, or the planner, which chooses one.")
    price: int | None = option(None, "What all answers together may cost, in picorho.", ge=1)
    n: int | None = option(
        None,
        "About how many records there are, or privacy units, as a number that may be public: not counted.",
        unit="records",
        ge=1,
        needed=NEEDED_N,
    )
    features: Features = option(AutoFeatures(), "The public feature map.")
    prediction_sets: Literal["auto", "off", "all", "class"] = option(
        "auto",
        "Hold records back, which train nothing, for prediction sets: sets of classes that hold the true one with a "
        "coverage that each client chooses. all: for all records together; class: for those of each class, too; auto: "
        "by public rules.",
    )
    blocks: Blocks = option(Blocks(), "The parts of the lineage that the records are in.")
    block_budget: str = option("", "The budget with which each of the blocks opens, as epsilon:3@1e-6.")
    overlapping_lineage_is_accepted: bool = option(
        False, "Train although records are in another lineage: they then have a second budget."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        """Raise WrongOption for blocks that do not go together, and for features that the planner chooses."""
        _ = self.declared_blocks
        if isinstance(self.kind, Planner) and not isinstance(self.features, AutoFeatures):
            if not self.features.goes_with_planner:
                raise WrongOption("kind", "auto chooses the features, too: leave yours out")
            if self.kind.public is not None:
                raise WrongOption("public", "simulates on features that follow from rules: leave yours out")
        return self

    @property
    def declared_blocks(self) -> BlockDeclaration | None:
        """The declared blocks; None where none are."""
        return self.blocks.declared(self.block_budget)

    @property
    def made_kind(self) -> Kind:
        """The kind that is asked for."""
        return PLANNED_KIND if isinstance(self.kind, Planner) else kinds.kind_for(self.kind)

    def limitation(self, ability: Ability) -> str | None:
        """Return why what is asked for cannot have something; None where it can."""
        return self.made_kind.limitation(ability, self.kind)


@dataclass(frozen=True)
class FittedModel:
    """A model that was trained. folder: its bundle. warning: of a second budget for the same records."""

    certificate: ProvenCertificate
    folder: Path
    warning: str | None


def check_needs(request: Request, wrong_price: Sequence[TrainingError] = ()) -> None:
    """Raise WrongOption for a price or a number of records that is needed, and for a price that nothing takes.

    wrong_price: what is wrong with a price that the request has not for that. Raises SeveralErrors where several are
    needed, and MissingExtra where the kind needs what is not installed.
    """
    kind = request.made_kind
    kind.check_installed()
    needed = ErrorList(wrong_price)
    if kind.answers == "once":
        if not wrong_price:
            needed.attempt(lambda: needed_price(request.price))
        if kind.needs_n:
            needed.attempt(lambda: declared_count(request.n))
    elif request.price is not None:
        raise WrongOption(
            "epsilon",
            "is for models that are paid for once: each answer of this one is paid for when a service gives it",
        )
    needed.check()


def check_abilities(request: Request, *, unit: str | None, on_ray: bool = False) -> None:
    """Raise WrongOption for what is asked for and lacks, before any record is read. unit: the column of units."""
    has_encoder, makes_sets = isinstance(request.features, EncoderFeatures), request.prediction_sets in ("all", "class")
    asked: Mapping[Ability, tuple[str, bool]] = {
        "ray": ("engine", on_ray),
        "units": ("unit", unit is not None),
        "canaries": ("canaries", getattr(request.kind, "canaries", None) is not None),
        "encoder": ("encoder", has_encoder),
        "quantiles": ("features", request.features.share > 0),
        "sets": ("prediction_sets", makes_sets),
    }
    for ability, (field, is_asked) in asked.items():
        if is_asked and (lack := request.limitation(ability)):
            raise WrongOption(field, lack)
    if on_ray and (request.declared_blocks or has_encoder or makes_sets):
        raise WrongOption("engine", "has no blocks, encoder or prediction sets")


def fit(
    records: Records,
    request: Request,
    out: Path,
    *,
    state: Path,
    watcher: Watcher | None = None,
    randomness: Randomness | None = None,
) -> FittedModel:
    """Train what is asked for and write its bundle; note the records in their lineage.

    records: private. out: the bundle, a new folder. state: the folder of the owner's secrets. watcher: who hears of
    progress, warnings and plans; None for nobody. randomness: of coins and noise; None for the system's, the only one
    for a model that is used. A pay-once model is not charged here, but when it is served or taken.

    Raises WrongOption for fields that are wrong or do not go together, and TrainingError for records that do not suit.
    """
    watcher = watcher or Unwatched()
    check_needs(request)
    check_abilities(request, unit=records.unit)
    on_one_machine = isinstance(records, Records)  # on a cluster there are none here
    if on_one_machine:
        check_declared(records)
    declared = request.declared_blocks
    if records.declaration.blocks != (() if declared is None else declared.names):
        raise WrongOption("blocks", "is not what the records were read by")
    feature_map = request.features.map_for(records.declaration, head=request.made_kind.centred_images)
    others = request.blocks.equal_rows_in_blocks_are_others
    with (
        watcher.timed(),
        noted_in_lineage(
            records, request.lineage, state, accepted=request.overlapping_lineage_is_accepted, watcher=watcher
        ) as warning,
        noted_in_blocks(records, request.lineage, state, equal_rows_are_others=others),
    ):
        if isinstance(feature_map, Encoder):
            with watcher.shares("features") as show:
                compute_features(feature_map, records.X, lambda done: show("", done / len(records)))
        job = Job(
            records,
            request.name,
            request.lineage,
            feature_map,
            out,
            state,
            watcher,
            request.price,
            request.n,
            feature_share=None if isinstance(request.features, AutoFeatures) else request.features.share,
            randomness=randomness or SystemRandomness(),
        )
        if (sets := _sets_of(request, records.declaration, on_one_machine=on_one_machine)) is None:
            certificate = _trained(job, request)
        else:
            certificate = _train_with_sets(job, records, request, sets)
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


def _trained(job: Job, request: Request) -> ProvenCertificate:
    """Train and save what is asked for; return its certificate."""
    if isinstance(request.kind, Planner):
        certificate: ProvenCertificate = PLANNED_KIND.train(job, request.kind)
        return certificate
    return kinds.train_and_save(request.kind, job)


def _sets_of(request: Request, declaration: Declaration, *, on_one_machine: bool) -> By | None:
    """Return how prediction sets are made; None where they are not: as asked for, or by public rules."""
    asked = request.prediction_sets
    if asked != "auto":
        return None if asked == "off" else asked
    if request.limitation("sets") or not on_one_machine:
        return None
    return sets_by_rule(request.n, len(declaration.classes), _mu_of(request))


def _mu_of(request: Request) -> float | None:
    """Return the mu that a request's price pays for; None where it has no price."""
    return None if request.price is None else mu_for(min(request.price, LARGEST_PRICE))


def _train_with_sets(job: Job, records: Records, request: Request, by: By) -> ProvenCertificate:
    """Hold records back, train on the others, and save the model with prediction sets.

    Nothing before this has looked at which records there are: what is held back is a sample of all.
    """
    # Other trainings should not wait for what these import.
    from dpserve.training.holding_back import hold_back, with_sets

    one_in = one_in_of(job.n, _mu_of(request), groups_of(by, len(records.declaration.classes)))
    training, held = hold_back(records, one_in, job.randomness)
    # It was declared of all records, and about one in `one_in` of them trains nothing.
    n = None if job.n is None else max(1, job.n * (one_in - 1) // one_in)
    with draft_folder(job.state) as folder:
        draft = folder / "model"
        _trained(replace(job, records=training, n=n, out=draft, held=len(held)), request)
        job.progress.report(SETS, 0.0)
        certificate = with_sets(draft, job.out, held, by, one_in, job.randomness)
        job.progress.report(SETS, 1.0)
        return certificate


@contextmanager
def noted_in_lineage(
    records: Records, lineage: str, state: Path, *, accepted: bool, watcher: Watcher
) -> Iterator[str | None]:
    """Note the records in the lineage while something is done, and for good when it has succeeded.

    Gives the warning of a second budget, which the watcher hears of, too. accepted: whether the owner accepts one.
    Raises TrainingError for records, or units, that are in another lineage, unless the owner accepts that.
    """
    known = RecordRegistry(state)
    digests = known.digests(records)
    with known.noted(lineage, digests, records.unit) as elsewhere:
        warning: str | None = None
        if elsewhere:
            shared = overlap_text(lineage, digests, elsewhere)
            if not accepted:
                left = known.how_to_forget(elsewhere).rstrip(".")
                keep = advice(lineage, elsewhere, here=known.has_any(digests, lineage))
                raise TrainingError(Message("{}{}{}", shared, keep, f".{left}" if left else ""))
            warning = Message("WARNING: A SECOND BUDGET FOR THE SAME RECORDS. {}", shared)
            watcher.hear(Warned(warning))
        yield warning
