"""`dpserve inspect`, `evaluate` and `export`: what a bundle promises, what it is worth, and a model as one file."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import typer
from rich.console import Console
from rich.table import Table

from accounting.budgets import Budget
from accounting.ledger import BudgetExhausted, HoldRequest, UnknownLineage
from accounting.losses import Cost
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.command import Options, option
from dpserve.commands.console import counting, stdout_console
from dpserve.commands.options import ChargedLedger
from dpserve.commands.tables import FileOptions, Integers
from mechanisms.gaussian_vector import whole_picorho
from mechanisms.randomness import SystemRandomness
from service.errors import CannotServe
from training import evaluation
from training.certificate import Certificate, ProvenCertificate
from training.data.records import Floats
from training.errors import BundleError, TrainingError, WrongOption
from training.evaluation import CONFIDENCE, SHARES, Evaluation, Interval, Law, Part
from training.export.files import FORMS, exported
from training.feature_maps import Bins, Encoder
from training.kinds import Certified
from training.lineage import KnownRecords, check_lineage_name
from training.loading import load_model
from training.published.bundle import PublishedNetwork
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel, TieredModel
from training.teachers.certificate import TeachersCertificate

EVALUATION_FILE = "evaluation.json"


def inspect(*, bundle: Path = options.BUNDLE, as_json: bool = options.JSON) -> None:
    """Derive every number of a bundle's certificate again: prints it and "verified", or says what differs."""
    model = load_model(bundle)
    if isinstance(model, PublishedNetwork):
        typer.echo(model.certificate.model_dump_json(indent=2))
        typer.echo("UNPROVEN: the numbers follow from each other, and bound nothing", err=True)
        return
    certificate = model.certificate
    evaluated = _evaluation(bundle, certificate.model_id)
    if as_json:
        of_evaluation = {} if evaluated is None else {"evaluation": evaluated.model_dump() | evaluated.figures()}
        typer.echo(json.dumps(certificate.model_dump(mode="json") | of_evaluation | {"verified": True}, indent=2))
        return
    print_certificate(stdout_console(), certificate)
    if evaluated is not None:
        print_evaluation(stdout_console(), evaluated)
    assumptions = (f"\n - {each}" for each in certificate.assumptions)
    stdout_console().print("It holds if:", *assumptions, highlight=False)
    stdout_console().print("verified: every number was derived again, and the weights are those that were certified")


def _evaluation(bundle: Path, model_id: str) -> Evaluation | None:
    """Return the evaluation that lies with a bundle, if one does. Raises BundleError for what is none of the model."""
    path = bundle / EVALUATION_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        tier, figures = content.pop("tier"), content.pop("figures")
        found = Evaluation.model_validate(content)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BundleError(f"{path} holds no evaluation: {error}") from error
    if found.model_id != model_id:
        raise BundleError(f"{path} is the evaluation of another model")
    if figures != found.figures():
        raise BundleError(f"the figures in {path}, of tier {tier!r}, do not follow from what was released")
    return found


def print_certificate(console: Console, certificate: Certified) -> None:
    """Print a certificate for its owner: its own figures, what every certificate has, and what holding it costs."""
    own = (
        _of_teachers(certificate)
        if isinstance(certificate, TeachersCertificate)
        else _of_release(certificate)
        if isinstance(certificate, ReleaseCertificate)
        else _of_head(certificate)
    )
    table = Table("what", "value", title=f"certificate of {certificate.name}", title_justify="left")
    for what, value in (
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        *_unit(certificate.unit),
        *own,
        ("lineage", certificate.lineage),
        ("SHA-256 of the weights (private)", certificate.weights_sha256[:16] + "..."),
    ):
        table.add_row(what, value)
    console.print(table, highlight=False)
    if not isinstance(certificate, ReleaseCertificate):
        return
    prices = Table("tier", "rho in all", "beyond the one before", title="what holding it costs", title_justify="left")
    total = 0
    for tier in certificate.tiers:
        total += tier.cost.picorho
        prices.add_row(tier.name, f"{to_rho(total):.6g}", f"{to_rho(tier.cost.picorho):.6g}")
    console.print(prices, highlight=False)


def _unit(unit: str | None) -> list[tuple[str, str]]:
    if unit is None:
        return []
    return [("privacy unit", f"all records with one value of {unit!r}: a person with many rows is one")]


