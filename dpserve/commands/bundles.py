"""`dpserve inspect`, `evaluate` and `export`: what a bundle promises, what it is worth, and a model as one file."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from dpserve.accounting.arrays import Floats, Integers
from dpserve.accounting.disclosure import Reader, shown
from dpserve.accounting.ledger import NoBudget
from dpserve.accounting.ledger.purchases import buy, words_of_charge
from dpserve.audit.reports import check_files
from dpserve.commands import evaluation_plot, options
from dpserve.commands.certificates import print_certificate
from dpserve.commands.console import counting, stdout_console
from dpserve.commands.errors import CommandError
from dpserve.commands.files import whole_file
from dpserve.commands.options import ChargedLedger
from dpserve.commands.tables import SCHEMA, FileOptions, schema_alone
from dpserve.evaluating import Payer, charge, evaluable, noted_rows, parts_named, published
from dpserve.interrupts import stopped_by_signals
from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.prices import LINEAGE_DELTA, LINEAGE_EPSILON, Price, budget_text
from dpserve.train_options import blocks_of
from dpserve.training import evaluation
from dpserve.training.block_choice import Blocks
from dpserve.training.bundles.certificate import ModelCertificate, ProvenCertificate
from dpserve.training.bundles.sealing import EVALUATION_FILE, read_evaluation
from dpserve.training.errors import BundleError, WrongOption
from dpserve.training.evaluation import SHARES, Evaluation, Law
from dpserve.training.export.files import FORMS, exported
from dpserve.training.inputs.declared import values_of
from dpserve.training.inputs.reading import TableRows
from dpserve.training.inputs.records import Units
from dpserve.training.inputs.schema import facts_of
from dpserve.training.intervals import CONFIDENCE, Interval
from dpserve.training.kinds.kind import needed_price
from dpserve.training.kinds.loading import load_model
from dpserve.training.kinds.registry import pay_once
from dpserve.training.options import Options, option
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.purchases import model_purchase

_ROOM, _ROOM_OF_A_CLASS, _ROOM_OF_A_CELL = 2**16, 2**14, 2**9
"""Bytes that an evaluation's file takes at most: in all, for each class, and for each cell of its confusion matrix."""


def inspect(*, bundle: Path = options.BUNDLE, as_json: bool = options.JSON) -> None:
    """Derive every number of a bundle's certificate again: prints it and "verified", or says what differs."""
    model = load_model(bundle)
    certificate = model.certificate
    if certificate.status == "unproven":
        if as_json:
            typer.echo(json.dumps(_by_reader(certificate), indent=2))
        else:
            print_certificate(stdout_console(), certificate)
            objections = (f"\n - {objection}" for objection in certificate.objections)
            stdout_console().print("It is unproven because:", *objections, highlight=False)
        typer.echo("UNPROVEN: the numbers follow from each other, and bound nothing", err=True)
        return
    evaluated = _evaluation(bundle, certificate)
    if as_json:
        of_evaluation = {} if evaluated is None else {"evaluation": evaluated.model_dump() | evaluated.figures()}
        typer.echo(json.dumps(_by_reader(certificate) | of_evaluation | {"verified": True}, indent=2))
        return
    print_certificate(stdout_console(), certificate)
    if evaluated is not None:
        print_evaluation(stdout_console(), evaluated)
    assumptions = (f"\n - {assumption}" for assumption in certificate.assumptions)
    stdout_console().print("It holds if:", *assumptions, highlight=False)
    stdout_console().print("verified: every number was derived again, and the weights are those that were certified")


def _by_reader(certificate: ModelCertificate) -> dict[str, object]:
    """Return what clients who have paid may see of a certificate, and under "private" the rest, but for the key in it.

    Whoever reads that can forge the seal of an evaluation.
    """
    public, whole = certificate.public(), shown(certificate, Reader.OWNER)
    private = whole.keys() - public.keys() - {"binding_key"}
    return public | {"private": {name: whole[name] for name in sorted(private)}}


def _evaluation(bundle: Path, certificate: ProvenCertificate) -> Evaluation | None:
    """Return the evaluation that lies with a bundle, if one does. Raises BundleError for what is none of the model."""
    path = bundle / EVALUATION_FILE
    content = read_evaluation(bundle, certificate)
    if content is None:
        return None
    try:
        figures = content.pop("figures")
        evaluation = Evaluation.model_validate(content)
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path} holds no evaluation: {error}") from error
    if evaluation.model_id != certificate.model_id or evaluation.unit != certificate.unit:
        raise BundleError(f"{path} is the evaluation of another model: take it away, and evaluate again if you must")
    if figures != evaluation.figures():
        raise BundleError(f"the figures in {path} do not follow from what was released")
    return evaluation


