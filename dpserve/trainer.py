"""Training for `dpserve train` and `PrivateClassifier.fit`: read records, train, and write a bundle."""

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import typer
from pydantic import TypeAdapter, ValidationError

from accounting.budgets import Budget
from accounting.ledger import BudgetExhausted, HoldRequest
from accounting.losses import Cost
from accounting.picorho import to_rho
from dpserve.commands import console
from dpserve.commands.options import journals_folder, open_ledger, operating_systems_user, state_folder
from dpserve.commands.tables import LOCAL, check_public
from dpserve.train_options import NewBundle, TrainOptions
from mechanisms.gaussian_vector import whole_picorho
from mechanisms.mechanism import Price
from mechanisms.randomness import SystemRandomness
from training.bundles.certificate import CONVEXIFIED_NO_UNITS, ProvenCertificate
from training.errors import TrainingError, WrongOption
from training.features import rules
from training.features.maps import Fourier, Hog
from training.inputs.lineage import KnownRecords, other_names, overlap, owner_key
from training.inputs.records import Records
from training.kinds import registry as kinds
from training.kinds.head.kind import HeadOptions, recipe_for
from training.kinds.kind import Job
from training.kinds.options import fields_of
from training.kinds.shared_options import RECORDS, tier_prices
from training.pay_once.certificate import ReleaseCertificate

_ROWS_IN_A_PART = 256

OWN_CHOICES = {"dpsgd": ("hidden",), "weights": ("tier",), "teachers": ("teachers",)}
"""Options that an owner who names the kind may set beside --budget: no rule sets a network's width or the tiers."""


def train(given: TrainOptions) -> tuple[ProvenCertificate, str | None]:
    """Train what is asked for, write the bundle, and note its records in the lineage.

    Returns its certificate, and the warning of a second budget, if there is one. Raises WrongOption for options that do
    not go together, and TrainingError.
    """
    kind, budget = given.kind, given.budget
    ray = given.engine != LOCAL
    if ray and (not given.engine.startswith("ray") or kind == "teachers" or budget or given.encoder):
        raise WrongOption(
            "engine", "takes local, ray or ray://HOST:PORT; on Ray neither --teachers, --budget nor --encoder"
        )
    made = kinds.default_kind() if kind is None else kinds.kind_named(kind)
    if given.unit is not None and (reason := made.lack("units", given.of_kinds())):
        raise WrongOption("unit", reason)
    _check_convexified(given)
    if given.unit is not None and budget is not None:
        raise WrongOption(
            "unit",
            "does not go with --budget: what it chooses by simulates single records. Name a --release and its --price",
        )
    encoder = given.encoder_content()
    if encoder is not None and (
        kind == "teachers" or budget or given.image_shape or given.cross or given.features not in ("auto", "identity")
    ):
        raise WrongOption("encoder", "goes with none of --features, --image-shape, --cross, --teachers and --budget")
    candidates = _is_among_releases(given)
    if budget is None and (given.queries is not None or given.public is not None):
        raise WrongOption("public" if given.queries is None else "queries", "goes with --budget")
    plain = budget is None and given.choose is None
    lineage, records = given.read_all(*([lambda: kinds.check(kind, given.of_kinds())] if plain else []))
    feature_map = given.feature_map(records.declaration, encoder)
    with trained_once(given, lineage, records) as warning:
        if encoder is not None:
            # It takes its time, and keeps what it has computed.
            with console.steps_with_progress(len(records), "features") as done:
                for start in range(0, len(records), _ROWS_IN_A_PART):
                    feature_map(records.X[start : start + _ROWS_IN_A_PART], {})
                    done(min(start + _ROWS_IN_A_PART, len(records)))
        job = Job(
            records,
            given.model_name,
            lineage,
            feature_map,
            given.out,
            given.of_kinds(),
            state_folder(),
            console,
        )
        if candidates:
            return _chosen_release(job, given), warning
        job = _with_choice(job, given)
        if budget is not None:
            kind, job = _planned(job, given, budget)
        return kinds.train(kind, job), warning


def _records_declared(options: Mapping[str, Any]) -> int:
    """Return about how many records there are. Raises WrongOption where that is not said."""
    if "records_declared" not in options:
        raise WrongOption("records_declared", f"is needed: {RECORDS.needed_text}")
    declared: int = options["records_declared"]
    return declared


def _of_a_head(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in fields_of(HeadOptions)}


