"""The one registry of kinds of models: a name, and the object that says everything of that kind.

A package of someone else's adds a kind by the entry point group `dpserve.kinds`, whose entries are `Kind` objects:

    [project.entry-points."dpserve.kinds"]
    ridge = "their_package.ridge:KIND"
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from dpserve.accounting.extensions import extensions
from dpserve.training.bundles.certificate import ModelCertificate, ProvenCertificate
from dpserve.training.bundles.sealing import DEFAULT_KIND, UNPROVEN_KIND
from dpserve.training.errors import TrainingError
from dpserve.training.kinds.expected import expected_seconds
from dpserve.training.kinds.kind import Job, Kind, problems_of
from dpserve.training.options import Options
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.chain import FeatureStep, buy_features
from dpserve.training.pay_once.model import ReleasedModel
from dpserve.training.watchers import TRAINING

ENTRY_POINTS = "dpserve.kinds"
"""The entry points that bring other people's kinds."""

_FOLDERS = ("class_sums", "weights", "dpsgd", "head", "published")
"""The simplest first: of equally good options the planner takes the first."""

_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind. Raises TrainingError for a name that another one has."""
    if _kinds.setdefault(kind.name, kind) is not kind:
        raise TrainingError(f"two kinds of models are called {kind.name!r}: rename one")


@functools.cache
def _register_all() -> None:
    for folder in _FOLDERS:
        register(import_module(f"dpserve.training.kinds.{folder}.kind").KIND)
    for kind in extensions(ENTRY_POINTS, _check):
        register(kind)


def _check(loaded: object) -> Kind:
    """Return what an entry point brought. Raises for anything that is no kind with a name of its own."""
    for problem in problems_of(loaded):
        raise TypeError(problem)
    kind = cast(Kind, loaded)
    if kind.name in _kinds:
        raise ValueError(f"there is a kind of model {kind.name!r} already")
    return kind


def all_kinds() -> Mapping[str, Kind]:
    """Return every kind by its name."""
    _register_all()
    return MappingProxyType(_kinds)


def kind_named(name: str) -> Kind:
    """Return a kind. Raises TrainingError for a name that nothing has."""
    if name not in all_kinds():
        raise TrainingError(f"this version knows no kind of model {name!r}; it knows {', '.join(all_kinds())}")
    return all_kinds()[name]


def kind_of(subject: Any) -> Kind:
    """Return the kind of a model, or of a certificate. Raises TrainingError for one that nothing here knows."""
    return kind_named(getattr(subject, "certificate", subject).kind_name)


def kind_shown(public: Mapping[str, Any]) -> Kind | None:
    """Return the kind that the public part of a certificate names; None for one that nothing here knows."""
    name = UNPROVEN_KIND if public.get("status") == "unproven" else public.get("release", DEFAULT_KIND)
    return all_kinds().get(str(name))


def pay_once(model: Any) -> ReleasedModel | None:
    """Return the model if it was paid for once; None for one each of whose answers is paid for."""
    return cast(ReleasedModel, model) if kind_of(model).answers == "once" else None


def release_certificate(certificate: ModelCertificate) -> ReleaseCertificate | None:
    """Return the certificate if its model was paid for once; None for one each of whose answers is paid for."""
    return cast(ReleaseCertificate, certificate) if kind_of(certificate).answers == "once" else None


def trainable_kinds() -> Mapping[str, Kind]:
    """Return by name the kinds that a request for training can ask for: all but those with their own command."""
    return {name: kind for name, kind in all_kinds().items() if kind.command == "train"}


def kind_for(options: Options) -> Kind:
    """Return the kind that has these options. Raises TrainingError for what no kind has."""
    found = next((kind for kind in all_kinds().values() if kind.options is type(options)), None)
    if found is None:
        raise TrainingError(f"no kind of model has options like {options!r}")
    return found


def train_and_save(options: Options, job: Job) -> ProvenCertificate:
    """Buy the features of the kind's steps; train and save a model with these options; return its certificate.

    Raises WrongOption for a price that is too small, and TrainingError.
    """
    kind = kind_for(options)
    job.progress.expect(lambda: expected_seconds(kind, options, job))
    steps = [step.at_share(job.feature_share or 0.0) for step in kind.steps if isinstance(step, FeatureStep)]
    if steps and job.price is not None:
        bought, left = buy_features(steps, job.records, job.feature_map, job.price, job.randomness)
        job = replace(job, feature_map=bought.feature_map, before=(*job.before, *bought.releases), price=left)
    job.progress.report(TRAINING, 0.0)
    certificate: ProvenCertificate = kind.train(job, options)
    return certificate
