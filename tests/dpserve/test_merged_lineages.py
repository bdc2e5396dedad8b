"""`dpserve lineage merge`: two lineages of overlapping records become one, with what both spent, and go on as that."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from dpserve import Client, PrivateClassifier
from training.inputs.lineage import KnownRecords

ROWS = [
    f"{20 + index % 60 + index / 1000},{3137 * index % 60000},{'yes' if index % 60 > 30 else 'no'}\n"
    for index in range(300)
]
HEAD = "age,income,ok\n"
COLUMNS = ("--label", "ok", "--classes", "no,yes", "--bounds", "age=0:120", "--bounds", "income=0:1e6")
SUMS = ("--release", "class-sums", "--price", "rho:0.1")
HEADS = ("--lam", "1", "--features", "identity")
BUDGET = ("--rho", "2", "--delta", "1e-6")
SMALL = ("--rho", "1", "--delta", "1e-6")
MERGE = ("lineage", "merge", "spring", "autumn", "--into", "year", *BUDGET)

KILLED = """
import os, runpy, signal, sys
import accounting.ledger.merging, training.inputs.lineage, dpserve.commands.acts
{step} = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["dpserve", *{words!r}]
runpy.run_module("dpserve", run_name="__main__")
"""


def write(run, name, rows):
    (run.folder / name).write_text(HEAD + "".join(rows))


def train(run, lineage, data, kind, *more):
    words = ("train", "--data", data, *COLUMNS, *kind, "--lineage", lineage, "--out", run.folder / lineage, *more)
    return run(*words)


@pytest.fixture
def two(run):
    """Two lineages, of records 0 to 149 and 150 to 299: one served and asked, the other one's class sums exported."""
    write(run, "first.csv", ROWS[:150])
    write(run, "second.csv", ROWS[150:])
    write(run, "all.csv", ROWS)
    train(run, "spring", "first.csv", HEADS)
    train(run, "autumn", "second.csv", SUMS)
    process, address = run.start("spring", "--price", "rho:0.01", "--port", 0, *SMALL)
    key = run("clients", "add", "alice", "--rho", "0.5", "--delta", "1e-6").stdout.strip()
    with Client(address, key) as client:
        first = client.predict_proba([[30.0, 1000.0], [50.0, 2000.0]])
    process.terminate()
    process.wait(timeout=60)
    run("lineage", "set-budget", "autumn", *SMALL)
    run("export", "autumn", "--to", "safetensors", "--out", "file")
    return key, first


def spent_by(run, lineage):
    return json.loads(run("lineage", "show", lineage, "--json").stdout)["spent_picorho"]


def test_overlapping_records_are_trained_on_once_their_lineages_are_one(run, two):
    refused = run.fails("train", "--data", "all.csv", *COLUMNS, *HEADS, "--lineage", "spring", "--out", "whole")
    assert "dpserve lineage merge spring autumn' with --into NAME" in refused
    before = spent_by(run, "spring") + spent_by(run, "autumn")
    said = run(*MERGE, stdin="y\n").stdout
    assert "client alice" in said
    assert "rho 0.12, epsilon" in said
    assert spent_by(run, "year") == before == 120_000_000_000
    run("train", "--data", "all.csv", *COLUMNS, *HEADS, "--lineage", "year", "--out", "whole")
    for former in ("spring", "autumn"):
        words = ("train", "--data", "all.csv", *COLUMNS, *HEADS, "--lineage", former, "--out", "other")
        assert "was merged into 'year'" in run(*words, status=2).stderr
        assert "was merged into 'year'" in run.fails("lineage", "set-budget", former, *BUDGET)
    assert "was merged into 'year'" in run("lineage", "show", "spring").stdout
    assert [each["lineage"] for each in json.loads(run("lineage", "list", "--json").stdout)] == ["year"]
    assert run("ledger", "verify").stdout.count(": right") == 3
    run("ledger", "backup", "copy.backup")


def test_their_bundles_are_served_as_the_new_lineages(run, two):
    key, first = two
    run(*MERGE, "--yes")
    process, address = run.start("spring", "autumn", "--price", "rho:0.01", "--port", 0)
    with Client(address, key, model="spring") as client:
        assert (client.predict_proba([[30.0, 1000.0], [50.0, 2000.0]]) == first).all()
        assert client.budget()["spent"]["rho"] == pytest.approx(0.02)
        client.predict_proba([[31.0, 1000.0]])
        assert client.budget()["spent"]["rho"] == pytest.approx(0.03)
    assert spent_by(run, "year") == 130_000_000_000
    with Client(address, key, model="autumn") as client:
        client.predict_proba([[31.0, 1000.0]])
    process.terminate()
    process.wait(timeout=60)
    assert spent_by(run, "year") == 130_000_000_000  # class sums were paid for when they were exported
    run("export", "autumn", "--to", "safetensors", "--out", "again")
    assert spent_by(run, "year") == 130_000_000_000
    assert run("ledger", "verify").stdout.count(": right") == 3


