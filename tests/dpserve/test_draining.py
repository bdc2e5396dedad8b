"""A service that is told to stop while the ledger has a charge of it waits for the charge, whoever waits for it."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dpserve.accounting.ledger import Ledger
from tests.faults.servers import StoreServer, workers

BUDGET = "--rho", 1, "--delta", 1e-6
ONE_EACH = 16
"""Connections enough that both of two workers accept some; where not, the test has seen one of them only."""

SERVING = "(?<!stopped )serving "
"""A worker's line of a model that it answers by now."""


def unread(store):
    """Return the number of connections with bytes that a store has not read, as the kernel counts them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[1].split(":")[1], 16) == store.port and line[4].split(":")[1] != "0" * 8 for line in lines)


def until(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def store(tmp_path):
    with StoreServer(tmp_path / "store") as store:
        yield store


def connected(address, key):
    """A connection at which one row was answered: whoever answers it knows the key."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    ask(connection, key, 19)
    assert b" 200 OK" in connection.recv(1 << 16)
    return connection


def ask(connection, key, age):
    body = f'{{"instances": [[{age}, 1000.0]]}}'
    head = f"Host: here\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}"
    connection.sendall(f"POST /predict HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())


async def releases(store):
    """Return the number of rows that the client was charged for."""
    async with await Ledger.connect(store.url) as ledger:
        (lineage,) = await ledger.lineage_names()
        return (await ledger.client(lineage, "ann")).releases


def refuses(address):
    host, port = address.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(signal.SIGTERM, (), id="a lone process"),
        pytest.param(signal.SIGTERM, ("--workers", 2), id="two workers", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ("--no-admin",), id="no owner's port", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, (), id="another signal", marks=pytest.mark.slow),
    ],
)
def test_a_charge_is_waited_for_though_nobody_waits_and_whatever_the_signal(run, bundle, store, number, words):
    run.environment["DPSERVE_LEDGER"] = store.url
    process, address, _ = run.start_and_read(bundle, "--port", 0, *BUDGET, "--price", "rho:0.001", *words)
    workers = 2 if "--workers" in words else 1
    try:
        run.read_log(process, {SERVING: workers})  # one that starts later would find the store silent
        key = run("clients", "add", "ann", *BUDGET).stdout.strip()
        connections = [connected(address, key) for _ in range(ONE_EACH)]
        store.stop()
        for place, connection in enumerate(connections):
            ask(connection, key, 20 + place)
        until(lambda: unread(store))
        for connection in connections:
            connection.close()
        process.send_signal(number)
        process.send_signal(number)  # whoever is impatient has it no sooner
        until(lambda: refuses(address))
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # which a service that does not wait for the ledger does
        store.go_on()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert asyncio.run(releases(store)) > 1, "what was sent to the ledger was waited for"
    assert said.count("stopped serving") == workers


@pytest.mark.slow
def test_a_worker_that_cannot_start_does_not_fail_a_service_that_is_told_to_stop(run, bundle, store):
    """One worker is killed while the store is silent, so that the one in its place waits for the ledger."""
    run.environment["DPSERVE_LEDGER"] = store.url
    words = ("--port", 0, *BUDGET, "--price", "rho:0.001", "--workers", 2)
    process, address, _ = run.start_and_read(bundle, *words)
    try:
        until(lambda: len(workers(process.pid)) == 2)
        before = workers(process.pid)
        store.stop()
        gone = workers(process.pid)[0]
        os.kill(gone, signal.SIGKILL)
        # The one in its place ends after a while, and so do those in its own place: any of them will do.
        until(lambda: any(catches_signals(each) for each in set(workers(process.pid)) - set(before)))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert refuses(address)
    finally:
        store.go_on()
        process.kill()
        process.communicate()


def catches_signals(pid):
    """Tell whether a process has a handler of SIGTERM: a server that starts has."""
    caught = [int(line.split()[1], 16) for line in content_of(pid, "status").splitlines() if line.startswith("SigCgt")]
    return any(each >> (signal.SIGTERM - 1) & 1 for each in caught)


def content_of(pid, name):
    """Return a file of a process; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