def _check_convexified(given: TrainOptions) -> None:
    """Raise WrongOption for what does not go with the convexified objective, where that is asked for."""
    if given.objective != "convexified":
        return
    if given.unit is not None:
        raise WrongOption("unit", f"does not go with --objective convexified: {CONVEXIFIED_NO_UNITS}")
    if given.choose is not None:
        raise WrongOption("choose", "does not go with --objective convexified: it is proved for the sum of losses")


@contextmanager
def trained_once(given: NewBundle, lineage: str, records: Records) -> Iterator[str | None]:
    """Note the records in the lineage while something is done, and for good when it has succeeded.

    Gives the warning of a second budget, which is printed, too. Raises TrainingError for records, or units, that are in
    another lineage, unless the owner accepts that.
    """
    known = KnownRecords(state_folder())
    digests = known.digests(records)
    with known.noted(lineage, digests, records.unit) as elsewhere:
        warning = None
        if elsewhere:
            said = overlap(lineage, digests, elsewhere)
            if not given.overlapping_lineage_is_accepted:
                raise TrainingError(
                    f"{said} To keep one budget, train with --lineage {next(iter(elsewhere))}. To open a second one "
                    "all the same, add --overlapping-lineage-is-accepted"
                )
            warning = f"WARNING: A SECOND BUDGET FOR THE SAME RECORDS. {said}"
        elif others := known.equal_rows_with_other_names(digests, lineage):
            warning = f"WARNING: PERHAPS A SECOND BUDGET FOR THE SAME RECORDS. {other_names(digests, others)}"
        if warning:
            typer.echo(warning, err=True)
        yield warning


def _planned(job: Job, given: TrainOptions, budget: str) -> tuple[str | None, Job]:
    """Return the kind of model and the job that the planner recommends for a budget, and print why.

    Of a release that the owner chose, the options are set for the budget. Raises WrongOption for options that are
    chosen here as well.
    """
    # A simulation needs what training needs and more.
    from training.planning.recommendation import by_rule, by_simulation, of_kind
    from training.planning.tiers import planned_tiers, tier_options

    release, queries, options = given.kind, given.queries, job.options
    _check_nothing_is_chosen_twice(given, options)
    n = _records_declared(options)
    whole, declared = whole_picorho(budget), job.records.declaration
    shape = job.feature_map.image_shape if isinstance(job.feature_map, Hog) else None
    kind = rules.kind_of(declared, shape)
    public = _public_rows(given, job.records)
    if release is not None:
        found = of_kind(release, "fourier" if isinstance(job.feature_map, Fourier) else "identity", queries)
    elif public is not None:
        with console.shares("simulating") as progress:
            found = by_simulation(public, n=n, whole=whole, queries=queries, image_shape=shape, progress=progress)
    else:
        found, _ = by_rule(n, len(declared.classes), whole, queries, kind)
    for line in (f"Chosen: {found.reason}.", *(f"Warning: {warning}." for warning in found.warnings)):
        console.stdout_console().print(line, highlight=False)
    made = found.training_options(n, whole, queries, kind)
    made |= {name: options[name] for name in ("hidden", "teachers") if name in options}
    if "tier" in options:
        made = dict(tier_options(planned_tiers(tier_prices(options["tier"]), whole)))
    chosen = found.chosen
    if chosen.release in (None, "weights", "objective") and "tolerance" in options:
        made["tolerance"] = options["tolerance"]
    feature_map = rules.feature_map(chosen.features, declared, shape, head=chosen.release is None)
    return chosen.release, replace(job, feature_map=feature_map, options=made)


def _check_nothing_is_chosen_twice(given: TrainOptions, options: Mapping[str, object]) -> None:
    """Raise WrongOption for options in whose place the planner's rules would put their own.

    Of feature maps the rules have two, and an owner who names the release chooses between these: `auto`, `fourier`.
    Images have a third, by their shape.
    """
    release = given.kind
    chooses = f"chooses {'the options' if release else 'the mechanism and its options'}"
    free = {"hog"} if given.image_shape else {"fourier"} if release is not None else set()
    for name in ("features", "cross", "bias", "clip_norm", "random_features", "bandwidth", "seed"):
        value = getattr(given, name)
        if value not in ([], TrainOptions.model_fields[name].default, *(free if name == "features" else ())):
            raise WrongOption(
                "budget",
                f"{chooses}: leave --{name.replace('_', '-')} out. Its rules are for auto and fourier features",
            )
    own = ("records_declared", "tolerance", *OWN_CHOICES.get(release or "", ()))
    twice = [name for name in options if name not in own]
    if twice:
        raise WrongOption("budget", f"{chooses}: leave --{twice[0].replace('_', '-')} out")


