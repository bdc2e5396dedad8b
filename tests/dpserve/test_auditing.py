"""`dpserve audit mechanism` as an auditor runs it. Every run has a seed, so that none depends on luck."""

import json
import os
import subprocess
import sys

import pytest

from dpserve.audit.pieces import code_digest
from dpserve.commands import reporting


def mechanism(run, *arguments, status=0):
    return run("audit", "mechanism", *arguments, "--seed", "0", status=status).stdout


def test_the_published_mechanism_is_convicted_for_three_classes_and_not_for_two(run):
    asked = "published", "--epsilon", "0.1", "--confidence", "0.99", "--trials", "1000"
    convicted = json.loads(mechanism(run, *asked, "--classes", "3", "--json", status=3))
    assert convicted["convicted"]
    assert convicted["claim"]["epsilon"] == pytest.approx(0.1)
    assert convicted["epsilon_lower_bound"] > 4.5
    standing = json.loads(mechanism(run, *asked, "--classes", "2", "--json"))
    assert not standing["convicted"]
    assert standing["epsilon_lower_bound"] <= 0.1


def test_a_sound_mechanism_stands_and_the_report_is_written(run):
    shown = mechanism(run, "gaussian", "--classes", "4", "--epsilon", "2", "--trials", "2000", "--png", "a.png")
    assert "Not refuted" in shown
    assert "the claim is 2" in shown
    assert (run.folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_audit_goes_on_and_finds_the_same(run):
    asked = "laplace", "--classes", "3", "--epsilon", "1", "--trials", "20500", "--json"
    whole = json.loads(mechanism(run, *asked, "--resume", "work"))
    pieces = sorted((run.folder / "work").iterdir())
    assert len(pieces) == 3
    pieces[1].unlink()
    assert json.loads(mechanism(run, *asked, "--resume", "work")) == whole
    assert json.loads(mechanism(run, *asked)) == whole


def test_pieces_of_other_code_or_another_seed_are_not_gone_on_from(run):
    asked = "laplace", "--classes", "3", "--epsilon", "1", "--trials", "500", "--json", "--resume", "work"
    mechanism(run, *asked)
    run("audit", "mechanism", *asked, "--seed", "1")
    pieces = [json.loads(path.read_text())["piece"] for path in (run.folder / "work").iterdir()]
    assert {piece["seed"] for piece in pieces} == {0, 1}
    assert {piece["code"] for piece in pieces} == {code_digest()}
    assert len(pieces[0]["code"]) == 64


def test_every_resumable_audit_binds_its_pieces_to_the_code(tmp_path, monkeypatch):
    """Mechanisms and services keep their pieces in this store, and so do the programs of research."""
    piece = {"name": "a piece", "seed": 0}
    with reporting.stored(tmp_path) as store:
        assert store.result(piece, lambda: {"of": "this code"}) == {"of": "this code"}
        assert store.stored(piece) == {"of": "this code"}
    monkeypatch.setattr("dpserve.audit.pieces.code_digest", lambda *_: "other code")
    with reporting.stored(tmp_path) as store:
        assert store.stored(piece) is None
        assert store.result(piece, lambda: {"of": "other code"}) == {"of": "other code"}


def test_what_is_wrong_is_said_in_one_line(run):
    without_a_seed = "laplace", "--classes", "3", "--epsilon", "1", "--trials", "10", "--resume", "work"
    assert "needs a --seed" in run.fails("audit", "mechanism", *without_a_seed)
    assert "there is no mechanism" in run.fails("audit", "mechanism", "oracle", "--classes", "3", "--epsilon", "1")
    assert "either --epsilon" in run.fails("audit", "mechanism", "laplace", "--classes", "3")
    assert "delta above 0" in run.fails(
        "audit", "mechanism", "gaussian", "--classes", "3", "--price", "rho:0.1", "--delta", "0", "--trials", "10"
    )
    assert "all of --url-in" in run("audit", "service", "--url-in", "http://localhost:1", status=2).stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_verdicts_status_survives_a_reader_who_stops(run, form):
    """As in `dpserve audit ... | head -1`, at its worst: nobody reads anything."""
    reader, writer = os.pipe()
    os.close(reader)
    asked = ["audit", "mechanism", "published", "--epsilon", "0.1", "--classes", "3", "--trials", "1000", "--seed", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "dpserve", *asked, *form],
        cwd=run.folder,
        env=run.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--delta", "0"), "delta above 0"),
        (("--delta", "2"), "delta"),
        (("--confidence", "1"), "confidence"),
        (("--conviction-confidence", "0"), "confidence"),
        (("--mechanism", "laplace", "--price", "epsilon:1@1e-5"), "epsilon"),
    ],
)
def test_what_cannot_be_judged_is_said_before_anything_is_trained(run, wrong, said):
    refused = run.fails("audit", "service", *wrong)
    assert said in refused
    assert "training" not in refused
