"""Two ways to average noise away that only a metered endpoint meets, and what it makes of them.

The same row again gets the same answer: a replay, which says nothing new. A row that differs in the last digits is a
new row, and pays like one.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.endpoint import Endpoint, Exhausted

Floats = NDArray[np.float64]

TIMES = 1000
"""How often one row is asked about again."""

NEARNESS = 1e-6
"""How far a near-copy moves each value at most, as a share of the feature's range."""


@dataclass(frozen=True)
class Replays:
    """One row asked about `times` more. answers: how many different ones came; charged: rho that it cost."""

    times: int
    answers: int
    charged: float

    @property
    def averaging_is_free(self) -> bool:
        """Whether new noise came without a charge: then its average is the exact answer, and no claim holds."""
        return self.answers > 1 and self.charged == 0


def ask_again(endpoint: Endpoint, row: Floats, first: Floats, *, times: int = TIMES) -> Replays:
    """Ask about one row (d,), whose answer was `first` (C,), so many times more; fewer where the budget ends first.

    Raises EndpointError.
    """
    size = min(times, int(endpoint.model()["largest_batch"]))
    before = float(endpoint.budget()["spent"]["rho"])
    different = {first.tobytes()}
    asked = 0
    with suppress(Exhausted):
        while asked < times:
            again = endpoint.answers(np.tile(row, (min(size, times - asked), 1)))
            different |= {answer.tobytes() for answer in again}
            asked += len(again)
    return Replays(asked, len(different), float(endpoint.budget()["spent"]["rho"]) - before)


def near_copies(rows: Floats, copies: int, model: Mapping[str, Any], seed: int) -> Floats:
    """Return each row (n, d) followed by copies - 1 rows next to it, within the model's bounds: (n * copies, d)."""
    lower, upper = (np.asarray(model["feature_map"][end]) for end in ("lower", "upper"))
    many = np.repeat(rows, copies, axis=0)
    if copies > 1:
        inwards = np.where(many > (lower + upper) / 2, -1.0, 1.0)
        moved = np.random.default_rng(seed).random(many.shape) * NEARNESS * (upper - lower)
        moved[::copies] = 0.0
        many = np.clip(many + inwards * moved, lower, upper)
    return many
