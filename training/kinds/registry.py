"""The one registry of kinds of models: a name, and the object that says everything of that kind.

A package of someone else's adds a kind by the entry point group `dpserve.kinds`, whose entries are `Kind` objects:

    [project.entry-points."dpserve.kinds"]
    ridge = "their_package.ridge:KIND"
"""

import functools
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, cast

from dpserve.accounting.messages import Message
from dpserve.training.bundles.certificate import ModelCertificate, ProvenCertificate
from dpserve.training.bundles.sealing import DEFAULT_KIND, UNPROVEN_KIND
from dpserve.training.errors import TrainingError, WrongOption
from dpserve.training.kinds.kind import Job, Kind
from dpserve.training.kinds.options import OptionField
from dpserve.training.pay_once.certificate import ReleaseCertificate
from dpserve.training.pay_once.model import ReleasedModel

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
    for point in entry_points(group=ENTRY_POINTS):
        kind = point.load()
        if not isinstance(kind, Kind):
            raise TrainingError(f"the entry point {point.name!r} of {ENTRY_POINTS} is not a Kind, but {kind!r}")
        register(kind)


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


def default_kind() -> Kind:
    """Return the kind that is trained where none is asked for."""
    return next(kind for kind in all_kinds().values() if kind.asked_by is None)


def release_names() -> tuple[str, ...]:
    """Return the names of the kinds that are asked for by name."""
    return tuple(name for name, kind in all_kinds().items() if kind.asked_by == "release")


def trainable_kinds() -> Mapping[str, Kind]:
    """Return by name the kinds that a request for training can ask for: all but those with their own command."""
    return {name: kind for name, kind in all_kinds().items() if kind.asked_by in ("release", None)}


def takers(option: str) -> tuple[Kind, ...]:
    """Return the kinds that take an option, for help and errors."""
    return tuple(kind for kind in trainable_kinds().values() if option in kind.fields)


def option_fields() -> Mapping[str, OptionField]:
    """Return the declaration of each option of any kind that can be asked for; of several the first kind's."""
    fields: dict[str, OptionField] = {}
    for kind in trainable_kinds().values():
        fields = {**kind.fields, **fields}
    return fields


def values_of(kind: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as values of their declarations: those of the kind, and of an option that it lacks another's.

    Raises WrongOption for a value that its declaration does not allow.
    """
    fields = {**option_fields(), **(default_kind() if kind is None else kind_named(kind)).fields}
    return {name: fields[name].value_of(value) if name in fields else value for name, value in given.items()}


def check(kind: str | None, given: Mapping[str, Any]) -> None:
    """Raise WrongOption for options that a kind does not take, that it needs and lacks, or whose values are wrong."""
    made = default_kind() if kind is None else kind_named(kind)
    check_taken(made, given)
    made.options.from_given(given)


def check_taken(kind: Kind, given: Mapping[str, Any]) -> None:
    """Raise WrongOption for an option that a kind does not take, naming those that do."""
    for name, value in given.items():
        if name not in kind.fields:
            raise WrongOption(name, Message("goes with {}", asked_for(takers(name))), value=value)


def asked_for(kinds: Sequence[Kind]) -> Message:
    """Return how kinds are asked for."""
    releases = [kind.name for kind in kinds if kind.asked_by == "release"]
    parts: list[str] = ["a head"] * any(kind.asked_by is None for kind in kinds)
    listed = " or ".join(filter(None, (", ".join(releases[:-1]), *releases[-1:])))
    parts += [Message("{release:{}}", listed)] * bool(releases)
    return Message(" or ").join(parts)


def train_and_save(kind: str | None, job: Job) -> ProvenCertificate:
    """Train and save a model; return its certificate. kind: its name; None for the one where none is asked for.

    Raises WrongOption, as `check` does, and TrainingError.
    """
    made = default_kind() if kind is None else kind_named(kind)
    check_taken(made, job.options)
    certificate: ProvenCertificate = made.train(job, made.options.from_given(job.options))
    return certificate
