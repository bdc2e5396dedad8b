"""The owner's commands on a ledger: checked, copied, lost, restored and reconciled, as the guide says."""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from dpserve import Client, ServiceError
from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger, key_digest
from dpserve.accounting.ledger.backup_files import BackupFile

from .conftest import CommandLine

ROWS = np.array([[30.0, 5000.0], [70.0, 55000.0]])
PRICE = ("--price", "rho:0.001")


@pytest.fixture(scope="module")
def asked(tmp_path_factory, trained):
    """A folder with a ledger with a client that was answered two rows, and the client's key."""
    run = CommandLine(shutil.copytree(trained, tmp_path_factory.mktemp("ledger") / "owner"))
    run("lineage", "set-budget", "model", "--rho", 1, "--delta", 1e-6)
    key = run("clients", "add", "alice", "--rho", 0.1, "--delta", 1e-6).stdout.strip()
    _ask(run, "model", key, ROWS)
    return run.folder, key


@pytest.fixture
def spent(run, asked):
    """A copy of that ledger: the client's key."""
    folder, key = asked
    shutil.copytree(folder, run.folder, dirs_exist_ok=True)
    return key


def _ask(run, bundle, key, rows):
    process, address = run.start(bundle, "--port", 0, *PRICE)
    try:
        with Client(address, key) as client:
            return client.predict_proba(rows)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_books_are_shown_and_right(run, spent):
    assert "right" in run("ledger", "verify").stdout
    checked = json.loads(run("ledger", "verify", "--json").stdout)
    assert (checked["receipts"], checked["right"], checked["findings"], checked["missing"]) == (1, True, [], [])
    status = run("ledger", "status").stdout
    assert "agree" in status
    assert "0.002 of 1" in status
    lines = run("ledger", "export").stdout.splitlines()
    assert [value["releases"] for value in map(json.loads, lines) if value["kind"] == "receipt"] == [2]
    run("ledger", "export", "--out", "trail.jsonl")
    *_, row = (run.folder / "trail.jsonl").read_text().splitlines()
    assert json.loads(row)["name"] == "alice"
    shown = run("clients", "show", "alice").stdout
    assert "spent: 0.002 of 0.1, left: 0.098, in rho" in shown


def test_a_lost_ledger_is_restored_from_its_backup_and_the_journal(run, bundle, spent):
    run("ledger", "backup", "ledger.backup")
    answered = _ask(run, bundle, spent, ROWS[::-1] + 1)
    shutil.rmtree(run.folder / "home" / "ledger")
    assert "older than what it acknowledged" in run.fails("serve", bundle, "--port", 0, *PRICE)
    for command in (["status"], ["verify"], ["reconcile"], ["backup", "empty.backup"]):
        assert "it was emptied" in " ".join(run.fails("ledger", *command).split())
    assert not (run.folder / "empty.backup").exists()
    assert "restored the lineage" in run("ledger", "restore", "ledger.backup").stdout
    assert "reconcile" in run.fails("serve", bundle, "--port", 0, *PRICE)
    assert "older than 1 of them" in run("ledger", "status").stdout
    assert "1 receipts put back" in run("ledger", "reconcile").stdout
    assert "right" in run("ledger", "verify").stdout
    assert "0.004 of 1" in run("ledger", "status").stdout
    assert np.array_equal(_ask(run, bundle, spent, ROWS[::-1] + 1), answered)  # and it is paid for
    assert "0.004 of 1" in run("ledger", "status").stdout
    assert "has a lineage" in run.fails("ledger", "restore", "ledger.backup")


def test_an_emptied_ledger_without_a_backup_is_opened_again_from_the_journal(run, spent):
    lineage = run("ledger", "verify").stdout.partition(":")[0]
    shutil.rmtree(run.folder / "home" / "ledger")
    assert f"--lineage {lineage} --epsilon" in " ".join(run.fails("ledger", "reconcile").split())
    opened = run("ledger", "reconcile", "--lineage", lineage, "--rho", 1, "--delta", 1e-6).stdout
    assert "1 receipts put back" in opened
    assert "right" in run("ledger", "verify").stdout
    assert "0.002 of 1" in run("ledger", "status").stdout


def test_a_backup_is_rehearsed_beside_the_ledger(run, spent):
    run("ledger", "backup", "ledger.backup")
    before = run("ledger", "status").stdout
    said = run("ledger", "rehearse", "ledger.backup").stdout
    assert "1 receipts" in said
    assert "right" in said
    assert "can be restored" in said
    assert run("ledger", "status").stdout == before
    text = "".join(BackupFile(str(run.folder / "ledger.backup"))).replace("alice", "alicf")
    with pa.CompressedOutputStream(str(run.folder / "damaged.backup"), "zstd") as file:
        file.write(text.encode())
    assert "altered" in run.fails("ledger", "rehearse", "damaged.backup")
    assert "cannot read nowhere" in run.fails("ledger", "rehearse", "nowhere")


