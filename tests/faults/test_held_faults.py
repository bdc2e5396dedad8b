"""A service's memory of who holds a pay-once model is no older than a second, whatever becomes of the store."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dpserve.mechanisms.randomness import SystemRandomness
from dpserve.training.kinds.head.bundle import CertifiedHead
from dpserve.training.kinds.weights.bundle import save_weights
from dpserve.training.kinds.weights.train import release_weights

from .conftest import fault, trials
from .servers import Services, StoreServer, workers

WITHIN = 1.0
"""Seconds after which nothing that was remembered before may count: the promise."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "store") as store:
        yield store


@pytest.fixture
def services(head: CertifiedHead, store: StoreServer, tmp_path: Path) -> Services:
    bundle = tmp_path / "bundle"
    save_weights(bundle, release_weights(head, 10**10, "two-lineage", SystemRandomness()))
    return Services(bundle, tmp_path / "home", store.url, tmp_path / "log", price=None)


def _added(services: Services, name: str) -> str:
    return services.command_line("clients", "add", name, "--rho", 0.1, "--delta", 1e-6).strip()


def _ask(address: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"instances": [[0.25, 0.5]]}
    return httpx.post(f"{address}/predict", json=body, headers=headers, timeout=60).status_code


@pytest.mark.parametrize("act", ["revoke", pytest.param("remove-key", marks=pytest.mark.slow)])
def test_a_right_that_is_taken_away_ends_everywhere(services: Services, act: str) -> None:
    with (
        fault(f"paid model: {act}, at two services that remember it") as found,
        services.serving("--rho", 1, "--delta", 1e-6) as (one, _),
        services.serving() as (other, _),
    ):
        for trial in range(trials(10, 1)):
            client = f"client{trial}"
            key = _added(services, client)
            shown = services.command_line("clients", "show", client)
            named = [word for word in shown.replace(",", " ").split() if len(word) == 12 and _is_hexadecimal(word)]
            before = {_ask(address, key) for address in (one, other)}
            services.command_line("clients", act, client, *(named[:1] if act == "remove-key" else ()))
            after = time.monotonic() + WITHIN
            while _ask(one, key) == 200 and time.monotonic() < after:
                pass  # what is asked on and on must not be remembered on and on
            # The other is asked when the promise is due; asked without end it would refuse to look at keys at all.
            time.sleep(max(0.0, after - time.monotonic()))
            found.trial(held=before == {200} and {_ask(address, key) for address in (one, other)} == {401})


def _is_hexadecimal(word: str) -> bool:
    return not set(word) - set("0123456789abcdef")


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_store_that_is_gone_or_silent_ends_answers_and_one_that_comes_back_begins_them(
    services: Services, store: StoreServer, how: str
) -> None:
    with (
        fault(f"paid model: {how} of the store") as found,
        services.serving("--rho", 1, "--delta", 1e-6) as (address, _),
    ):
        key = _added(services, "ann")
        for _ in range(trials(10, 1)):
            before = _ask(address, key)
            getattr(store, how)()
            after = time.monotonic() + WITHIN
            while time.monotonic() < after:
                _ask(address, key)
            gone = _ask(address, key)
            if how == "kill":
                store.start()
            else:
                store.go_on()
            last = time.monotonic() + 60
            while (back := _ask(address, key)) != 200 and time.monotonic() < last:
                pass
            found.trial(held=(before, gone, back) == (200, 503, 200))


def test_a_store_that_was_rolled_back_ends_answers(services: Services, store: StoreServer, tmp_path: Path) -> None:
    with fault("paid model: store rolled back to before it was paid for") as found:
        for trial in range(trials(5, 1)):
            with services.serving("--rho", 1, "--delta", 1e-6) as (address, _):
                key = _added(services, f"client{trial}")
                store.kill()
                backup = tmp_path / f"backup-{trial}"
                shutil.copytree(store.folder, backup)
                store.start()
                last = time.monotonic() + 60
                while (before := _ask(address, key)) != 200 and time.monotonic() < last:
                    pass
                store.kill()
                whole = tmp_path / f"whole-{trial}"
                store.folder.rename(whole)
                shutil.copytree(backup, store.folder)
                store.start()
                after = time.monotonic() + WITHIN
                while time.monotonic() < after:
                    _ask(address, key)
                rolled_back = _ask(address, key)
            found.trial(held=(before, rolled_back) == (200, 503))
            store.kill()
            shutil.rmtree(store.folder)
            whole.rename(store.folder)
            store.start()


@pytest.mark.slow
def test_a_worker_that_dies_while_the_store_is_gone_is_replaced_when_it_is_back(
    services: Services, store: StoreServer
) -> None:
    with (
        fault("worker killed while its store is down") as found,
        services.serving("--rho", 1, "--delta", 1e-6, "--workers", 2) as (address, process),
    ):
        key = _added(services, "ann")
        for _ in range(trials(5, 1)):
            before = _ask(address, key)
            first = workers(process.pid)
            store.kill()
            said = services.log.stat().st_size
            os.kill(min(first), signal.SIGKILL)
            last = time.monotonic() + 60
            while "cannot start" not in services.log.read_text()[said:] and time.monotonic() < last:
                time.sleep(0.05)
            store.start()
            statuses = set[int]()
            while len(workers(process.pid)) < 2 or statuses != {200}:
                statuses = {_ask(address, key) for _ in range(8)}
                assert time.monotonic() < last + 60
            found.trial(held=before == 200 and process.poll() is None)
