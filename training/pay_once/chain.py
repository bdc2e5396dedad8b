"""A training as a chain of steps, each of which buys one release of the records with a part of the price.

    split -> features -> the kind's own steps -> calibration -> counts of the records held back -> sealing

A kind's certificate declares its steps, in their order (`ReleaseCertificate.STEPS`). Those of features come first, as
what follows depends on how many coordinates a row has. A step says by public numbers what it takes of a price; one that
takes nothing is left out, and then the certificate has no release of its name. To add an optional step: write it, and
name it in a certificate's `STEPS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.mechanisms.gaussian_vector import mu_for
from dpserve.mechanisms.randomness import Randomness
from dpserve.mechanisms.tapes import during
from dpserve.training.pay_once.releases import TRAINING, RecordsPart, Release
from dpserve.training.watchers import OnShare

if TYPE_CHECKING:
    from dpserve.training.features.maps import FeatureMap
    from dpserve.training.inputs.records import AnyRecords, Declaration
    from dpserve.training.pay_once.certificate import ReleaseCertificate


class Step(ABC):
    """A step of a training. name: that of its release. part: the records that it looks at.

    is_needed: whether there is no model without it. The docstring of a subclass proves its `cost`.
    """

    name: ClassVar[str]
    part: ClassVar[RecordsPart] = TRAINING
    is_needed: ClassVar[bool] = False

    @abstractmethod
    def cost(self, mu: float, certificate: "ReleaseCertificate") -> Cost:
        """Return the cost that the step's proof gives a release of mu, from the certificate's other numbers.

        Raises ValueError where it gives none.
        """

    def is_needed_by(self, certificate: "ReleaseCertificate") -> bool:  # noqa: ARG002 - a step may look
        """Return whether a model with this certificate cannot be without the step's release."""
        return self.is_needed

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the step's proof, beside those of every pay-once model."""
        return ()

    @property
    def proof(self) -> str:
        """The place of the proof: the class whose docstring it is."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def bought(self, cost: Cost) -> Release:
        """Return the step's release at a cost."""
        return Release(name=self.name, cost=str(cost), part=self.part)


class FeatureStep(Step):
    """A step that makes a feature map of what it releases: for what follows the map is then a public function."""

    def at_share(self, share: float) -> Self:  # noqa: ARG002 - a step may look
        """Return the step for features that have a share of the price."""
        return self

    @abstractmethod
    def share(self, price: int, declaration: "Declaration", feature_map: "FeatureMap") -> int:
        """Return what the step takes of a price, both in picorho; 0 where this map needs no release.

        feature_map: as it was declared. Raises WrongOption or TrainingError where it cannot be had.
        """

    @abstractmethod
    def run(
        self, records: "AnyRecords", feature_map: "FeatureMap", share: int, price: int, randomness: Randomness
    ) -> tuple["FeatureMap", Release]:
        """Return the new map, and what was released for it. share: of the price, which is what all may cost."""

    def shown_to_strangers(self, feature_map: dict[str, Any]) -> dict[str, Any]:
        """Return what may be shown of the map to who has not paid for the release: what is declared of every map.

        feature_map: as the types of its fields show it. They do not know which step decided them, as the step does.
        """
        return {name: value for name, value in feature_map.items() if name in ("kind", "lower", "upper", "columns")}


State = TypeVar("State")


@dataclass(frozen=True)
class PublicNumbers:
    """The numbers that rules look at, and nothing else: none was read off the records, or released of them.

    feature_map: as it was declared, whichever is given. n: about how many records there are, None where that was not
    declared. choices: the kind's own.
    """

    classes: int
    feature_map: "FeatureMap"
    n: int | None = None
    choices: Any = None

    def __post_init__(self) -> None:
        """Take the map that was declared: the coordinates of one that was made of records tell of them."""
        object.__setattr__(self, "feature_map", self.feature_map.declared)


class ModelStep(Step, Generic[State]):
    """A step of a model's training: a state in, the next one out, with the noise of the certificate's release."""

    def share(self, price: int, numbers: PublicNumbers) -> int | None:  # noqa: ARG002 - a step may look
        """Return what the step takes of a price, both in picorho: 0 to be left out, None for all that others leave.

        Raises ValueError for a price that is too small.
        """
        return None

    def release(self, mu: float) -> Release:
        """Return the step's release of mu."""
        return self.bought(Cost((GaussianLoss(mu),)))

    @abstractmethod
    def run(self, state: State, release: Release, randomness: Randomness) -> State:
        """Return the state after the step."""


@dataclass(frozen=True)
class BoughtFeatures:
    """A feature map, and what was released of the records for it."""

    feature_map: "FeatureMap"
    releases: tuple[Release, ...] = ()


def buy_features(
    steps: Iterable[FeatureStep], records: "AnyRecords", feature_map: "FeatureMap", price: int, randomness: Randomness
) -> tuple[BoughtFeatures, int]:
    """Return the features that the steps make of a map, and what is left of the price, in picorho."""
    made, left = BoughtFeatures(feature_map), price
    for step in steps:
        share = step.share(left, records.declaration, made.feature_map.declared)
        if not share:
            continue
        with during(step.name, randomness):
            changed, release = step.run(records, made.feature_map, share, left, randomness)
        made, left = replace(made, feature_map=changed, releases=(*made.releases, release)), left - share
    return made, left


def divided(steps: Iterable[Step], price: int, numbers: PublicNumbers) -> tuple[Release, ...]:
    """Return the releases that a model's steps buy with a price, in picorho, which cost at most that together.

    From the last step to the first each takes its share of what is left. Raises ValueError for a price that is too
    small.
    """
    own = [step for step in steps if isinstance(step, ModelStep)]
    parts: dict[str, int] = {}
    for step in reversed(own):
        if (share := step.share(price, numbers)) is not None:
            parts[step.name] = share
            price -= share
    if len(rest := [step.name for step in own if step.name not in parts]) > 1:
        raise ValueError(f"{' and '.join(rest)} each take all that other steps leave")
    parts |= dict.fromkeys(rest, price)
    return tuple(step.release(mu_for(parts[step.name])) for step in own if parts[step.name])


def run(
    steps: Iterable[Step],
    state: State,
    certificate: "ReleaseCertificate",
    randomness: Randomness,
    report: OnShare = lambda _, __: None,
) -> State:
    """Return the state after the steps of a model that the certificate, made before, has releases of.

    report: is told when a step begins and ends, by its name and the share of it that is done.
    """
    for step in steps:
        release = certificate.release_of(step)
        if isinstance(step, ModelStep) and release is not None:
            report(step.name, 0.0)
            with during(step.name, randomness):
                state = step.run(state, release, randomness)
            report(step.name, 1.0)
    return state


def check(steps: Sequence[Step], releases: Sequence[Release], certificate: "ReleaseCertificate") -> None:
    """Raise ValueError unless the releases are those of the steps, in their order, each at the cost that is proved."""
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        raise ValueError("two steps of the training have one name")
    names = [release.name for release in releases]
    if names != [name for name in by_name if name in names]:
        raise ValueError(f"the releases {', '.join(names)} are not, in this order, steps of {', '.join(by_name)}")
    if lacks := [step.name for step in steps if step.name not in names and step.is_needed_by(certificate)]:
        raise ValueError(f"there is no release of {', '.join(lacks)}")
    for release in releases:
        step: Any = by_name[release.name]
        if release.part != step.part:
            raise ValueError(f"{release.name} is released of the records that are {step.part}")
        if release.price != step.cost(release.mu, certificate):
            raise ValueError(f"the release of {release.name} does not cost {release.cost!r}")
