"""`dpserve audit training`: trains with and without single records, all releases replayed."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpserve.commands.command import Group
from dpserve.commands.console import counting
from dpserve.commands.reporting import ReportOptions
from dpserve.commands.tables import LOCAL
from dpserve.train_options import TrainedRecords, TrainPrice, options_of_train
from dpserve.training.feature_choice import AutoFeatures, Features
from dpserve.training.fit import Request, check_abilities, check_needs
from dpserve.training.kinds.kind import Kind
from dpserve.training.kinds.registry import all_kinds
from dpserve.training.options import Options, option


class ReplayOptions(Options):
    """Options of an audit by replay."""

    trials: int = option(20, "How many records, or units, to leave out and to add, those first that move most.", ge=1)


app = Group(
    "Train on a table with and without single records, all releases replayed: nothing else may change by a bit, and no "
    "release by more than its noise is for. Nothing is noted, charged or kept. Exit status 3 when a record shows "
    "elsewhere, or moves a release too far."
)


def _replayed(
    given: TrainedRecords,
    kind: Options,
    features: Features,
    price: TrainPrice | None,
    chosen: ReplayOptions,
    report: ReportOptions,
) -> None:
    from dpserve.audit import presentation
    from dpserve.audit.replay import audit_training, known_before, neighbours_to_try, trained_by

    request = Request(
        name="audited",
        lineage="audited",
        kind=kind,
        price=None if price is None else price.whole,
        n=given.count_declared(price),
        features=features,
    )
    check_abilities(request, unit=given.unit, on_ray=given.engine != LOCAL)
    records = given.read_all(lambda: check_needs(request))
    tried = len(neighbours_to_try(records, chosen.trials))
    with (
        TemporaryDirectory() as folder,
        counting("with and without single " + ("records" if given.unit is None else "units"), tried) as done,
    ):
        train = trained_by(request, Path(folder), known_before(records))
        replayed = audit_training(train, records, chosen.trials, progress=done)
    report.show(presentation.replay_report(replayed, tried, given.unit))


def _add(kind: Kind) -> None:
    """Add the command that audits the training of a kind."""
    own: Any = kind.options

    def once(
        given: TrainedRecords,
        price: TrainPrice,
        features: Features,
        options: own,
        chosen: ReplayOptions,
        report: ReportOptions,
    ) -> None:
        _replayed(given, options, features, price, chosen, report)

    def metered(
        given: TrainedRecords, features: Features, options: own, chosen: ReplayOptions, report: ReportOptions
    ) -> None:
        _replayed(given, options, features, None, chosen, report)

    def without_features(given: TrainedRecords, options: own, chosen: ReplayOptions, report: ReportOptions) -> None:
        _replayed(given, options, AutoFeatures(), None, chosen, report)

    command = without_features if kind.command != "train" else once if kind.answers == "once" else metered
    command.__doc__ = f"Audit the training of {kind.sentence}."
    app.command(kind.name)(command)


for _kind in all_kinds().values():
    if _kind.command != "train" or not options_of_train() & set(_kind.options.model_fields):
        _add(_kind)
