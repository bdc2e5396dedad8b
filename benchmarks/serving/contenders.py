"""Who is measured: our service as it is, ours with less and less of it, and other people's servers."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.serving.load import Body
from benchmarks.serving.network import CLASSES, FEATURES, HIDDEN
from benchmarks.serving.processes import Server, free_port, started

_PEERS = Path(__file__).with_name("peers")
_ROOT = Path(__file__).parents[2]
_OURS = Body('{"instances":[', "]}")
_ROWS_JSON = Body('{"x":[', "]}")


@dataclass(frozen=True)
class Endpoint:
    """Where a running contender answers."""

    server: Server
    url: str
    body: Callable[[int], Body]
    key: str | None = None


@dataclass(frozen=True)
class Contender:
    """A server that can be started in a folder of its own."""

    name: str
    start: Callable[[Path], AbstractContextManager[Endpoint]]


def train_bundle(folder: Path) -> Path:
    """Train our head on random rows: the network's shape, on public random features. Returns the bundle."""
    generator = np.random.default_rng(0)
    records = folder / "records.npz"
    np.savez(records, X=generator.random((500, FEATURES)), y=generator.integers(0, CLASSES, 500))
    bundle = folder / "public"
    _dpserve(
        folder, "train", "--data", records, "--out", bundle, "--classes", ",".join(map(str, range(CLASSES))),
        "--bounds", "0:1", "--features", "relu", "--random-features", HIDDEN, "--lam", 10,
    )  # fmt: skip
    return bundle


def ours(bundle: Path, *options: str) -> Contender:
    """Our service with everything: private, charged to an embedded ledger, durable before it answers."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [
            sys.executable, "-m", "dpserve", "serve", str(bundle), "--port", str(port), "--price", "rho:1e-7",
            "--epsilon", "50", "--delta", "1e-6", *options,
        ]  # fmt: skip
        with started(command, f"http://127.0.0.1:{port}/readyz", folder / "ours.log", env=_home(folder)) as server:
            added = _dpserve(folder, "clients", "add", "load", "--epsilon", 50, "--delta", "1e-6")
            key = max(added.split(), key=len)
            yield Endpoint(server, f"http://127.0.0.1:{port}/predict", lambda _: _OURS, key)

    return Contender("dpserve: private, charged, durable", start)


def plain() -> Contender:
    """The network without privacy and ledger, each request by itself."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.plain", str(port)]
        ready = f"http://127.0.0.1:{port}/livez"
        with started(command, ready, folder / "plain.log", cwd=_ROOT, env=_home(folder)) as server:
            yield Endpoint(server, f"http://127.0.0.1:{port}/predict", lambda _: _OURS)

    return Contender("plain, request by request", start)


def mlserver(environment: Path, *, in_process: bool) -> Contender:
    """MLServer with NumPy's codec: as it comes, or without its worker processes, which is faster here."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        ports = {name: free_port() for name in ("HTTP", "GRPC", "METRICS")}
        settings = {f"MLSERVER_{name}_PORT": str(port) for name, port in ports.items()} | {"MLSERVER_DEBUG": "false"}
        if in_process:
            settings["MLSERVER_PARALLEL_WORKERS"] = "0"
        base = f"http://127.0.0.1:{ports['HTTP']}/v2/models/public"
        command = [str(environment / "mlserver/bin/mlserver"), "start", "."]
        with _peer(command, f"{base}/ready", folder, "mlserver", settings) as server:
            yield Endpoint(server, f"{base}/infer", _v2)

    return Contender("MLServer, in process" if in_process else "MLServer, as it comes", start)


def bentoml(environment: Path) -> Contender:
    """BentoML with one worker."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [str(environment / "bentoml/bin/bentoml"), "serve", "service:PublicNetwork", "--port", str(port)]
        settings = {"BENTOML_HOME": str(folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "True"}
        with _peer(command, f"http://127.0.0.1:{port}/readyz", folder, "bentoml", settings) as server:
            yield Endpoint(server, f"http://127.0.0.1:{port}/predict", lambda _: _ROWS_JSON)

    return Contender("BentoML", start)


def litserve(environment: Path) -> Contender:
    """LitServe with one worker."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [str(environment / "litserve/bin/python"), "server.py", str(port)]
        with _peer(command, f"http://127.0.0.1:{port}/health", folder, "litserve", {}) as server:
            yield Endpoint(server, f"http://127.0.0.1:{port}/predict", lambda _: _ROWS_JSON)

    return Contender("LitServe", start)


def _peer(
    command: list[str], ready: str, folder: Path, name: str, settings: dict[str, str]
) -> AbstractContextManager[Server]:
    return started(command, ready, folder / f"{name}.log", cwd=_PEERS / name, env={"PYTHONPATH": str(_ROOT)} | settings)


def _v2(rows: int) -> Body:
    described = f'{{"name":"x","shape":[{rows},{FEATURES}],"datatype":"FP32","data":['
    return Body('{"inputs":[' + described, "]}]}", nested=False)


def _home(folder: Path) -> dict[str, str]:
    return {"DPSERVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _dpserve(folder: Path, *arguments: object) -> str:
    """Run a command of ours and return what it printed. Raises RuntimeError with what it said."""
    command = [sys.executable, "-m", "dpserve", *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | _home(folder), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout
