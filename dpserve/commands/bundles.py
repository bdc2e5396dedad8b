"""`dpserve train` and `dpserve inspect`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from dpserve.commands.backbones import public_network
from dpserve.commands.console import stdout_console
from dpserve.commands.next_step import Written, next_step, second_budget
from dpserve.commands.options import state_folder
from dpserve.commands.releases import (
    Training,
    answers_hint,
    budget_hint,
    check_options,
    print_release,
    print_teachers,
    train_release,
)
from dpserve.commands.row_files import RowFile
from dpserve.commands.training_progress import train_with_progress
from training.bundle import save_bundle
from training.certificate import Certificate
from training.data.classes import parse_classes
from training.data.records import Records
from training.errors import TrainingError
from training.extras import extra
from training.feature_maps import Backbone, FeatureMap, Fourier, Identity, Relu, default_clip_norm
from training.lineage import DIGITS, KnownRecords, check_lineage_name
from training.loading import load_model
from training.published.bundle import PublishedNetwork, save_published
from training.recipe import DEFAULT_TOLERANCE, Recipe
from training.releases.certificate import ReleaseCertificate
from training.releases.model import ReleasedModel
from training.teachers.bundle import Teachers

DPSGD = "--release dpsgd"
CHOOSING = "--budget, in place of --release"
TEACHERS = "--release teachers"
BACKBONE = "--backbone"
_PER_ANSWER = "--epsilon 3 --delta 1e-6"


def train(
    data: Annotated[str, typer.Option(help="'digits', or your own FILE.csv or FILE.npz.")],
    out: Annotated[Path, typer.Option(help="The bundle: a new folder.")],
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
        ),
    ] = None,
    features: Annotated[str, typer.Option(help="The public feature map: identity, fourier or relu.")] = "identity",
    classes: Annotated[
        str | None, typer.Option(help="The class names, separated by commas, or VALUE=NAME of each; for your own data.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(help="LOW:HIGH for every feature, NAME=LOW:HIGH for one; public, not read off the records."),
    ] = None,
    label: Annotated[str, typer.Option(help="CSV: the column of class names.")] = "label",
    ignore: Annotated[list[str] | None, typer.Option(help="CSV: a column to leave out.")] = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Clip values beyond the bounds instead of refusing them.")
    ] = False,
    where: Annotated[str | None, typer.Option(help="NPZ: the boolean array that picks the rows to use.")] = None,
    random_features: Annotated[int, typer.Option(help="fourier, relu: how many.")] = 1000,
    bandwidth: Annotated[float, typer.Option(help="fourier: the kernel's width, in units of the unit ball.")] = 0.5,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            help="Scaled rows, or a backbone's features, longer than this are scaled down to it. [default: half the "
            "square root of their number]",
            show_default=False,
        ),
    ] = None,
    bias: Annotated[float, typer.Option(help="The constant coordinate of phi, from 0 to below 1.")] = 0.0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help=f"tau: the gradient norm that is reached, or training fails. [default: {DEFAULT_TOLERANCE:g}]",
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(help="--release: what all answers together cost: rho:R, noise-multiplier:M or epsilon:E@DELTA."),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            help="weights: NAME=PRICE of one precision, from the coarsest to the finest, in place of --price."
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
    budget: Annotated[
        str | None,
        typer.Option(
            help="Let the planner choose the mechanism, or with --release its options: what all answers together may "
            "cost, as --price, with --records-declared.",
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(min=1, help="--budget: for how many answers. [default: unlimited]", rich_help_panel=CHOOSING),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="--budget: FILE of public rows like yours, to simulate on. [default: none, a rule]",
            show_default=False,
            rich_help_panel=CHOOSING,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the public random features.")] = 0,
    lineage: Annotated[
        str | None,
        typer.Option(
            help="Your name for the lineage of the records: all models of records that overlap share one, and its "
            "budget. Needed with your own data. [digits: 'digits']",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The model's public name. [default: the bundle's folder name]", show_default=False),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="The architecture of a frozen public network, in place of --features: perceptron, resnet18 or "
            "resnet50.",
            rich_help_panel=BACKBONE,
        ),
    ] = None,
    backbone_weights: Annotated[
        Path | None,
        typer.Option(
            help="Its weights, FILE.safetensors: public, and made without these records.", rich_help_panel=BACKBONE
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Where it computes: cpu or cuda. [default: cpu]", show_default=False, rich_help_panel=BACKBONE
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
    network = public_network(backbone, backbone_weights, device)
    if network is not None and (release is not None or budget is not None or features != "identity"):
        raise typer.BadParameter("goes with none of --features, --release and --budget", param_hint="--backbone")
    if out.exists():
        raise TrainingError(f"{out} exists already; a bundle is never overwritten, so name a new one with --out")
    content = None
    if network is None:
        feature_map = _feature_map(features, shared, random_features, bandwidth, seed)
    else:
        feature_map, content = network.feature_map(shared, declaration.features)
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
    if warning := second_budget(lineage_name, known.among(digests), len(digests)):
        typer.echo(warning, err=True)
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

        rows = like(records, public, label, classes, ignore or [], where) if public else None
        release, training = followed(training, release, budget, queries, rows)
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


def _train_head(training: Training, backbone: bytes | None) -> Certificate:
    lam = training.needed("lam", "a larger Lambda means less noise and a simpler model")
    recipe = Recipe(training.name, training.feature_map, lam, training.options.get("tolerance", DEFAULT_TOLERANCE))
    return save_bundle(training.out, train_with_progress(training.records, recipe, training.lineage), backbone)


def train_published(
    data: Annotated[str, typer.Option(help="'digits', or your own FILE.csv or FILE.npz.")],
    out: Annotated[Path, typer.Option(help="The bundle: a new folder.")],
    classes: Annotated[
        str | None, typer.Option(help="The class names, separated by commas, or VALUE=NAME of each.")
    ] = None,
    bounds: Annotated[list[str] | None, typer.Option(help="LOW:HIGH for every feature, NAME=LOW:HIGH for one.")] = None,
    label: Annotated[str, typer.Option(help="CSV: the column of class names.")] = "label",
    ignore: Annotated[list[str] | None, typer.Option(help="CSV: a column to leave out.")] = None,
    clip: Annotated[bool, typer.Option("--clip", help="Clip values beyond the bounds.")] = False,
    where: Annotated[str | None, typer.Option(help="NPZ: the boolean array that picks the rows to use.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(help="A hidden layer's width; repeatable. [default: 128]")] = None,
    alpha: Annotated[float, typer.Option(help="The strength of the convexified loss.")] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the records.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and the order of the records.")] = 0,
    lineage: Annotated[
        str | None, typer.Option(help="Your name for the lineage of the records; needed with your own data.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's public name. [default: the folder's]")] = None,
) -> None:
    """Train a deep network as Lu et al. 2022 do. UNPROVEN: no mechanism with a proof can serve it."""
    lineage_name = _lineage(data, lineage)
    with extra("torch", "training networks"):
        from training.published.train import train_published as train_network

    records = _read(data, label, classes, bounds or [], ignore or [], where, clip=clip)
    if out.exists():
        raise TrainingError(f"{out} exists already; a bundle is never overwritten, so name a new one with --out")
    known = KnownRecords(state_folder())
    digests = known.digests(records)
    if warning := second_budget(lineage_name, known.among(digests), len(digests)):
        typer.echo(warning, err=True)
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


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Derive every number of a bundle's certificate again: prints it and "verified", or says what differs."""
    model = load_model(bundle)
    certificate = model.certificate
    if isinstance(model, PublishedNetwork):
        typer.echo(certificate.model_dump_json(indent=2))
        typer.echo("UNPROVEN: the numbers follow from each other, and bound nothing", err=True)
        return
    if as_json:
        typer.echo(json.dumps(certificate.model_dump(mode="json") | {"verified": True}, indent=2))
        return
    if isinstance(model, Teachers):
        print_teachers(stdout_console(), model.certificate)
    elif isinstance(model, ReleasedModel):
        print_release(stdout_console(), model.certificate)
    else:
        print_certificate(stdout_console(), model.certificate)
    stdout_console().print("verified: every number was derived again, and the weights are those that were certified")


