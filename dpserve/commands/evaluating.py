"""`dpserve evaluate`: how good a pay-once model is on held-out records, for a price, to be published."""

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from accounting.budgets import Budget
from accounting.ledger import BudgetExhausted, HoldRequest, Ledger
from accounting.picorho import to_rho
from dpserve.commands import options
from dpserve.commands.bundles import ReplicatedLedger, written
from dpserve.commands.command import Options, option
from dpserve.commands.console import counting, stdout_console
from dpserve.commands.tables import FileOptions
from mechanisms.gaussian_vector import whole_picorho
from mechanisms.randomness import SystemRandomness
from service.errors import CannotServe
from service.opening import open_lineage
from service.pay_once import hold_request
from training.data.digits import load_digits
from training.data.records import Floats
from training.errors import TrainingError
from training.evaluation import CONFIDENCE, SHARES, Evaluation, Integers, Interval, Law, Part, evaluate
from training.lineage import KnownRecords, check_lineage_name
from training.loading import load_model
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel, TieredModel

FILE = "evaluation.json"


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
    out: Path | None = option(None, "The file to write.", default_text=f"{FILE} in the bundle")


def evaluate_model(
    bundle: options.Bundle,
    held_out: HeldOut,
    reported: Reported,
    ledger: ReplicatedLedger,
    given: options.AccountBudget,
) -> None:
    """Release a pay-once model's accuracy on held-out records, with log loss, calibration and confusion.

    The figures have noise and intervals, are charged to a lineage, and may be published. A lineage without an account
    is opened with the budget that is given.
    """
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
    if tier not in [each.name for each in certificate.tiers]:
        raise TrainingError(f"there is no tier {tier!r}")
    asked = model.at(tier) if isinstance(model, TieredModel) else model
    X, y, lineage = _rows(certificate, held_out)
    target = reported.out or bundle / FILE
    charged: list[str] = []

    def pay(law: Law, evaluation_id: str) -> None:
        wishes = [
            # Whoever reads an evaluation learns of the model: the lineage that it was trained in pays for that first.
            hold_request(certificate, "", tier, time.time()),
            HoldRequest(lineage, "", evaluation_id, secrets.token_bytes(32), "evaluation", (law.cost,), time.time()),
        ]
        charged.extend(asyncio.run(_charge(ledger, wishes, lineage, budget)))

    if target.exists():
        raise FileExistsError(0, "there is a file already, and it stays as it is; name another with --out", str(target))
    with counting("asking", len(y)) as more:
        found = evaluate(asked, X, y, whole, SystemRandomness(), parts, pay=pay, progress=lambda _: more(1))
    content = found.model_dump(mode="json") | {"tier": tier, "figures": found.figures()}
    with written(target, json.dumps(content, indent=1).encode()):
        pass
    print_evaluation(stdout_console(), found)
    for line in charged:
        typer.echo(line)
    typer.echo(f"wrote {target}; it may be published")


def _parts(report: str) -> tuple[Part, ...]:
    named = [part.strip() for part in report.split(",") if part.strip()]
    unknown = [part for part in named if part not in SHARES]
    if unknown or "accuracy" not in named:
        raise typer.BadParameter(
            f"takes accuracy and any of {', '.join(list(SHARES)[1:])}, not {report!r}", param_hint="--report"
        )
    return cast(tuple[Part, ...], tuple(named))


def _rows(certificate: ReleaseCertificate, held_out: HeldOut) -> tuple[Floats, Integers, str]:
    """Return the rows (n, d), their classes (n,) and the lineage that pays. Raises TrainingError."""
    lineage = certificate.lineage if held_out.lineage is None else check_lineage_name(held_out.lineage)
    if held_out.data == "digits":
        digits = load_digits()
        if certificate.feature_names != digits.train.declaration.feature_names:
            raise TrainingError("the bundle was not trained on digits, so it cannot be asked about them")
        return digits.held_out_rows, digits.held_out_labels, lineage
    records = held_out.read_for(certificate, held_out.data, "--data", held_out.classes)
    known = KnownRecords(options.state_folder())
    with known.noted(lineage, known.digests(records)) as elsewhere:
        for name, (count, _) in elsewhere.items():
            raise TrainingError(
                f"{count:,} of the rows of {held_out.data} are in the lineage {name!r}, which would learn of them "
                f"twice and pay once: let it pay, with --lineage {name}, or take these rows out"
            )
    order = [records.declaration.feature_names.index(name) for name in certificate.feature_names]
    return np.ascontiguousarray(records.X[:, order]), records.y, lineage


async def _charge(
    where: ReplicatedLedger, wishes: Sequence[HoldRequest], lineage: str, budget: Budget | None
) -> list[str]:
    """Charge for the model's tier, unless it is held, and for the evaluation; return what was charged, in words.

    budget: what opens the account of the lineage that pays for the evaluation, if it has none.
    """
    location, journals = options.ledger_location(where.ledger), options.journals_folder()
    said, by = [], options.operating_systems_user()
    async with Ledger.open(location, replicas=where.ledger_replicas, journals=journals) as ledger:
        await open_lineage(ledger, lineage, budget, by=by)
        for wish, what in zip(wishes, ("the model", "the evaluation"), strict=True):
            await open_lineage(ledger, wish.lineage, None, by=by)
            try:
                charge = await ledger.charge(wish)
            except BudgetExhausted as refused:
                raise CannotServe(
                    f"{what} costs rho = {to_rho(refused.cost):.6g}, and {to_rho(refused.remaining):.6g} is left of "
                    f"the budget of the lineage {wish.lineage}: no evaluation was made"
                ) from None
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
