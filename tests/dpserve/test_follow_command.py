"""`dpserve ledger follow` as a process: each line once, whatever is away for a while, until SIGTERM."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from accounting.ledger import Ledger
from accounting.ledger.archives import archive
from accounting.ledger.backup_chains import Place
from tests.faults.books import asking, open_accounts
from tests.faults.servers import DURABLE, StoreServer

FOLLOW = [sys.executable, "-u", "-m", "dpserve", "ledger", "follow"]


@pytest.fixture
def store(run):
    """A durable store of its own, which the owner's commands and the follower use."""
    with StoreServer(run.folder / "store", DURABLE) as server:
        run.environment["DPSERVE_LEDGER"] = f"redis://127.0.0.1:{server.port}/0"
        yield server


class Following:
    """A follower that runs, whose lines are read as they come."""

    def __init__(self, run, *options):
        words = [*FOLLOW, "--every", "0.1", *map(str, options)]
        self.process = subprocess.Popen(
            words, cwd=run.folder, env=run.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        run.started.append(self.process)
        self._patience = threading.Timer(120, self.process.kill)
        self._patience.start()

    def read(self, count):
        """Return what is next: of each line its chain, number and kind."""
        return [self._next() for _ in range(count)]

    def _next(self):
        line = json.loads(self.process.stdout.readline())
        return line["chain"], line["number"], line["kind"]

    def said(self):
        """Return the next message of its log."""
        return json.loads(self.process.stderr.readline())["message"]

    def end(self, number=signal.SIGTERM):
        """Tell it to end; return its status, the rest of its lines, and its log."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=60)
        self._patience.cancel()
        return self.process.returncode, out, errors


@pytest.fixture
def opened(run, store, bundle):
    """A lineage with an account: of two acts, it and a client's."""
    run("lineage", "set-budget", bundle, "--rho", 1, "--delta", 1e-6)
    run("clients", "add", "alice", "--rho", 0.1, "--delta", 1e-6)
    return store


def test_what_comes_is_shipped_and_a_restart_goes_on_from_the_position(run, opened):
    first = Following(run, "--position", "kept/position.json")
    assert first.read(2) == [("acts", 1, "open"), ("acts", 2, "add-client")]
    run("clients", "set-budget", "alice", "--rho", 0.05, "--delta", 1e-6)
    assert first.read(1) == [("acts", 3, "lower")]
    assert "another follower" in run.fails("ledger", "follow", "--once", "--position", "kept/position.json")
    assert first.end() == (0, "", "")
    assert (run.folder / "kept" / "position.json").stat().st_mode & 0o077 == 0
    run("clients", "revoke", "alice")
    second = run("ledger", "follow", "--once", "--position", "kept/position.json").stdout
    assert [json.loads(line)["kind"] for line in second.splitlines()] == ["revoke"]
    assert run("ledger", "follow", "--once", "--position", "kept/position.json").stdout == ""
    kinds = [json.loads(line)["kind"] for line in run("ledger", "follow", "--once").stdout.splitlines()]
    assert kinds == ["open", "add-client", "lower", "revoke"]


def test_a_store_that_goes_away_is_waited_for(run, opened):
    following = Following(run, "--position", "position.json")
    following.read(2)
    opened.kill()
    assert "trying again" in following.said()
    opened.start()
    run("clients", "revoke", "alice")
    assert following.read(1) == [("acts", 3, "revoke")]
    assert "it is back" in following.said()
    assert following.end(signal.SIGINT)[0] == 0


def test_a_follower_that_waits_for_a_store_ends_when_told_to(run, opened):
    opened.kill()
    following = Following(run)
    assert "cannot be followed" in following.said()
    assert following.end() == (0, "", "")


def test_a_reader_that_is_gone_ends_it_and_moves_no_position(run, opened):
    following = Following(run, "--position", "position.json")
    following.read(2)
    following.process.stdout.close()
    run("clients", "revoke", "alice")
    assert "nobody reads it any more" in following.process.stderr.readline()
    assert following.process.wait(60) == 1
    kinds = run("ledger", "follow", "--once", "--position", "position.json").stdout
    assert [json.loads(line)["kind"] for line in kinds.splitlines()] == ["revoke"]


def test_wrong_input_is_said_in_a_line(run, opened):
    (run.folder / "other").write_text('{"lineages": 3}')
    assert "no position" in run.fails("ledger", "follow", "--once", "--position", "other")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in run.fails("ledger", "follow", "--to", "otlp")
    assert "no lineage nowhere" in run.fails("ledger", "follow", "--once", "--lineage", "nowhere")
    assert "cannot write beside" in run.fails("ledger", "follow", "--position", "/proc/none/position.json")


@pytest.fixture
def collector():
    """Takes logs by OTLP over HTTP, as its specification says; `answers` are the statuses to give, the last for all."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            server.paths.append((self.path, self.headers["x-tenant"]))
            status = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
            if status == 200:
                server.requests.append(Parse(body, ExportLogsServiceRequest()))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.paths, server.answers = [], [], [200]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_a_log_record_for_each_line(run, opened, collector):
    collector.answers = [503, 200]
    run.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}/",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20bank",
    }
    done = run("ledger", "follow", "--to", "otlp", "--once", "--position", "position.json")
    assert done.stdout == ""
    assert "answered 503" in done.stderr
    assert set(collector.paths) == {("/v1/logs", "a bank")}
    (request,) = collector.requests
    records = request.resource_logs[0].scope_logs[0].log_records
    lines = run("ledger", "follow", "--once").stdout.splitlines()
    assert [json.loads(record.body.string_value) for record in records] == list(map(json.loads, lines))
    attributes = {each.key: each.value.string_value for each in records[1].attributes}
    assert attributes["dpserve.kind"] == "add-client"
    assert abs(records[1].time_unix_nano / 1e9 - (run.folder / "position.json").stat().st_mtime) < 3600
    assert run("ledger", "follow", "--once", "--position", "position.json").stdout == ""


def test_receipts_that_were_archived_before_they_came_are_a_line_of_their_own(run, store, collector):
    async def use():
        async with await Ledger.connect(run.environment["DPSERVE_LEDGER"]) as ledger:
            await open_accounts(ledger, "people")
            for number in range(3):
                await ledger.charge(asking("people", "ann", f"{number}"))
            await archive(ledger, "people", Place(str(run.folder / "archive")), before=float("inf"))

    asyncio.run(use())
    lines = [json.loads(line) for line in run("ledger", "follow", "--once").stdout.splitlines()]
    newest = [(line["chain"], line["number"], line["kind"]) for line in lines[-3:]]
    assert newest == [("acts", 3, "archive"), ("receipts", 2, "archived"), ("receipts", 3, "receipt")]
    run.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}/"
    run("ledger", "follow", "--to", "otlp", "--once")
    records = [
        record for request in collector.requests for record in request.resource_logs[0].scope_logs[0].log_records
    ]
    assert [json.loads(record.body.string_value) for record in records] == lines


def test_a_collector_that_refuses_ends_it(run, opened, collector):
    collector.answers = [401]
    run.environment["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}/own"
    assert "status 401" in run.fails("ledger", "follow", "--to", "otlp", "--position", "position.json")
    assert collector.paths[0][0] == "/own"
    assert not (run.folder / "position.json").exists()
