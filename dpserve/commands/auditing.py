"""`dpserve audit`: lower bounds from attacks, held against what is claimed. Exit status 3 when a claim is refuted."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Confidence = Annotated[float, typer.Option("--confidence", help="Of the lower bounds that are shown.")]
ConvictionConfidence = Annotated[
    float,
    typer.Option(
        "--conviction-confidence", help="A sound mechanism is convicted with at most 1 less this. [default: 1 - 1e-9]"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the whole report into FILE.html.")]
Png = Annotated[Path | None, typer.Option("--png", help="Draw the picture into FILE.png.")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="Keep finished pieces in this folder, and go on from those that are there."),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        help="Draw all noise from this seed, for a result that repeats. [default: the operating system's randomness, "
        "as a service]",
        show_default=False,
    ),
]


@app.callback()
def _audits() -> None:
    """Attack a mechanism or a service and bound what it tells from below. Exit status 3 when its claim is refuted."""


@app.command("mechanism")
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
    confidence: Confidence = 0.95,
    conviction_confidence: ConvictionConfidence = 1 - 1e-9,
    seed: Seed = None,
    resume: Resume = None,
    as_json: Json = False,
    html: Html = None,
    png: Png = None,
) -> None:
    """Ask a mechanism about two rows of logits that are as far apart as it allows, and tell them apart."""
    from dpserve.commands.audit_mechanism import audit_mechanism
    from dpserve.commands.audit_output import show

    report = audit_mechanism(
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
    show(report, as_json=as_json, html=html, png=png)
