"""Neighbours that are really trained, rows that are really within bounds, and two services over real HTTP."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dpserve.accounting.losses import Cost, GaussianLoss
from dpserve.audit.distinguishing.neighbours import KINDS, neighbours, remove_record, strongest_row, with_record
from dpserve.audit.distinguishing.service import JITTER, nearby_rows, observe_services
from dpserve.audit.endpoint import served_mechanism
from dpserve.audit.pieces import ResultStore
from dpserve.local_services import running_services
from dpserve.mechanisms.gaussian import Gaussian
from dpserve.mechanisms.registry import priced
from dpserve.mechanisms.seeded import SeededRandomness
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records, Units
from dpserve.training.kinds.head.bundle import save_bundle
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head

DECLARATION = Declaration(tuple("abcd"), (0.0,) * 4, (2.0,) * 4, ("red", "green", "blue"))


def trained(records):
    feature_map = Identity(lower=DECLARATION.lower, upper=DECLARATION.upper, clip_norm=1.0, bias=0.0)
    return train_head(records, Recipe("colours", feature_map, 1.0), "colours")


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    X = np.clip(0.3 + 1.4 * np.eye(3, 4)[y] + 0.2 * rng.standard_normal((60, 4)), 0, 2)
    return Records(X, y, DECLARATION, ())


@pytest.fixture(scope="module")
def pairs(records):
    return {kind: neighbours(kind, records, trained, np.random.default_rng(1)) for kind in KINDS}


def test_no_neighbours_are_further_apart_than_the_certificate_says(pairs, records):
    for kind, pair in pairs.items():
        row = strongest_row(pair, DECLARATION, records.X, np.random.default_rng(2))
        assert np.all((row >= DECLARATION.lower) & (row <= DECLARATION.upper))
        found = pair.movement(row)[0]
        assert 0 < found <= 1, kind
        assert found >= pair.movement(records.X).max() - 1e-12
        worlds = pair.worlds(row)
        assert np.linalg.norm(worlds.logits_in - worlds.logits_out) <= worlds.sensitivity[0]


def test_an_outlier_tells_more_than_a_natural_record_and_a_searched_canary_most(pairs, records):
    strongest = {kind: pair.movement(records.X).max() for kind, pair in pairs.items()}
    assert strongest["natural"] < strongest["outlier"] < strongest["mislabelled"]
    assert pairs["poisoned"].movement(pairs["poisoned"].row[None])[0] > strongest["mislabelled"]
    assert (
        pairs["mislabelled"].label
        != pairs["mislabelled"]
        .head_out.logits(pairs["mislabelled"].head_out.features(pairs["mislabelled"].row[None]))
        .argmax()
    )


def test_neighbours_differ_by_one_record(records):
    assert len(remove_record(records, 3)) == len(records) - 1
    assert not (records.X[3] == remove_record(records, 3).X).all(axis=1).any()
    more = with_record(records, np.ones(4), 2)
    assert (len(more), more.y[-1]) == (len(records) + 1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_differ_by_one_unit_where_records_have_units(records, kind):
    sizes = []

    def counted(some):
        sizes.append((len(some), len(np.unique(some.units.of))))
        return trained(some)

    by_person = replace(records, units=Units("person", np.arange(60) % 12))
    pair = neighbours(kind, by_person, counted, np.random.default_rng(1))
    expected = {"mislabelled": {(60, 12), (61, 13)}, "poisoned": {(60, 60), (61, 61)}}
    assert set(sizes) == expected.get(kind, {(60, 12), (55, 11)})
    assert pair.head_in.certificate.unit == "person"
    assert 0 < pair.movement(strongest_row(pair, DECLARATION, records.X, np.random.default_rng(2)))[0] <= 1


def test_models_that_protect_different_units_are_no_neighbours(records, tmp_path):
    for name, units in (("in", Units("person", np.arange(60) % 12)), ("out", None)):
        save_bundle(tmp_path / name, trained(replace(records, units=units)))
    with pytest.raises(ValueError, match="protect different privacy units"):
        running_services(("", ""), (tmp_path / "in", tmp_path / "out"), ("", ""), np.random.default_rng(0))
    same = running_services(("", ""), (tmp_path / "in", tmp_path / "in"), ("", ""), np.random.default_rng(0))
    assert "that one 'person' makes their difference" in same.note


def test_nearby_rows_are_different_and_within_bounds():
    lower, upper = np.zeros(3), np.full(3, 4.0)
    row = np.array([[0.0, 4.0, 2.0]])  # two of its features lie on a bound
    rows = nearby_rows(row, 1000, lower, upper, np.random.default_rng(0), lambda X: X)
    assert len(np.unique(rows, axis=0)) == 1000
    assert np.all((rows >= lower) & (rows <= upper))
    assert np.abs(rows - row).max() <= 4 * JITTER
    few = np.array([1.0]), np.array([1.0 + 2**-50])
    with pytest.raises(ValueError, match="different questions"):
        nearby_rows(np.array([[1.0]]), 1000, *few, np.random.default_rng(0), lambda X: X)


@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("gaussian", "noise-multiplier:3"),
        ("laplace", "epsilon:1"),
        ("label", "epsilon:1"),
        ("selected-neuron", "epsilon:1"),
        ("selected-neuron", "rho:0.1"),
        ("published", "epsilon:0.1"),
        ("published", "rho:0.1"),
    ],
)
def test_the_mechanism_is_read_from_what_the_service_says(name, price):
    mechanism = priced(name, price, 3)
    found = served_mechanism(
        {"mechanism": name, "price_per_row": {"losses": str(mechanism.cost)}, "classes": ["a", "b", "c"]}
    )
    assert found.name == name
    assert math.isclose(found.cost.rho, mechanism.cost.rho, rel_tol=1e-12)


def test_an_unknown_mechanism_or_another_model_is_refused(pairs, tmp_path):
    losses = {"losses": str(Cost((GaussianLoss(1.0),)))}
    with pytest.raises(ValueError, match="no mechanism 'oracle'"):
        served_mechanism({"mechanism": "oracle", "price_per_row": losses, "classes": ["a", "b"]})

    class Says:
        def __init__(self, head, losses):
            self.said = {
                "model_id": head.certificate.model_id,
                "mechanism": "gaussian",
                "price_per_row": {"losses": losses},
                "classes": head.certificate.classes,
            }

        def model(self):
            return self.said

    pair = pairs["natural"]
    rng = np.random.default_rng(0)
    ours, theirs = Says(pair.head_in, str(Gaussian(1.0).cost)), Says(pair.head_out, str(Gaussian(2.0).cost))
    with pytest.raises(ValueError, match="another model"):
        observe_services(theirs, ours, pair, pair.row[None], 10, rng, ResultStore(tmp_path), seed=0)
    with pytest.raises(ValueError, match="different prices"):
        observe_services(ours, theirs, pair, pair.row[None], 10, rng, ResultStore(tmp_path), seed=0)


@pytest.mark.parametrize(
    ("mechanism", "status"), [pytest.param("gaussian", 0, marks=pytest.mark.slow), ("published", 3)]
)
def test_two_real_services_are_told_apart_as_far_as_their_price_allows(tmp_path, mechanism, status):
    """Real processes, ledgers and HTTP. The sound one is convicted with probability at most 1e-9."""
    price = ["--price", "noise-multiplier:1"] if mechanism == "gaussian" else ["--price", "epsilon:0.1", "--delta", "0"]
    command = ["audit", "service", "--record", "outlier", "--mechanism", mechanism, *price, "--trials", "300"]
    command += ["--resume", "kept"]
    done = subprocess.run(
        [sys.executable, "-m", "dpserve", *command, "--json", "--png", "report.png"],
        cwd=tmp_path,
        env=os.environ | {"DPSERVE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    found = json.loads(done.stdout)
    assert found["trials"] == 300
    assert found["convicted"] == bool(status)
    assert 0 < found["setting"]["movement_over_sensitivity"] <= 1
    if status:
        assert found["epsilon_lower_bound"] > 3
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    kept = sorted((tmp_path / "kept").iterdir())
    scored = [json.loads(path.read_text())["result"] for path in kept]
    assert sum(len(one["in"]) for one in scored) == sum(len(one["out"]) for one in scored) == 300


def test_answers_that_were_kept_are_not_asked_again(pairs, tmp_path):
    """An interrupted audit finds the same with the same seed, and asks for what is missing alone."""
    pair = pairs["outlier"]
    mechanism = Gaussian(1.0)
    rows_asked = []

    class Serves:
        def __init__(self, head):
            self.head = head
            self.noise = SeededRandomness(0, (head.certificate.model_id,))

        def model(self):
            return {
                "model_id": self.head.certificate.model_id,
                "mechanism": "gaussian",
                "price_per_row": {"losses": str(mechanism.cost)},
                "classes": self.head.certificate.classes,
                "largest_batch": 30,
            }

        def predict_proba(self, X):
            rows_asked.append(len(X))
            phi = self.head.features(X)
            return mechanism.release(self.head.logits(phi), self.head.logit_sensitivity(phi), self.noise)

    def audit(seed):
        services = Serves(pair.head_in), Serves(pair.head_out)
        rng, store = np.random.default_rng(seed), ResultStore(tmp_path)
        return observe_services(*services, pair, pair.row[None], 100, rng, store, seed=seed)[1:3]

    first = audit(3)
    assert sum(rows_asked) == 200
    assert np.array_equal(audit(3), first)
    assert sum(rows_asked) == 200
    kept = {tuple(json.loads(path.read_text())["result"]["in"]): path for path in tmp_path.iterdir()}
    kept[tuple(first[0][:30])].unlink()
    again = audit(3)
    assert sum(rows_asked) == 260
    assert np.array_equal(np.array(again)[:, 30:], np.array(first)[:, 30:])
    assert not np.array_equal(audit(4), first)
