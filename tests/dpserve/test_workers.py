"""`dpserve serve --workers 2`: one service to everybody who asks, whichever of its processes answers."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpserve.accounting.ledger import Ledger
from tests.faults.servers import command_of, workers

BUDGET = "--rho", 10, "--delta", 1e-6
PRICE = 0.001


def inode_of(port, peer):
    """The kernel's number of the socket that a service has at `port` for who asks from port `peer`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *rest = line.split()
        if (int(local.split(":")[1], 16), int(remote.split(":")[1], 16)) == (port, peer):
            return rest[6]
    raise AssertionError(f"nobody at {port} has a connection with {peer}")


def answerer(http, pids):
    """The worker that has accepted this client's one connection."""
    response = http.get("/livez")
    (local, there) = (response.extensions["network_stream"].get_extra_info(name) for name in _ADDRESSES)
    held = f"socket:[{inode_of(there[1], local[1])}]"
    (found,) = (pid for pid in pids if any(_link(each) == held for each in Path(f"/proc/{pid}/fd").iterdir()))
    return found


_ADDRESSES = "client_addr", "server_addr"


def _link(path):
    try:
        return str(path.readlink())
    except OSError:
        return ""


class Served:
    """A service of two workers."""

    def __init__(self, run, bundle, *words):
        self.process, self.address, before = run.start_and_read(
            bundle, "--port", 0, "--workers", 2, "--price", f"rho:{PRICE}", *BUDGET, *words
        )
        self.owner = next(re.search(r"http://[\d.:]+", line)[0] for line in before if "owner's port" in line)
        self._run = run
        self._clients = []

    def client(self, name, rho):
        return self._run("clients", "add", name, "--rho", rho, "--delta", 1e-6).stdout.strip()

    def http(self, key):
        self._clients.append(
            httpx.Client(base_url=self.address, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        )
        return self._clients[-1]

    def one_each(self, key):
        """Two clients with one connection each, to different workers."""
        pids, found = workers(self.process.pid), {}
        deadline = time.monotonic() + 60
        while len(found) < 2:
            assert time.monotonic() < deadline
            http = self.http(key)
            found.setdefault(answerer(http, pids), http)
        return list(found.values())

    def metrics(self):
        key = (self._run.folder / "home" / "admin.key").read_text().strip()
        text = httpx.get(f"{self.owner}/metrics", headers={"Authorization": f"Bearer {key}"}).text
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def end(self):
        self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        self.said = said.splitlines()
        for http in self._clients:
            http.close()
        assert "Traceback" not in said
        return self.process.returncode


@pytest.fixture
def served(run, bundle):
    started = []

    def start(*words):
        started.append(Served(run, bundle, *words))
        return started[-1]

    yield start
    for each in started:
        if each.process.returncode is None:
            each.end()


def ask(http, age, **headers):
    return http.post("/predict", json={"instances": [[age, 1000.0]]}, headers=headers)


def test_both_are_one_service(served):
    service = served()
    here, there = service.one_each(service.client("ann", 0.02))
    first = ask(here, 30.0, **{"Idempotency-Key": "one"})
    again, row = ask(there, 30.0, **{"Idempotency-Key": "one"}), ask(there, 30.0)
    assert [each.json()["predictions"] for each in (again, row)] == [first.json()["predictions"]] * 2
    charged = [each.json()["receipt"]["charged_rows"] for each in (first, again, row)]
    assert charged == [1, 0, 0]
    assert here.get("/budget").json() == there.get("/budget").json()

    # Four at once want twice what the client may spend: what it pays for is answered, wherever it was asked.
    with ThreadPoolExecutor(4) as pool:
        rows = [(http, 40.0 + place / 8) for place in range(20) for http in (here, there)]
        statuses = list(pool.map(lambda asked: ask(*asked).status_code, rows))
    answered = statuses.count(200)
    assert set(statuses) == {200, 402 if 402 in statuses else 403}
    budget = here.get("/budget").json()
    assert budget == there.get("/budget").json()
    assert budget["spent"]["rho"] == pytest.approx(0.02)
    assert answered == 2 * 19 or answered == 19 + statuses[1::2].count(200)

    counted = service.metrics()
    assert counted["dpserve_rows_total", "model", "charged"] == 20
    assert counted["dpserve_requests_total", "model", "/predict", "200"] == 3 + answered


def test_a_worker_dies_and_the_service_goes_on_and_answers_all_that_it_charged(served, tmp_path):
    service = served()
    key = service.client("ann", 5)
    answered, stopping = set(), threading.Event()

    def ask_on(number):
        """Ask row after row until the service ends; what brought an error is asked again."""
        place = 0
        while not stopping.is_set():
            with contextlib.suppress(httpx.HTTPError), service.http(key) as http:
                while ask(http, number + place / 10_000).status_code == 200:
                    answered.add((number, place))
                    place += 1

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask_on, number) for number in range(20, 24)]
        when(lambda: len(answered) > 40)
        doomed = workers(service.process.pid)[0]
        os.kill(doomed, signal.SIGKILL)
        before = len(answered)
        when(lambda: len(answered) > before + 40)
        when(lambda: len(set(workers(service.process.pid)) - {doomed}) == 2)
        assert httpx.get(f"{service.owner}/livez").status_code == 200
        stopping.set()
        assert service.end() == 0
        for each in asking:
            each.result()

    async def releases():
        async with Ledger.open(tmp_path / "home" / "ledger") as ledger:
            (lineage,) = await ledger.lineage_names()
            return (await ledger.client(lineage, "ann")).releases

    assert asyncio.run(releases()) == len(answered)


@pytest.mark.slow
def test_a_worker_is_replaced_where_the_budget_now_pays_for_no_row(served, run):
    service = served("--log-format", "json")
    former = workers(service.process.pid)
    for each in service.one_each("none"):
        assert [each.get("/budget").status_code for _ in range(2)] == [401, 401]  # the first is logged by then
    run("lineage", "set-budget", "model", "--rho", PRICE / 2, "--delta", 1e-6)
    os.kill(former[1], signal.SIGKILL)
    when(lambda: len(set(workers(service.process.pid)) - {former[1]}) == 2)
    when(lambda: former[1] not in workers(service.process.pid))
    when(lambda: answerer(service.http("none"), workers(service.process.pid)) not in former)
    assert service.end() == 0
    assert {json.loads(line).get("worker") for line in service.said} > set(former), "each line says whose it is"


def test_workers_end_when_the_process_that_started_them_is_killed(served):
    service = served()
    answering = workers(service.process.pid)
    service.process.kill()
    when(lambda: not any("spawn_main" in command_of(pid) for pid in answering))
    service.process.communicate()


def test_a_service_ends_when_the_command_that_started_it_is_killed(run, bundle):
    program = """
import sys
from pathlib import Path
from dpserve.local_services import start_service
with start_service(Path(sys.argv[1]), Path.cwd(), ["--rho", "1", "--delta", "1e-6", "--price", "rho:0.001"]) as service:
    print(service.process.pid, flush=True)
    service.process.wait()
"""
    words = [sys.executable, "-c", program, str(bundle)]
    with subprocess.Popen(words, cwd=run.folder, env=run.environment, stdout=subprocess.PIPE, text=True) as command:
        pid = int(command.stdout.readline())
        assert "serve" in command_of(pid)
        command.kill()
        when(lambda: "serve" not in command_of(pid))


def test_what_cannot_be_is_said_once_and_before_anything_is_answered(run, bundle):
    assert "has no budget yet" in run.fails("serve", bundle, "--port", 0, "--workers", 2)


def when(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