def print_certificate(console: Console, certificate: Certificate) -> None:
    """Print the certificate for its owner."""
    table = Table("what", "value", title=f"certificate of {certificate.name}", title_justify="left")
    feature_map = certificate.feature_map
    for what, value in (
        ("status", certificate.status),
        ("neighbouring data sets", certificate.neighbouring),
        ("objective", certificate.objective),
        ("features", f"{len(certificate.feature_names)} -> {feature_map.kind}, {feature_map.dimension} coordinates"),
        *_backbone_rows(feature_map),
        ("classes", f"{len(certificate.classes)}: " + _shortened(", ".join(certificate.classes))),
        ("feature norm bound R", f"{certificate.feature_norm_bound:g}"),
        ("Lambda", f"{certificate.strong_convexity:g}"),
        ("tolerance tau", f"{certificate.tolerance:g}"),
        ("steps of features and weights", f"{certificate.feature_step:g}, {certificate.weight_step:g}"),
        ("weight sensitivity Delta_W", f"{certificate.weight_sensitivity:.6g}"),
        ("lineage", certificate.lineage),
        ("SHA-256 of the weights (private)", certificate.weights_sha256[:16] + "..."),
    ):
        table.add_row(what, value)
    console.print(table, highlight=False)
    console.print("It holds if:", *(f"\n - {assumption}" for assumption in certificate.assumptions), highlight=False)


def _backbone_rows(feature_map: FeatureMap) -> list[tuple[str, str]]:
    if not isinstance(feature_map, Backbone):
        return []
    said = f"{feature_map.architecture}, weights with SHA-256 {feature_map.weights_sha256[:16]}..."
    return [("backbone, declared public", said)]


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
    return RowFile(data, "--data", label, names, values, tuple(bounds), tuple(ignore), where, clip).read()


def _feature_map(kind: str, shared: dict[str, Any], random_features: int, bandwidth: float, seed: int) -> FeatureMap:
    choices: dict[str, tuple[type[FeatureMap], dict[str, object]]] = {
        "identity": (Identity, {}),
        "fourier": (Fourier, {"random_features": random_features, "bandwidth": bandwidth, "seed": seed}),
        "relu": (Relu, {"random_features": random_features, "seed": seed}),
    }
    if kind not in choices:
        raise TrainingError(f"--features takes identity, fourier or relu, not {kind!r}")
    chosen, parameters = choices[kind]
    if shared["clip_norm"] is None:
        shared = shared | {"clip_norm": default_clip_norm(len(shared["lower"]))}
    try:
        return chosen.model_validate(shared | parameters)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise TrainingError(f"--{option}: {first['msg'].lower()}, not {first['input']!r}") from error


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
