"""The manifests' backup, rehearsed: back up by the CronJob's own script, lose the store, restore, nothing forgotten."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from benchmarks.serving.processes import free_port, start_server
from dpserve.accounting.ledger.embedded import server_binary

from .conftest import ROOT
from .policy import pod_of
from .test_replicas import small_bundle

PRICE = 0.001
MIDDAY = 1_790_000_000 // 86_400 * 86_400 + 12 * 3600
"""When the script is started, in seconds since 1970: it names its copies by the hour and the day."""
ROWS = [[number / 20, 1 - number / 20] for number in range(12)]


@contextmanager
def store(folder, port):
    """A Valkey on a folder; killed at the end, and not asked."""
    folder.mkdir(exist_ok=True)
    words = [str(server_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert any(b"Ready to accept connections" in line for line in process.stdout)
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def rehearsal(rendered, tmp_path):
    """A cluster of one machine: what its commands are started with, and the CronJob's script on its folders.

    The script's `date` says the time that the file `clock` holds.
    """
    jobs = {each["metadata"]["name"]: each for each in rendered["redis"] if each["kind"] == "CronJob"}
    job = jobs["dpserve-backup"]
    (container,) = pod_of(job)["containers"]
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dpserve").write_text(f'#!/bin/sh\nexec {sys.executable} -m dpserve "$@"\n')
    (programs / "date").write_text(f'#!/bin/sh\nexec {shutil.which("date")} -d "@$(cat {tmp_path}/clock)" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    (tmp_path / "clock").write_text(str(MIDDAY))
    (tmp_path / "state").mkdir()
    (tmp_path / "backups").mkdir()
    rehearsal = Rehearsal(tmp_path, [], free_port())
    rehearsal.script = [*container["command"], rehearsal.place(container["args"][0])]
    return rehearsal


class Rehearsal:
    def __init__(self, folder, backup, port):
        self.folder, self.script, self.port = folder, backup, port
        self.environment = os.environ | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "DPSERVE_HOME": str(folder / "state"),
            "DPSERVE_LEDGER": f"redis://127.0.0.1:{port}/0",
            "OMP_NUM_THREADS": "1",
        }

    def place(self, text):
        """Put this machine's folders in place of a pod's."""
        text = text.replace("/backups/", f"{self.folder}/backups/")
        return text.replace("/var/lib/dpserve", f"{self.folder}/state")

    def owner(self, *names):
        """Run the page's commands of these names in the owner's pod; return what they say."""
        page = (ROOT / "docs" / "deploying.md").read_text()
        commands = re.findall(r"kubectl exec deployment/dpserve-owner -- (dpserve ledger (\w+).*)", page)
        return "".join(self.run(*self.place(words).split()) for words, name in commands if name in names)

    def run(self, *words, expected=0):
        done = subprocess.run(
            words, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout + (done.stderr if expected else "")

    def dpserve(self, *words, expected=0):
        return self.run("dpserve", *map(str, words), expected=expected)

    @contextmanager
    def service(self, bundle, port):
        words = [sys.executable, "-m", "dpserve", "serve", str(bundle), "--port", str(port), "--no-admin"]
        words += ["--price", f"rho:{PRICE}", "--rho", "0.5", "--delta", "1e-6"]
        environment = {name: self.environment[name] for name in ("DPSERVE_HOME", "DPSERVE_LEDGER", "OMP_NUM_THREADS")}
        url = f"http://127.0.0.1:{port}"
        with start_server(words, f"{url}/readyz", self.folder / "service.log", cwd=ROOT, env=environment):
            yield url


def asked(url, key, rows):
    answer = httpx.post(
        f"{url}/predict", json={"instances": rows}, headers={"Authorization": f"Bearer {key}"}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
def test_a_store_that_is_lost_is_restored_from_the_backup_and_nothing_is_forgotten(rehearsal):
    bundle, port = small_bundle(rehearsal.folder), free_port()
    with store(rehearsal.folder / "store", rehearsal.port), rehearsal.service(bundle, port) as url:
        key = rehearsal.dpserve("clients", "add", "alice", "--rho", "0.1", "--delta", "1e-6").splitlines()[-1]
        first = asked(url, key, ROWS[:5])
        rehearsal.run(*rehearsal.script)
        since = asked(url, key, ROWS[5:9])  # which no backup holds, and the journal does
    shutil.rmtree(rehearsal.folder / "store")

    with store(rehearsal.folder / "store", rehearsal.port):
        assert "no such lineage" in rehearsal.dpserve("ledger", "status", expected=1)
        assert "no such lineage" in rehearsal.run(*rehearsal.script, expected=1)  # an emptied store is no backup
        rehearsal.owner("restore")
        put_back = rehearsal.owner("reconcile")
        assert int(re.search(r"(\d+) receipts put back", put_back)[1]) >= 1
        assert ": right" in rehearsal.owner("verify")
        with rehearsal.service(bundle, port) as url:
            for rows, before in ((ROWS[:5], first), (ROWS[5:9], since)):
                again = asked(url, key, rows)
                assert again["predictions"] == before["predictions"]
                assert again["receipt"]["charged_rows"] == 0
            budget = httpx.get(f"{url}/budget", headers={"Authorization": f"Bearer {key}"}, timeout=60).json()
            assert budget["spent"]["rho"] == pytest.approx(9 * PRICE)
            assert asked(url, key, ROWS[9:])["receipt"]["charged_rows"] == 3


@pytest.mark.slow
def test_copies_of_a_backup_hold_the_journals_as_well(rehearsal):
    bundle = small_bundle(rehearsal.folder)
    with store(rehearsal.folder / "store", rehearsal.port), rehearsal.service(bundle, free_port()) as url:
        key = rehearsal.dpserve("clients", "add", "alice", "--rho", "0.1", "--delta", "1e-6").splitlines()[-1]
        asked(url, key, ROWS[:2])
        for later in (0, 3600):  # the second takes the place of the day's copy, and has an hour of its own
            (rehearsal.folder / "clock").write_text(str(MIDDAY + later))
            rehearsal.run(*rehearsal.script)
    copies = sorted(path.name for path in (rehearsal.folder / "backups").iterdir())
    assert copies == ["day-1", "hour-12", "hour-13", "ledger.backup"]
    for name in copies[:3]:
        copy = rehearsal.folder / "backups" / name
        assert {each.name for each in copy.iterdir()} == {"journals", "ledger.backup"}
        kept = [each for each in copy.rglob("*") if each.is_file()]
        assert len(kept) > 1
        assert all(each.stat().st_mode & 0o077 == 0 for each in kept)
