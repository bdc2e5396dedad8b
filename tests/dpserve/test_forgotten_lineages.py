"""`dpserve lineage forget`: a misspelt lineage is undone, and no copy of its bundle opens it again."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from dpserve.training.inputs.lineage import RecordRegistry
from dpserve.training.kinds.loading import load_model
from tests.command_line import ran_program

from .conftest import CommandLine

CSV = "age,income,ok\n" + "".join(
    f"{20 + index % 60},{1000 * (index % 60) + index},{'yes' if index % 60 > 30 else 'no'}\n" for index in range(300)
)
TRAIN = ("train", "--data", "r.csv", "--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120")
TRAIN += ("--bounds", "income=0:1e6", "class-sums", "--rho", "0.1")
BUDGET = ("--rho", "1", "--delta", "1e-5")

KILLED = """
import os, runpy, signal, sys
import dpserve.accounting.ledger.owner, dpserve.training.inputs.lineage
{step} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["dpserve", "lineage", "forget", "peolpe", "--yes"]
runpy.run_module("dpserve", run_name="__main__")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with records, a bundle of a misspelt lineage, and the home that it was trained in."""
    found = CommandLine(tmp_path_factory.mktemp("misspelt"))
    (found.folder / "r.csv").write_text(CSV)
    found(*TRAIN, "--lineage", "peolpe", "--out", "model")
    return found.folder


@pytest.fixture
def misspelt(run, trained):
    """A bundle of a misspelt lineage, whose records are noted there."""
    shutil.copytree(trained, run.folder, dirs_exist_ok=True)
    return run.folder / "model"


def test_own_records_without_the_name_of_a_lineage_are_not_those_of_digits(run, misspelt):
    run(*TRAIN, "--lineage", "digits", "--out", "digits", "--overlapping-lineage-is-accepted")
    run("lineage", "forget", "digits", "--yes", "--why", "misspelt")
    published = ("train-published", *TRAIN[1:-3])
    for words in (TRAIN, published):
        said = run(*words, "--out", "other", status=2).stderr
        assert "--lineage: is needed" in said
        assert "digits" not in said


def test_a_misspelt_lineage_is_undone_and_its_records_are_trained_on_under_the_right_name(run, misspelt):
    copy = shutil.copytree(misspelt, run.folder / "copy")
    shutil.rmtree(misspelt)
    refused = run.fails(*TRAIN, "--lineage", "people", "--out", "model")
    assert "dpserve lineage forget peolpe" in refused
    assert "is forgotten" in run("lineage", "forget", "peolpe", "--yes", "--why", "misspelt").stdout
    run(*TRAIN, "--lineage", "people", "--out", "model")
    for again in (
        ("serve", copy, *BUDGET, "--port", "0"),
        ("lineage", "set-budget", copy, *BUDGET),
        ("export", copy, "--to", "safetensors"),
        ("ledger", "reconcile", "--lineage", "peolpe", *BUDGET),
    ):
        assert "was forgotten" in run.fails(*again)
    assert "--lineage: was forgotten" in run(*TRAIN, "--lineage", "peolpe", "--out", "third", status=2).stderr
    run("lineage", "set-budget", "model", *BUDGET)
    assert [each["lineage"] for each in json.loads(run("lineage", "list", "--json").stdout)] == ["people"]
    trail = run("ledger", "export", "--lineage", "peolpe").stdout.splitlines()
    newest = json.loads(trail[-1])
    assert (newest["kind"], newest["why"]) == ("forget", "misspelt")
    verified = run("ledger", "verify").stdout
    assert verified.count(": right") == 2
    run("ledger", "reconcile")
    run("ledger", "backup", "copy.backup")


def test_one_that_charged_stays_and_says_why(run, misspelt):
    run("lineage", "set-budget", misspelt, *BUDGET)
    run("export", misspelt, "--to", "safetensors")
    assert "dpserve lineage show peolpe" in run.fails("lineage", "forget", "peolpe", "--yes")
    assert "as well" in run.fails(*TRAIN, "--lineage", "people", "--out", "other")
    (model,) = json.loads(run("lineage", "show", "peolpe", "--json").stdout)["models"]
    assert model["model"] == load_model(misspelt).certificate.model_id


def test_one_with_a_budget_that_nobody_used_is_forgotten(run, misspelt):
    run("lineage", "set-budget", misspelt, *BUDGET)
    run("clients", "add", "alice", *BUDGET)
    assert "nothing was changed" in run("lineage", "forget", misspelt, stdin="n\n").stdout
    run("lineage", "forget", misspelt, stdin="y\n")
    assert json.loads(run("lineage", "list", "--json").stdout) == []


def test_a_name_that_nobody_knows_is_not_used_up(run, misspelt):
    assert "peopel" in run.fails("lineage", "forget", "peopel", "--yes")
    assert run("ledger", "verify").stdout == ""


def test_one_that_is_trained_in_waits(run, misspelt):
    known = RecordRegistry(run.folder / "home")
    (note,) = (run.folder / "home" / "trained" / "peolpe").glob("*.records")
    live = note.with_suffix(".records-note")
    holder = (
        "import sys; from pathlib import Path; from dpserve.training.inputs.digest_files import write_locked; "
        f"write_locked(Path({str(live)!r}), b''); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "locked\n"
        assert "is being trained" in run.fails("lineage", "forget", "peolpe", "--yes")
        assert known.is_noted("peolpe")
        training.stdin.close()
    run("lineage", "forget", "peolpe", "--yes")
    assert not known.is_noted("peolpe")


STEPS = (
    "dpserve.accounting.ledger.owner.Acts.act",
    "dpserve.accounting.ledger.owner.mark_forgotten",
    "dpserve.training.inputs.lineage.RecordRegistry.forget",
)


@pytest.mark.parametrize("step", STEPS)
def test_killed_in_between_it_refuses_and_can_be_said_again(run, misspelt, step):
    """Whichever step is the first that is not done, no second budget is open for the records at any moment."""
    (script := run.folder / "killed.py").write_text(KILLED.format(step=step))
    killed = ran_program(script, [], run.folder, run.environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "as well" in run.fails(*TRAIN, "--lineage", "people", "--out", "other")
    if step != STEPS[0]:
        assert "was forgotten" in run.fails("serve", misspelt, *BUDGET, "--port", "0")
    run("lineage", "forget", "peolpe", "--yes")
    assert "was forgotten" in run.fails("serve", misspelt, *BUDGET, "--port", "0")
    run(*TRAIN, "--lineage", "people", "--out", "other")
    assert "right" in run("ledger", "verify").stdout
