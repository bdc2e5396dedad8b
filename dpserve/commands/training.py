"""`dpserve train` and `dpserve train-published`, and what they say comes next."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import ValidationError

from accounting.ledger import Ledger, LedgerError, UnknownLineage
from dpserve.commands import completing, options, rows
from dpserve.commands.console import stdout_console, steps_with_progress
from dpserve.commands.inspecting import print_certificate, print_release, print_teachers
from dpserve.commands.options import state_folder
from dpserve.commands.releases import (
    Training,
    answers_hint,
    budget_hint,
    check_options,
    train_release,
    train_with_progress,
)
from service.errors import CannotServe
from training.bundle import save_bundle
from training.certificate import Certificate
from training.data.classes import parse_classes
from training.data.records import Declaration, Records
from training.encoder import OnnxEncoder, Singles
from training.errors import TrainingError, extra
from training.feature_maps import Bins, Encoder, FeatureMap, Floats, Fourier, Identity, Relu, default_clip_norm
from training.lineage import DIGITS, KnownRecords, check_lineage_name
from training.planning import rules
from training.published.bundle import save_published
from training.recipe import DEFAULT_TOLERANCE, Recipe
from training.releases.certificate import ReleaseCertificate
from training.sealing import one_line
from training.teachers.certificate import TeachersCertificate

FEATURES = "Features"
SOLVER = "The solver"
CHOOSING = "--budget, in place of --release"
WEIGHTS = "--release weights"
DPSGD = "--release dpsgd"
TEACHERS = "--release teachers"
ENCODER = "--encoder"
_PER_ANSWER = "--epsilon 3 --delta 1e-6"

Data = Annotated[str, typer.Option(help="'digits', or your own FILE.csv or FILE.npz.")]
Out = Annotated[Path, typer.Option(help="The bundle: a new folder.")]
LineageName = Annotated[
    str | None,
    typer.Option(
        help="Your name for the lineage of the records: all models of records that overlap share one, and its budget. "
        "Needed with your own data. [digits: 'digits']",
        show_default=False,
        autocompletion=completing.lineages,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(help="The model's public name. [default: the bundle's folder name]", show_default=False),
]

Written = Certificate | ReleaseCertificate | TeachersCertificate

_ROWS_IN_A_PART = 256


def train(
    data: Data,
    out: Out,
    lineage: LineageName = None,
    label: rows.Label = "label",
    classes: rows.Classes = None,
    bounds: rows.Bounds = None,
    lam: Annotated[
        float | None, typer.Option("--lam", help="Lambda: a larger one means less noise and a simpler model.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            help="Train a pay-once model, private itself and with unlimited answers: weights, class-sums, objective or "
            "dpsgd; or teachers, each of whose answers is paid for. [default: none, a head, each of whose answers is "
            "paid for]",
            show_default=False,
            autocompletion=completing.releases,
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(help="--release: what all answers together cost: rho:R, noise-multiplier:M or epsilon:E@DELTA."),
    ] = None,
    ignore: rows.Ignore = None,
    clip: rows.Clip = False,
    where: rows.Where = None,
    name: ModelName = None,
    features: Annotated[
        str,
        typer.Option(
            help="The public feature map: auto, identity, bins, fourier or relu. auto: bins of each column for tables "
            f"of up to {rules.MOST_BINNED} columns, otherwise rows of length 1; with --clip-norm or --bias, identity.",
            rich_help_panel=FEATURES,
            autocompletion=completing.features,
        ),
    ] = "auto",
    bias: Annotated[
        float, typer.Option(help="The constant coordinate of phi, from 0 to below 1.", rich_help_panel=FEATURES)
    ] = 0.0,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            help="Scaled rows, or an encoder's features, longer than this are scaled down to it. [default: half the "
            "square root of their number]",
            show_default=False,
            rich_help_panel=FEATURES,
        ),
    ] = None,
    random_features: Annotated[int, typer.Option(help="fourier, relu: how many.", rich_help_panel=FEATURES)] = 1000,
    bandwidth: Annotated[
        float,
        typer.Option(help="fourier: the kernel's width, in units of the unit ball.", rich_help_panel=FEATURES),
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Of the random features: public.", rich_help_panel=FEATURES)] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help=f"tau: the gradient norm that is reached, or training fails. [default: {DEFAULT_TOLERANCE:g}]",
            show_default=False,
            rich_help_panel=SOLVER,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Let the planner choose the mechanism, or with --release its options: what all answers together may "
            "cost, as --price, with --records-declared.",
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=1, help="How many answers it is for. [default: no end]", rich_help_panel=CHOOSING)
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="FILE of public rows like yours, to simulate on. [default: none, a rule]",
            show_default=False,
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PRICE of one precision, from the coarsest to the finest, in place of --price.",
            rich_help_panel=WEIGHTS,
        ),
    ] = None,
    records_declared: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="About how many records there are, as a number that may be public: not counted.",
            rich_help_panel=DPSGD,
        ),
    ] = None,
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="A hidden layer's width; repeatable. [default: none, a linear head]",
            show_default=False,
            rich_help_panel=DPSGD,
        ),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="tanh or relu. [default: tanh]", show_default=False, rich_help_panel=DPSGD)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="How many steps. [default: by rule]", rich_help_panel=DPSGD)
    ] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(
            help="The probability with which a record joins a step. [default: by rule]", rich_help_panel=DPSGD
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="How records join a step. Only 'poisson', each by itself, is covered.", rich_help_panel=DPSGD
        ),
    ] = None,
    step_noise: Annotated[
        float | None,
        typer.Option(
            help="The noise multiplier of a step. [default: the least that costs the price]", rich_help_panel=DPSGD
        ),
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(help="The largest norm of a record's gradient. [default: by rule]", rich_help_panel=DPSGD),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="[default: by rule from public numbers]", rich_help_panel=DPSGD)
    ] = None,
    teachers: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="On how many disjoint parts of the records a teacher each is trained. They also take --hidden "
            "(default: none), --activation, --steps (400) and --learning-rate (0.003). [default: 250]",
            show_default=False,
            rich_help_panel=TEACHERS,
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="What a teacher says of a row: votes or probabilities. [default: votes]",
            show_default=False,
            rich_help_panel=TEACHERS,
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            help="FILE.onnx, a public model made without these records, whose first output is the features, in place "
            "of --features. A row's values are its inputs.",
            rich_help_panel=ENCODER,
        ),
    ] = None,
    encoder_range: Annotated[
        str | None,
        typer.Option(
            help="LOW:HIGH, what --bounds are scaled to for the encoder, as 0:1. [default: the range that the model's "
            "metadata gives for pixels, or values as they are]",
            show_default=False,
            rich_help_panel=ENCODER,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where it computes: cpu or cuda. [default: cpu]", show_default=False, rich_help_panel=ENCODER
        ),
    ] = None,
) -> None:
    """Train a model on private records and write a bundle: the weights and what is proved about them.

    Without --release each answer gets noise of its own and is paid for. With it the model is private itself: a
    pay-once model, with unlimited answers. An option that begins with the name of a release goes with that one.
    """
    lineage_name = _lineage(data, lineage)
    records = _read(data, label, classes, bounds or [], ignore or [], where, clip=clip)
    declaration = records.declaration
    shared = {
        "lower": declaration.lower,
        "upper": declaration.upper,
        "clip_norm": clip_norm,
        "bias": bias,
    }
    if encoder is None and (encoder_range is not None or device is not None):
        raise typer.BadParameter("goes with --encoder", param_hint="--encoder-range" if encoder_range else "--device")
    if encoder is not None and (release is not None or budget is not None or features not in ("auto", "identity")):
        raise typer.BadParameter("goes with none of --features, --release and --budget", param_hint="--encoder")
    _check_new(out)
    content = None
    if encoder is None:
        feature_map = _feature_map(features, declaration, shared, random_features, bandwidth, seed)
    else:
        content = encoder.read_bytes()
        feature_map = _encoder_map(content, encoder_range, device or "cpu", shared)
    options = {
        "lam": lam,
        "tolerance": tolerance,
        "price": price,
        "tier": tier or None,
        "records_declared": records_declared,
        "hidden": hidden or None,
        "activation": activation,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "sampling": sampling,
        "step_noise": step_noise,
        "gradient_clip": gradient_clip,
        "learning_rate": learning_rate,
        "teachers": teachers,
        "rule": rule,
    }
    known = KnownRecords(state_folder())
    digests = known.digests(records)
    warning = warn_of_second_budget(lineage_name, known.among(digests), len(digests))
    training = Training(
        records,
        name or out.resolve().name,
        lineage_name,
        feature_map,
        out,
        {option: value for option, value in options.items() if value is not None},
    )
    if budget is not None:
        # A simulation needs what training needs and more, which other commands should not wait for.
        from dpserve.commands.choosing import followed, like

        alike = like(records, public, label, classes, ignore or [], where) if public else None
        release, training = followed(training, release, budget, queries, alike)
    elif queries is not None or public is not None:
        raise typer.BadParameter("goes with --budget", param_hint="--public" if queries is None else "--queries")
    per_answer, opening = answers_hint(budget, queries) if budget and queries else (None, _PER_ANSWER)
    written: Written
    if release is not None:
        written = train_release(release, training)
        if isinstance(written, ReleaseCertificate):
            print_release(stdout_console(), written)
            per_answer, opening = None, budget_hint(written, (tier or [price or budget or ""])[-1])
        else:
            print_teachers(stdout_console(), written)
    else:
        check_options(None, training.options)
        written = _train_head(training, content)
        print_certificate(stdout_console(), written)
    known.remember(lineage_name, digests)
    typer.echo(f"Wrote the bundle {out}. {next_step(out, written, opening, per_answer, warning)}")


def _train_head(training: Training, encoder: bytes | None) -> Certificate:
    lam = training.needed("lam", "a larger Lambda means less noise and a simpler model")
    recipe = Recipe(training.name, training.feature_map, lam, training.options.get("tolerance", DEFAULT_TOLERANCE))
    return save_bundle(training.out, train_with_progress(training.records, recipe, training.lineage), encoder)


def train_published(
    data: Data,
    out: Out,
    lineage: LineageName = None,
    label: rows.Label = "label",
    classes: rows.Classes = None,
    bounds: rows.Bounds = None,
    ignore: rows.Ignore = None,
    clip: rows.Clip = False,
    where: rows.Where = None,
    name: ModelName = None,
    hidden: Annotated[list[int] | None, typer.Option(help="A hidden layer's width; repeatable. [default: 128]")] = None,
    alpha: Annotated[float, typer.Option(help="The strength of the convexified loss.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the records.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and the order of the records.")] = 0,
) -> None:
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    lineage_name = _lineage(data, lineage)
    with extra("torch", "training networks"):
        from training.published.train import train_published as train_network

    records = _read(data, label, classes, bounds or [], ignore or [], where, clip=clip)
    _check_new(out)
    known = KnownRecords(state_folder())
    digests = known.digests(records)
    warn_of_second_budget(lineage_name, known.among(digests), len(digests))
    network = train_network(
        records,
        name or out.resolve().name,
        lineage_name,
        hidden=tuple(hidden or [128]),
        alpha=alpha,
        epochs=epochs,
        seed=seed,
    )
    certificate = save_published(out, network)
    known.remember(lineage_name, digests)
    lines = (f"Wrote the bundle {out}: {certificate.status}.", *certificate.objections)
    stdout_console().print("\n - ".join(lines), highlight=False)


def _check_new(out: Path) -> None:
    if out.exists():
        raise TrainingError(f"{out} exists already; a bundle is never overwritten, so name a new one with --out")


def _lineage(data: str, given: str | None) -> str:
    if given is not None:
        return check_lineage_name(given)
    if data == "digits":
        return DIGITS
    raise TrainingError(
        "name the lineage of these records with --lineage NAME: all models of records that overlap share one name, and "
        "with it one budget"
    )


def _read(
    data: str, label: str, classes: str | None, bounds: list[str], ignore: list[str], where: str | None, *, clip: bool
) -> Records:
    names, values = parse_classes(classes) if classes else ((), ())
    if data != "digits" and not names:
        raise TrainingError(
            "declare the class names with --classes a,b,...: a list read off the private records would say which "
            "classes occur in them"
        )
    return rows.RowFile(data, "--data", label, names, values, tuple(bounds), tuple(ignore), where, clip).read()


def _feature_map(
    kind: str, declaration: Declaration, shared: dict[str, Any], random_features: int, bandwidth: float, seed: int
) -> FeatureMap:
    choices: dict[str, tuple[type[FeatureMap], dict[str, object]]] = {
        "identity": (Identity, {}),
        "bins": (Bins, {"clip_norm": 1.0}),
        "fourier": (Fourier, {"random_features": random_features, "bandwidth": bandwidth, "seed": seed}),
        "relu": (Relu, {"random_features": random_features, "seed": seed}),
    }
    if kind == "auto":
        if shared["clip_norm"] is None and not shared["bias"]:
            return rules.feature_map("identity", declaration)
        kind = "identity"
    if kind not in choices:
        raise TrainingError(f"--features takes auto, identity, bins, fourier or relu, not {kind!r}")
    chosen, parameters = choices[kind]
    if shared["clip_norm"] is None:
        shared = shared | {"clip_norm": default_clip_norm(len(shared["lower"]))}
    try:
        return chosen.model_validate(shared | parameters)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise TrainingError(f"--{option}: {first['msg'].lower()}, not {first['input']!r}") from error


def _encoder_map(content: bytes, scaled: str | None, device: str, shared: Mapping[str, Any]) -> Encoder:
    """Return the feature map of an ONNX file, computing rows apart from each other; it shows how far it is.

    scaled: LOW:HIGH, or None for the model's own range. shared: what every map has; a `clip_norm` of None becomes half
    the norm of the all-ones features. Raises TrainingError for a model that does not fit.
    """
    encoder = OnnxEncoder(content, len(shared["lower"]), device)

    def compute(rows: Floats) -> Singles:
        # Rows are computed apart from each other, so that nothing changes where they come in parts.
        parts = []
        with steps_with_progress(len(rows), "features") as done:
            for start in range(0, len(rows), _ROWS_IN_A_PART):
                parts.append(encoder.apart(rows[start : start + _ROWS_IN_A_PART]))
                done(min(start + _ROWS_IN_A_PART, len(rows)))
        return np.concatenate(parts)

    try:
        parameters = {
            "input_range": tuple(map(float, scaled.split(":"))) if scaled is not None else encoder.input_range,
            "clip_norm": default_clip_norm(encoder.width) if shared["clip_norm"] is None else shared["clip_norm"],
            "width": encoder.width,
            "model_sha256": hashlib.sha256(content).hexdigest(),
        }
        return Encoder.model_validate({**shared, **parameters}).computed_by(compute)
    except ValueError as error:
        raise TrainingError(f"--encoder-range or --clip-norm: {one_line(error)}") from error


def warn_of_second_budget(lineage: str, known: Mapping[str, int], records: int) -> str | None:
    """Print and return the warning that records of this lineage are in others; None if none are.

    known: how many, by lineage.
    """
    elsewhere = {other: count for other, count in known.items() if other != lineage}
    if not elsewhere:
        return None
    counted = " and ".join(f"{count:,} are in the lineage {other!r}" for other, count in elsewhere.items())
    warning = (
        f"WARNING: A SECOND BUDGET FOR THE SAME RECORDS. Of the {records:,} records of the lineage {lineage!r}, "
        f"{counted} as well. Each lineage has a budget of its own, and whoever asks models of both learns what both "
        f"allow together. To keep one budget, train with --lineage {next(iter(elsewhere))}."
    )
    typer.echo(warning, err=True)
    return warning


def next_step(
    out: Path, certificate: Written, opening: str, price: str | None = None, warning: str | None = None
) -> str:
    """Return the command that serves a bundle, with a budget only where the lineage has none yet.

    opening: the options that open the lineage. price: those that price an answer. warning: of `warn_of_second_budget`.
    Where the lineage's budget is there and cannot pay for a release, say so instead: whether it may learn more is the
    owner's to decide. So is whether the same records get a second budget.
    """
    serve = " ".join(filter(None, ("dpserve serve", str(out), price)))
    try:
        has_budget, others = asyncio.run(_budgets(certificate))
    except CannotServe as refusal:
        return f"Its records' lineage has a budget already, which does not pay for this one. {_capital(str(refusal))}"
    except (LedgerError, OSError, ValueError, typer.BadParameter) as error:
        return (
            f"Next: {serve} {opening}\nThe ledger could not be asked whether the lineage has a budget already; if it "
            f"has, leave {opening} out. ({error})"
        )
    if has_budget:
        return f"Next: {serve}"
    if warning:
        return f"{warning}\nOnly if these records shall have a second budget: {serve} {opening}"
    if others:
        return (
            f"Next: {serve} {opening}\nThis opens a budget for {certificate.lineage!r} beside those of "
            f"{', '.join(map(repr, others))}. If any record is also in one of them, train with --lineage and its name "
            "instead."
        )
    return f"Next: {serve} {opening}"


async def _budgets(certificate: Written) -> tuple[bool, list[str]]:
    """Return whether the lineage has an account, and which others have one.

    Raises CannotServe where the lineage's cannot pay for a release.
    """
    location = options.ledger_location(os.environ.get("DPSERVE_LEDGER"))
    if "://" not in location and not Path(location).exists():
        return False, []  # and looking makes none
    async with Ledger.open(location) as ledger:
        others = [each.lineage for each in await ledger.lineages() if each.lineage != certificate.lineage]
        try:
            await ledger.lineage(certificate.lineage)
        except UnknownLineage:
            return False, others
        if isinstance(certificate, ReleaseCertificate):
            # Who trains without a ledger should not wait for what serves.
            from service.opening import check_release

            await check_release(ledger, certificate)
    return True, others


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
