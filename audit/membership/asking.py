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

OnRows = Callable[[int], None]
"""Told how many more rows were answered."""


@dataclass(frozen=True, eq=False)
class Answered:
    """What came back. answers: (keys, n, C), NaN where there is none. exhausted: whose budgets ran out, in order."""

    answers: Floats
    exhausted: tuple[str, ...]


def ask(endpoints: Sequence[Endpoint], rows: Floats, journal: Journal, *, on_rows: OnRows = lambda _: None) -> Answered:
    """Ask every key about every row (n, d), in order. Raises EndpointError."""
    classes = len(endpoints[0].model()["classes"])
    answers = np.full((len(endpoints), len(rows), classes), np.nan)
    exhausted = []
    for key, endpoint in enumerate(endpoints):
        gone = _ask_one(key, endpoint, rows, journal, answers[key], on_rows)
        if gone is not None:
            exhausted.append(f"key {key + 1}: {gone}")
    return Answered(answers, tuple(exhausted))


def _ask_one(
    key: int, endpoint: Endpoint, rows: Floats, journal: Journal, answers: Floats, on_rows: OnRows
) -> str | None:
    """Fill in `answers` (n, C); return whose budget ran out, or None."""
    waiting = []
    for index, row in enumerate(rows):
        known = journal.get(key, row)
        if known is None:
            waiting.append(index)
        else:
            answers[index] = known
    on_rows(len(rows) - len(waiting))
    largest = int(endpoint.model()["largest_batch"])
    size = largest
    while waiting:
        batch, waiting = waiting[:size], waiting[size:]
        try:
            found = endpoint.answers(rows[batch])
        except Exhausted as refusal:
            waiting = batch + waiting
            left = endpoint.budget()["queries_left"]
            # The account may say more than another key leaves: halve until one row is refused.
            smaller = min(len(batch) // 2, len(batch) - 1 if left is None else int(left))
            if smaller < 1:
                return refusal.scope
            size = smaller
            continue
        journal.add(key, rows[batch], found)
        answers[batch] = found
        on_rows(len(batch))
    return None