def test_an_answer_of_no_changes_nothing(run, two):
    before = json.loads(run("lineage", "list", "--json").stdout)
    assert "nothing was changed" in run(*MERGE, stdin="n\n").stdout
    assert json.loads(run("lineage", "list", "--json").stdout) == before
    assert KnownRecords(run.folder / "home").holds("spring")


def test_what_cannot_be_merged_is_refused_before_anything_is_changed(run, two):
    before = json.loads(run("lineage", "list", "--json").stdout)
    for words, said in (
        (("lineage", "merge", "spring", "spring", "--into", "year", *BUDGET), "three names"),
        (("lineage", "merge", "spring", "autumn", "--into", "spring", *BUDGET), "three names"),
        (("lineage", "merge", "spring", "autum", "--into", "year", *BUDGET), "no lineage 'autum'"),
        ((*MERGE, "--accepts", "pure"), "pure"),
    ):
        assert said in run.fails(*words, "--yes")
    train(run, "year", "first.csv", HEADS, "--overlapping-lineage-is-accepted")
    assert "trained on in a lineage year already" in run.fails(*MERGE, "--yes")
    assert json.loads(run("lineage", "list", "--json").stdout) == before
    assert KnownRecords(run.folder / "home").holds("spring")


def test_a_model_of_a_merged_lineage_is_begun_at_as_one_of_the_new(run, two):
    run(*MERGE, "--yes")
    write(run, "third.csv", [f"{90 + index / 1000},{59000 - 7 * index},no\n" for index in range(300)])
    start = (*SUMS, "--start", "autumn", "--records-declared", "300")
    refused = run("train", "--data", "all.csv", *COLUMNS, *start, "--lineage", "third", "--out", "o", status=2).stderr
    assert "the lineage 'year'" in refused
    run("train", "--data", "all.csv", *COLUMNS, *start, "--lineage", "year", "--out", "begun")
    (earlier,) = json.loads((run.folder / "begun" / "certificate.json").read_text())["earlier"]
    assert (earlier["lineage"], earlier["apart"]) == ("year", False)


STEPS = (
    "accounting.ledger.merging._open",
    "accounting.ledger.merging._close",
    "accounting.ledger.merging._add_accounts",
    "accounting.ledger.merging._put_back",
    "accounting.ledger.merging._settle",
    "accounting.ledger.merging._check",
    "training.inputs.lineage.KnownRecords.merge",
)


