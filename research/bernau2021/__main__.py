"""`python -m research.bernau2021`: who knows all records but one follows a training run, beside the paper's Table 2."""

from typing import Annotated

import typer

from dpserve.commands import reporting
from dpserve.commands.console import shares
from research.bernau2021 import experiments, presentation
from research.commands import DataDir, Repeatable, program, run, stored

app = program()


@app.command()
def play(
    *,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(experiments.SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    games: Annotated[int, typer.Option("--games", min=10, help="Of each of four kinds.")] = 250,
    sure: reporting.ConvictionOption,
    again: Repeatable,
    shown: reporting.ReportOptions,
) -> None:
    """Let who knows all records but one follow a training run, beside Table 2 of Bernau et al. 2021."""
    data = experiments.read(dataset, data_dir)
    setting = experiments.SETTINGS[dataset]
    found = {}
    with stored(again.resume) as store:
        for kind in experiments.KINDS:
            with shares(" ".join(kind)) as progress:
                found[kind] = experiments.run(setting, kind, data, games, store, again.seed, progress)
    report = presentation.report(setting, found, data.source, sure.conviction_confidence)
    shown.show(report)


if __name__ == "__main__":
    run(app)
