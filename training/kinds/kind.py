"""The object that every kind of model has: the registry has one of each, and callers ask it.

A kind's folder, `training/kinds/NAME/`, has its options, how it trains and loads, its model and certificate, what it
needs of the data, and what it cannot do, with the reason. Nothing outside of the folder names a kind or tests for its
classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.accounting.messages import Message
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.randomness import Randomness, SystemRandomness
from dpserve.training.errors import NotExportable, TrainingError, WrongOption
from dpserve.training.features.maps import FeatureMap
from dpserve.training.fields import NAME
from dpserve.training.kinds.figures import Figures, pay_once_figures
from dpserve.training.kinds.likeness import Likeness
from dpserve.training.kinds.outputs import Outputs
from dpserve.training.kinds.planned import PlannedOption, PlanTerms
from dpserve.training.options import Options
from dpserve.training.pay_once.releases import Release
from dpserve.training.watchers import Watcher

if TYPE_CHECKING:
    from dpserve.training.bundles.certificate import ModelCertificate
    from dpserve.training.inputs.records import AnyRecords, Declaration, Records
    from dpserve.training.pay_once.certificate import ReleaseCertificate
    from dpserve.training.pay_once.chain import Step
    from dpserve.training.pay_once.classifier import ReleasedClassifier
    from dpserve.training.pay_once.model import ReleasedModel

Ability = Literal[
    "units", "ray", "encoder", "export", "intervals", "evaluation", "audit", "sets", "canaries", "quantiles"
]
"""Abilities that a kind may lack.

units: protect all records of one person together. ray: train on a cluster. encoder: take an ONNX encoder's features.
export: leave in a file. intervals: say how far noise may have moved an answer. evaluation: be scored on public rows.
audit: be attacked through a service of its own. sets: have prediction sets. canaries: measure what training tells by
made records in it. quantiles: cut numbers at the records' noisy quantiles.
"""

_STEPS: Mapping[Ability, str] = {"sets": "counts", "quantiles": "quantiles"}
"""Abilities of a training that has a step of this name."""

NEEDED_N = (
    "about how many records there are, as a number that may be public; counting them would say whether one is there"
)

_ROWS = 64

Answers = Literal["metered", "once"]
"""The thing that the budget pays for: each answer, or the model, once."""


@dataclass(frozen=True)
class Terms:
    """The declared part of a training: all that its rules and defaults may look at. Nothing is of the records.

    feature_map: as it was declared, although the training may have bought another. unit: the column of privacy units.
    price, n: as of `Job`.
    """

    name: str
    declaration: "Declaration"
    unit: str | None
    feature_map: FeatureMap
    price: int | None
    n: int | None


@dataclass(frozen=True)
class Job:
    """A model to train."""

    records: "AnyRecords"
    name: str
    lineage: str
    feature_map: FeatureMap
    out: Path
    state: Path
    """The folder of the owner's secrets."""
    progress: Watcher
    price: int | None = None
    """The price of the model, in picorho; None where each answer is paid for."""
    n: int | None = None
    """About how many records there are, as their owner declared; None where that is not said."""
    before: tuple[Release, ...] = ()
    """Released of the records for the feature map."""
    randomness: Randomness = field(default_factory=SystemRandomness)
    """Coins and noise of the training."""
    held: int = 0
    """Number of records that are held back for prediction sets."""
    feature_share: float | None = None
    """The share of the price that the map buys; None where nobody asked for features, and the planner chooses them."""

    @property
    def terms(self) -> Terms:
        """The declared part of it, for rules."""
        records = self.records
        return Terms(self.name, records.declaration, records.unit, self.feature_map.declared, self.price, self.n)

    @property
    def model_price(self) -> int:
        """The price of a model that is paid for once. Raises WrongOption where none is said."""
        return needed_price(self.price)

    @property
    def record_count(self) -> int:
        """The declared number of records. Raises WrongOption where none is said."""
        return declared_count(self.n)


def needed_price(price: int | None) -> int:
    """Return a price. Raises WrongOption where none is said."""
    if price is None:
        raise WrongOption("epsilon", "is needed", remedy=Message("what all answers together cost, at {delta}"))
    return price


def declared_count(n: int | None) -> int:
    """Return the declared number of records. Raises WrongOption where none is said."""
    if n is None:
        raise WrongOption("n", "is needed", remedy=NEEDED_N)
    return n


TrainAlike = Callable[["Records", Randomness], "ReleasedModel"]
"""Trains a pay-once model. Raises TrainingError and ValueError where the records allow none."""


class Described(Protocol):
    """A declaration, or a certificate: what is known of a model before and after it is trained."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The declared classes of the records."""
        ...


NO_FORM = "this kind of model has no form to be taken away in"

