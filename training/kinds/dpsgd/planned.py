"""DP-SGD, as the planner tries it."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.training.features.rules import FeatureRule
from dpserve.training.kinds.planned import CUT, IMAGES, NOT_CUT, PlannedOption, Qualities, Trial

_NOISE_OF: dict[FeatureRule, FeatureRule] = {"even": "quantiles"}
"""Features that have the noise of others, so that options differ by what they are: without numbers, in nothing."""


def _dp_sgd(features: FeatureRule, hidden: int | None = None) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from dpserve.training.kinds.dpsgd.choices import choices_by_rule
        from dpserve.training.kinds.dpsgd.train import DpSgdRecipe, directions_of, train_dpsgd

        case = trial.case
        bought, whole = trial.bought(features)
        chosen = bought.feature_map
        choices = choices_by_rule(len(case.y), mu_for(whole), chosen, case.classes, hidden)
        words = trial.randomness("dpsgd", _NOISE_OF.get(features, features))
        recipe = DpSgdRecipe("compared", chosen, choices, whole, before=bought.releases)
        # Thousands of buckets are mostly zeros: each step makes its rows, without them.
        known = None if features == "crosses" else trial.heads.directions(chosen, directions_of)
        model = train_dpsgd(case.records, recipe, "compared", words, directions=known)
        return trial.paid_once(*model.answers(case.asked))

    return qualities


def _option(name: str, title: str, features: FeatureRule, **more: Any) -> PlannedOption:
    return PlannedOption(name, title, "once", _dp_sgd(features), "dpsgd", features, **more)


PLANNED = (
    _option("dpsgd-quantiles", "DP-SGD, cuts at quantiles", "quantiles", suits=CUT, default_for=CUT),
    PlannedOption(
        "dpsgd-linear",
        "DP-SGD, linear head alone, cuts at quantiles",
        "once",
        _dp_sgd("quantiles", 0),
        "dpsgd",
        "quantiles",
        MappingProxyType({"hidden": 0}),
        suits=CUT,
    ),
    _option("dpsgd-even", "DP-SGD, even cuts", "even", suits=CUT, fallback=1),
    _option("dpsgd-unit", "DP-SGD, linear head, rows of length 1", "unit", suits=CUT),
    _option("dpsgd-crosses", "DP-SGD, bins and hashed pairs of columns", "crosses", suits=CUT),
    _option("dpsgd", "DP-SGD, linear head", "modality", suits=NOT_CUT, default_for=NOT_CUT, fallback=2),
    _option("dpsgd-fourier", "DP-SGD, Fourier features", "fourier", suits=NOT_CUT),
    _option("dpsgd-hog-fourier", "DP-SGD, gradients, shades and Fourier features", "hog-fourier", suits=IMAGES),
)
