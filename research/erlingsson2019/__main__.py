"""`python -m research.erlingsson2019`: lower against upper bounds of DP-SGD over noise multipliers."""

from typing import Annotated

import typer

from audit import presentation
from dpserve.commands import reporting
from dpserve.commands.console import shares
from research import white_box
from research.commands import DataDir, program, run, stored
from research.erlingsson2019 import region

app = program()


@app.command()
def draw(
    *,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(region.SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    noise_multiplier: Annotated[
        list[float] | None, typer.Option("--noise-multiplier", help="One, or several by naming it again.")
    ] = None,
    sure: reporting.Confidences,
    seed: reporting.Seed = 0,
    resume: reporting.Resume = None,
    shown: reporting.ReportOptions,
) -> None:
    """Train a logistic regression with DP-SGD at each noise multiplier, and attack it, as Erlingsson et al. 2019."""
    if dataset not in region.SETTINGS:
        raise ValueError(f"a region of training can be drawn on {', '.join(region.SETTINGS)}, not on {dataset!r}")
    setting, multipliers = region.SETTINGS[dataset], noise_multiplier or tuple(region.PRINTED)
    material = white_box.prepared(setting, data_dir, seed)
    with stored(resume) as store, shares(f"training on {dataset}") as progress:
        points = region.points(
            setting, multipliers, material, store, seed, sure.confidence, sure.conviction_confidence, progress
        )
    title = f"The region of privacy of DP-SGD with logistic regression on {dataset}"
    chosen = {"dataset": dataset, "records": setting.records, "steps": setting.steps, "seed": seed}
    report = presentation.of_region(title, points, setting.delta, chosen, material.source)
    shown.show(report)


if __name__ == "__main__":
    run(app)
