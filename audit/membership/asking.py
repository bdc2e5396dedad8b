"""Asking: rows through one or more keys, in batches, from the journal where they were answered before.

Running out of budget is a result: what was answered until then is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.endpoint import Endpoint, Exhausted
from audit.membership.journal import Journal

Floats = NDArray[np.float64]

_TURNS = 32
"""Into how many requests several keys divide their rows at least."""

OnRows = Callable[[int], None]
"""Told how many more rows were answered."""


@dataclass(frozen=True, eq=False)
class Answered:
    """What came back. answers: (keys, n, C), NaN where there is none. exhausted: whose budgets ran out, in order."""

    answers: Floats
    exhausted: tuple[str, ...]


def ask(endpoints: Sequence[Endpoint], rows: Floats, journal: Journal, *, on_rows: OnRows = lambda _: None) -> Answered:
    """Ask every key about every row, in order. rows: (n, d), or (keys, n, d), each key's own. Raises EndpointError.

    Several keys take turns, a batch each, so that where the account they share ends they were answered about nearly the
    same rows.
    """
    classes = len(endpoints[0].model()["classes"])
    each = np.broadcast_to(rows, (len(endpoints), *rows.shape[-2:]))
    answers = np.full((*each.shape[:2], classes), np.nan)
    turns = [
        _Turns(key, endpoint, each[key], answers[key], journal, on_rows, _batch(endpoint, each.shape[1], len(each)))
        for key, endpoint in enumerate(endpoints)
    ]
    going = turns
    while going:
        going = [one for one in going if one.take()]
    return Answered(answers, tuple(f"key {one.key + 1}: {one.gone}" for one in turns if one.gone is not None))


def _batch(endpoint: Endpoint, rows: int, keys: int) -> int:
    """Return how many rows one request has: as many as it may, but for keys that take turns."""
    largest = int(endpoint.model()["largest_batch"])
    return largest if keys == 1 else min(largest, max(1, -(-rows // _TURNS)))


class _Turns:
    """One key's way through the rows: `answers` (n, C) are filled in from the journal, and then a batch at a time."""

    def __init__(
        self,
        key: int,
        endpoint: Endpoint,
        rows: Floats,
        answers: Floats,
        journal: Journal,
        on_rows: OnRows,
        size: int,
    ) -> None:
        self.key = key
        self.gone: str | None = None
        self._endpoint, self._rows, self._answers = endpoint, rows, answers
        self._journal, self._on_rows, self._size = journal, on_rows, size
        self._waiting = []
        for index, row in enumerate(rows):
            known = journal.get(key, row)
            if known is None:
                self._waiting.append(index)
            else:
                answers[index] = known
        on_rows(len(rows) - len(self._waiting))

    def take(self) -> bool:
        """Ask about the next rows; return whether there may be more to ask about. `gone` says whose budget ran out."""
        while self._waiting and self.gone is None:
            batch = self._waiting[: self._size]
            try:
                found = self._endpoint.answers(self._rows[batch])
            except Exhausted as refusal:
                left = self._endpoint.budget()["queries_left"]
                # The account may say more than another key leaves: halve until one row is refused.
                self._size = min(len(batch) // 2, len(batch) - 1 if left is None else int(left))
                if self._size < 1:
                    self.gone = refusal.scope
                continue
            self._waiting = self._waiting[len(batch) :]
            self._journal.add(self.key, self._rows[batch], found)
            self._answers[batch] = found
            self._on_rows(len(batch))
            return True
        return False
