"""Who is measured: our service as it is, ours with less and less of it, and other people's servers."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.serving import answers, figures
from benchmarks.serving.load import Body
from benchmarks.serving.network import CLASSES, FEATURES, HIDDEN, Network
from benchmarks.serving.processes import Server, free_port, started
from training.bundle import load_bundle
from training.objective import softmax

PEERS = Path(__file__).with_name("peers")
_ROOT = Path(__file__).parents[2]
_OURS = Body('{"instances":[', "]}")
_ROWS_JSON = Body('{"x":[', "]}")
_BUDGET = ("--rho", "9000", "--delta", "1e-5")
"""The largest that the ledger takes: at the default price it pays for seven million answers."""
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Endpoint:
    """Where a running contender answers, how it is asked, how it is read, and what it should say."""

    server: Server
    url: str
    body: Callable[[int], Body]
    read: Callable[[bytes], np.ndarray]
    expected: answers.Answers | None
    key: str | None = None
    features: int = FEATURES

    def check(self) -> None:
        """Raise RuntimeError unless it answers rightly."""
        answers.check(self.url, self.body(3), self.read, self.expected, self.features, self.key)


@dataclass(frozen=True)
class Contender:
    """A server that can be started in a folder of its own."""

    name: str
    start: Callable[[Path], AbstractContextManager[Endpoint]]


def memory_is_there() -> bool:
    """Return whether there is a file system in memory."""
    return _MEMORY.is_dir()


def train_bundle(folder: Path, *, features: int = FEATURES, classes: int = CLASSES) -> Path:
    """Train our head on random rows: the network's shape, on public random features. Returns the bundle."""
    generator = np.random.default_rng(0)
    records = folder / "records.npz"
    np.savez(records, X=generator.random((500, features)), y=generator.integers(0, classes, 500))
    bundle = folder / "public"
    run_dpserve(
        folder, "train", "--data", records, "--out", bundle, "--classes", ",".join(map(str, range(classes))),
        "--lineage", "benchmark", "--bounds", "0:1", "--features", "relu", "--random-features", HIDDEN, "--lam", 10,
    )  # fmt: skip
    return bundle


def ours(
    bundle: Path,
    *options: str,
    name: str = figures.OURS,
    features: int = FEATURES,
    program: tuple[str, ...] = ("-m", "dpserve"),
    arrays: bool = False,
    distinct: int = 0,
    in_memory: bool = False,
) -> Contender:
    """Our service with everything: private, charged to an embedded ledger, durable before it answers.

    program: what Python runs in place of `dpserve`, with its arguments. arrays: rows and answers as NumPy files, not as
    JSON. distinct: as `Body` has it. in_memory: the ledger's folder is on a file system in memory, so that nothing is
    durable and no disk is waited for.
    """

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        with tempfile.TemporaryDirectory(dir=_MEMORY) if in_memory else nullcontext(folder) as home:
            yield from _start(Path(home))

    def _start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [
            sys.executable, *program, "serve", str(bundle), "--port", str(port), *_BUDGET, *options,
        ]  # fmt: skip
        ready = f"http://127.0.0.1:{port}/readyz"
        with started(command, ready, folder / "ours.log", cwd=_ROOT, env=_home(folder)) as server:
            added = run_dpserve(folder, "clients", "add", "load", *_BUDGET)
            key = max(added.split(), key=len)
            url = f"http://127.0.0.1:{port}/predict"
            body, read = (
                (Body(npy=True), answers.of_npy)
                if arrays
                else (replace(_OURS, distinct=distinct), answers.of("predictions"))
            )
            yield Endpoint(server, url, lambda _: body, read, None, key, features)

    return Contender(name, start)