NOT_PRIVATE_ITSELF = (
    "it is not private: whoever had its weights would learn more of the records than was ever paid for. Serve it, or "
    "train a pay-once model, which may be taken away"
)
NO_EVALUATION = (
    "its answers are paid for one by one, and its exact weights are private: one record that it was trained on could "
    "change every answer here, which no noise on the counts hides. Train a pay-once model on these records, and "
    "evaluate that"
)
NO_SETS = (
    "are for pay-once models: of a model each of whose answers is paid for, what is counted of the records held back "
    "would be answers that nobody has paid for"
)
NO_QUANTILES = Message(
    "has quantiles for pay-once models alone: a model each of whose answers is paid for has no price that they could "
    "be part of. Take bins, or {quantile_share:0} for even cuts"
)
NO_CANARIES = (
    "measure noise that is drawn in training, on coordinates of their own; each answer of this kind has noise of "
    "its own instead, which `dpserve audit service` and `dpserve attack` measure"
)
NO_NOISE_TO_AUDIT = "its noise was drawn once, when it was trained: no answer has noise of its own to audit"


WITHOUT_CLASSES: Mapping[Ability, str] = {
    "export": "its answers are no probabilities of classes, and files have no other form yet",
    "evaluation": "its answers are no probabilities of classes, by which held-out records are scored",
    "sets": "are sets of classes, and its answers are no probabilities of classes",
}
"""Abilities that a kind lacks whose answers are other than probabilities of classes."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Exact numbers of a model, which stay with its owner: one record moves each row by at most `most`.

    values: (k,), or rows (n, k). most: a number, or one for each row. order: of the norm, 2 or infinity.
    """

    name: str
    values: Floats
    most: float | Floats
    order: float = 2


class Kind(ABC):
    """A kind of model. name: its word in certificates and on command lines. sentence: what it is, for a person.

    table_title: what a table of its certificate is called, before the model's name. options: its typed options.
    answers: what the budget pays for. command: that which trains it. needs_n: whether it needs to know about how
    many records there are. centred_images: whether its images are centred, as suits noise on each answer. limitations:
    what it cannot do whatever its options are, each with why, and what to do instead; `limitation` is what to ask.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    options: ClassVar[type[Options]]
    answers: ClassVar[Answers]
    command: ClassVar[str] = "train"
    table_title: ClassVar[str] = "certificate of"
    needs_n: ClassVar[bool] = False
    centred_images: ClassVar[bool] = False
    limitations: ClassVar[Mapping[Ability, str]] = {}

    def limitation(self, ability: Ability, options: Options | None = None) -> str | None:  # noqa: ARG002 - a kind may look
        """Return why it cannot do something with these options, where they are known; None where it can."""
        step, reason = _STEPS.get(ability), None
        if step is not None and all(each_step.name != step for each_step in self.steps):
            reason = f"needs a step {step!r}, and a training of {self.name} has none"
        return self.limitations.get(ability, reason)

    def check_installed(self) -> None:  # noqa: B027 - most kinds need nothing
        """Raise MissingExtra, before any record is read, for an optional dependency that training needs."""

    @property
    def steps(self) -> "Sequence[Step]":
        """The steps of its training, each a release, in their order; none where each answer is paid for."""
        return ()

    @abstractmethod
    def train(self, job: Job, options: Any) -> Any:
        """Train a model, save it as the bundle `job.out`, and return its certificate. options: of `self.options`.

        Raises TrainingError.
        """

    def shortened(self, job: Job, options: Any, share: float) -> tuple[Any, Mapping[str, tuple[float, float]]]:  # noqa: ARG002
        """Return options of a training like the job's on a share of its records, to foretell what the job's takes.

        Beside them for phases how many times as long the job's take: what its sums over records do, and all else.
        """
        return options, {}

    @abstractmethod
    def load(self, folder: Path, device: str | None) -> Any:
        """Read and verify a bundle of this kind; return the model. device: where an encoder computes.

        Raises BundleError saying what is missing, damaged or different.
        """

    def outputs(self, described: Described) -> Outputs:
        """Return the fields of an answer: the probability of each class, for most. described: by what it is trained."""
        return Outputs.of_classes(described.classes)

    @property
    def planned(self) -> Sequence[PlannedOption]:
        """The options that the planner may recommend, the simplest first; none for a kind that is not planned."""
        return ()

    def planned_sensitivity(self, certificate: Any) -> float:
        """Return the L2 sensitivity of the logits of a row of length 1, by which noise on each answer is planned.

        Raises TrainingError where none is.
        """
        raise TrainingError(
            f"{certificate.name} is of the kind {self.name!r}, and noise on each answer is planned for a head alone"
        )

    def settings(self, option: PlannedOption, plan: PlanTerms) -> Options:  # noqa: ARG002 - a kind may look
        """Return the options that train what is planned: what the planner sets in the owner's place."""
        return self.options(**option.settings)

    def planned_without_intervals(self, option: PlannedOption, plan: PlanTerms, classes: int) -> str | None:  # noqa: ARG002
        """Return why answers of what is planned, of so many classes, come without intervals; None where they have."""
        return self.limitation("intervals")

    def check_planned(
        self, option: PlannedOption, n: int, whole: int, declaration: "Declaration", feature_map: FeatureMap
    ) -> None:
        """Raise ValueError or TrainingError where an option cannot be had for n records at a price in picorho."""
        del option, n, whole, declaration, feature_map  # a kind without limits of its own can always be had

    def figures(self, certificate: Any) -> Figures:
        """Return what its certificate says, in words: what each figure is, and its value."""
        return pay_once_figures(certificate, self.outputs(certificate))

    def likeness(self, public: Mapping[str, Any], records: int) -> Likeness:  # noqa: ARG002 - a kind may look
        """Return what an attacker with so many records would train in a model's likeness; by default a linear head.

        public: the public part of its certificate, which is all that the attacker sees.
        """
        return Likeness()

    def trainer_alike(self, public: Mapping[str, Any], feature_map: FeatureMap) -> "TrainAlike | None":  # noqa: ARG002
        """Return what trains models of other records as the one with this certificate was; None where nobody can tell.

        public: the public part of its certificate. feature_map: its own, or as near as strangers come to it.
        """
        return None

    @property
    def certificate_type(self) -> "type[ModelCertificate]":
        """Return the type of its certificates: by default that of a certified head."""
        from dpserve.training.bundles.certificate import Certificate

        return Certificate

    def bounded(self, model: Any) -> "Sequence[Bounded]":  # noqa: ARG002 - a metered kind looks
        """Return the exact numbers that stay with the owner; none of a model that is private itself."""
        return ()

    def claims(self, certificate: Any) -> Sequence[tuple[str, str, str]]:  # noqa: ARG002 - most kinds claim nothing
        """Return what is claimed without a proof: what it is, its value, and where it is claimed. Nothing for most."""
        return ()

    def check_mechanism(self, model: Any, mechanism: Mechanism, *, accept_unproven: bool) -> None:
        """Raise TrainingError if answers of this kind cannot have this mechanism's noise."""
        del model, mechanism, accept_unproven  # every mechanism that has a proof suits a kind that has one

    def classifier(self, model: Any) -> "ReleasedClassifier":
        """Return what a pay-once model computes, for export. A kind without this has no export."""
        raise NotExportable(f"{model.certificate.name}: {self.limitation('export') or NO_FORM}")


