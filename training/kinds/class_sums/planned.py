"""Class sums, as the planner tries them."""

from training.kinds.planned import UNLIMITED, PlannedOption, Qualities, Trial


def _class_sums(trial: Trial) -> Qualities:
    from training.kinds.class_sums.model import train_class_sums

    records = trial.case.records
    feature_map = trial.heads.feature_map("identity")
    words = trial.randomness("class-sums")
    model = train_class_sums(
        records, "compared", feature_map, trial.whole, "compared", words, records_declared=len(records)
    )
    return {UNLIMITED: trial.case.quality(*model.answers(trial.case.asked))}


PLANNED = (PlannedOption("class-sums", "class sums", "once", _class_sums, "class-sums", "identity", version=4),)
