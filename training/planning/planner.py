"""The planner in the place of a kind of model: it chooses the kind, and the features that follow from public rules."""

from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dpserve.accounting.messages import Message
from dpserve.training.errors import BundleError, TrainingError
from dpserve.training.features import rules
from dpserve.training.features.images import OfImages
from dpserve.training.features.quantiles import QUANTILE_SHARE
from dpserve.training.inputs.records import Records
from dpserve.training.inputs.sums import Shard, Sums
from dpserve.training.kinds.kind import Ability, Job, Kind
from dpserve.training.kinds.registry import kind_for, train_and_save
from dpserve.training.options import Options, option
from dpserve.training.watchers import Planned


class Planner(Options):
    """The kind of model, with its features, that a price, public numbers or public rows speak for."""

    queries: int | None = option(None, "How many answers the plan is for.", ge=1, default_text="no end")
    public: Callable[[], Any] | None = option(
        None,
        "Reads public rows like the records, to simulate on, once the private ones are noted in their lineage.",
    )


class PlannedKind(Kind):
    """The kind that the planner chooses: a pay-once model, or a head for a number of queries."""

    name = "auto"
    sentence = "what suits the records, by public rules or on public rows"
    options = Planner
    answers = "once"
    needs_n = True

    def limitation(self, ability: Ability, options: Options | None = None) -> str | None:
        """Return that a cluster takes a kind that is named, and that answers paid for one by one have no sets."""
        if ability == "ray":
            return "goes with a kind of model that is named"
        by_answer = ability == "sets" and isinstance(options, Planner) and options.queries is not None
        return Message("are for pay-once models, with {queries} left out") if by_answer else None

    def train(self, job: Job, options: Planner) -> Any:
        """Train and save what is recommended for the price; the job's watcher hears why.

        Raises TrainingError for public rows that are private records.
        """
        # A simulation needs what training needs and more.
        from dpserve.training.planning.recommendation import recommend

        n, whole, declared = job.record_count, job.model_price, job.terms.declaration
        shape = job.feature_map.image_shape if isinstance(job.feature_map, OfImages) else None
        public = None if options.public is None else options.public()
        if public is not None and (shared := rows_in_both(public, job.records.sums)):
            raise TrainingError(
                f"the public rows hold private records, {shared:,} of them: what a simulation on them tells is not "
                "covered by any budget. Put rows that are public into a file of their own"
            )
        own_features = job.feature_share is not None
        with job.progress.shares("simulating") as progress:
            found = recommend(
                len(declared.classes),
                declared,
                public,
                n=n,
                whole=whole,
                queries=options.queries,
                image_shape=shape,
                own_features=own_features,
                progress=progress,
            )
        job.progress.hear(Planned(found.reason, found.warnings))
        chosen, price = found.training_options(n, whole, options.queries)
        kind, rule = kind_for(chosen), found.chosen.features
        job = replace(job, price=price if kind.answers == "once" else None)
        if not own_features:
            feature_map = rules.feature_map(rule, declared, shape, head=kind.centred_images)
            share = QUANTILE_SHARE if rule == "quantiles" else 0.0
            job = replace(job, feature_map=feature_map, feature_share=share)
        return train_and_save(chosen, job)

    def load(self, folder: Path, device: str | None) -> Any:  # noqa: ARG002 - as of any kind
        """Raise BundleError: a bundle is of the kind that was chosen."""
        raise BundleError(f"{folder} is of no kind: {self.name} is the choice of one")


PLANNED_KIND = PlannedKind()


def rows_in_both(rows: Records, private: Sums) -> int:
    """Return how many of private records are, in their columns and label, among the rows."""
    public = {row.tobytes() + label.tobytes() for row, label in zip(rows.X, rows.y, strict=True)}
    shared: int = private.total(partial(_shared_rows, public=public))
    return shared


def _shared_rows(shard: Shard, _: None, *, public: Set[bytes]) -> int:
    return sum(
        row.tobytes() + label.tobytes() in public
        for X, y, _weights in shard.blocks()
        for row, label in zip(X, y, strict=True)
    )
