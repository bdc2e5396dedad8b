"""The drill: a replicated store under load, its primary killed, a backup, the loss of it all, and the service again."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.command_line import ran
from tests.topologies import wait_until

from .servers import DURABLE, NotServing, Services, StoreServer

pytestmark = pytest.mark.faults

PRICE = 0.001
BUDGET = ("--rho", "5", "--delta", "1e-6")
ROWS = 4000


@contextmanager
def replicated(folder: Path) -> Iterator[tuple[str, list[StoreServer]]]:
    """Give a primary with two replicas, by the address of three Sentinels."""
    folder.mkdir()
    with ExitStack() as started:
        servers = [started.enter_context(StoreServer(folder / "server 0"))]
        following = DURABLE | {"replicaof": f"127.0.0.1 {servers[0].port}"}
        servers += [started.enter_context(StoreServer(folder / f"server {number}", following)) for number in (1, 2)]
        wait_until(lambda: all(server.has_copy() for server in servers[1:]))
        watching = [
            started.enter_context(StoreServer(folder / f"sentinel {n}", sentinel_for=servers[0].port)) for n in range(3)
        ]
        yield "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in watching) + "/ledger", servers


@dataclass
class Load:
    """A client that asks one row after the other, whatever it hears."""

    url: str
    key: str
    answers: dict[int, Any] = field(default_factory=dict)
    asked: int = 0
    stopping: bool = False

    def ask(self, number: int) -> httpx.Response:
        row = [number / ROWS, 1 - number / ROWS]
        return httpx.post(
            f"{self.url}/predict",
            json={"instances": [row]},
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=30,
        )

    def run(self) -> None:
        while not self.stopping and self.asked < ROWS:
            number, self.asked = self.asked, self.asked + 1
            response = self.ask(number)
            if response.status_code == 200:
                self.answers[number] = response.json()["predictions"]

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self.stopping = True
            thread.join()

    def goes_on(self, more: int) -> None:
        """Wait for so many more answers."""
        enough = len(self.answers) + more
        wait_until(lambda: len(self.answers) >= enough)


@pytest.mark.slow
def test_the_whole_drill(bundle: Path, tmp_path: Path) -> None:
    home, backup = tmp_path / "home", tmp_path / "ledger.backup"
    replicas = ("--ledger-replicas", "1")
    with replicated(tmp_path / "first") as (url, servers):
        services = Services(bundle, home, url, tmp_path / "service.log", f"rho:{PRICE}")
        with services.serving(*BUDGET, *replicas, "--no-admin") as (address, _):
            added = services.command_line("clients", "add", "ann", *BUDGET, *replicas)
            load = Load(address, added.splitlines()[-1])
            with load.running():
                load.goes_on(20)
                servers[0].kill()
                load.goes_on(20)
                services.command_line("ledger", "backup", str(backup), *replicas)
                load.goes_on(20)  # which no backup has, and the journal does
    shutil.rmtree(tmp_path / "first")

    with replicated(tmp_path / "second") as (url, _):
        services = Services(bundle, home, url, tmp_path / "service.log", f"rho:{PRICE}")
        assert "can be restored" in services.command_line("ledger", "rehearse", str(backup), *replicas)
        services.command_line("ledger", "restore", str(backup), *replicas)
        # Older than the journal: neither verified, nor served from.
        words = ["ledger", "verify", "--ledger", url, *replicas]
        wrong = ran(words, tmp_path, services.environment)
        assert wrong.returncode == 1, wrong.stdout
        with pytest.raises(NotServing, match="reconcile"), services.serving(*BUDGET, *replicas, "--no-admin"):
            pass
        assert "receipts put back" in services.command_line("ledger", "reconcile", *replicas)
        assert ": right" in services.command_line("ledger", "verify", *replicas)
        with services.serving(*BUDGET, *replicas, "--no-admin") as (address, _):
            again = Load(address, load.key)
            for number, predictions in load.answers.items():
                answer = again.ask(number).json()
                assert (answer["receipt"]["charged_rows"], answer["predictions"]) == (0, predictions)
            headers = {"Authorization": f"Bearer {load.key}"}
            spent = httpx.get(f"{address}/budget", headers=headers, timeout=30).json()["spent"]["rho"]
            # A question whose answer was lost was paid for, and nothing else was.
            assert len(load.answers) <= round(spent / PRICE) <= load.asked
            assert again.ask(load.asked).json()["receipt"]["charged_rows"] == 1
        assert ": right" in services.command_line("ledger", "verify", *replicas)
