"""Several services of one ledger behind nginx, on loopback: how many rows a second, by the number of services.

    python -m benchmarks.replicas [--seconds 5] [--connections 32] [--most 3]

Each service is a process with a home of its own, as a pod would be; the store is one durable Valkey. On a machine with
few cores the generator, nginx and the store share them with the services, which the growth shows.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.contenders import train_bundle
from benchmarks.serving.load import Body, Round, load
from benchmarks.serving.network import FEATURES
from benchmarks.serving.processes import Server, free_port, start_server
from dpserve.accounting.ledger.embedded import server_binary

ROOT = Path(__file__).parents[1]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Replicas:
    """Running services, and the one address in front of them."""

    url: str
    """The address of nginx."""
    ledger: str
    services: Sequence[str]
    """Their own addresses, `127.0.0.1:port`."""
    servers: Sequence[Server]
    folder: Path

    def command(self, *words: object) -> str:
        """Run a `dpserve` command on the ledger and return what it prints. Raises RuntimeError."""
        done = subprocess.run(
            [sys.executable, "-m", "dpserve", *map(str, words), "--ledger", self.ledger],
            env=os.environ | _home(self.folder, 0),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def new_key(self, name: str, *budget: object) -> str:
        """Add a client and return its key."""
        return self.command("clients", "add", name, *budget).strip()

    def answered_by(self) -> Counter[str]:
        """Return how many requests each service answered, as nginx logged them."""
        lines = (self.folder / "nginx" / "access.log").read_text().splitlines()
        return Counter(line.split()[1] for line in lines)


@contextmanager
def replicas(
    folder: Path, bundle: Path, count: int, *options: object, timeouts: str | None = None
) -> Iterator[Replicas]:
    """Run `count` services of a bundle behind nginx until the context ends.

    options: of `dpserve serve`. timeouts: how long nginx waits for clients, in place of what its file says.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(_store(folder / "store"))
        ports = [free_port() for _ in range(count)]
        servers = []
        for number, port in enumerate(ports):
            command = [sys.executable, "-m", "dpserve", "serve", str(bundle), "--ledger", ledger, "--port", str(port)]
            ready = f"http://127.0.0.1:{port}/readyz"
            log, home = folder / f"service-{number}.log", _home(folder, number)
            words = [*command, "--no-admin", *map(str, options)]
            servers.append(stack.enter_context(start_server(words, ready, log, cwd=ROOT, env=home)))
        services = [f"127.0.0.1:{port}" for port in ports]
        url = stack.enter_context(_nginx(folder / "nginx", services, timeouts))
        yield Replicas(url, ledger, services, servers, folder)


@contextmanager
def _store(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True)
    port = free_port()
    words = [str(server_binary()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    words += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not any(b"Ready to accept connections" in line for line in process.stdout):
            raise RuntimeError("the store did not start")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _nginx(folder: Path, services: Sequence[str], timeouts: str | None) -> Iterator[str]:
    """Run deploy/nginx.conf with these services in place of its own."""
    if NGINX is None:
        raise RuntimeError("nginx is not installed")
    folder.mkdir()
    front = f"127.0.0.1:{free_port()}"
    lines = "".join(f"        server {service};\n" for service in services)
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    text = re.sub(r"(?:        server 127\.0\.0\.1:\d+;\n)+", lines, text).replace("127.0.0.1:8000", front)
    if timeouts is not None:
        text = text.replace("_timeout 10s;", f"_timeout {timeouts};")
    (folder / "nginx.conf").write_text(text)
    words = [NGINX, "-p", f"{folder}/", "-c", "nginx.conf", "-e", "error.log"]
    if os.geteuid() == 0:
        words += ["-g", "user root;"]  # else its workers could not write a long body down in this folder
    with start_server(words, f"http://{front}/readyz", folder / "nginx.log"):
        yield f"http://{front}"


def _home(folder: Path, number: int) -> dict[str, str]:
    return {
        "DPSERVE_HOME": str(folder / f"home-{number}"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def measure(folder: Path, bundle: Path, count: int, *, connections: int, seconds: float) -> tuple[Round, float]:
    """Return one round of single rows against `count` services, and the services' CPU milliseconds a request."""
    options = ("--price", "rho:1e-7", "--epsilon", 50, "--delta", 1e-6)
    with replicas(folder, bundle, count, *options) as running:
        key = running.new_key("load", "--epsilon", 50, "--delta", 1e-6)
        url, body = f"{running.url}/predict", Body('{"instances":[', "]}")
        load(url, body, connections=connections, seconds=1, key=key)
        before = _cpu(running.servers)
        seen = load(url, body, connections=connections, seconds=seconds, key=key)
        return seen, 1e3 * (_cpu(running.servers) - before) / max(1, seen.requests)


def _cpu(servers: Sequence[Server]) -> float:
    return sum(use.cpu_seconds for server in servers for use in server.use())


def main() -> None:
    """Measure one service, then two, and so on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--most", type=int, default=3, help="services")
    chosen = parser.parse_args()
    print(f"single rows of {FEATURES} features, {chosen.connections} connections, {os.cpu_count()} cores")
    print("services  rows/s  against one  p50 ms  p99 ms  service CPU ms/row")
    with tempfile.TemporaryDirectory() as name:
        bundle, first = train_bundle(Path(name)), 0.0
        for count in range(1, chosen.most + 1):
            folder = Path(name) / str(count)
            folder.mkdir()
            seen, cpu = measure(folder, bundle, count, connections=chosen.connections, seconds=chosen.seconds)
            first = first or seen.per_second
            ratio = seen.per_second / first
            print(
                f"{count:8} {seen.per_second:7.0f} {ratio:12.2f} {seen.p50:7.1f} {seen.p99:7.1f} {cpu:19.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