def unprotected(
    bundle: Path, *, name: str = figures.UNPROTECTED, features: int = FEATURES, workers: int = 1
) -> Contender:
    """Our service on the same bundle, its privacy and its ledger switched off."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.unprotected", str(bundle), str(port), str(workers)]
        head = load_bundle(bundle)
        ready = f"http://127.0.0.1:{port}/readyz"
        with started(command, ready, folder / "unprotected.log", cwd=_ROOT, env=_home(folder)) as server:
            url = f"http://127.0.0.1:{port}/predict"
            yield Endpoint(
                server, url, lambda _: _OURS, answers.of("predictions"),
                lambda rows: softmax(head.logits(head.features(rows))), "anybody", features,
            )  # fmt: skip

    return Contender(name, start)


def plain() -> Contender:
    """The network without privacy and ledger, each request by itself."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.plain", str(port)]
        ready = f"http://127.0.0.1:{port}/livez"
        with started(command, ready, folder / "plain.log", cwd=_ROOT, env=_home(folder)) as server:
            url = f"http://127.0.0.1:{port}/predict"
            yield Endpoint(server, url, lambda _: _OURS, answers.of("predictions"), _network)

    return Contender(figures.PLAIN, start)


def mlserver(environment: Path, *, in_process: bool) -> Contender:
    """MLServer with NumPy's codec: as it comes, or without its worker processes, which is faster here."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        ports = {name: free_port() for name in ("HTTP", "GRPC", "METRICS")}
        settings = {f"MLSERVER_{name}_PORT": str(port) for name, port in ports.items()} | {
            "MLSERVER_DEBUG": "false",
            "MLSERVER_METRICS_DIR": str(folder),
        }
        if in_process:
            settings["MLSERVER_PARALLEL_WORKERS"] = "0"
        base = f"http://127.0.0.1:{ports['HTTP']}/v2/models/public"
        command = [str(environment / "mlserver/bin/mlserver"), "start", "."]
        with _peer(command, f"{base}/ready", folder, "mlserver", settings) as server:
            yield Endpoint(server, f"{base}/infer", _v2, answers.of_v2, _network)

    return Contender(figures.MLSERVER if in_process else figures.MLSERVER_WORKERS, start)


def bentoml(environment: Path) -> Contender:
    """BentoML with one worker."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [str(environment / "bentoml/bin/bentoml"), "serve", "service:PublicNetwork", "--port", str(port)]
        settings = {"BENTOML_HOME": str(folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "True"}
        with _peer(command, f"http://127.0.0.1:{port}/readyz", folder, "bentoml", settings) as server:
            url = f"http://127.0.0.1:{port}/predict"
            yield Endpoint(server, url, lambda _: _ROWS_JSON, answers.of(None), _network)

    return Contender(figures.BENTOML, start)


def litserve(environment: Path) -> Contender:
    """LitServe with one worker."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [str(environment / "litserve/bin/python"), "server.py", str(port)]
        with _peer(command, f"http://127.0.0.1:{port}/health", folder, "litserve", {}) as server:
            url = f"http://127.0.0.1:{port}/predict"
            yield Endpoint(server, url, lambda _: _ROWS_JSON, answers.of("probabilities"), _network)

    return Contender(figures.LITSERVE, start)


def peers(environment: Path) -> list[Contender]:
    """Return other people's servers, from the environments that `peers.install` made."""
    return [
        mlserver(environment, in_process=True),
        mlserver(environment, in_process=False),
        bentoml(environment),
        litserve(environment),
    ]


def _network(rows: np.ndarray) -> np.ndarray:
    return Network()(rows.astype(np.float32)).astype(np.float64)


def _peer(
    command: list[str], ready: str, folder: Path, name: str, settings: dict[str, str]
) -> AbstractContextManager[Server]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {"PYTHONPATH": str(_ROOT)} | threads | settings
    return started(command, ready, folder / f"{name}.log", cwd=PEERS / name, env=environment)


def _v2(rows: int) -> Body:
    described = f'{{"name":"x","shape":[{rows},{FEATURES}],"datatype":"FP32","data":['
    return Body('{"inputs":[' + described, "]}]}", nested=False)


def _home(folder: Path) -> dict[str, str]:
    return {"DPSERVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def run_dpserve(folder: Path, *arguments: object) -> str:
    """Run a command of ours and return what it printed. Raises RuntimeError with what it said."""
    command = [sys.executable, "-m", "dpserve", *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | _home(folder), cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout
