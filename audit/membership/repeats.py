"""Two ways to average noise away that only a metered endpoint meets, and what it makes of them.

The same question again gets the same answer, whoever asks: a replay, which says nothing new. A row next to it, a few
steps of the features away, is a new question with noise of its own, and pays like one.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.endpoint import Endpoint, Exhausted
from audit.membership.charges import price_of, spent_of

Floats = NDArray[np.float64]

TIMES = 1000
"""How often one row is asked about again."""

NEARNESS = 1e-4
"""How far a near-copy moves each value at most, as a share of the feature's range.

Far enough to be another question: features have steps of 2^-24, and cosines of 2^-16 turns. Near enough to be asked
about the same: noise is many times what so little moves the logits by.
"""


@dataclass(frozen=True)
class Replays:
    """One row asked about `times` more.

    answers: how many different ones came, with the one before. charged: what that cost; price: of a new answer, 0 where
    answers cost nothing because the model was paid for once. Both in picorho, the ledger's unit.
    """

    times: int
    answers: int
    charged: int
    price: int

    @property
    def averaging_is_free(self) -> bool:
        """Whether new noise came for less than its price: then its average costs less than what it tells.

        Every answer but the one before is new noise, and two that differ are not one release. So a service that charges
        for each charges at least (answers - 1) * price; one that forgot replays charges for them, too, and equal
        answers may have been paid for more than once. A model that was paid for once has one answer to a row.
        """
        if self.price == 0:
            return self.answers > 1
        return self.charged < (self.answers - 1) * self.price


def ask_again(endpoint: Endpoint, row: Floats, first: Floats, *, times: int = TIMES) -> Replays:
    """Ask about one row (d,), whose answer was `first` (C,), so many times more; fewer where the budget ends first.

    Raises EndpointError.
    """
    model = endpoint.model()
    size = min(times, int(model["largest_batch"]))
    before = spent_of(endpoint.budget())
    different = {first.tobytes()}
    asked = 0
    with suppress(Exhausted):
        while asked < times:
            again = endpoint.answers(np.tile(row, (min(size, times - asked), 1)))
            different |= {answer.tobytes() for answer in again}
            asked += len(again)
    return Replays(asked, len(different), spent_of(endpoint.budget()) - before, price_of(model))


def rows_of_keys(rows: Floats, copies: int, model: Mapping[str, Any], seed: int, names: Sequence[str]) -> Floats:
    """Return what each key asks about the rows (n, d): (keys, n * copies, d), `copies` rows for each.

    The first key asks about the rows themselves and copies - 1 next to each, the others about rows next to them alone:
    two keys that asked one question would get one answer. names: `Endpoint.name` of each key, from which its
    near-copies follow, so that nobody else asks these questions and the lineage cannot have paid for them before.
    """
    first = near_copies(rows, copies, model, seed)
    others = [
        np.delete(near_copies(rows, copies + 1, model, seed, name), np.s_[:: copies + 1], axis=0) for name in names[1:]
    ]
    return np.stack([first, *others])


def near_copies(rows: Floats, copies: int, model: Mapping[str, Any], seed: int, name: str = "") -> Floats:
    """Return each row (n, d) followed by copies - 1 rows next to it, within the model's bounds: (n * copies, d)."""
    lower, upper = (np.asarray(model["feature_map"][end]) for end in ("lower", "upper"))
    many = np.repeat(rows, copies, axis=0)
    if copies > 1:
        inwards = np.where(many > (lower + upper) / 2, -1.0, 1.0)
        moved = np.random.default_rng([seed, *name.encode()]).random(many.shape) * NEARNESS * (upper - lower)
        moved[::copies] = 0.0
        many = np.clip(many + inwards * moved, lower, upper)
    return many
