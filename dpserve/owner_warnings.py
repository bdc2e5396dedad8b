"""Warnings for the owner of an estimator, in Python's way: what no budget covers, as far as it can be seen."""

import inspect
import warnings
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from dpserve.accounting.messages import spelled
from dpserve.commands.console import Terminal
from dpserve.training.errors import PrivacyWarning
from dpserve.training.watchers import Event, Planned, Warned
from dpserve.wording import as_parameter

_FITTED_STEPS_ADVICE = (
    "Such a step holds exact figures of the records, and hides records from the lineages that have them: a fit is then "
    "charged as that of other records, without again=True. Give the columns as they are, with bounds known without the "
    "records, by which the model scales them; Schema(missing={COLUMN: VALUE}) declares what a missing value counts as."
)


class Owner(Terminal):
    """Shows progress on stderr, and tells the owner of warnings as Python does. Nothing goes to stdout."""

    def hear(self, event: Event) -> None:
        """Warn of a second budget, and of a plan that is worth little."""
        match event:
            case Warned():
                warn_of_privacy(spelled(event.message, as_parameter))
            case Planned():
                for warning in event.warnings:
                    warnings.warn(warning, UserWarning, stacklevel=3)


def warn_of_privacy(text: str) -> None:
    """Warn the owner of what no budget covers."""
    warnings.warn(text, PrivacyWarning, stacklevel=3)


def warn_of_fitted_steps(estimator: object) -> None:
    """Warn of the steps that learn from the records, in the pipelines that are fitting the estimator."""
    if steps := _fitted_steps_before(estimator):
        warn_of_privacy(
            f"the steps {', '.join(map(repr, steps))} of the pipeline are fitted on the records: what they learn is "
            f"exact, and no budget covers it. {_FITTED_STEPS_ADVICE}"
        )


def _fitted_steps_before(estimator: object) -> list[str]:
    """Return the names of the steps that learn from the records, in the pipelines that are fitting the estimator.

    A pipeline tells its last step nothing, in no release of scikit-learn: `Pipeline.fit` is looked for among the calls
    that led here. It counts if the estimator is its last step, so that no other caller is taken for it.
    """
    steps: list[str] = []
    inner, frame = estimator, inspect.currentframe()
    while frame is not None:
        outer = frame.f_locals.get("self")
        if isinstance(outer, Pipeline) and outer is not inner and outer.steps[-1][1] is inner:
            steps = [name for name, step in outer.steps[:-1] if _learns(step)] + steps
            inner = outer
        frame = frame.f_back
    return steps


def _learns(step: Any) -> bool:
    """Tell whether a step of a pipeline may learn from the records, by its tags; the parts of a compound are asked."""
    for name in ("steps", "transformers", "transformer_list"):
        if hasattr(step, name):
            return any(_learns(inner[1]) for inner in getattr(step, name))
    try:
        return not (step is None or isinstance(step, str)) and bool(get_tags(step).requires_fit)
    except (AttributeError, TypeError):
        return True  # it has no tags
