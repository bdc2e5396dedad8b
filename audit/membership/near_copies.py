"""The attack's rows for the test of noise: near-copies of a row that nobody was trained on, paid for like any other.

They lie next to a point that is drawn from the attack's seed. No decision about a candidate sees their answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpserve.accounting.arrays import Floats
from dpserve.audit.endpoint import Endpoint, served_mechanism
from dpserve.audit.membership.asking import AnswerJournal, ask
from dpserve.audit.membership.candidates import as_asked
from dpserve.audit.membership.plan import NEARNESS
from dpserve.audit.noise import (
    FEWEST_ROWS,
    NoiseFinding,
    judge_near_copies,
    known_features,
    public_sensitivity,
    rows_wanted,
)
from dpserve.mechanisms.mechanism import Mechanism
from dpserve.mechanisms.seeded import derived_seed

_LARGEST_SHARE = 8
"""One row in so many that the key pays for, at most."""
_WIDER = 8.0


@dataclass(frozen=True, eq=False)
class NearCopies:
    """Questions for the test of noise. rows: (n, d); None where there are none, and why in `note`."""

    model: Mapping[str, Any]
    mechanism: Mechanism | None
    rows: Floats | None
    note: str = ""

    @property
    def count(self) -> int:
        """Number of rows."""
        return 0 if self.rows is None else len(self.rows)

    def unanswered(self, journal: AnswerJournal) -> int:
        """Return how many of the rows the journal has no answer to, of the first key."""
        return 0 if self.rows is None else sum(journal.get(0, row) is None for row in self.rows)

    def ask(self, endpoint: Endpoint, journal: AnswerJournal) -> NoiseFinding:
        """Ask the first key about the rows in two requests, and test the noise of the answers. Raises EndpointError."""
        if self.rows is None or self.mechanism is None:
            return NoiseFinding(0, note=self.note)
        sensitivity = public_sensitivity(self.model, self.rows)
        assert sensitivity is not None
        answers = np.concatenate([ask([endpoint], request, journal).answers[0] for request in np.split(self.rows, 2)])
        if np.isnan(answers).any():
            return NoiseFinding(0, note="the budget ended before all near-copies were answered")
        distinct = known_features(self.model) is not None
        return judge_near_copies(self.mechanism, answers, sensitivity, distinct=distinct)


def near_copies_to_ask(endpoint: Endpoint, model: Mapping[str, Any], journal: AnswerJournal, seed: int) -> NearCopies:
    """Choose the rows. Raises EndpointError.

    How many is settled in the journal, so that an attack that goes on asks about the same. A journal without it is of
    an attack that asks about none.
    """
    price = model.get("price_per_row")
    if not price or not price["losses"]:
        return NearCopies(model, None, None, "answers of a model that was paid for once have no noise of their own")
    try:
        mechanism = served_mechanism(model)
    except ValueError as error:
        return NearCopies(model, None, None, str(error))
    classes = len(model["classes"])
    if not rows_wanted(mechanism, classes):
        return NearCopies(model, None, None, f"no law is known that all noise of {mechanism.name!r} follows")
    if journal.near_copies is None:
        journal.settle_near_copies(0 if journal.planned is not None else _affordable(endpoint, mechanism, classes))
    count = journal.near_copies or 0
    if not count:
        return NearCopies(model, None, None, "the budget pays for too few rows")
    rows = near_copies_of_a_point(model, count, seed)
    if rows is None:
        return NearCopies(model, None, None, "the model has too few different questions")
    if public_sensitivity(model, rows[:1]) is None:
        return NearCopies(model, None, None, "the endpoint does not show the sensitivity that noise is made for")
    return NearCopies(model, mechanism, rows)


def near_copies_of_a_point(model: Mapping[str, Any], count: int, seed: int) -> Floats | None:
    """Return rows (count, d), drawn independently next to a random point, each another question; None for too few.

    They lie as near as the model's features tell so many apart.
    """
    lower, upper = (np.asarray(model["feature_map"][end], dtype=np.float64) for end in ("lower", "upper"))
    generator = np.random.default_rng(derived_seed(seed, "near-copies"))
    point, reach = lower + (upper - lower) * generator.random(len(lower)), NEARNESS
    while reach <= 1:
        moves = generator.uniform(-reach, reach, (count, len(lower))) * (upper - lower)
        rows: Floats = np.clip(point + moves, lower, upper)
        if len(np.unique(as_asked(model, rows), axis=0)) == count:
            return rows
        reach *= _WIDER
    return None


def _affordable(endpoint: Endpoint, mechanism: Mechanism, classes: int) -> int:
    left, wanted = endpoint.budget()["queries_left"], rows_wanted(mechanism, classes)
    count = wanted if left is None else min(wanted, int(left) // _LARGEST_SHARE // 2 * 2)
    return count if count >= FEWEST_ROWS else 0
