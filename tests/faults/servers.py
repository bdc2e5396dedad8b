"""Servers for the fault tests, each a process of its own on loopback: stores, Sentinels, services."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import redis

from dpserve.accounting.ledger.embedded import server_binary
from dpserve.accounting.ledger.store import LEAST_VERSION
from tests.command_line import FORKING, Service, keep_descriptors, ran

_PYTHON = (sys.executable, "-u", "-m", "dpserve")
_SERVE = ("serve", "--port", "0")

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": '""', "repl-diskless-sync-delay": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def encrypting_server() -> str | None:
    """Return a Valkey or Redis that speaks TLS, which DPSERVE_TEST_TLS_STORE or PATH has, if any."""
    found = os.environ.get("DPSERVE_TEST_TLS_STORE") or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        return None
    version = re.search(r"v=(\d+)\.(\d+)", ran_to_its_end(found, "--version"))
    said = ran_to_its_end(found, "--port", "0", "--tls-port", "1", "--bind", "127.0.0.1")
    new = version is not None and (int(version[1]), int(version[2])) >= LEAST_VERSION
    return found if new and "No tls-cert-file configured" in said else None


def ran_to_its_end(*words: str) -> str:
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False)
    return done.stdout


@dataclass
class StoreServer:
    """A Valkey, or what DPSERVE_TEST_STORE names, on one port and one folder, which can be killed and started again."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=lambda: DURABLE)
    port: int = field(default_factory=free_port)
    sentinel_for: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> "StoreServer":
        self.folder.mkdir(exist_ok=True)
        lines = [f"port {self.port}", "bind 127.0.0.1", f'dir "{self.folder}"']
        if self.sentinel_for:
            lines += [f"{name} {value}" for name, value in self.settings.items() if name not in DURABLE]
            lines += [
                f"sentinel monitor ledger 127.0.0.1 {self.sentinel_for} 2",
                "sentinel down-after-milliseconds ledger 500",
                "sentinel failover-timeout ledger 1000",
            ]
        else:
            lines += [f"{name} {value}" for name, value in self.settings.items()]
        configuration = self.folder / "server.conf"
        configuration.write_text("\n".join(lines) + "\n")
        binary = os.environ.get("DPSERVE_TEST_STORE") or str(server_binary())
        words = [binary, str(configuration), *(["--sentinel"] if self.sentinel_for else [])]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        ready = (b"Ready to accept connections", b"+monitor master")
        said = b""
        for line in self.process.stdout:
            said = line
            if any(word in line for word in ready):
                return self
        self.kill()
        raise RuntimeError(f"the store did not start: {said.decode()}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def has_copy(self) -> bool:
        """Whether this replica has what its primary has."""
        with redis.Redis(port=self.port, protocol=2) as client:
            return client.info("replication").get("master_link_status") == "up"

    def __enter__(self) -> "StoreServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class LoggedService(Service):
    """A service that is forked, whose errors a file has."""

    def __init__(self, words: Sequence[str], fault: str, environment: Mapping[str, str], log: Path) -> None:
        heard, said = FORKING.Pipe(duplex=False)
        self._process = FORKING.Process(target=_be_a_service, args=(words, fault, environment, said, log))
        self._process.start()
        self.stdout, self.stderr = os.fdopen(os.dup(heard.fileno())), os.fdopen(os.open(os.devnull, os.O_RDONLY))
        heard.close()
        said.close()

    def poll(self) -> int | None:
        return self.returncode


def _be_a_service(
    words: Sequence[str], fault: str, environment: Mapping[str, str], said: Connection, log: Path
) -> None:
    """Be the process of one service, which dies at a step where `fault` names one."""
    os.environ.clear()
    os.environ.update(environment)
    keep_descriptors()
    os.dup2(said.fileno(), 1)
    with log.open("a") as file:
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    if fault:
        from tests.faults import dying_service

        dying_service.main(fault, *words)
    else:
        from dpserve.__main__ import main

        sys.argv = ["dpserve", *words]
        main()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers(pid: int) -> list[int]:
    """Return the processes that answer: those that the supervisor started to."""
    return [each for each in children(pid) if "spawn_main" in command_of(each)]


def command_of(pid: int) -> str:
    """Return a process's command line, empty for one that has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


class NotServing(Exception):
    """A service ended before it said that it serves."""


@dataclass
class Services:
    """Starts `dpserve serve` processes of one bundle, with one home and so one ledger."""

    bundle: Path
    home: Path
    ledger: str
    log: Path
    price: str | None = "rho:0.001"

    def command_line(self, *words: object) -> str:
        done = ran([*map(str, words), "--ledger", self.ledger], self.bundle.parent, self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def serving(self, *words: object, fault: str = "") -> Iterator[tuple[str, "LoggedService | subprocess.Popen[str]"]]:
        """Serve by a process that is forked, or by one of its own where it is to start workers."""
        told = [*_SERVE, str(self.bundle), *self._price(), "--ledger", self.ledger, *map(str, words)]
        with self._spawned(told) if "--workers" in words else self._forked(told, fault) as process:
            lines = process.stdout or ()
            address = next((line.split()[-1] for line in lines if line.startswith("dpserve: serving")), "")
            if not address:
                raise NotServing(self.log.read_text())
            yield address, process

    @contextmanager
    def _forked(self, words: Sequence[str], fault: str) -> Iterator[LoggedService]:
        with LoggedService(words, fault, self.environment, self.log) as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(60)

    @contextmanager
    def _spawned(self, words: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*_PYTHON, *words], env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()

    def _price(self) -> list[str]:
        return [] if self.price is None else ["--price", self.price]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"DPSERVE_HOME": str(self.home), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