def export(
    *,
    bundle: Path = options.BUNDLE,
    to: str = option(
        ...,
        f"{', '.join(FORMS)}: a graph for any ONNX runtime, or the arrays.",
        complete=options.form_names,
    ),
    out: Path | None = option(None, "The file to write.", default_text="by the model's name"),
    ledger: ChargedLedger,
) -> None:
    """Write a pay-once model into one file that anyone may have. The lineage pays for the model, once."""
    model = load_model(bundle)
    file = exported(model, to)
    certificate = model.certificate
    target = out or Path(f"{certificate.name}{file.suffix}")
    with whole_file(target, file.content):
        charged = asyncio.run(_charge(ledger, certificate))
    typer.echo(f"wrote {target}, {len(file.content):,} bytes, with nothing secret in it")
    if charged:
        typer.echo(f"the lineage {certificate.lineage} was charged {charged} for it, once")


async def _charge(where: ChargedLedger, certificate: ReleaseCertificate) -> str:
    """Charge the lineage for the model; return what was charged now in words, "" for nothing."""
    async with where.opened() as ledger:
        try:
            receipts = await buy(ledger, [model_purchase(certificate)], by=options.operating_systems_user())
        except NoBudget:
            raise CommandError(
                f"the lineage {certificate.lineage} has no budget, and what leaves is charged to it: give it one with "
                "'dpserve lineage set-budget BUNDLE --epsilon E --delta D'"
            ) from None
        left = {"what": certificate.name, "model": certificate.model_id}
        await where.acting(ledger).note(certificate.lineage, "export", left)
        return await words_of_charge(ledger, receipts) if receipts else ""


