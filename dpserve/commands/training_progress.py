"""A line on the terminal while a head is trained."""

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from training.bundle import CertifiedHead
from training.data.records import Records
from training.recipe import Recipe


def train_with_progress(records: Records, recipe: Recipe, lineage: str) -> CertifiedHead:
    """Train with a line on the terminal that says how far the gradient norm is from the tolerance."""
    # The optimiser takes as long to import as a service to start, and serving does not need it.
    from training.train import train as train_head

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, goal = progress.add_task("training", total=None), recipe.tolerance

        def report(gradient_norm: float) -> None:
            progress.update(task, description=f"training: gradient norm {gradient_norm:.1e}, to reach {goal:.1e}")

        return train_head(records, recipe, lineage, report)
