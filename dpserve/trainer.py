"""`dpserve train` over `dpserve.training.fit`: reads the records, and shows what happens."""

import asyncio
from pathlib import Path

import typer

from dpserve.accounting.ledger import LedgerError, LineageForgotten, NotPaidFor, Purchase
from dpserve.accounting.ledger.purchases import check_purchases
from dpserve.accounting.messages import spelled
from dpserve.commands import console
from dpserve.commands.options import forgotten_lineage, ledger_location, open_ledger, state_folder
from dpserve.commands.tables import LOCAL, check_public
from dpserve.interrupts import stopped_by_signals
from dpserve.prices import large_delta
from dpserve.train_options import PlannerOptions, TrainOptions, TrainPrice
from dpserve.training.errors import ErrorList, WrongOption
from dpserve.training.feature_choice import Features
from dpserve.training.fit import FittedModel, Request, check_abilities, check_needs, fit
from dpserve.training.inputs.declared import values_of
from dpserve.training.inputs.records import Records
from dpserve.training.options import Options
from dpserve.training.planning.planner import Planner
from dpserve.training.purchases import planned_purchase
from dpserve.training.watchers import Event, Planned, Warned
from dpserve.wording import as_flag


def run_training(
    given: TrainOptions,
    features: Features,
    kind: Options | PlannerOptions,
    price: TrainPrice | None = None,
) -> FittedModel:
    """Train what is asked for, write the bundle, and note its records in the lineage.

    Raises WrongOption for options that do not go together, and TrainingError.
    """
    if given.engine != LOCAL and not given.engine.startswith("ray"):
        raise WrongOption("engine", f"takes local, ray or ray://HOST:PORT, not {given.engine!r}")
    with stopped_by_signals("the training", lambda: "nothing was charged"):
        # Public rows are read by the declaration of the private records, and `fit` asks for them once it has those.
        read: list[Records] = []
        if isinstance(kind, PlannerOptions):
            public = kind.public
            reads = None if public is None else lambda: _public_rows(given, public, read[0])
            kind = Planner(queries=kind.queries, public=reads)
        wrong_price = ErrorList()
        whole = None if price is None else wrong_price.attempt(lambda: price.whole)
        request = given.request(kind, features, price, whole)
        check_abilities(request, unit=given.unit, on_ray=given.engine != LOCAL)
        if price is not None and (warning := large_delta(price.delta, request.n)) is not None:
            typer.echo(f"Warning: {spelled(warning, as_flag)}", err=True)
        if given.lineage_name is not None:
            _warn_of_poor_lineage(request, given.unit)
        records = given.read_all(lambda: check_needs(request, wrong_price.errors), request.declared_blocks)
        read.append(records)
        return fit(records, request, given.out, state=state_folder(), watcher=Screen())


def _warn_of_poor_lineage(request: Request, unit: str | None) -> None:
    """Say before the training where the lineage does not pay for the model, as far as the usual ledger knows it.

    A ledger that cannot be asked is spoken of once the model is there, and so is a lineage that has no budget yet.
    unit: the column of units. Raises WrongOption where the lineage was forgotten.
    """
    location = ledger_location(None)
    if request.price is None or ("://" not in location and not Path(location).exists()):
        return  # and looking makes none
    try:
        planned = planned_purchase(request.lineage, unit, request.price, None, request.declared_blocks)
        asyncio.run(_check_paid(location, planned))
    except LineageForgotten:
        raise forgotten_lineage(request.lineage) from None
    except NotPaidFor as refused:
        left_out = "Ctrl-C ends the training, and nothing is charged"
        typer.echo(f"Warning: {spelled(refused, as_flag)}. {left_out}", err=True)
    except (LedgerError, OSError, ValueError, WrongOption):
        return


async def _check_paid(location: str, planned: Purchase) -> None:
    async with open_ledger(location, None) as ledger:
        await check_purchases(ledger, [planned])


class Screen(console.Terminal):
    """Shows a training on the terminal: progress on stderr, what was planned on stdout."""

    def hear(self, event: Event) -> None:
        """Print an event."""
        match event:
            case Warned():
                typer.echo(spelled(event.message, as_flag), err=True)
            case Planned():
                for line in (f"Chosen: {event.reason}.", *(f"Warning: {warning}." for warning in event.warnings)):
                    console.stdout_console().print(line, highlight=False)


def _public_rows(given: TrainOptions, source: str, private: Records) -> Records:
    """Return the public rows to simulate on, by the declaration of the private records. Raises TrainingError."""
    declared = private.declaration
    schema, classes = given.file_schema(), declared.classes
    if schema is None:
        values = values_of(classes, given.classes)
    else:
        values = schema.class_values(schema.facts.label or given.label, classes)
    rows = given.for_public(source).rows_like(
        source,
        declared.feature_names,
        declared.lower,
        declared.upper,
        declared.classes,
        values,
        declared.columns,
        clip=declared.clips,
    )
    # The private records are noted in their lineage by now.
    check_public(rows, source)
    return rows
