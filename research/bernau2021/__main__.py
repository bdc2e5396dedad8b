"""`python -m research.bernau2021`: who knows all records but one follows a training run, beside the paper's Table 2."""

from typing import Annotated

import typer

from dpserve.commands import reporting
from dpserve.commands.console import shares
from research.bernau2021 import experiments, presentation
from research.bernau2021.printed import BELIEF
from research.commands import DataDir, Repeatable, ReportOptions, finished_pieces, program, run

app = program()


@app.command()
def play(
    *,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(experiments.SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    games: Annotated[int, typer.Option("--games", min=10, help="Of each of four kinds.")] = 250,
    belief: Annotated[
        list[float] | None,
        typer.Option("--belief", help="The bound asked for, above 0.5; several by naming it again. [default: 0.9]"),
    ] = None,
    sure: reporting.ConvictionOption,
    again: Repeatable,
    shown: ReportOptions,
) -> None:
    """Let who knows all records but one follow a training run, beside Table 2 of Bernau et al. 2021."""
    data = experiments.read(dataset, data_dir)
    setting = experiments.SETTINGS[dataset]
    bounds = belief or [BELIEF]
    found: dict[float, dict[presentation.Kind, experiments.Found]] = {}
    with finished_pieces(again.resume) as store:
        for bound in bounds:
            found[bound], epsilon = {}, presentation.belief_epsilon(bound)
            for kind in experiments.KINDS:
                with shares(f"belief {bound:g}, {' '.join(kind)}") as progress:
                    found[bound][kind] = experiments.run(
                        setting, kind, data, games, store, again.seed, progress, epsilon
                    )
    confidence = sure.conviction_confidence
    if bounds == [BELIEF]:
        report = presentation.report(setting, found[BELIEF], data.source, confidence)
    else:
        report = presentation.sweep(setting, found, data.source, confidence)
    shown.show(report)


if __name__ == "__main__":
    run(app)
