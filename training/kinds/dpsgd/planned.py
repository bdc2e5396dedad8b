"""DP-SGD, as the planner tries it."""

from collections.abc import Callable
from types import MappingProxyType

from mechanisms.gaussian_vector import mu_for
from training.features.rules import Features
from training.kinds.planned import UNLIMITED, PlannedOption, Qualities, Trial


def _dp_sgd(features: Features, *hidden: int) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from training.fitting.network import Network
        from training.kinds.dpsgd.choices import by_rule
        from training.kinds.dpsgd.train import DpSgdRecipe, directions_of, train_dpsgd

        case, whole = trial.case, trial.whole
        chosen = trial.heads.feature_map(features)
        network = Network((chosen.dimension, *hidden, case.classes))
        choices = by_rule(len(case.y), mu_for(whole), network.size, hidden=hidden)
        words = trial.randomness("dpsgd", features, *map(str, hidden))
        recipe = DpSgdRecipe("compared", chosen, choices, whole)
        known = trial.heads.directions(chosen, directions_of)
        model = train_dpsgd(case.records, recipe, "compared", words, directions=known)
        return {UNLIMITED: case.quality(*model.answers(case.asked))}

    return qualities


_HIDDEN = 128

PLANNED = (
    PlannedOption(
        "dpsgd", "DP-SGD, linear head", "once", _dp_sgd("identity"), "dpsgd", "identity", version=5, fallback=1
    ),
    PlannedOption(
        "dpsgd-fourier", "DP-SGD, Fourier features", "once", _dp_sgd("fourier"), "dpsgd", "fourier", version=5
    ),
    PlannedOption(
        "dpsgd-128",
        "DP-SGD, 128 tanh units",
        "once",
        _dp_sgd("identity", _HIDDEN),
        "dpsgd",
        "identity",
        MappingProxyType({"hidden": [_HIDDEN]}),
        version=4,
    ),
)
