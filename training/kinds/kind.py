"""What every kind of model says of itself, in one object: the registry has one of each, and callers ask it.

A kind's folder, `training/kinds/NAME/`, has its options, how it trains and loads, its model and certificate, what it
needs of the data, and what it cannot do, with the reason. Nothing outside of the folder names a kind or tests for its
classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from training.bundles.certificate import LambdaChoice
from training.features.maps import FeatureMap
from training.inputs.records import Records
from training.kinds.options import OptionField, Options, fields_of

Ability = Literal["units", "ray", "encoder", "choosing", "budget", "export", "intervals", "evaluation", "audit"]
"""What a kind may be unable to do.

units: protect all records of one person together. ray: train on a cluster. encoder: take an ONNX encoder's features.
choosing: have an option chosen by noisy scores. budget: have its options set by the planner. export: leave in a file.
intervals: say how far noise may have moved an answer. evaluation: be scored on public rows. audit: be attacked through
a service of its own.
"""

Answers = Literal["metered", "once"]
"""What the budget pays for: each answer, or the model, once."""


class TrainingProgress(Protocol):
    """Who shows how far a training is."""

    def minimising(self, goal: float, /) -> AbstractContextManager[Callable[[float], None]]:
        """Give a function that takes the gradient norm. goal: the norm to reach."""

    def steps_with_progress(self, steps: int, /) -> AbstractContextManager[Callable[[int], None]]:
        """Give a function that takes how many of the steps are done."""


@dataclass(frozen=True)
class Job:
    """What to train, and where. options: those that were given, by name. state: the folder of the owner's secrets.

    choice: how Lambda was chosen, where it was by results on the records.
    """

    records: Records
    name: str
    lineage: str
    feature_map: FeatureMap
    out: Path
    options: Mapping[str, Any]
    state: Path
    progress: TrainingProgress
    choice: LambdaChoice | None = None


class Kind(ABC):
    """A kind of model. name: its word in certificates and on command lines. sentence: what it is, for a person.

    options: its typed options. answers: what the budget pays for. asked_by: the option whose value asks for this kind,
    "release" for one that is asked for by its name, None for the one that is trained where nothing is asked for.
    beside_budget: options that an owner may set while the planner sets the others. lacks: what it cannot do, and why,
    each a sentence that says what to do instead.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    options: ClassVar[type[Options]]
    answers: ClassVar[Answers]
    asked_by: ClassVar[str | None] = "release"
    beside_budget: ClassVar[tuple[str, ...]] = ()
    lacks: ClassVar[Mapping[Ability, str]] = {}

    @property
    def fields(self) -> Mapping[str, OptionField]:
        """The declarations of its options, by name."""
        return fields_of(self.options)

    @property
    def choosable(self) -> tuple[str, ...]:
        """The options among whose values noisy scores may choose."""
        return tuple(name for name, field in self.fields.items() if field.declared.chosen_by_score)

    def lack(self, ability: Ability, given: Mapping[str, Any]) -> str | None:  # noqa: ARG002 - a kind may look
        """Return why it cannot do something with these options, as far as they are given; None where it can."""
        return self.lacks.get(ability)

    @abstractmethod
    def train(self, job: Job, options: Any) -> Any:
        """Train a model, save it as the bundle `job.out`, and return its certificate. options: of `self.options`.

        Raises TrainingError.
        """

    @abstractmethod
    def load(self, folder: Path, device: str | None) -> Any:
        """Read and verify a bundle of this kind; return the model. device: where an encoder computes.

        Raises BundleError saying what is missing, damaged or different.
        """