class HeldOut(Blocks, FileOptions):
    """The records that are asked, and the lineage and blocks that pay."""

    data: str = option(
        ..., "The held-out records: a table or FILE.npz; 'digits' for the digits that were kept back.", panel=""
    )
    classes: str | None = option(
        None, "VALUE=NAME of each class, separated by commas, where the file has other values than the model's names."
    )
    schema_file: Path | None = SCHEMA(panel="")
    clip: bool = option(
        False,
        "Clip values beyond the bounds to them, instead of refusing them.",
        default_text="as in training",
    )
    lineage: str | None = option(
        None,
        "The lineage of the held-out records, if none of them was trained on: it pays.",
        default_text="the model's, which is right whether they were trained on or not",
        complete=options.lineage_names,
        panel="",
    )
    lineage_epsilon: float | None = LINEAGE_EPSILON(panel="")
    lineage_delta: float | None = LINEAGE_DELTA(panel="")

    def __init__(self, **given: Any) -> None:
        """Take the options; the schema's file says how the table is read, where that is not given."""
        by_file = facts_of(given.get("schema_file")).among(TableRows.model_fields.keys() - {"ignore"})
        super().__init__(**by_file | given)

    def class_values(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return what each of a model's classes is called in the rows. Raises DataError."""
        if self.schema_file is None:
            return values_of(classes, self.classes)
        schema = schema_alone(self.schema_file, classes=self.classes)
        assert schema is not None
        return schema.class_values(schema.facts.label or self.label, classes)


class Reported(Options):
    """Options for the content of an evaluation."""

    report: str | None = option(
        None,
        f"Which figures, accuracy among them, of {', '.join(SHARES)}: fewer are more precise.",
        default_text="all that such a model has, but roc for two classes alone",
    )
    out: Path | None = option(None, "The file to write.", default_text=f"{EVALUATION_FILE} in the bundle")
    plot: Path | None = option(None, "Draw calibration, ROC and prediction sets into FILE.png, as far as reported.")


def evaluate(
    *,
    bundle: Path = options.BUNDLE,
    held_out: HeldOut,
    price: Price,
    reported: Reported,
    ledger: ChargedLedger,
) -> None:
    """Release a pay-once model's accuracy on held-out records, with log loss, calibration and confusion.

    The figures have noise and intervals, cost the price, are charged to a lineage, and may be published.
    """
    # What cannot be drawn is not paid for either.
    check_files(reported.plot)
    choice, opening = blocks_of(held_out), budget_text(held_out.lineage_epsilon, held_out.lineage_delta)
    named = None if reported.report is None else [part.strip() for part in reported.report.split(",") if part.strip()]
    whole, parts = needed_price(price.whole), parts_named(named)
    loaded = load_model(bundle)
    asked = evaluable(loaded.certificate, pay_once(loaded))
    certificate = asked.certificate
    drawn = {"calibration", "coverage", *(["roc"] if len(certificate.classes) == 2 else [])}
    if reported.plot is not None and parts is not None and not drawn & set(parts):
        raise WrongOption("plot", "draws calibration, ROC of two classes and coverage, and none of these is reported")
    payer = Payer.chosen(certificate, held_out.lineage, choice, opening)
    charged: list[str] = []
    paying: list[Law] = []

    def charged_when_stopped() -> str:
        return "the charge may have been made: 'dpserve lineage list' says" if paying else "nothing was charged"

    async def charge_open(law: Law, evaluation_id: str) -> list[str]:
        by = ledger.by or options.operating_systems_user()
        async with ledger.opened() as opened:
            return await charge(opened, certificate, payer, law, evaluation_id, by=by)

    def pay(law: Law, evaluation_id: str) -> None:
        paying.append(law)
        charged.extend(asyncio.run(charge_open(law, evaluation_id)))

    target = reported.out or bundle / EVALUATION_FILE
    # What cannot be written is not paid for.
    classes = len(certificate.classes)
    room = _ROOM + _ROOM_OF_A_CLASS * classes + _ROOM_OF_A_CELL * classes**2
    with (
        stopped_by_signals("the evaluation", charged_when_stopped),
        whole_file(target, room=room) as draft,
        _rows(certificate, held_out, payer, choice) as (X, y, units),
    ):
        with counting("asking", len(y)) as more:
            result = evaluation.evaluate(
                asked,
                X,
                y,
                whole,
                SystemRandomness(),
                parts,
                units=units,
                in_blocks=bool(payer.blocks),
                pay=pay,
                progress=lambda _: more(1),
            )
        draft.write(published(certificate, result))
    print_evaluation(stdout_console(), result)
    for line in charged:
        typer.echo(line)
    typer.echo(f"wrote {target}; it may be published")
    if reported.plot is not None:
        evaluation_plot.draw(reported.plot, result)
        typer.echo(f"drew {reported.plot}")


@contextmanager
def _rows(
    certificate: ReleaseCertificate, held_out: HeldOut, payer: Payer, choice: Blocks
) -> Iterator[tuple[Floats, Integers, Units | None]]:
    """Give the rows (n, d), their classes (n,) and units, noted in what pays for good when all succeeded.

    Raises TrainingError, also for records, or units, that are in another lineage or block.
    """
    blocks = choice.declared(None)
    X, y, records = held_out.read_held_out(
        certificate,
        held_out.data,
        held_out.class_values(certificate.classes),
        certificate.unit,
        held_out.clip,
        blocks,
    )
    if records is None:
        yield X, y, None
        return
    others = choice.equal_rows_in_blocks_are_others
    state = options.state_folder()
    with noted_rows(records, held_out.data, payer.lineage, state, equal_rows_are_others=others):
        yield X, y, records.units


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Print the figures, with the interval of each."""
    title = f"evaluation {evaluation.evaluation_id[:8]}, {evaluation.cost}: each interval holds with {CONFIDENCE:.0%}"
    table = Table("figure", "estimate", "standard error", "from", "to", title=title, title_justify="left")
    _add(table, f"held-out {'records' if evaluation.unit is None else 'units'}", evaluation.records, ",.0f")
    _add(table, "accuracy", evaluation.accuracy, ".4f")
    if evaluation.log_loss is not None:
        _add(table, f"log loss, each at most {evaluation.law.largest_loss:.3g}", evaluation.log_loss, ".4f")
    for bin_ in evaluation.calibration:
        _add(table, f"right, of answers from {bin_.lower:g} to {bin_.upper:g} sure", bin_.right, ".3f")
    if (curve := evaluation.roc) is not None:
        _add(table, f"area below the ROC curve of {evaluation.classes[1]}", curve.area, ".4f")
    if evaluation.areas is not None:
        _add(table, "area below the ROC curves, mean of classes", evaluation.areas.mean, ".4f")
        for name, area in zip(evaluation.classes, evaluation.areas.by_class, strict=True):
            _add(table, f"area of {name} against the rest", area, ".4f")
    _add_sets(table, evaluation)
    console.print(table, highlight=False)
    if not evaluation.confusion:
        return
    half = evaluation.confusion[0][0].upper - evaluation.confusion[0][0].estimate
    counts = Table(
        "class", *evaluation.classes, title=f"likeliest class, in counts, each +- {half:,.0f}", title_justify="left"
    )
    for name, row in zip(evaluation.classes, evaluation.confusion, strict=True):
        counts.add_row(name, *(f"{cell.estimate:,.0f}" for cell in row))
    console.print(counts, highlight=False)


def _add_sets(table: Table, evaluation: Evaluation) -> None:
    """Add what prediction sets reached: of all records, of the worst class, and how large they are."""
    for at in evaluation.coverage:
        _add(table, f"in prediction sets of coverage {at.asked:g}", at.reached, ".4f")
        if at.worst_class is not None:
            _add(table, f"of the worst class, of coverage {at.asked:g}", at.worst_class, ".4f")
        if at.size is not None:
            _add(table, f"classes in a set of coverage {at.asked:g}", at.size, ".2f")


def _add(table: Table, what: str, figure: Interval, form: str) -> None:
    numbers = (figure.estimate, figure.standard_error, figure.lower, figure.upper)
    table.add_row(what, *(format(number, form) for number in numbers))