def killed_at(run, step):
    """Kill a merge at a step of it."""
    script = KILLED.format(step=step, words=[*MERGE, "--yes"])
    killed = subprocess.run([sys.executable, "-c", script], cwd=run.folder, env=run.environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step_it_goes_on_and_nothing_has_two_budgets(run, two, step):
    killed_at(run, step)
    if step not in STEPS[:2] + STEPS[-1:]:
        assert "dpserve lineage merge spring autumn' with --into year" in run.fails(
            "serve", "spring", *BUDGET, "--port", "0"
        )
        assert "merge spring autumn' with --into year" in run.fails("lineage", "set-budget", "year", *BUDGET)
    run(*MERGE, "--yes")
    assert spent_by(run, "year") == 120_000_000_000
    assert run("ledger", "verify").stdout.count(": right") == 3
    assert KnownRecords(run.folder / "home").lineages == ["year"]


def test_a_merge_that_cannot_go_on_is_abandoned_and_both_are_served_again(run, two):
    key, first = two
    killed_at(run, "accounting.ledger.merging._add_accounts")
    for refused in (run.fails("serve", "spring", "--port", 0), run.fails("lineage", "set-budget", "year", *BUDGET)):
        assert "'dpserve lineage abandon-merge year' opens these again" in refused
    assert "nothing was changed" in run("lineage", "abandon-merge", "year", stdin="n\n").stdout
    said = run("lineage", "abandon-merge", "year", stdin="y\n").stdout
    assert "spring and autumn are lineages of their own, as before" in said
    assert run("lineage", "abandon-merge", "year").stdout.count("as before") == 1  # it asks once
    process, address = run.start("spring", "--price", "rho:0.01", "--port", 0)
    with Client(address, key) as client:
        assert (client.predict_proba([[30.0, 1000.0], [50.0, 2000.0]]) == first).all()
        assert client.budget()["spent"]["rho"] == pytest.approx(0.02)
    process.terminate()
    process.wait(timeout=60)
    assert spent_by(run, "spring") + spent_by(run, "autumn") == 120_000_000_000
    assert "was abandoned" in run.fails(*MERGE, "--yes")
    assert "was abandoned" in run("lineage", "show", "year").stdout
    refused = run("train", "--data", "first.csv", *COLUMNS, *HEADS, "--lineage", "year", "--out", "other", status=2)
    assert "its name is not given again: take another name" in " ".join(refused.stderr.split())
    assert {each["lineage"] for each in json.loads(run("lineage", "list", "--json").stdout)} == {"spring", "autumn"}
    run("lineage", "merge", "spring", "autumn", "--into", "both", *BUDGET, "--yes")
    assert spent_by(run, "both") == 120_000_000_000
    assert run("ledger", "verify").stdout.count(": right") == 4
    assert KnownRecords(run.folder / "home").lineages == ["both"]


def test_a_merge_that_was_done_here_is_not_abandoned_in_a_restored_store_either(run, two):
    killed_at(run, "accounting.ledger.merging._check")
    run("ledger", "backup", "midst.backup")
    run(*MERGE, "--yes")
    assert "it keeps what it spent" in run.fails("lineage", "abandon-merge", "year", "--yes")
    shutil.rmtree(run.folder / "home" / "ledger")
    run("ledger", "restore", "midst.backup")
    assert "was done on this machine" in run.fails("lineage", "abandon-merge", "year", "--yes")
    run(*MERGE, "--yes")
    assert spent_by(run, "year") == 120_000_000_000


def test_on_another_machine_the_same_words_make_its_digests_follow(run, two):
    shutil.copytree(run.folder / "home" / "trained", run.folder / "kept")
    run(*MERGE, "--yes")
    shutil.rmtree(run.folder / "home" / "trained")
    for name in ("spring", "autumn"):
        for mark in (run.folder / "home" / "journals" / name).glob("merged"):
            mark.unlink()
    shutil.copytree(run.folder / "kept", run.folder / "home" / "trained")
    words = ("train", "--data", "all.csv", *COLUMNS, *HEADS, "--lineage", "spring", "--out", "other")
    assert "dpserve lineage merge spring autumn' with --into NAME" in run.fails(*words)
    assert "was merged into 'year'" in run.fails(
        "lineage", "merge", "spring", "autumn", "--into", "other", *BUDGET, "--yes"
    )
    run(*MERGE, "--yes")
    run("train", "--data", "all.csv", *COLUMNS, *HEADS, "--lineage", "year", "--out", "whole")


def test_a_ledger_restored_from_before_opens_neither_again(run, two):
    run("ledger", "backup", "before.backup")
    run(*MERGE, "--yes")
    shutil.rmtree(run.folder / "home" / "ledger")
    run("ledger", "restore", "before.backup")
    assert "lineage merge spring autumn' with --into year" in run.fails("serve", "spring", "--port", "0")
    assert "lineage merge spring autumn' with --into year" in run.fails(
        "export", "autumn", "--to", "safetensors", "--out", "x"
    )
    run("ledger", "reconcile")
    run(*MERGE, "--yes")
    assert spent_by(run, "year") == 120_000_000_000
    assert run("ledger", "verify").stdout.count(": right") == 3


def test_a_model_that_python_fitted_before_is_evaluated_and_loaded_as_one_of_the_merged_lineage(run, two, monkeypatch):
    del two
    monkeypatch.setenv("DPSERVE_HOME", run.environment["DPSERVE_HOME"])
    declared = {"bounds": {"age": (0, 120), "income": (0, 1e6)}, "classes": ["no", "yes"], "epsilon": 0.5}
    model = PrivateClassifier(lineage="spring", delta=1e-6, release="class-sums", **declared)
    model.fit(run.folder / "first.csv", "ok").save(run.folder / "fitted")
    run(*MERGE, "--yes")
    before = spent_by(run, "year")
    once = model.evaluate(run.folder / "first.csv", "ok", epsilon=0.5, delta=1e-6).law.cost.picorho
    assert spent_by(run, "year") == before + once
    loaded = PrivateClassifier.load(run.folder / "fitted")
    assert (loaded.lineage, loaded.certificate_.lineage, loaded.charged_rho_) == ("year", "year", 0)
    assert loaded.evaluate(run.folder / "first.csv", "ok", epsilon=0.5, delta=1e-6).law.cost.picorho == once
    assert spent_by(run, "year") == before + 2 * once
