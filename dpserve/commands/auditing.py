"""`dpserve audit`: lower bounds from attacks, held against what is claimed. Exit status 3 when a claim is refuted."""

from pathlib import Path
from typing import Annotated

import typer

from audit.reports import Report
from dpserve.commands import audit_options as options

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _audits() -> None:
    """Attack a mechanism or a service and bound what it tells from below. Exit status 3 when its claim is refuted."""


@app.command("mechanism")
@options.reported
def mechanism(
    name: Annotated[str, typer.Argument(help="gaussian, laplace, label, selected-neuron or published.")],
    classes: Annotated[int, typer.Option("--classes", help="C.")],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="The claimed epsilon of one release; for Gaussian at --delta.")
    ] = None,
    price: Annotated[
        str | None, typer.Option("--price", help="The claim as a price instead, as rho:0.005 or noise-multiplier:20.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            help="Where epsilon is stated. [default: 0 where there is a pure epsilon, else 1e-5]",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Answers in each world.")] = 10_000,
    confidence: options.Confidence = 0.95,
    conviction_confidence: options.ConvictionConfidence = options.SURE,
    seed: options.Seed = None,
    resume: options.Resume = None,
) -> Report:
    """Ask a mechanism about two rows of logits that are as far apart as it allows, and tell them apart."""
    from dpserve.commands.audit_mechanism import audit_mechanism

    return audit_mechanism(
        name,
        classes,
        epsilon=epsilon,
        price=price,
        delta=delta,
        trials=trials,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        seed=seed,
        resume=resume,
    )


@app.command("service")
@options.reported
def service(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Option("--record", help="The record that makes the difference: natural, outlier or mislabelled."),
    ] = "mislabelled",
    mechanism: Annotated[str, typer.Option("--mechanism", help="How the two services make answers private.")] = (
        "gaussian"
    ),
    price: Annotated[str, typer.Option("--price", help="The price of one row, as of `dpserve serve`.")] = (
        "noise-multiplier:1"
    ),
    lam: Annotated[float, typer.Option("--lam", help="Lambda of the two models.")] = 10.0,
    url_in: Annotated[str | None, typer.Option("--url-in", help="A running service of the model with it.")] = None,
    url_out: Annotated[str | None, typer.Option("--url-out", help="A running service of the model without it.")] = None,
    bundle_in: Annotated[Path | None, typer.Option("--bundle-in", help="Its bundle.")] = None,
    bundle_out: Annotated[Path | None, typer.Option("--bundle-out", help="Its bundle.")] = None,
    key_in: Annotated[
        str | None, typer.Option("--key-in", envvar="DPSERVE_KEY_IN", help="An API key of the first service.")
    ] = None,
    key_out: Annotated[
        str | None, typer.Option("--key-out", envvar="DPSERVE_KEY_OUT", help="An API key of the second service.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Where epsilon is stated; 0 for a pure epsilon.")] = 1e-5,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Rows asked of each service.")] = 2000,
    confidence: options.Confidence = 0.95,
    conviction_confidence: options.ConvictionConfidence = options.SURE,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, help="Of the record, the rows and their order; a service's noise has none. See --resume."
        ),
    ] = 0,
    resume: options.Resume = None,
) -> Report:
    """Ask two services of neighbouring models over HTTP and tell them apart.

    Without URLs: train both models on the digits, start a service of each, and stop them at the end. With URLs: audit
    two services of yours, whose keys pay for the rows. With --resume the answers are kept, so that the same audit again
    finds the same and costs nothing more.
    """
    from dpserve.commands import audit_service

    given = (url_in, url_out, bundle_in, bundle_out, key_in, key_out)
    if url_in and url_out and bundle_in and bundle_out and key_in and key_out:
        options.refuse(context, "about services that run", "kind", "mechanism", "price", "lam")
        plan: audit_service.Services = audit_service.RunningServices(
            (url_in, url_out), (bundle_in, bundle_out), (key_in, key_out)
        )
    elif any(given):
        raise typer.BadParameter("running services need all of --url-in, --bundle-in, --key-in and the same with -out")
    else:
        plan = audit_service.OwnServices(kind, mechanism, price, lam)
    return audit_service.audit_service(
        plan,
        delta=delta,
        trials=trials,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        seed=seed,
        resume=resume,
    )


