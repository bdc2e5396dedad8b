"""The planner's view of a kind: options to train it with, each tried as an owner's command would run it.

To try one is to run the trainer and the mechanism, its noise from the same tables, with the public rules of
`dpserve.training.features.rules` and seeded randomness in place of the system's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from dpserve.accounting.arrays import Floats
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features.rules import FeatureRule, Modality

if TYPE_CHECKING:
    from dpserve.mechanisms.answer_noise import AnyNoise
    from dpserve.training.kinds.cases import Case, Heads, Quality
    from dpserve.training.pay_once.chain import BoughtFeatures

UNLIMITED = "unlimited"

Pays = Literal["each answer", "once"]
Qualities = dict[str, "Quality | None"]
"""Qualities by number of queries, or `UNLIMITED`, which holds for every number. None: the mechanism refuses to."""


@dataclass(frozen=True)
class Trial:
    """One cell's question: a case, a budget in all, in picorho, and numbers of queries. label: what noise follows."""

    heads: "Heads"
    whole: int
    label: str
    queries: Sequence[int] = ()

    @property
    def case(self) -> "Case":
        """The records and the rows."""
        return self.heads.case

    def bought(self, features: FeatureRule) -> "tuple[BoughtFeatures, int]":
        """Return the map of an option, its quantiles bought if it has such, and what is left of the budget."""
        from dpserve.training.pay_once.chain import buy_features
        from dpserve.training.pay_once.cuts import CUTS

        steps = (CUTS,) if features == "quantiles" else ()
        records, words = self.case.records, self.randomness("quantiles")
        return buy_features(steps, records, self.heads.feature_map(features), self.whole, words)

    def paid_once(self, probabilities: Floats, noise: "AnyNoise | None" = None) -> Qualities:
        """Return the quality of a pay-once model's answers (m, C), with the size that prediction sets would have."""
        from dpserve.mechanisms.gaussian_vector import mu_for
        from dpserve.training.kinds.cases import SETS_COVERAGE
        from dpserve.training.pay_once.prediction_sets import expected_share, mean_size

        share = expected_share(len(self.case.y), mu_for(self.whole), SETS_COVERAGE)
        size = mean_size(probabilities, self.case.answers, share)
        return {UNLIMITED: replace(self.case.quality(probabilities, noise), set_size=size)}

    def randomness(self, *purpose: str) -> SeededRandomness:
        """Words for one purpose of this cell."""
        return SeededRandomness(self.case.seed, (self.case.name, self.label, *purpose))


CUT: tuple[Modality | None, ...] = ("table", "presence")
"""Rows whose numbers can be cut. Pay-once models have cuts of them: bins did worse on every table."""
NOT_CUT: tuple[Modality | None, ...] = ("images", "text", None)
IMAGES: tuple[Modality | None, ...] = ("images",)
"""Rows with edges and shades."""


@dataclass(frozen=True)
class PlannedOption:
    """One way to answer, and how it is trained. title: for tables; pays: for what the budget pays.

    release: the kind's name. features: which map, by the rules. settings: options besides.
    suits: modalities of rows that it is tried on; None for all. default_for: those that get it by rule;
    many_classes: the modalities of which it is the default from so many classes on.
    fallback: the order in which it is tried where what would come first cannot be had; None for never.
    """

    name: str
    title: str
    pays: Pays
    qualities: Callable[[Trial], Qualities]
    release: str
    features: FeatureRule
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    fallback: int | None = None
    suits: tuple[Modality | None, ...] | None = None
    default_for: tuple[Modality | None, ...] = ()
    many_classes: Mapping[Modality | None, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class PlanTerms:
    """A plan for options. n: declared; share: in picorho, of the model or of each answer."""

    n: int
    share: int
