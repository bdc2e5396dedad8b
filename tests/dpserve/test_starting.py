"""`dpserve serve` with pay-once models: every refusal comes before the first charge."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey

from dpserve.accounting.budgets import Budget
from dpserve.accounting.ledger import Ledger
from dpserve.serving import ConfiguredService
from dpserve.training.errors import TrainingError
from dpserve.training.features.maps import Identity
from dpserve.training.inputs.records import Declaration, Records
from dpserve.training.kinds.head.recipe import Recipe
from dpserve.training.kinds.head.train import train_head
from dpserve.training.kinds.weights.model import ReleasedWeights
from dpserve.training.kinds.weights.train import release_weights
from tests.certificates import write_certificate
from tests.owners_commands import COLUMNS, ROWS
from tests.seeded import Seeded

from .conftest import CommandLine

PRICE = ("class-sums", "--rho", "0.1")
BUDGET = ("--rho", "0.15", "--delta", "1e-5")


def trained(run, name, lineage="people", *more):
    run("train", "--data", "r.csv", *COLUMNS, *PRICE, "--lineage", lineage, "--name", name, "--out", name, *more)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder with the model `first`, and the home that it was trained in."""
    found = CommandLine(tmp_path_factory.mktemp("starting"))
    (found.folder / "r.csv").write_text("age,income,ok\n" + "".join(ROWS))
    trained(found, "first")
    return found.folder


@pytest.fixture
def train(run, first):
    """Train further models beside `first`."""
    shutil.copytree(first, run.folder, dirs_exist_ok=True)
    return partial(trained, run)


def spent(run):
    return {each["lineage"]: each["spent_picorho"] for each in json.loads(run("lineage", "list", "--json").stdout)}


def test_models_that_a_lineage_cannot_pay_for_together_are_all_refused(run, train):
    train("second")
    run("lineage", "set-budget", "first", *BUDGET)
    said = run.fails("serve", "first", "second")
    assert all(word in said for word in ("first and second", "people", "dpserve lineage set-budget people"))
    assert spent(run) == {"people": 0}
    run("lineage", "set-budget", "first", "--rho", "0.2", "--delta", "1e-5", "--yes")
    process, _ = run.start("first", "second", "--default", "first")
    process.terminate()
    process.communicate(timeout=60)
    assert 2 * 10**11 - 10 < spent(run)["people"] <= 2 * 10**11


def test_no_lineage_pays_when_another_cannot(run, train):
    train("other", "others", "--overlapping-lineage-is-accepted")
    run("lineage", "set-budget", "first", *BUDGET)
    assert "others has no budget" in run.fails("serve", "first", "other")
    run("lineage", "set-budget", "other", *BUDGET)
    train("more", "others", "--overlapping-lineage-is-accepted")
    assert "others" in run.fails("serve", "first", "other", "more")
    assert spent(run) == {"people": 0, "others": 0}


@pytest.mark.usefixtures("train")
def test_what_keeps_a_service_from_starting_is_found_before_a_charge(run, free_port):
    run("lineage", "set-budget", "first", *BUDGET)
    curve = write_certificate(run.folder, "curve", ec.generate_private_key(ec.SECP256K1()))
    ed448 = write_certificate(run.folder, "ed448", Ed448PrivateKey.generate())
    trusted = write_certificate(run.folder, "trusted")
    trusted[0].write_text(trusted[0].read_text().replace(" CERTIFICATE", " TRUSTED CERTIFICATE"))
    for more in (
        ("--default", "second"),
        ("--trusted-proxies", "everybody"),
        ("--jwt-issuer", "https://i.example", "--jwt-audience", "a", "--jwt-keys", "nowhere.json"),
        ("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem"),
        ("--tls-cert", curve[0], "--tls-key", curve[1]),  # which no client takes
        ("--tls-cert", trusted[0], "--tls-key", trusted[1]),
        ("--tls-cert", ed448[0], "--tls-key", ed448[1], "--grpc-port", 0),  # which gRPC does not take
        ("--admin-port", "1", "--admin-host", "192.0.2.1"),
        ("first",),
        ("--port", free_port, "--grpc-port", free_port),
        ("--port", free_port, "--admin-port", free_port),
        ("--grpc-port", free_port, "--admin-port", free_port),
    ):
        run("serve", "first", *more, status=1)
        assert spent(run) == {"people": 0}, more


@pytest.fixture
def free_port():
    """A port with a free one beside it, for the owner's port by default."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found, suppress(OSError, OverflowError):
            port = found.getsockname()[1]
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port


@pytest.mark.usefixtures("train")
def test_the_owners_port_makes_way_for_grpc_where_nobody_asked_for_it(run, free_port):
    run("lineage", "set-budget", "first", *BUDGET)
    process, _, before = run.start_and_read("first", "--port", free_port, "--grpc-port", free_port + 1)
    (owners,) = [line for line in before if "owner's port" in line]
    (grpc,) = [line for line in before if "gRPC" in line]
    process.terminate()
    process.communicate(timeout=60)
    assert str(free_port + 1) in grpc
    assert str(free_port + 1) not in owners


ENDS_ITSELF = """
import os
import anyio.from_thread
from concurrent.futures import Future

class Interrupted(Future):
    def result(self, timeout=None):
        os.kill(os.getpid(), {})
        return super().result(timeout)

anyio.from_thread.Future = Interrupted
from dpserve.cli import main
main()
"""


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_while_the_thread_for_the_store_starts_ends_the_service(run, sent):
    """It comes where anyio waits for its thread, and an exception there would have it wait for ever."""
    words = [sys.executable, "-c", ENDS_ITSELF.format(int(sent)), "serve", "first", "--port", "0", *BUDGET]
    done = subprocess.run(words, cwd=run.folder, env=run.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "serving" not in done.stdout
    assert not spent(run)


class FailingWeights(ReleasedWeights):
    """As an encoder whose session fails when it is asked for the first time."""

    def answers(self, X):
        raise TrainingError("the encoder failed")


@pytest.mark.anyio
async def test_a_model_that_fails_when_it_is_first_asked_is_not_charged(tmp_path):
    generator = np.random.default_rng(0)
    declared = Declaration(("a", "b"), (0.0,) * 2, (1.0,) * 2, ("no", "yes"))
    records = Records(generator.uniform(size=(60, 2)), generator.integers(2, size=60), declared, ())
    feature_map = Identity(lower=declared.lower, upper=declared.upper, clip_norm=1.0, bias=0.0)
    head = train_head(records, Recipe("m", feature_map, 1.0), "people")
    sound = release_weights(head, 10**11, "people", Seeded(0))
    model = FailingWeights(sound.certificate, sound.released, sound.tensors, sound.calibration)
    settings = SimpleNamespace(is_given=False, largest_batch=10, max_batch_size=None, max_batch_time=0.0, default=None)
    async with Ledger.open(tmp_path / "ledger") as ledger:
        await ledger.acting("owner", "").open_lineage("people", Budget.from_rho(1.0, 1e-6, "gaussian"), time=0.0)
        with pytest.raises(TrainingError, match="the encoder failed"):
            await ConfiguredService(settings)._prepare(ledger, [model])
        assert (await ledger.lineage("people")).spent == 0
