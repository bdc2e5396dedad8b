"""The planner's regret: how far the log loss of what it takes lies above that of the best option by hand.

The planner is asked about tables that it does not know, by their public numbers alone, as `dpserve train --budget`
asks it. The best by hand is the option of the least measured log loss of all that were measured on the table, chosen
after the fact on the rows that it is judged on: a hard rival, for noise makes the least of several look better than it
is. Options that are one on a table (`research.planning.alike`) share their seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.budgets import Budget
from research.planning.alike import Alike
from research.planning.measurements import Line
from research.planning.summaries import Cell, cells_of
from training.planning.measured import PublicSet
from training.planning.options import DELTA
from training.planning.recommendation import by_rule


@dataclass(frozen=True)
class Regret:
    """The planner's choice on a table at an epsilon. inside: whether the figure lies in what was quoted; None: not."""

    table: str
    epsilon: float
    chosen: str
    log_loss: float
    accuracy: float
    best: str
    best_log_loss: float
    quoted: tuple[float, float] | None

    @property
    def regret(self) -> float:
        """Log loss above that of the best by hand."""
        return self.log_loss - self.best_log_loss

    @property
    def inside(self) -> bool | None:
        """Whether the accuracy lies in the range that was quoted; None where none was."""
        return None if self.quoted is None else self.quoted[0] <= self.accuracy <= self.quoted[1]


def regrets(lines: Iterable[Line], sets: Mapping[str, PublicSet], alike: Alike) -> Sequence[Regret]:
    """Return the planner's regret on each of these tables, at each epsilon that was measured."""
    cells = cells_of(lines, alike)
    found = []
    for name, public in sets.items():
        for epsilon in sorted({float(key[2]) for key in cells if key[0] == name}):
            here = {key[1]: cell for key, cell in cells.items() if key[0] == name and float(key[2]) == epsilon}
            whole = Budget.from_epsilon_delta(epsilon, DELTA, "gaussian").limit
            taken, similar = by_rule(public.n, public.classes, whole, None, "table")
            if taken.option not in here:
                continue
            losses = {option: _mean(cell, "log_loss") for option, cell in here.items()}
            best = min(losses, key=lambda option: losses[option])
            quoted = next((each.accuracy for each in similar.expected if each.option == taken.option), None)
            found.append(
                Regret(
                    name,
                    epsilon,
                    taken.option,
                    losses[taken.option],
                    _mean(here[taken.option], "accuracy"),
                    best,
                    losses[best],
                    None if quoted is None else (quoted.lowest, quoted.highest),
                )
            )
    return found


def _mean(cell: Cell, name: str) -> float:
    value = cell.mean(name)
    return float("inf") if value is None else value
