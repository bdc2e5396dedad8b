"""The plan of a reproduction and its results, as values."""

import math
from dataclasses import dataclass, field
from typing import Literal

from dpserve.training.devices import Device
from dpserve.training.kinds.published.bounds import OBJECTIVES, Objective
from research.lu2022 import printed

Head = Literal["certified", "convexified"]
"""The certified head on the sum of losses, and on the convexified objective."""

Status = Literal["proven", "unproven"]

MATCHING_READING: Objective = "per-record-and-class"
"""The reading of the convexified loss under which Table V comes out; research/lu2022/README.md has the figures."""


@dataclass(frozen=True)
class Plan:
    """The part to rerun. n, alpha: the printed ones if None. device: where networks are trained."""

    dataset: str
    repeats: int = printed.REPEATS
    epsilons: tuple[float, ...] = printed.EPSILONS
    seed: int = 0
    reading: Objective = MATCHING_READING
    n: int | None = None
    alpha: float | None = None
    epochs: int = printed.EPOCHS
    device: Device = "cpu"

    def __post_init__(self) -> None:
        """Refuse nonsense before hours are spent on it."""
        printed.row(self.dataset)
        if self.repeats < 1 or self.epochs < 1:
            raise ValueError(f"repeats and epochs are at least 1, not {self.repeats} and {self.epochs}")
        if not all(math.isfinite(epsilon) and epsilon > 0 for epsilon in self.epsilons):
            raise ValueError("every epsilon must be positive and finite")
        if self.reading not in OBJECTIVES or self.reading == "cross-entropy":
            raise ValueError(f"the readings of the convexified loss are {', '.join(OBJECTIVES[1:])}")
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha must be positive and finite, not {self.alpha}")

    @property
    def printed_row(self) -> printed.Row:
        """The paper's figures for this set."""
        return printed.row(self.dataset)

    @property
    def records(self) -> int:
        """n."""
        return self.n if self.n is not None else self.printed_row.n

    @property
    def risk_factor(self) -> float:
        """alpha."""
        return self.alpha if self.alpha is not None else self.printed_row.alpha


@dataclass(frozen=True)
class Accuracies:
    """Accuracies with one training loss, one figure for each repeat."""

    objective: Objective
    alpha: float | None
    train: tuple[float, ...]
    test: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """Acc_Loss of one mechanism, and Priv_Leak if it was attacked: for each epsilon one figure for each repeat."""

    name: str
    status: Status
    losses: dict[float, tuple[float, ...]]
    leakage: dict[float, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """Everything that was rerun for one data set."""

    plan: Plan
    source: str
    accuracies: tuple[Accuracies, ...]
    curves: tuple[Curve, ...]
    leakage: tuple[float, ...] = ()
    """Priv_Leak of the network without noise, one figure for each repeat; empty where it was not attacked."""

    @property
    def baseline(self) -> tuple[float, ...]:
        """Each repeat's test accuracy of the convexified network: Eq. 31's baseline."""
        return next(a.test for a in self.accuracies if a.objective == self.plan.reading)
