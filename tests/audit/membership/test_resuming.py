"""An attack that was interrupted, and goes on: the same answers, charges and figures as without the interruption."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpserve.accounting.budgets import Budget
from dpserve.audit import reports
from dpserve.audit.in_process import BundleEndpoint, Lineage, ReleaseEndpoint, rehearsal_key
from dpserve.audit.membership.asking import OtherJournal
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.candidates import Candidates
from dpserve.audit.presentation import attack_report
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.kinds.weights.train import release_weights
from tests.audit.membership.conftest import DELTA, draw

CHOICES = AttackChoices(shadow_models=2, seed=3)
PRICE = 0.005
"""The price of a row, as rho, behind Gaussian(10)."""


class Interrupted(Exception):
    pass


class Breaking:
    """Stops the attack before its n-th request, all keys together."""

    def __init__(self, endpoint, left):
        self._endpoint, self._left = endpoint, left

    def answers(self, rows):
        self._left[0] -= 1
        if self._left[0] < 0:
            raise Interrupted
        return self._endpoint.answers(rows)

    def __getattr__(self, name):
        return getattr(self._endpoint, name)


def keys(head, count, *, rows, together=None):
    """Fresh endpoints, as a new process has them. rows, together: what each key and the lineage pay for."""
    lineage = Lineage(None if together is None else round(together * PRICE * 10**12))
    budget = Budget.from_rho(rows * PRICE + 1e-9, DELTA, "gaussian")
    noise_key = rehearsal_key(3)
    return [BundleEndpoint(head, Gaussian(10.0), noise_key, budget, lineage, 17, key) for key in range(count)]


def page(endpoints, candidates, journal):
    return json.loads(reports.as_json(attack_report(Attack(endpoints, candidates, CHOICES, journal).run())))


@pytest.mark.parametrize(
    ("requests", "count", "rows", "together"),
    [(1, 1, 90, None), (8, 2, 200, 150)],
)
def test_a_resumed_attack_equals_an_uninterrupted_one(head, candidates, tmp_path, requests, count, rows, together):
    def fresh():
        return keys(head, count, rows=rows, together=together)

    whole = page(fresh(), candidates, None)
    journal, left = tmp_path / "journal", [requests]
    with pytest.raises(Interrupted):
        page([Breaking(endpoint, left) for endpoint in fresh()], candidates, journal)
    resumed = fresh()
    assert page(resumed, candidates, journal) == whole
    paid = sum(endpoint.paid for endpoint in resumed) - whole["noise"]["rows"]
    assert paid * PRICE == pytest.approx(sum(s["rho"] for s in whole["spent"]))
    assert resumed[0].lineage.spent == sum(endpoint.paid for endpoint in resumed) * Gaussian(10.0).cost.picorho


def test_a_release_that_answered_before_the_interruption_is_still_paid_for(head, candidates, tmp_path):
    released = release_weights(head, 125 * 10**9, "colours-lineage", SeededRandomness(0, ("weights",)))
    whole = page([ReleaseEndpoint(released, largest_batch=50)], candidates, None)
    journal = tmp_path / "journal"
    with pytest.raises(Interrupted):
        page([Breaking(ReleaseEndpoint(released, largest_batch=50), [2])], candidates, journal)
    resumed = ReleaseEndpoint(released, largest_batch=50)
    assert page([resumed], candidates, journal) == whole
    assert resumed.lineage.spent == 125 * 10**9


def test_an_answer_depends_on_the_seed_and_the_question_alone(head, candidates):
    rows = candidates.members.X[:8]

    def answered(order, seed=3, key=0):
        endpoint = BundleEndpoint(head, Gaussian(1.0), rehearsal_key(seed), key=key)
        found = {row: endpoint.answers(rows[[row]])[0] for row in order}
        return np.stack([found[row] for row in range(8)])

    first = answered(range(8))
    np.testing.assert_array_equal(answered(reversed(range(8))), first)
    np.testing.assert_array_equal(BundleEndpoint(head, Gaussian(1.0), rehearsal_key(3)).answers(rows), first)
    np.testing.assert_array_equal(answered(range(8), key=1), first)
    assert (answered(range(8), seed=4) != first).any(axis=1).all()


def test_a_journal_of_another_attack_is_refused_in_one_line_before_a_row_is_asked(head, candidates, tmp_path):
    journal = tmp_path / "journal"
    Attack(keys(head, 1, rows=200), candidates, CHOICES, journal).run()
    recorded = journal.read_bytes()
    (endpoint,) = keys(head, 1, rows=200)
    other = keys(head, 2, rows=200)[1]
    swapped = Candidates(candidates.members, draw(60, 9))
    for endpoints, records, choices, what in (
        ([other], candidates, CHOICES, "keys"),
        ([endpoint, other], candidates, CHOICES, "keys"),
        ([endpoint], swapped, CHOICES, "records"),
        ([endpoint], candidates, replace(CHOICES, seed=4), "seed"),
        ([endpoint], candidates, replace(CHOICES, copies=2), "copies"),
        ([endpoint], candidates, replace(CHOICES, most=30), "candidates"),
    ):
        with pytest.raises(OtherJournal) as refused:
            Attack(endpoints, records, choices, journal).run()
        assert refused.value.differing == (what,)
        assert "\n" not in str(refused.value)
    assert (endpoint.paid, other.paid) == (0, 0)
    assert journal.read_bytes() == recorded
