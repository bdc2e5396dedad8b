"""`dpserve audit training` as an owner runs it, on the owner's own table."""

import json

import numpy as np
import pytest

from dpserve.audit.presentation import replay_report
from dpserve.audit.replay import Broken, Replayed

DECLARED = ("--classes", "no,yes", "--bounds", "0:1", "--data", "people.csv")
PRICE = ("--epsilon", "2", "--delta", "1e-5", "--n", "60")


@pytest.fixture
def table(run):
    generator = np.random.default_rng(0)
    lines = [f"{number % 20},{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for number, (a, b) in
             enumerate(generator.uniform(size=(60, 2)))]  # fmt: skip
    (run.folder / "people.csv").write_text("\n".join(["person,a,b,label", *lines]))
    return run


def test_a_training_on_ones_own_table_stands_and_nothing_is_left_behind(table):
    before = sorted(path.name for path in table.folder.rglob("*"))
    said = json.loads(
        table(
            "audit", "training", "class-sums", *DECLARED, *PRICE, "--unit", "person", "--trials", "2", "--json"
        ).stdout
    )
    assert not said["convicted"]
    assert said["tried"] == 2
    assert all(0 <= moved <= most for _, moved, most in said["moved"])
    assert max(moved for _, moved, _ in said["moved"]) > 0
    assert sorted(path.name for path in table.folder.rglob("*")) == before


def test_a_head_is_audited_without_a_price(table):
    assert "Not refuted" in table("audit", "training", "head", *DECLARED, "--ignore", "person", "--trials", "1").stdout


def test_the_published_claims_are_convicted_with_the_claim_and_how_far_it_moved(table):
    network = ("--hidden", "4", "--epochs", "1", "--trials", "1")
    said = table("audit", "training", "published", *DECLARED, "--ignore", "person", *network, status=3).stdout
    assert "Convicted" in said
    assert "a weight (Eq. 18)" in said


def test_what_a_training_lacks_is_said_before_it_begins(table):
    assert "--epsilon" in table("audit", "training", "class-sums", *DECLARED, "--unit", "person", status=2).stderr
    assert "--classes" in table(
        "audit", "training", "head", "--data", "people.csv", "--ignore", "person", status=1
    ).stderr  # fmt: skip


def test_a_report_convicts_by_the_first_thing_that_is_broken():
    broken = Broken("movement", "a release", 2.0, 1.0)
    report = replay_report(Replayed((broken,), {"a release": (2.0, 1.0)}), 3, "person")
    assert report.exit_status == 3
    assert "2" in report.finding
    assert report.content["broken"][0]["most"] == 1.0
    assert replay_report(Replayed((), {"a release": (1.0, 1.0)}, ("record 2",)), 3, None).exit_status == 0
    assert replay_report(Replayed((), {}, ("record 2",)), 1, None).exit_status == 4
