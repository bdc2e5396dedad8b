"""Answers that are not paid for convict, whatever the scores say; sound services are not accused."""

import json

import pytest

from dpserve.audit import reports
from dpserve.audit.in_process import BundleEndpoint, Lineage, rehearsal_key
from dpserve.audit.membership.attack import Attack, AttackChoices
from dpserve.audit.membership.charges import overdraw
from dpserve.audit.presentation import attack_report
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.label import Label

QUICK = AttackChoices(shadow_models=2, seed=1)


class Free(BundleEndpoint):
    """Charges for the first question of all."""

    def charge(self, questions):
        self.paid = 1


class Discounting(BundleEndpoint):
    """Charges for all questions of a request but one."""

    def charge(self, questions):
        super().charge(set(sorted(questions)[1:]))


class Unshared(BundleEndpoint):
    """Charges every key's account and nobody's lineage."""

    def charge(self, questions):
        self.paid += len(questions - self.asked)
        self.asked |= questions


class Overspending(BundleEndpoint):
    """Charges until nothing is left, and refuses nothing."""

    def charge(self, questions):
        new = len(questions - self.asked)
        self.asked |= questions
        self.paid += new
        spent = self.lineage.spent + new * self.mechanism.cost.picorho
        self.lineage.spent = min(spent, self.lineage.limit)


def attacked(kind, head, candidates, mechanism, *, keys=1, rows=None, largest_batch=50):
    lineage = Lineage(None if rows is None else rows * mechanism.cost.picorho)
    endpoints = [
        kind(head, mechanism, rehearsal_key(0), lineage=lineage, largest_batch=largest_batch, key=key)
        for key in range(keys)
    ]
    return Attack(endpoints, candidates, QUICK).run()


@pytest.mark.parametrize(("kind", "mechanism"), [(Free, Label(1.0)), (Discounting, Gaussian(10.0))])
def test_rows_that_are_not_charged_convict(head, candidates, kind, mechanism):
    outcome = attacked(kind, head, candidates, mechanism)
    assert not outcome.replays.averaging_is_free
    assert not outcome.verdict.convicted
    (fault,) = outcome.charges.faults
    assert fault.startswith("key 1 has answers to 120 rows, which cost rho = ")
    page = attack_report(outcome)
    assert page.exit_status == 3
    assert page.verdict.startswith(f"Convicted: {fault}; for what was actually spent, epsilon = ")
    assert json.loads(reports.as_json(page))["charges"]["faults"] == [fault]


@pytest.mark.parametrize("largest_batch", [50, 20])
def test_keys_that_share_no_account_convict(head, candidates, largest_batch):
    """With batches of 20 the 90 rows that are left cannot be overdrawn by one request: they should have become none."""
    outcome = attacked(Unshared, head, candidates, Gaussian(10.0), keys=3, rows=90, largest_batch=largest_batch)
    assert outcome.plan.shared == 90
    assert not outcome.verdict.convicted
    assert "nothing caps collusion" in outcome.charges.faults[0]
    assert attack_report(outcome).exit_status == 3


def test_a_row_beyond_what_is_left_convicts(head, candidates):
    keys = 2
    outcome = attacked(Overspending, head, candidates, Gaussian(10.0), keys=keys, rows=100)
    assert outcome.charges.overdrawn == tuple(range(1, keys + 1))
    assert any("key 1 was answered one row more than its account" in fault for fault in outcome.charges.faults)
    assert outcome.convicted


def test_a_sound_bundle_is_not_accused_and_its_cap_is_tested_at_no_cost(head, candidates):
    mechanism = Gaussian(10.0)
    outcome = attacked(BundleEndpoint, head, candidates, mechanism, keys=3, rows=90)
    assert outcome.charges.faults == outcome.charges.cautions == ()
    assert (outcome.charges.shared, outcome.charges.refused) == (True, (1, 2, 3))
    assert outcome.charges.rows == (30, 30, 30)
    assert [spent // mechanism.cost.picorho for spent in outcome.charges.spent] == [30, 30, 30]
    unseen = attacked(BundleEndpoint, head, candidates, mechanism, keys=2)
    assert not unseen.convicted
    assert "whether what they spend is shared was not tested" in unseen.charges.cautions[0]


def test_keys_of_one_client_and_rows_that_were_paid_for_before_are_not_accused(serve, candidates):
    """One account pays for the rows of both keys; the second attack is replays throughout."""
    service = serve(lineage_rho=2.4001)
    first = service.endpoint(rho=2.5)
    for endpoints in ([first, first], [first]):
        outcome = Attack(endpoints, candidates, QUICK).run()
        assert outcome.charges.faults == ()
        assert not outcome.convicted
    assert outcome.charges.replayed == (120,)
    assert "not charged for 120 of 120 rows" in outcome.charges.cautions[0]
    # 240 rows, and near-copies: an eighth of the 480 that the lineage pays for.
    assert first.budget()["spent"]["rho"] == pytest.approx(0.005 * (240 + 60))


def test_keys_whose_rows_the_lineage_paid_for_before_are_not_accused(head, candidates):
    """Another client asked about the same records: the lineage pays for the first key's rows no more."""
    mechanism = Gaussian(10.0)
    lineage = Lineage(600 * mechanism.cost.picorho)
    before = [
        BundleEndpoint(head, mechanism, rehearsal_key(0), lineage=lineage, largest_batch=50, key=key) for key in (8, 9)
    ]
    assert not Attack(before, candidates, QUICK).run().convicted
    assert lineage.spent == (240 + 74) * mechanism.cost.picorho  # and near-copies: an eighth of 600
    after = [
        BundleEndpoint(head, mechanism, rehearsal_key(0), lineage=lineage, largest_batch=50, key=key) for key in (0, 1)
    ]
    outcome = Attack(after, candidates, QUICK).run()
    assert (outcome.charges.faults, outcome.charges.shared) == ((), True)
    # An eighth of the 286 that are left: near-copies that were paid for before.
    assert [one.paid for one in after] == [120 + 34, 120]
    assert lineage.spent == (360 + 74) * mechanism.cost.picorho


def test_clients_of_a_real_ledger_share_its_lineage(serve, candidates):
    service = serve(lineage_rho=0.5001)
    outcome = Attack([service.endpoint(name) for name in ("alice", "bob")], candidates, QUICK).run()
    assert outcome.charges.faults == outcome.charges.cautions == ()
    assert (outcome.charges.shared, outcome.charges.refused) == (True, (1, 2))


def test_overdrawing_is_refused_and_costs_nothing(bundle):
    (endpoint,) = bundle(rho=0.0501)
    assert overdraw(endpoint) is False
    assert endpoint.paid == 0
    (endpoint,) = bundle(rho=0.2501)
    assert overdraw(endpoint) is None
