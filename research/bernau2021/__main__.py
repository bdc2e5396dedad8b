"""`python -m research.bernau2021`: who knows all records but one follows a training run, beside the paper's Table 2."""

from typing import Annotated

import typer

from dpserve.commands import reporting
from dpserve.commands.console import shares
from research.bernau2021 import experiments, presentation
from research.commands import DataDir, Html, Json, Png, program, run, show, stored

app = program()


@app.command()
def play(
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(experiments.SETTINGS)}.")] = "digits",
    data_dir: DataDir = None,
    games: Annotated[int, typer.Option("--games", min=10, help="Of each of four kinds.")] = 250,
    conviction_confidence: reporting.ConvictionConfidence = reporting.SURE,
    seed: reporting.Seed = 0,
    resume: reporting.Resume = None,
    as_json: Json = False,
    html: Html = None,
    png: Png = None,
) -> None:
    """Let who knows all records but one follow a training run, beside Table 2 of Bernau et al. 2021."""
    data = experiments.read(dataset, data_dir)
    setting = experiments.SETTINGS[dataset]
    found = {}
    with stored(resume) as store:
        for kind in experiments.KINDS:
            with shares(" ".join(kind)) as progress:
                found[kind] = experiments.run(setting, kind, data, games, store, seed, progress)
    report = presentation.report(setting, found, data.source, conviction_confidence)
    show(report, as_json=as_json, html=html, png=png)


if __name__ == "__main__":
    run(app)
