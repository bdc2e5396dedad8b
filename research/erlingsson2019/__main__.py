"""`python -m research.erlingsson2019`: lower against upper bounds over noise multipliers."""

from functools import partial
from typing import Annotated, Any

import typer

from dpserve.audit.pieces import kept_scores
from dpserve.commands import reporting
from dpserve.commands.console import counting, shares
from dpserve.mechanisms.registry import names
from dpserve.mechanisms.seeded import SeededRandomness
from research.commands import DataDir, Repeatable, ReportOptions, finished_pieces, program, run
from research.erlingsson2019 import answers, by_epsilon, region
from research.erlingsson2019.presentation import region_report
from research.printing import print_tables
from research.white_box import experiments

_MULTIPLIERS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
NoiseMultipliers = Annotated[
    list[float] | None, typer.Option("--noise-multiplier", help="One, or several by naming it again.")
]

app = program()


@app.command("training")
def training(
    *,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(region.SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    noise_multiplier: NoiseMultipliers = None,
    sure: reporting.Confidences,
    again: Repeatable,
    shown: ReportOptions,
) -> None:
    """Train a logistic regression with DP-SGD at each noise multiplier, and attack it, as Erlingsson et al. 2019."""
    if dataset not in region.SETTINGS:
        raise ValueError(f"a region of training can be drawn on {', '.join(region.SETTINGS)}, not on {dataset!r}")
    setting, multipliers = region.SETTINGS[dataset], noise_multiplier or tuple(region.PRINTED)
    material = experiments.prepare_records(setting, data_dir, again.seed)
    with finished_pieces(again.resume) as store, shares(f"training on {dataset}") as progress:
        points = region.points(
            setting, multipliers, material, store, again.seed, sure.confidence, sure.conviction_confidence, progress
        )
    title = f"The region of privacy of DP-SGD with logistic regression on {dataset}"
    chosen = {"dataset": dataset, "records": setting.records, "steps": setting.steps, "seed": again.seed}
    shown.show(region_report(title, points, setting.delta, chosen, material.source))


@app.command("by-epsilon")
def by_epsilon_tables() -> None:
    """Print Sections 3 and 4: by epsilon and analysis, and rotated to be read by noise. It trains nothing."""
    print_tables(by_epsilon.printed_tables())


@app.command("mechanism")
def mechanism(
    *,
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(names())}.")],
    classes: Annotated[int, typer.Option("--classes", help="Number of classes.")] = 10,
    noise_multiplier: NoiseMultipliers = None,
    releases: Annotated[int, typer.Option("--releases", min=1, help="Judged together.")] = 1,
    trials: Annotated[int, typer.Option("--trials", min=10, help="In each world.")] = 10_000,
    delta: Annotated[float, typer.Option("--delta", help="The delta of the epsilon.")] = 1e-5,
    sure: reporting.Confidences,
    again: Repeatable,
    shown: ReportOptions,
) -> None:
    """Ask a mechanism at each noise multiplier, and set what attacks find beside every analysis."""
    if name not in names():
        raise ValueError(f"a region can be drawn of {', '.join(names())}, not of {name!r}")
    points, multipliers = [], noise_multiplier or _MULTIPLIERS
    with finished_pieces(again.resume) as store, counting(f"asking {name}", len(multipliers)) as progress:
        for noise in multipliers:
            chosen = answers.mechanism_at(name, classes, noise)
            piece: dict[str, Any] = {"name": f"region-{name}", "classes": classes, "noise_multiplier": noise}
            piece |= {"releases": releases, "trials": trials, "seed": again.seed}
            randomness = SeededRandomness(again.seed, ("region", name, f"{noise!r}"))
            observe = partial(answers.observe_releases, chosen, classes, releases, trials, randomness)
            scores = kept_scores(store, piece, observe)
            points.append(
                answers.point_of(
                    chosen, noise, releases, scores, delta=delta, points=len(multipliers), **sure.model_dump()
                )
            )
            progress(1)
    setting = {"mechanism": name, "classes": classes, "releases": releases, "trials": trials, "seed": again.seed}
    title = f"The region of privacy of {name!r}: {releases} releases of {classes} classes"
    note = "A noise multiplier stands for the price rho = 1/(2 multiplier^2) of a row, whatever the mechanism."
    shown.show(region_report(title, points, delta, setting, note))


if __name__ == "__main__":
    run(app)
