"""Ranking options by what a simulation found of each: the rule's, unless another is a standard error better.

One standard error is no test: of eight options that are alike, chance puts one so far ahead in a third of the cases or
more, as the least is looked for among them. A wrong choice among options that are alike costs little.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from dpserve.training.kinds.cases import Quality
from dpserve.training.planning.options import option_named

HELD_OUT = 5
"""A simulation asks about one of so many rows, and trains on the others."""


@dataclass(frozen=True)
class Ranking:
    """The options of a simulation by their log loss. figures: of each, for every seed.

    default: the option that is taken unless another is a standard error better, if it is there.
    """

    figures: Mapping[str, Sequence[Quality]]
    default: str

    @property
    def least(self) -> str:
        """The option of the least mean log loss."""
        return min(self.figures, key=lambda name: fmean(self._losses(name)))

    def difference(self, one: str, other: str) -> tuple[float, float]:
        """Return the mean difference of two options' log losses, and its standard error.

        The seeds are splits of the same rows, which makes their figures alike: the variance of the mean of J splits is
        taken as (1/J + m/n) times the sample variance, m rows being asked for n trained on (Nadeau and Bengio 2003).
        One split has no error that is known: then it is infinite.
        """
        apart = [a - b for a, b in zip(self._losses(one), self._losses(other), strict=True)]
        if len(apart) < 2:
            return fmean(apart), math.inf
        return fmean(apart), stdev(apart) * math.sqrt(1 / len(apart) + 1 / (HELD_OUT - 1))

    @property
    def chosen(self) -> str:
        """The default, or the option of the least log loss where that is less by a standard error."""
        if self.default not in self.figures or self.least == self.default:
            return self.least
        apart, error = self.difference(self.default, self.least)
        return self.least if apart > error else self.default

    @property
    def order(self) -> str:
        """Why the option of the least log loss is not the chosen one; empty where it is."""
        if self.least == self.chosen:
            return ""
        apart, error = self.difference(self.chosen, self.least)
        return (
            f"{option_named(self.least).title} has the least log loss, {apart:.3f} less than "
            f"{option_named(self.chosen).title}. That is within a standard error, of {error:.3f}, so the default for "
            "such rows is recommended"
        )

    @property
    def undecided(self) -> str | None:
        """The option that chance may have put before or behind the chosen one, the nearest; None for none."""
        apart = {
            name: self.difference(name, self.chosen)
            for name in self.figures
            if name != self.chosen and option_named(name).pays == option_named(self.chosen).pays
        }
        close = {name: abs(mean) for name, (mean, error) in apart.items() if abs(mean) <= error < math.inf}
        return min(close, key=lambda name: close[name]) if close else None

    def _losses(self, name: str) -> list[float]:
        return [math.inf if quality.log_loss is None else quality.log_loss for quality in self.figures[name]]
