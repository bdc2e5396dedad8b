"""`python -m research.pictures`: make the pictures of README.md and docs/ again; `make pictures` runs it."""

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dpserve.cli import app as dpserve_command
from research.commands import program, run
from research.pictures.sources import FOLDER, PICTURES, ROOT, keep, stale

app = program()

ANALYSES = "explain --release gaussian:20 --times 200 --delta 1e-6 --plot"
"""The command of `dpserve` that docs/accounting.md shows beside its picture."""


@app.command()
def pictures(
    every: Annotated[bool, typer.Option("--every", help="Make those again, too, whose sources are the same.")] = False,
) -> None:
    """Make the pictures of README.md and docs/ again whose sources changed. Those of the pages need Chromium."""
    asked = list(PICTURES) if every else stale()
    with tempfile.TemporaryDirectory(prefix="dpserve-pictures-") as folder:
        for name, make in _makers().items():
            mine = [each for each in asked if each.name in name]
            if not mine:
                continue
            make(Path(folder))
            for each in mine:
                (Path(folder) / each.name).replace(each.path)
            keep(mine)
            typer.echo(f"Made: {', '.join(str(each.path.relative_to(ROOT)) for each in mine)}")
    if not asked:
        typer.echo(f"The pictures in {FOLDER.relative_to(ROOT)} are as new as what they are made of.")


def _makers() -> dict[tuple[str, ...], Callable[[Path], None]]:
    """Return what makes pictures in a folder, by the names that it makes together."""
    return {
        ("page.png", "page-owner.png"): _pages,
        ("accuracy.png",): _accuracy,
        ("analyses.png",): lambda folder: _command(ANALYSES, folder / "analyses.png"),
    }


def _pages(folder: Path) -> None:
    # Other pictures need no browser.
    from research.pictures.pages import draw_pages

    draw_pages(folder / "page.png", folder / "page-owner.png")


def _accuracy(folder: Path) -> None:
    from research.pictures.charts import draw_accuracy

    draw_accuracy(folder / "accuracy.png")


def _command(words: str, path: Path) -> None:
    dpserve_command([*shlex.split(words), str(path)], standalone_mode=False)


if __name__ == "__main__":
    run(app)
