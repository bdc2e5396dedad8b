"""Class sums, as the planner tries them."""

from collections.abc import Callable
from types import MappingProxyType

from dpserve.training.features.rules import FeatureRule
from dpserve.training.kinds.planned import CUT, NOT_CUT, PlannedOption, Qualities, Trial


def _class_sums(features: FeatureRule) -> Callable[[Trial], Qualities]:
    def qualities(trial: Trial) -> Qualities:
        from dpserve.training.kinds.class_sums.train import train_class_sums

        records = trial.case.records
        chosen, whole = trial.bought(features)
        words = trial.randomness("class-sums")
        model = train_class_sums(
            records,
            "compared",
            chosen.feature_map,
            whole,
            "compared",
            words,
            records_declared=len(records),
            before=chosen.releases,
        )
        return trial.paid_once(*model.answers(trial.case.asked))

    return qualities


PLANNED = (
    PlannedOption(
        "class-sums",
        "class sums",
        "once",
        _class_sums("modality"),
        "class-sums",
        "modality",
        suits=(*NOT_CUT, "presence"),
        many_classes=MappingProxyType({None: 20, "presence": 10}),
    ),
    PlannedOption(
        "class-sums-quantiles",
        "class sums, cuts at quantiles",
        "once",
        _class_sums("quantiles"),
        "class-sums",
        "quantiles",
        suits=CUT,
    ),
)