def _of_head(certificate: Certificate) -> list[tuple[str, str]]:
    return [
        ("objective", certificate.objective),
        *_features(certificate),
        ("classes", f"{len(certificate.classes)}: " + _shortened(", ".join(certificate.classes))),
        ("feature norm bound R", f"{certificate.feature_norm_bound:g}"),
        ("Lambda", f"{certificate.strong_convexity:g}"),
        *_choice(certificate),
        ("tolerance tau", f"{certificate.tolerance:g}"),
        ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
        ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
    ]


def _of_release(certificate: ReleaseCertificate) -> list[tuple[str, str]]:
    common = set(ReleaseCertificate.model_fields)
    own = {name: value for name, value in certificate.model_dump(mode="json").items() if name not in common}
    return [
        ("pay-once model", certificate.release),
        *_features(certificate),
        *_choice(certificate),
        ("classes", str(len(certificate.classes))),
        *(
            (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in own.items()
            if not isinstance(value, list | dict)
        ),
    ]


def _choice(certificate: ProvenCertificate) -> list[tuple[str, str]]:
    if isinstance(certificate, ReleaseCertificate) and (among := certificate.chosen_among) is not None:
        shares = ", ".join(
            f"{each} (rho {float(Cost.parse(cost).rho):.4g}, score {score:,.0f})"
            for each, cost, score in zip(among.candidates, among.costs, among.scores, strict=True)
        )
        return [
            (f"{among.option.replace('_', '-')} was chosen", f"{among.chosen}, among {shares}, all paid for"),
            ("by noisy scores", f"{among.by}, of standard deviation {among.vector.standard_deviation:.3g}"),
            ("records that validate", among.validating),
        ]
    if (choice := certificate.choice) is None:
        return []
    candidates = ", ".join(f"{lam:g}" for lam in choice.lams)
    return [("chosen on the records", f"from {candidates}, for rho = {to_rho(choice.cost.picorho):g} besides")]


def _of_teachers(certificate: TeachersCertificate) -> list[tuple[str, str]]:
    layers = " -> ".join(map(str, certificate.widths))
    return [
        ("teachers", f"{certificate.teachers}, on disjoint parts {certificate.parts}"),
        ("each of them", f"{layers}, {certificate.activation}"),
        ("what each says", certificate.rule),
        ("sensitivity of the mean, in L2", f"{certificate.logit_sensitivity:.6g}"),
    ]


def _features(certificate: Certificate | ReleaseCertificate) -> list[tuple[str, str]]:
    feature_map = certificate.feature_map
    figures = [
        ("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates")
    ]
    if isinstance(feature_map, Encoder):
        figures.append(("encoder, declared public", f"ONNX, SHA-256 {feature_map.model_sha256[:16]}..."))
    if each := [f"{column.name} ({column.kind})" for column in feature_map.columns]:
        figures.append(("columns, declared public", f"{len(each)}: " + _shortened(", ".join(each))))
    if isinstance(feature_map, Bins) and feature_map.crosses:
        names = [column.name for column in feature_map.columns] or certificate.feature_names
        crosses = ", ".join(f"{names[one]}:{names[other]}" for one, other in feature_map.crosses)
        figures.append(("crosses, declared public", _shortened(crosses)))
    return figures


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def export(
    *,
    bundle: Path = options.BUNDLE,
    to: str = option(
        ...,
        f"{', '.join(FORMS)}: a graph for any ONNX runtime, a fitted pipeline for joblib, or the arrays.",
        complete=options.form_names,
    ),
    tier: str | None = option(None, "Which precision, of a model that has several."),
    out: Path | None = option(None, "The file to write.", default_text="by the model's name"),
    ledger: ChargedLedger,
) -> None:
    """Write a pay-once model into one file that anyone may have. The lineage pays for its tier, once."""
    model = load_model(bundle)
    file = exported(model, to, tier)
    assert isinstance(model, ReleasedModel)
    certificate = model.certificate
    suffix = f"-{file.tier}{file.suffix}" if len(certificate.tiers) > 1 else file.suffix
    target = out or Path(f"{certificate.name}{suffix}")
    with written(target, file.content):
        charged = asyncio.run(_charge(ledger, certificate, file.tier))
    typer.echo(f"wrote {target}, {len(file.content):,} bytes, with nothing secret in it")
    if charged:
        typer.echo(f"the lineage {certificate.lineage} was charged rho = {to_rho(charged):g} for it, once")


@contextmanager
def written(target: Path, content: bytes = b"") -> Iterator[Path]:
    """Put the file in its place when what is done meanwhile has succeeded; else leave nothing.

    Gives where it is until then, for content that is not known yet.
    """
    if target.exists():
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(target))
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            draft.write_bytes(content)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(target)) from None
        yield draft
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


