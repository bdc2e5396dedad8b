"""`dpserve audit`: lower bounds from attacks, compared with what is claimed. Exit status 3 when a claim is refuted."""

import secrets
from contextlib import nullcontext
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from dpserve.accounting import domains
from dpserve.commands import options
from dpserve.commands.command import Commands, Group
from dpserve.commands.console import counting, shares, stdout_console, whole
from dpserve.commands.reporting import Confidences, ReportOptions, Resumable, refuse, stored
from dpserve.mechanisms.mechanism import Law
from dpserve.mechanisms.registry import DEFAULT
from dpserve.training.options import Options, option

if TYPE_CHECKING:
    import numpy as np

    from dpserve.audit.pieces import ResultStore
    from dpserve.audit.reports import Report
    from dpserve.local_services import ServicePair

RUNNING = "Two running services, in place of two that are trained"
_PIECE = 10_000
_SELECTION = options.SELECTION()
_DEFAULT_DELTA = 1e-5


class _Audits(Commands):
    """The audits; that of trainings is imported when it is used, with every kind's options."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return [*super().list_commands(ctx), "training"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        if cmd_name != "training":
            return super().get_command(ctx, cmd_name)
        from dpserve.commands import replaying

        command = typer.main.get_command(replaying.app)
        command.name = cmd_name
        return command


app = Group(name="audit", cls=_Audits)


@app.callback()
def _audits() -> None:
    """Attack a mechanism or a service and bound what it tells from below. Exit status 3 when its claim is refuted."""


@app.command("mechanism")
def mechanism(
    *,
    name: str = option(
        ...,
        "Its name, as --mechanism of `dpserve serve`.",
        complete=options.mechanism_names,
        argument=True,
    ),
    classes: int = option(..., "Number of classes."),
    epsilon: float | None = option(None, "The claimed epsilon of one release; at --delta if there is no pure one."),
    price: str | None = option(None, "The claim as a price instead, as rho:0.005 or noise-multiplier:20."),
    selection: Law | None = _SELECTION,
    delta: float | None = option(
        None, "The delta of the epsilon.", default_text="0 where there is a pure epsilon, else 1e-5"
    ),
    trials: int = option(10_000, "Answers in each world.", ge=10),
    seed: int | None = option(
        None,
        "Draw all noise from this seed, for a result that repeats.",
        default_text="the operating system's randomness, as a service",
        ge=0,
    ),
    sure: Confidences,
    kept: Resumable,
    report: ReportOptions,
) -> None:
    """Ask a mechanism about two rows of logits that are as far apart as it allows, and tell them apart."""
    import numpy as np

    from dpserve.audit import presentation
    from dpserve.audit.distinguishing.mechanism import claimed_tradeoff, judge, observe_noise
    from dpserve.audit.noise import together
    from dpserve.audit.pieces import kept_scores_and_noise
    from dpserve.mechanisms.randomness import SystemRandomness
    from dpserve.mechanisms.registry import mechanism_named, priced
    from dpserve.mechanisms.seeded import SeededRandomness

    if (epsilon is None) == (price is None):
        raise ValueError("state the claim: either --epsilon E or --price PRICE")
    if kept.resume is not None and seed is None:
        raise ValueError("--resume needs a --seed: pieces without one would be other draws than those of this audit")
    if price is None:
        pure = "epsilon:E" in mechanism_named(name).prices.forms
        at = "" if pure else f"@{_DEFAULT_DELTA if delta is None else delta!r}"
        price = f"epsilon:{Decimal(repr(epsilon))}{at}"
    chosen = priced(name, price, classes, selection)
    if delta is None:
        delta = 0.0 if np.isfinite(chosen.cost.pure_epsilon) else _DEFAULT_DELTA
    claimed_tradeoff(chosen.cost, delta)  # what claims nothing is not asked
    audits, worlds = [], chosen.worst_neighbours(classes)
    with stored(kept.resume) as store, counting(f"asking {name}", trials) as progress:
        for number, start in enumerate(range(0, trials, _PIECE)):
            # A piece's noise follows from the seed and the piece's number.
            count = min(_PIECE, trials - start)
            purpose = ("audit mechanism", name, price, str(classes), str(number), *([selection] if selection else []))
            randomness = SystemRandomness() if seed is None else SeededRandomness(seed, purpose)
            piece = {"name": f"audit-{name}", "price": price, "classes": classes, "seed": seed}
            piece |= {"selection": selection} if selection else {}
            piece |= {"piece": number, "count": count}
            observe = partial(observe_noise, chosen, worlds, count, randomness)
            audits.append(kept_scores_and_noise(store, piece, observe))
            progress(count)
    scores_in, scores_out = (np.concatenate([piece[world] for piece in audits]) for world in (0, 1))
    noise = together([piece[2] for piece in audits])
    shown = presentation.mechanism_report(
        judge(chosen, scores_in, scores_out, delta=delta, noise=noise, **sure.model_dump()),
        scores_in,
        scores_out,
        f"Audit of the mechanism {name!r} ({chosen.status}) with {classes} classes at {price}",
        {"classes": classes, "price": price, "selection": selection, "trials": trials, "seed": seed},
        "The two worlds' logits are exactly as far apart as the sensitivity allows.",
    )
    report.show(shown)


class ModelsToTrain(Options):
    """Two models to train on the digits and to serve."""

    kind: str = option(
        "poisoned", "The record that makes the difference: natural, outlier, mislabelled or poisoned.", "--record"
    )
    mechanism: str = option(DEFAULT, "How the two services make answers private.", complete=options.mechanism_names)
    price: str = option("noise-multiplier:1", "The price of one row, as of `dpserve serve`.")
    selection: Law | None = options.SELECTION()
    lam: float = option(10.0, "Lambda of the two models.")


class RunningPair(Options):
    """Two running services, with the record and without it."""

    url_in: str | None = option(None, "A running service of the model with it.", panel=RUNNING)
    url_out: str | None = option(None, "A running service of the model without it.", panel=RUNNING)
    bundle_in: Path | None = option(None, "The bundle of the first.", panel=RUNNING)
    bundle_out: Path | None = option(None, "The bundle of the second.", panel=RUNNING)
    key_in: str | None = option(None, "An API key of the first service.", variable="DPSERVE_KEY_IN", panel=RUNNING)
    key_out: str | None = option(None, "An API key of the second service.", variable="DPSERVE_KEY_OUT", panel=RUNNING)

    def pair(self, rng: "np.random.Generator") -> "ServicePair | None":
        """Return the services, or None where no option names them. Raises BadParameter for some of the options."""
        from dpserve.local_services import running_services

        match tuple(self.model_dump().values()):
            case (None, None, None, None, None, None):
                return None
            case (str(one), str(other), Path() as first, Path() as second, str(key), str(other_key)):
                return running_services((one, other), (first, second), (key, other_key), rng)
        raise typer.BadParameter("running services need all of --url-in, --bundle-in, --key-in and the same with -out")


@app.command("service")
def service(
    *,
    context: typer.Context,
    own: ModelsToTrain,
    running: RunningPair,
    delta: float = option(_DEFAULT_DELTA, "The delta of the epsilon; 0 for a pure epsilon."),
    trials: int = option(2000, "Rows asked of each service.", ge=10),
    seed: int = option(
        0, "Seed for the record, the rows and their order; a service's noise cannot be seeded. See --resume.", ge=0
    ),
    sure: Confidences,
    kept: Resumable,
    report: ReportOptions,
) -> None:
    """Ask two services of neighbouring models over HTTP and tell them apart.

    Without URLs: train both models on the digits, start a service of each, and stop them at the end. With URLs: audit
    two services of yours, whose keys pay for the rows. With --resume the answers are kept, so that the same audit again
    finds the same and costs nothing more.
    """
    import numpy as np

    from dpserve.audit.distinguishing.mechanism import claimed_tradeoff
    from dpserve.local_services import own_services
    from dpserve.mechanisms.registry import priced
    from dpserve.training.inputs.digits import load_digits

    rng = np.random.default_rng(seed)
    row_pair = running.pair(rng)
    if row_pair is not None:
        refuse(context, "about services that run", *ModelsToTrain.model_fields)
        if delta:
            domains.require_delta(delta)
    else:
        classes = len(load_digits().train.declaration.classes)
        claimed_tradeoff(
            priced(own.mechanism, own.price, classes, own.selection).cost, delta
        )  # what claims nothing is not trained
    with (
        nullcontext(row_pair)
        if row_pair
        else own_services(own.kind, own.mechanism, own.price, own.lam, trials, rng, own.selection) as pair,
        stored(kept.resume) as store,
    ):
        shown = report_on_pair(pair, trials, seed, rng, store, delta=delta, sure=sure)
    report.show(shown)


def report_on_pair(
    pair: "ServicePair",
    trials: int,
    seed: int,
    rng: "np.random.Generator",
    store: "ResultStore",
    *,
    delta: float = _DEFAULT_DELTA,
    sure: Confidences | None = None,
) -> "Report":
    """Ask two services about so many rows, tell them apart, and return the report. rng: from the seed."""
    from dpserve.audit import presentation
    from dpserve.audit.distinguishing.mechanism import judge
    from dpserve.audit.distinguishing.service import observe_services
    from dpserve.client import Client

    with (
        Client(pair.urls[0], pair.keys[0]) as first,
        Client(pair.urls[1], pair.keys[1]) as second,
        counting("asking both services", trials) as progress,
    ):
        chosen, scores_in, scores_out, noise = observe_services(
            first, second, pair.models, pair.row, trials, rng, store, seed=seed, progress=progress
        )
    movement = float(pair.models.movement(pair.row)[0])
    return presentation.mechanism_report(
        judge(chosen, scores_in, scores_out, delta=delta, noise=noise, **(sure or Confidences()).model_dump()),
        scores_in,
        scores_out,
        f"Audit of two services by the mechanism {chosen.name!r} ({chosen.status})",
        {"record": pair.models.kind, "trials": trials, "seed": seed, "movement_over_sensitivity": movement},
        pair.note,
        f"At the strongest row that was found the logits move by {movement:.4g} of their sensitivity.",
    )


@app.command("release")
def release(
    *,
    bundle: Path = options.BUNDLE,
    other: list[Path] = option([], "Another bundle, whose noise should be other noise; may be given several times."),
    report: ReportOptions,
) -> None:
    """Judge a pay-once model by the canaries of the run that made it: `train --canaries`."""
    from dpserve.audit import presentation
    from dpserve.audit.release import audit_release
    from dpserve.training.kinds.loading import load_model

    finding = audit_release(load_model(bundle), [load_model(folder) for folder in other])
    report.show(presentation.release_report(finding))


@app.command("canaries")
def canaries(
    *,
    table: str = option(..., "A table of records, as `train --data` takes it.", argument=True),
    count: int = option(..., "How many canaries: about half of them will be trained on.", ge=2),
    label: str = option("label", "The column of class names."),
    classes: str | None = option(
        None, "CLASS,CLASS,...: what labels are drawn from.", default_text="the label column's own values"
    ),
    unit: str | None = option(None, "The column of privacy units: each canary becomes one of its own."),
    share: float = option(
        0.5, "Of the rows that are no canaries: the share to train on. Shadow models need as many again.", ge=0, le=1
    ),
    encoding: str | None = option(None, "Of a CSV file: its encoding.", default_text="utf-8"),
    sheet: str | None = option(None, "Of a spreadsheet with several sheets: the one to read."),
    out: Path = option(..., "The new folder for the four tables, which hold records as they are."),
    seed: int | None = option(None, "Rows, labels and coins follow from it.", default_text="drawn, and printed", ge=0),
) -> None:
    """Make canaries for 'attack': rows with labels drawn at random, half of them to be trained on.

    Writes a table to train on, the canaries in it, those left out, and all other rows, for shadow models.
    """
    import numpy as np

    from dpserve.audit.membership.odd_records import with_canaries
    from dpserve.training.bundles.sealing import write_folder
    from dpserve.training.inputs.tables import open_table

    drawn_from = None if classes is None else classes.split(",")
    seed = secrets.randbits(63) if seed is None else seed
    rows, rng = open_table(table, encoding, sheet), np.random.default_rng(seed)
    made = with_canaries(rows, count, rng, label=label, classes=drawn_from, unit=unit, share=share)
    files = made.files(encoding)
    write_folder(out, files)
    training, members, others, population = (out / name for name in files)
    trained = f"{made.training.num_rows:,} records to train on, {made.members.num_rows:,} of them canaries"
    typer.echo(f"Wrote {trained}, into {out} (--seed {seed})")
    typer.echo(
        "Keep them apart from the lineage of these records, by a state folder of their own: export DPSERVE_HOME=..."
    )
    typer.echo(f"Train:  dpserve train --data {training} --label {label} ... --out MODEL")
    typer.echo(
        f"Attack: dpserve attack MODEL --members {members} --non-members {others} --population {population} "
        f"--shadow-records {made.shadow_records} --label {label}"
    )


@app.command("sampler")
def sampler(
    *,
    scale: int | None = option(
        None, "Of one Gaussian table: a power of two from 256 to 65536.", default_text="four of them"
    ),
    draws: int = option(10_000_000, "For the chi-square tests of each law.", ge=2000),
    releases: int = option(20_000, "Answers to time for each mechanism.", ge=100),
    classes: int = option(10, "C of the timed rows."),
    false_alarm: float = option(1e-6, "With what probability a right sampler may be convicted."),
    report: ReportOptions,
) -> None:
    """Audit the sampler of all noise: its tables exactly, its draws, its forks, and the time that it takes."""
    from dpserve.audit import presentation
    from dpserve.audit.sampler import audit_sampler

    with shares("auditing the sampler") as progress:
        outcome = audit_sampler(scale, draws, releases, classes, false_alarm, progress)
    report.show(presentation.sampler_report(outcome))


@app.command("fields")
def fields(
    *,
    reader: Literal["stranger", "client", "owner"] | None = option(
        None,
        "Of what this reader sees alone: somebody who has paid for nothing, who has paid for what is shown, the owner.",
        argument=True,
    ),
    as_json: bool = option(False, "Print them as JSON.", "--json"),
) -> None:
    """List every field that leaves a training or a service, by who reads it, with what it may follow from."""
    import json

    from dpserve.disclosures import listed

    rows = [each for each in listed() if reader in (None, each.reader)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in rows], indent=1))
        return
    table = whole("where", "reader", "field", "follows from")
    for each in rows:
        table.add_row(each.where, each.reader, each.field, each.follows_from)
    stdout_console().print(table, highlight=False)
