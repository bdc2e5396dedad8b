"""Objective perturbation, as the planner tries it."""

from collections.abc import Callable

from training.features.rules import Features
from training.kinds.cases import TOLERANCE
from training.kinds.planned import CUT, NOT_CUT, PlannedOption, Qualities, Trial


def _perturbed_objective(features: Features) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from training.kinds.objective.model import perturbation_for, train_perturbed

        records = trial.case.records
        chosen, whole = trial.bought(features)
        choices = perturbation_for(whole, trial.case.classes)
        words = trial.randomness("objective", features)
        model = train_perturbed(records, "compared", chosen, choices, TOLERANCE, "compared", words)
        return trial.paid_once(*model.answers(trial.case.asked))

    return qualities


PLANNED = (
    PlannedOption(
        "objective",
        "objective perturbation",
        "once",
        _perturbed_objective("identity"),
        "objective",
        "identity",
        version=2,
        suits=NOT_CUT,
    ),
    PlannedOption(
        "objective-fourier",
        "objective perturbation, Fourier features",
        "once",
        _perturbed_objective("fourier"),
        "objective",
        "fourier",
        version=3,
        suits=NOT_CUT,
    ),
    PlannedOption(
        "objective-quantiles",
        "objective perturbation, cuts at quantiles",
        "once",
        _perturbed_objective("quantiles"),
        "objective",
        "quantiles",
        suits=CUT,
    ),
)