class MeteredKind(Kind):
    """A kind each of whose answers gets noise and is paid for: its models are
    `dpserve.training.exact.questions.MeteredModel`s.

    Its exact weights are private, so that nothing of them leaves, and nothing is told of them.
    """

    answers = "metered"
    limitations: ClassVar[Mapping[Ability, str]] = {
        "export": NOT_PRIVATE_ITSELF,
        "evaluation": NO_EVALUATION,
        "sets": NO_SETS,
        "canaries": NO_CANARIES,
        "quantiles": NO_QUANTILES,
    }

    def bounded(self, model: Any) -> "Sequence[Bounded]":
        """Return the exact numbers whose bounds the noise of answers follows from: by default logits of some rows."""
        lower, upper = map(np.asarray, (model.certificate.feature_map.lower, model.certificate.feature_map.upper))
        phi = model.features(np.random.default_rng(0).uniform(lower, upper, (_ROWS, len(lower))))
        return (Bounded("logits", model.logits(phi), model.logit_sensitivity(phi)),)


class PayOnceKind(Kind):
    """A kind that is private itself and paid for once: its models are `dpserve.training.pay_once.model.ReleasedModel`s.

    Its certificate extends `dpserve.training.pay_once.certificate.ReleaseCertificate`, with the kind's name as
    `release`."""

    answers = "once"
    limitations: ClassVar[Mapping[Ability, str]] = {"audit": NO_NOISE_TO_AUDIT}

    @property
    @abstractmethod
    def certificate_type(self) -> "type[ReleaseCertificate]":
        """The type of its certificates, whose `STEPS` are the steps of its training."""

    @property
    def steps(self) -> "Sequence[Step]":
        """Return the steps that its certificates name."""
        return self.certificate_type.STEPS


def problems_of(kind: object) -> Iterator[str]:
    """Yield what is wrong with what should be a kind: of its name, sentence, options and what it lacks."""
    if not isinstance(kind, Kind):
        yield f"it is no Kind, but {kind!r}"
        return
    missing = [name for name in ("name", "sentence", "options", "answers") if not hasattr(kind, name)]
    if missing:
        yield f"it lacks {', '.join(missing)}"
        return
    if not NAME.fullmatch(kind.name):
        yield f"{kind.name!r} is no name: letters, digits, '.', '_' and '-', at most 64"
    if not kind.sentence.strip():
        yield "it has no sentence that says what it is"
    if not (isinstance(kind.options, type) and issubclass(kind.options, Options)):
        yield "its options are no class of Options"
        return
    for name, made in kind.options.model_fields.items():
        if not (made.description or "").strip():
            yield f"its option {name} has no sentence"
    for ability, reason in kind.limitations.items():
        if ability not in get_args(Ability) or not reason.strip():
            yield f"it lacks {ability!r}, which is no ability, or has no reason"