def _public_rows(given: TrainOptions, private: Records) -> Records | None:
    """Return the public rows to simulate on, by the declaration of the private records. None for none.

    Raises WrongOption where the owner names the release, and TrainingError for rows that are private records.
    """
    if given.public is None:
        return None
    if given.kind is not None:
        option = "release" if given.teachers is None else "teachers"
        raise WrongOption("public", f"chooses the mechanism: leave --{option} out")
    declared = private.declaration
    found = given.read_like(
        given.public,
        declared.feature_names,
        declared.lower,
        declared.upper,
        declared.classes,
        given.classes,
        declared.columns,
    )
    # The private records are noted in their lineage by now.
    check_public(found, given.public)
    if shared := rows_in_both(found, private):
        raise TrainingError(
            f"{given.public} holds private records, {shared:,} of its rows: what a simulation on them tells is not "
            "covered by any budget. Put rows that are public into a file of their own"
        )
    return found


def rows_in_both(rows: Records, private: Records) -> int:
    """Return how many of the rows are, in their columns and label, private records."""
    known = {row.tobytes() + label.tobytes() for row, label in zip(private.X, private.y, strict=True)}
    return sum(row.tobytes() + label.tobytes() in known for row, label in zip(rows.X, rows.y, strict=True))


def _is_among_releases(given: TrainOptions) -> bool:
    """Tell whether pay-once models are chosen among: with --choose-price exact heads are. Raises WrongOption."""
    if given.choose is None:
        for name in ("choose_price", "choose_budget"):
            if getattr(given, name) is not None:
                raise WrongOption(name, "goes with --choose")
        return False
    if given.budget is not None or given.engine != LOCAL:
        raise WrongOption("choose", "goes with neither --budget nor --engine")
    if given.kind is None or given.choose_price is not None:
        _check_choice(given, given.choose, given.of_kinds())
        return False
    # It needs what trains and loads.
    from training.choosing import check

    check(given.kind, given.of_kinds(), *_candidates(given.choose))
    return True


def _check_choice(given: TrainOptions, choose: str, options: Mapping[str, Any]) -> None:
    """Raise WrongOption for what does not go with a choice among heads."""
    if given.unit is not None:
        raise WrongOption("choose", "goes with --unit for pay-once models alone, and without --choose-price")
    if given.kind not in (None, "weights"):
        raise WrongOption("choose_price", f"goes with a head and --release weights; {given.kind} has --price for it")
    if "lam" in options:
        raise WrongOption("lam", "is what is chosen: leave it out")
    lams = _lams(choose)
    if given.choose_price is None:
        raise WrongOption("choose_price", "is needed: what the choice costs the lineage")
    # A choice is paid for before the model is trained: what is wrong with the model is said before.
    options = {name: value for name, value in options.items() if name != "records_declared"}
    kinds.check(given.kind, options | {"lam": lams[0]})


def _with_choice(job: Job, given: TrainOptions) -> Job:
    """Return the job with the Lambda that was chosen, if one is to be; charge the lineage, and print what for."""
    if given.choose is None or given.choose_price is None:
        return job
    # It needs the solver.
    from training.kinds.head.choice import choice_for, choose

    lams, price = _lams(given.choose), given.choose_price
    declared = _records_declared(job.options)
    rest = {name: value for name, value in job.options.items() if name != "records_declared"}
    recipe = recipe_for(job, HeadOptions.from_given(_of_a_head(rest) | {"lam": lams[0]}))
    choice = choice_for(lams, declared, whole_picorho(price), recipe, len(job.records.declaration.classes))
    budget = None if given.choose_budget is None else _budget(given.choose_budget)

    def pay(cost: Cost) -> None:
        wish = (job.lineage, "", secrets.token_hex(16), secrets.token_bytes(32), "choice", (cost,), time.time())
        asyncio.run(_charge(given, HoldRequest(*wish), budget))
        typer.echo(f"the lineage {job.lineage} was charged rho = {to_rho(cost.picorho):g} for choosing")
        _note(job)

    key = owner_key(job.state / "lineage.key")
    with console.steps_with_progress(len(lams), "choosing") as report:
        chosen = choose(job.records, job.feature_map, choice, key, SystemRandomness(), pay=pay, progress=report)
    shown = ", ".join(f"{lam:g}: {loss:.3f}" for lam, loss in zip(lams, chosen.losses, strict=True))
    typer.echo(f"Chosen: --lam {chosen.lam:g}. Noisy log losses, each +- {choice.noise:.2g}: {shown}")
    return replace(job, options=rest | {"lam": chosen.lam}, choice=chosen)