async def _charge(where: ChargedLedger, certificate: ReleaseCertificate, tier: str) -> int:
    """Charge the lineage for holding the tier; return what was charged now, in picorho."""
    # Training prints certificates, and should not wait for what answers.
    from service.opening import hold_for_owner, too_dear

    async with where.opened() as ledger:
        try:
            charged = await hold_for_owner(ledger, certificate, tier)
        except UnknownLineage:
            raise CannotServe(
                f"the lineage {certificate.lineage} has no budget, and what leaves is charged to it: give it one with "
                "'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
            ) from None
        except BudgetExhausted as refused:
            nothing = "nothing was charged, and nothing was written"
            raise too_dear("holding it", certificate.lineage, refused, nothing) from None
        left = {"what": certificate.name, "model": certificate.model_id, "tier": tier}
        await where.acting(ledger).note(certificate.lineage, "export", left)
        return charged


class HeldOut(FileOptions):
    """The records that are asked."""

    data: str = option(..., "The held-out records: a table or FILE.npz; 'digits' for the digits that were kept back.")
    classes: str | None = option(
        None, "VALUE=NAME of each class, separated by commas, where the file has other values than the model's names."
    )
    lineage: str | None = option(
        None,
        "The lineage of the held-out records, if none of them was trained on: it pays.",
        default_text="the model's, which is right whether they were trained on or not",
        complete=options.lineage_names,
    )


class Reported(Options):
    """What an evaluation says, and what it costs."""

    price: str = option(..., "What it costs: rho:R, noise-multiplier:M or epsilon:E@DELTA.")
    report: str = option(",".join(SHARES), "Which figures, accuracy among them: fewer are more precise.")
    tier: str | None = option(None, "Which precision, of a model that has several.", default_text="the finest")
    out: Path | None = option(None, "The file to write.", default_text=f"{EVALUATION_FILE} in the bundle")


def evaluate(
    *,
    bundle: Path = options.BUNDLE,
    held_out: HeldOut,
    reported: Reported,
    ledger: ChargedLedger,
    given: options.AccountBudget,
) -> None:
    """Release a pay-once model's accuracy on held-out records, with log loss, calibration and confusion.

    The figures have noise and intervals, are charged to a lineage, and may be published. A lineage without an account
    is opened with the budget that is given.
    """
    # Who prints certificates should not wait for what answers.
    from service.pay_once import hold_request

    budget = given.budget(given.accepts or "gaussian") if given.is_given else None
    whole, parts = whole_picorho(reported.price), _parts(reported.report)
    model = load_model(bundle)
    if not isinstance(model, ReleasedModel):
        raise TrainingError(
            f"the answers of {model.certificate.name} are paid for one by one, and its exact weights are private: one "
            "record that it was trained on could change every answer here, which no noise on the counts hides. Train a "
            "pay-once model on these records, with --release, and evaluate that"
        )
    certificate = model.certificate
    tier = reported.tier or certificate.tiers[-1].name
    if tier not in (tiers := [each.name for each in certificate.tiers]):
        raise TrainingError(f"there is no tier {tier!r}; this model has {', '.join(tiers)}")
    asked = model.at(tier) if isinstance(model, TieredModel) else model
    lineage = certificate.lineage if held_out.lineage is None else check_lineage_name(held_out.lineage)
    if certificate.unit is not None and lineage == certificate.lineage:
        raise TrainingError(
            f"{certificate.name} protects all records of one {certificate.unit} together, and an evaluation one record "
            "alone: its price would not be what the model's lineage counts. Evaluate it on records of others, with "
            "--lineage of their own"
        )
    target = reported.out or bundle / EVALUATION_FILE
    charged: list[str] = []

    def pay(law: Law, evaluation_id: str) -> None:
        wishes = [
            # Whoever reads an evaluation learns of the model: the lineage that it was trained in pays for that first.
            hold_request(certificate, "", tier, time.time()),
            HoldRequest(lineage, "", evaluation_id, secrets.token_bytes(32), "evaluation", (law.cost,), time.time()),
        ]
        charged.extend(asyncio.run(_charge_both(ledger, wishes, lineage, budget)))

    # What cannot be written is not paid for.
    with written(target) as draft, _rows(certificate, held_out, lineage) as (X, y):
        with counting("asking", len(y)) as more:
            found = evaluation.evaluate(
                asked, X, y, whole, SystemRandomness(), parts, pay=pay, progress=lambda _: more(1)
            )
        content = found.model_dump(mode="json") | {"tier": tier, "figures": found.figures()}
        draft.write_text(json.dumps(content, indent=1))
    print_evaluation(stdout_console(), found)
    for line in charged:
        typer.echo(line)
    typer.echo(f"wrote {target}; it may be published")