def test_what_cannot_be_read_is_said(run, spent):
    assert "cannot read nowhere" in run.fails("ledger", "restore", "nowhere")
    (run.folder / "other").write_text("{}\n")
    assert "it is no backup" in run.fails("ledger", "restore", "other")
    assert "no journal" in run.fails("ledger", "reconcile", "--journal", "nowhere")


def test_a_clients_budget_and_key_are_changed(run, bundle, spent):
    asked = run("clients", "set-budget", "alice", "--rho", 0.2, "--delta", 1e-6, stdin="n\n").stdout
    assert "nothing was changed" in asked
    run("clients", "set-budget", "alice", "--rho", 0.2, "--delta", 1e-6, "--yes")
    run("clients", "set-budget", "alice", "--rho", 0.001, "--delta", 1e-6)
    key = run("clients", "rotate-key", "alice").stdout.strip()
    with pytest.raises(ServiceError, match="not known"):
        _ask(run, bundle, spent, ROWS)
    _ask(run, bundle, key, ROWS)  # paid for before
    with pytest.raises(ServiceError, match="budget"):
        _ask(run, bundle, key, ROWS + 1)
    assert "right" in run("ledger", "verify").stdout


def test_a_declared_loss_is_charged(run, bundle, spent):
    lineage = json.loads(run("inspect", bundle, "--json").stdout)["private"]["lineage"]
    asked = run("ledger", "reconcile", "--lineage", lineage, "--declare-lost", 5, "--yes").stdout
    assert "5 releases declared lost" in asked
    assert "0.007 of 1" in run("ledger", "status").stdout


def test_a_rehearsal_says_so_everywhere(run, bundle, spent):
    import httpx

    process, address = run.start(bundle, "--port", 0, *PRICE, "--rehearsal")
    try:
        answer = httpx.post(
            f"{address}/predict", json={"instances": [[1, 2]]}, headers={"Authorization": f"Bearer {spent}"}
        )
        ready = httpx.get(f"{address}/readyz")
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    for got in (answer, ready):
        assert got.json()["rehearsal"] is True
        assert got.headers["dpserve-rehearsal"] == "true"
    assert "rehearsal" in errors


def test_no_figure_is_cut_whoever_reads_it(run, spent):
    plan = ("plan", "--n", 900, "--classes", 10, "--queries", 100, "--epsilon", 3, "--delta", "1e-6", "--all")
    price = json.loads(run(*plan, "--json").stdout)["answers"]["options"][0]["price"]
    del run.environment["COLUMNS"]
    assert " 0.002 │ 0.998 │ 1  │ rho │" in run("lineage", "list").stdout
    run.environment["COLUMNS"] = "80"
    for command in (("clients", "list"), ("ledger", "status")):
        printed = run(*command).stdout
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= 80
    assert f" {price} " in run(*plan).stdout
    (shown,) = json.loads(run("clients", "list", "--json").stdout)
    assert (shown["client"], shown["spent_picorho"], shown["revoked"]) == ("alice", 2_000_000_000, False)
    (shown,) = json.loads(run("lineage", "list", "--json").stdout)
    assert (shown["spent_picorho"], shown["budget_picorho"]) == (2_000_000_000, 10**12)


def test_a_lineage_is_shown_with_its_models_and_clients(run, bundle, spent):
    (listed,) = json.loads(run("lineage", "list", "--json").stdout)
    shown = json.loads(run("lineage", "show", bundle, "--json").stdout)
    (model,) = shown["models"]
    assert model["releases"] == listed["releases"] == 2
    assert model["spent_picorho"] == listed["spent_picorho"]
    assert (shown["clients"], shown["groups"]) == (["alice"], [])
    assert listed.items() <= shown.items()
    printed = run("lineage", "show", listed["lineage"]).stdout
    assert "one record" in printed
    assert "2 releases, each rho = 0.001 by itself" in printed
    assert "gaussian:" not in printed
    assert "added to rho" in run("clients", "show", "alice").stdout
    assert "alice" in printed
    assert "no-such" in run.fails("lineage", "show", "no-such")


def test_files_are_the_same_in_every_locale(tmp_path):
    """A client's id is any UTF-8, and the locale of a timer or a container may know ASCII alone."""
    budget = Budget.from_rho(0.5, 1e-5, "gaussian")

    async def opened():
        async with Ledger.open(tmp_path / "first") as ledger:
            await ledger.acting("owner").open_lineage("records", budget, time=0.0)
            await ledger.acting("owner").add_client("records", "Zoë", budget, key_digest("key"), time=0.0, display="趙")

    asyncio.run(opened())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "DPSERVE_HOME": str(tmp_path / "home")}
    for words in (("backup", "ledger.backup", "--ledger", "first"), ("restore", "ledger.backup", "--ledger", "second")):
        command = [sys.executable, "-m", "dpserve", "ledger", *words]
        subprocess.run(command, cwd=tmp_path, env=os.environ | plain, check=True)
    assert "Zoë" in "".join(BackupFile(str(tmp_path / "ledger.backup")))

    async def restored():
        async with Ledger.open(tmp_path / "second") as ledger:
            return (await ledger.client("records", "Zoë")).display

    assert asyncio.run(restored()) == "趙"
