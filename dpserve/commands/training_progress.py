"""A line on the terminal while a model is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from training.bundle import CertifiedHead
from training.data.records import Records
from training.recipe import Recipe


def train_with_progress(records: Records, recipe: Recipe, lineage: str) -> CertifiedHead:
    """Train with a line on the terminal that says how far the gradient norm is from the tolerance."""
    # The optimiser takes as long to import as a service to start, and serving does not need it.
    from training.train import train as train_head

    with minimising(recipe.tolerance) as report:
        return train_head(records, recipe, lineage, report)


@contextmanager
def minimising(goal: float) -> Iterator[Callable[[float], None]]:
    """Show how far the gradient norm, which the yielded function is told, is from its goal: from the first time on."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("training", total=None)

    def report(gradient_norm: float) -> None:
        progress.start()  # not before: features may have a line of their own until then
        progress.update(task, description=f"training: gradient norm {gradient_norm:.1e}, to reach {goal:.1e}")

    try:
        yield report
    finally:
        progress.stop()


@contextmanager
def steps_with_progress(steps: int, what: str = "training") -> Iterator[Callable[[int], None]]:
    """Show a bar of `steps` steps on the terminal; yields what is to be told how many are done."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=steps)
        yield lambda done: progress.update(task, completed=done)