@app.command("sampler")
@options.reported
def sampler(
    scale: Annotated[
        int | None,
        typer.Option(
            "--scale",
            help="Of one Gaussian table: a power of two from 256 to 65536. [default: four of them]",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=2000, help="For the chi-square tests of each law.")] = 10_000_000,
    releases: Annotated[int, typer.Option("--releases", min=100, help="To time for each mechanism.")] = 20_000,
    classes: Annotated[int, typer.Option("--classes", help="C of the timed rows.")] = 10,
    false_alarm: Annotated[
        float, typer.Option("--false-alarm", help="With what probability a right sampler may be convicted.")
    ] = 1e-6,
) -> Report:
    """Audit the sampler of all noise: its tables exactly, its draws, its forks, and the time that it takes."""
    from dpserve.commands.audit_sampler import audit_sampler

    return audit_sampler(scale, draws, releases, classes, false_alarm)


@app.command("sensitivity")
@options.reported
def sensitivity(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="certified, or published.")],
    lam: Annotated[float, typer.Option("--lam", help="certified: Lambda.")] = 10.0,
    neighbours: Annotated[
        int, typer.Option("--neighbours", min=1, help="published: how many networks to train again, twice.")
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the records that make the difference.")] = 0,
) -> Report:
    """Train again without a record of the digits, and hold how far the model moved against what is claimed."""
    from dpserve.commands.audit_sensitivity import audit_sensitivity

    other = {"certified": "neighbours", "published": "lam"}.get(model)
    if other is not None:
        options.refuse(context, f"of a {model} model", other)
    return audit_sensitivity(model, lam, neighbours, seed)


@app.command("training")
@options.reported
def training(
    context: typer.Context,
    epsilon: Annotated[float, typer.Option("--epsilon", help="What a run claims at delta = 1e-5.")] = 8.0,
    fault: Annotated[
        str | None,
        typer.Option(
            "--fault",
            help="Plant one and claim epsilon 1.27 a step: clip-after-averaging, noise-from-100-seeds, "
            "noise-too-small, or none for a sound step with that claim.",
        ),
    ] = None,
    noise_ratio: Annotated[float, typer.Option("--noise-ratio", help="Of noise too small, to the claimed one.")] = 0.6,
    canary: Annotated[str, typer.Option("--canary", help="dirac, crafted, blank or mislabelled.")] = "dirac",
    whole_runs: Annotated[
        int | None,
        typer.Option(
            "--whole-runs",
            min=10,
            help="Train this many times with the canary and as often without it, and audit whole runs; the canary must "
            "be a record.",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            min=1,
            help="Runs whose steps are observed. [default: of noise too small as many as convict it with probability "
            "0.99, else some]",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=10, help="Of a run.")] = None,
    confidence: options.Confidence = 0.95,
    conviction_confidence: options.ConvictionConfidence = options.SURE,
    seed: options.ExperimentSeed = 0,
    resume: options.Resume = None,
) -> Report:
    """Train on the digits with DP-SGD, watch every step for a canary, and hold what is seen against what is claimed."""
    from audit.white_box import experiments
    from dpserve.commands.audit_training import audit_training

    if fault is not None:
        options.refuse(context, "with --fault, which claims a step's epsilon", "epsilon", "whole_runs")
    if fault != "noise-too-small":
        options.refuse(context, "without --fault noise-too-small", "noise_ratio")
    if whole_runs is not None:
        options.refuse(context, "with --whole-runs", "runs")
    return audit_training(
        experiments.DIGITS,
        experiments.digits,
        epsilon=epsilon,
        fault=fault,
        noise_ratio=noise_ratio,
        canary=canary,
        whole_runs=whole_runs,
        runs=runs,
        steps=steps,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        seed=seed,
        resume=resume,
    )


@app.command("region")
@options.reported
def region(
    name: Annotated[str, typer.Argument(help="Of a mechanism: gaussian, laplace, label or selected-neuron.")],
    classes: Annotated[int, typer.Option("--classes", help="C.")] = 10,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option("--noise-multiplier", help="One, or several by naming it again.")
    ] = None,
    releases: Annotated[int, typer.Option("--releases", min=1, help="Judged together.")] = 1,
    trials: Annotated[int, typer.Option("--trials", min=10, help="Answers in each world.")] = 10_000,
    delta: Annotated[float, typer.Option("--delta", help="Where epsilon is stated.")] = 1e-5,
    confidence: options.Confidence = 0.95,
    conviction_confidence: options.ConvictionConfidence = options.SURE,
    seed: options.ExperimentSeed = 0,
    resume: options.Resume = None,
) -> Report:
    """Draw the best lower bound from attacks and the best upper bound from analyses over noise multipliers."""
    from dpserve.commands.audit_region import audit_region

    return audit_region(
        name,
        classes=classes,
        noise_multipliers=noise_multiplier,
        releases=releases,
        trials=trials,
        delta=delta,
        confidence=confidence,
        conviction_confidence=conviction_confidence,
        seed=seed,
        resume=resume,
    )
