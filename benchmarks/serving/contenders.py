"""Who is measured: our service as it is, ours with less and less of it, and other people's servers."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.serving import answers, figures
from benchmarks.serving.figures import Setting
from benchmarks.serving.load import Body
from benchmarks.serving.network import CLASSES, FEATURES, HIDDEN, Network
from benchmarks.serving.processes import Server, free_port, start_server
from dpserve.mechanisms.elementary import softmax
from dpserve.training.kinds.head.bundle import load_bundle
from dpserve.training.kinds.loading import load_model
from dpserve.training.pay_once.model import ReleasedModel

PEERS = Path(__file__).with_name("peers")
_ROOT = Path(__file__).parents[2]
_OURS = Body('{"instances":[', "]}")
_ROWS_JSON = Body('{"x":[', "]}")
_BUDGET = ("--rho", "9000", "--delta", "1e-5")
"""The largest that the ledger takes: at the default price it pays for seven million answers."""
_PAY_ONCE_BUDGET = ("--rho", "9", "--delta", "1e-5")
_HEAD = ("head", "--features", "fourier", "--random-features", HIDDEN, "--lam", 10)
_PRICE = ("--epsilon", "3", "--delta", "1e-5")
_RELEASES = {
    "class-sums": _PRICE,
    "weights": (*_PRICE, "--lam", 10),
    "dpsgd": (*_PRICE, "--n", 500, "--steps", 20),
}


@dataclass(frozen=True)
class Endpoint:
    """Where a running contender answers, how it is asked, how it is read, and what it should say."""

    server: Server
    url: str
    body: Callable[[Setting], Body]
    read: Callable[[bytes], np.ndarray]
    expected: answers.Answers | None
    key: str | None = None
    features: int = FEATURES

    def check(self) -> None:
        """Raise RuntimeError unless it answers rightly."""
        answers.check(self.url, self.body(Setting(1, 3)), self.read, self.expected, self.features, self.key)


@dataclass(frozen=True)
class Contender:
    """A server that can be started in a folder of its own."""

    name: str
    start: Callable[[Path], AbstractContextManager[Endpoint]]
    npy: bool = False
    """Whether it takes NumPy files."""


def train_bundle(folder: Path, *words: object, features: int = FEATURES, classes: int = CLASSES) -> Path:
    """Train a model of ours on random rows into a new folder; returns the bundle.

    words: further options; without any, a certified head of the network's shape, on public random features.
    """
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    records = folder / "records.npz"
    np.savez(records, X=generator.random((500, features)), y=generator.integers(0, classes, 500))
    bundle = folder / "public"
    run_dpserve(
        folder, "train", "--data", records, "--out", bundle, "--classes", ",".join(map(str, range(classes))),
        "--lineage", "benchmark", "--bounds", "0:1", *(words or _HEAD),
    )  # fmt: skip
    return bundle


def train_pay_once(folder: Path, kind: str, features: str) -> Path:
    """Train a pay-once model of this kind; Fourier features are as many as the network's hidden units."""
    random = ("--random-features", HIDDEN) if features == "fourier" else ()
    return train_bundle(folder, kind, "--features", features, *random, *_RELEASES[kind])


def ours(
    bundle: Path,
    *options: str,
    name: str = figures.OURS,
    features: int = FEATURES,
    budget: tuple[str, ...] = _BUDGET,
    program: tuple[str, ...] = ("-m", "dpserve"),
    distinct: int = 0,
    expected: answers.Answers | None = None,
) -> Contender:
    """Our service with everything: private, charged to an embedded ledger, durable before it answers.

    options: of `serve`. program: what Python runs in place of `dpserve`, with its arguments. distinct: as `Body` has
    it. expected: what a pay-once model says.
    """

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, *program, "serve", str(bundle), "--port", str(port), *budget, *options]
        ready = f"http://127.0.0.1:{port}/readyz"
        with start_server(command, ready, folder / "ours.log", cwd=_ROOT, env=_home(folder)) as server:
            added = run_dpserve(folder, "clients", "add", "load", *budget)
            key = max(added.split(), key=len)
            url = f"http://127.0.0.1:{port}/predict"
            rows = replace(_OURS, distinct=distinct)
            yield Endpoint(
                server, url, lambda setting: Body(npy=True) if setting.npy else rows, answers.of("predictions"),
                expected, key, features,
            )  # fmt: skip

    return Contender(name, start, npy=True)


def pay_once(bundle: Path, name: str) -> Contender:
    """Our service of a pay-once model."""
    model = load_model(bundle)
    assert isinstance(model, ReleasedModel)
    return ours(bundle, name=name, budget=_PAY_ONCE_BUDGET, expected=model.values)


def unprotected(bundle: Path, *, features: int = FEATURES) -> Contender:
    """Our service on the same bundle, its privacy and its ledger switched off."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.unprotected", str(bundle), str(port)]
        head = load_bundle(bundle)
        ready = f"http://127.0.0.1:{port}/readyz"
        with start_server(command, ready, folder / "unprotected.log", cwd=_ROOT, env=_home(folder)) as server:
            url = f"http://127.0.0.1:{port}/predict"
            yield Endpoint(
                server, url, lambda _: _OURS, answers.of("predictions"),
                lambda rows: softmax(head.logits(head.features(rows))), "anybody", features,
            )  # fmt: skip

    return Contender(figures.UNPROTECTED, start)


def plain() -> Contender:
    """The network without privacy and ledger, each request by itself."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.serving.plain", str(port)]
        ready = f"http://127.0.0.1:{port}/livez"
        with start_server(command, ready, folder / "plain.log", cwd=_ROOT, env=_home(folder)) as server:
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
            yield Endpoint(server, f"{base}/infer", _v2, answers.read_v2, _network)

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


def mosec(environment: Path) -> Contender:
    """mosec with one worker."""

    @contextmanager
    def start(folder: Path) -> Iterator[Endpoint]:
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        words = ["--address", "127.0.0.1", "--port", str(port), "--path", str(folder / "mosec.sock")]
        command = [str(environment / "mosec/bin/python"), "server.py", *words, "--log-level", "warning"]
        with _peer(command, f"{base}/", folder, "mosec", {}) as server:
            yield Endpoint(server, f"{base}/inference", lambda _: _ROWS_JSON, answers.of(None), _network)

    return Contender(figures.MOSEC, start)


def peers(environment: Path) -> list[Contender]:
    """Return other people's servers, from the environments that `environments.install` made."""
    return [
        mlserver(environment, in_process=True),
        mlserver(environment, in_process=False),
        bentoml(environment),
        litserve(environment),
        mosec(environment),
    ]


def _network(rows: np.ndarray) -> np.ndarray:
    return Network()(rows.astype(np.float32)).astype(np.float64)


def _peer(
    command: list[str], ready: str, folder: Path, name: str, settings: dict[str, str]
) -> AbstractContextManager[Server]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {"PYTHONPATH": str(_ROOT)} | threads | settings
    return start_server(command, ready, folder / f"{name}.log", cwd=PEERS / name, env=environment)


def _v2(setting: Setting) -> Body:
    described = f'{{"name":"x","shape":[{setting.rows},{FEATURES}],"datatype":"FP32","data":['
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