def _lams(text: str) -> tuple[float, ...]:
    name, _, values = text.partition("=")
    try:
        found = tuple(float(value) for value in values.split(","))
    except ValueError:
        found = ()
    if name != "lam" or len(found) < 2:
        raise WrongOption("choose", f"takes lam=L1,L2,..., two values or more, not {text!r}")
    return found


def _budget(text: str) -> Budget:
    price = Price.parse(f"epsilon:{text}")
    if price.delta is None:
        raise WrongOption("choose_budget", f"takes E@DELTA, as 3@1e-6, not {text!r}")
    return Budget.from_epsilon_delta(float(price.amount), price.delta, "gaussian")


async def _charge(given: TrainOptions, wish: HoldRequest, budget: Budget | None) -> None:
    # Training should not wait for what answers.
    from service.opening import charge_under, open_lineage, too_dear

    async with open_ledger(given.choose_ledger, given.choose_ledger_replicas, journals=journals_folder()) as ledger:
        by = operating_systems_user()
        await open_lineage(ledger, wish.lineage, budget, by=by)
        try:
            await charge_under(ledger, wish, given.unit, by=by)
        except BudgetExhausted as refused:
            raise too_dear("the choice", wish.lineage, refused, "nothing was chosen") from None


async def _check_account(given: TrainOptions, lineage: str, price: int, budget: Budget | None) -> None:
    """Raise before training what would be raised after it."""
    from service.opening import check_unit, open_lineage, too_dear

    async with open_ledger(given.choose_ledger, given.choose_ledger_replicas, journals=journals_folder()) as ledger:
        account = await open_lineage(ledger, lineage, budget, by=operating_systems_user())
    check_unit(account, given.unit)
    if account.remaining < price:
        refused = BudgetExhausted("lineage", price, account.spent, account.budget.limit, account.remaining)
        raise too_dear("the choice", lineage, refused, "nothing was chosen")


def _chosen_release(job: Job, given: TrainOptions) -> ReleaseCertificate:
    """Train the candidates of --choose, charge the lineage for all, keep the best, and print the noisy scores."""
    # Other trainings should not wait for what these import.
    from service.pay_once import hold_request
    from training.choosing import choose_release

    assert given.kind is not None
    assert given.choose is not None
    option, values = _candidates(given.choose)
    budget = None if given.choose_budget is None else _budget(given.choose_budget)
    asyncio.run(_check_account(given, job.lineage, whole_picorho(job.options["price"]), budget))

    def pay(certificate: ReleaseCertificate) -> None:
        (tier,) = certificate.tiers
        asyncio.run(_charge(given, hold_request(certificate, "", tier.name, time.time()), budget))
        cost = to_rho(tier.cost.picorho)
        typer.echo(f"the lineage {job.lineage} was charged rho = {cost:g} for all {len(values)} candidates")
        _note(job)

    certificate = choose_release(given.kind, job, option, values, SystemRandomness(), pay=pay)
    among = certificate.chosen_among
    assert among is not None
    shown = ", ".join(f"{each}: {score:,.0f}" for each, score in zip(values, among.scores, strict=True))
    typer.echo(
        f"Chosen: --{option.replace('_', '-')} {among.chosen}. Noisy scores (right answers less wrong ones), each "
        f"+- {among.vector.standard_deviation:.2g}: {shown}"
    )
    return certificate


def _note(job: Job) -> None:
    """Note in the lineage that its records were chosen by, whatever becomes of the training."""
    known = KnownRecords(job.state)
    with known.noted(job.lineage, known.digests(job.records), job.records.unit):
        pass


def _candidates(text: str) -> tuple[str, dict[str, Any]]:
    """Return an option's name, and its values by their texts. Raises WrongOption."""
    name, equals, listed = text.partition("=")
    option, words = name.removeprefix("--").replace("-", "_"), [word.strip() for word in listed.split(",")]
    field = TrainOptions.model_fields.get(option)
    if not equals or field is None:
        raise WrongOption("choose", f"takes OPTION=V1,V2,..., two values or more, not {text!r}")
    kind: Any = field.annotation
    many = "list" in str(kind)
    try:
        read = [TypeAdapter(kind).validate_python([word] if many else word) for word in words]
    except ValidationError as error:
        raise WrongOption(
            "choose", f"{name}: {error.errors()[0]['msg'].lower()}, not {error.errors()[0]['input']!r}"
        ) from error
    if any(value in read[:place] for place, value in enumerate(read)):
        raise WrongOption("choose", f"takes each value once, not {text!r}")
    return option, dict(zip(words, read, strict=True))