def _parts(report: str) -> tuple[Part, ...]:
    named = [part.strip() for part in report.split(",") if part.strip()]
    unknown = [part for part in named if part not in SHARES]
    if unknown or "accuracy" not in named:
        raise WrongOption("report", f"takes accuracy and any of {', '.join(list(SHARES)[1:])}, not {report!r}")
    return cast(tuple[Part, ...], tuple(named))


@contextmanager
def _rows(certificate: ReleaseCertificate, held_out: HeldOut, lineage: str) -> Iterator[tuple[Floats, Integers]]:
    """Give the rows (n, d) and their classes (n,), noted in the lineage that pays for good when that has succeeded.

    Raises TrainingError.
    """
    X, y, records = held_out.read_held_out(certificate, held_out.data, "--data", held_out.classes)
    if records is None:
        yield X, y
        return
    known = KnownRecords(options.state_folder())
    with known.noted(lineage, known.digests(records)) as elsewhere:
        for name, (count, _) in elsewhere.items():
            raise TrainingError(
                f"{count:,} of the rows of {held_out.data} are in the lineage {name!r}, which would learn of them "
                f"twice and pay once: let it pay, with --lineage {name}, or take these rows out"
            )
        yield X, y


async def _charge_both(
    where: ChargedLedger, wishes: Sequence[HoldRequest], lineage: str, budget: Budget | None
) -> list[str]:
    """Charge for the model's tier, unless it is held, and for the evaluation; return what was charged, in words.

    budget: what opens the account of the lineage that pays for the evaluation, if it has none.
    """
    from service.opening import open_lineage, too_dear

    said: list[str] = []
    by = options.operating_systems_user()
    async with where.opened() as ledger:
        await open_lineage(ledger, lineage, budget, by=by)
        for wish, what in zip(wishes, ("the model", "the evaluation"), strict=True):
            await open_lineage(ledger, wish.lineage, None, by=by)
            try:
                charge = await ledger.charge(wish)
            except BudgetExhausted as refused:
                outcome = "; ".join(["no evaluation was made", *said])
                raise too_dear(what, wish.lineage, refused, outcome) from None
            if charge.charged:
                said.append(f"the lineage {wish.lineage} was charged rho = {to_rho(charge.charged):g} for {what}")
    return said


def print_evaluation(console: Console, found: Evaluation) -> None:
    """Print the figures, with the interval of each."""
    title = f"evaluation {found.evaluation_id[:8]}, {found.cost}: each interval holds with {CONFIDENCE:.0%}"
    table = Table("figure", "estimate", "standard error", "from", "to", title=title, title_justify="left")
    _add(table, "held-out records", found.records, ",.0f")
    _add(table, "accuracy", found.accuracy, ".4f")
    if found.log_loss is not None:
        _add(table, f"log loss, each at most {found.law.largest_loss:.3g}", found.log_loss, ".4f")
    for each in found.calibration:
        _add(table, f"right, of answers from {each.lower:g} to {each.upper:g} sure", each.right, ".3f")
    console.print(table, highlight=False)
    if not found.confusion:
        return
    half = found.confusion[0][0].upper - found.confusion[0][0].estimate
    counts = Table(
        "class", *found.classes, title=f"likeliest class, in counts, each +- {half:,.0f}", title_justify="left"
    )
    for name, row in zip(found.classes, found.confusion, strict=True):
        counts.add_row(name, *(f"{cell.estimate:,.0f}" for cell in row))
    console.print(counts, highlight=False)


def _add(table: Table, what: str, figure: Interval, form: str) -> None:
    numbers = (figure.estimate, figure.standard_error, figure.lower, figure.upper)
    table.add_row(what, *(format(number, form) for number in numbers))
