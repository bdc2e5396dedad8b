"""The store of the overlays, started with its own configuration, users and certificate: who may do what there."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import httpx
import pytest
import redis

from dpserve import configuration
from dpserve.accounting.ledger.embedded import server_binary
from tests.command_line import ran
from tests.faults.servers import encrypting_server, free_port
from tests.owners_commands import Owner, use_every_command

from .conftest import commands_that_write
from .test_manifests import store_of
from .test_replicas import small_bundle

ADMINISTRATOR = {"username": "administrator", "password": "of-the-test"}


@dataclass
class RunningStore:
    port: int
    urls: dict[str, str]
    tls: dict[str, object]
    words: list[str]
    process: "subprocess.Popen[str] | None" = None

    def start(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, text=True)
        assert any("Ready to accept connections" in line for line in self.process.stdout)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def client(self, **who):
        return redis.Redis(host="127.0.0.1", port=self.port, **self.tls, **who)


@pytest.fixture(params=[False, True], ids=["without TLS", "TLS"])
def store(request, rendered, tmp_path, monkeypatch):
    """A server with what the manifests say; without the lines on TLS where the server has none."""
    assert store_of(rendered["redis"]) == store_of(rendered["gpu"])
    binary = encrypting_server() if request.param else str(server_binary())
    if binary is None:
        pytest.skip("no Valkey with TLS: install one, or name it in DPSERVE_TEST_TLS_STORE")
    written, users, urls = store_of(rendered["redis"])
    assert re.findall(r"^(?:tls-)?port .*", written, re.MULTILINE) == ["port 0", "tls-port 6379"]
    # Somebody who may look, and empty the store before a backup is restored.
    (tmp_path / "users.acl").write_text(f"{users.rstrip()}\nuser administrator on >of-the-test ~* &* +@all\n")
    for before in ("/data", "/etc/valkey-users", "/etc/valkey-tls"):
        assert before in written
        written = written.replace(before, str(tmp_path))
    port, tls = free_port(), {}
    written = written.replace("tls-port 6379", f"tls-port {port}")
    urls = {name: url.replace("dpserve-valkey:6379", f"127.0.0.1:{port}") for name, url in urls.items()}
    if request.param:
        script = re.sub(r"(?m)^names=.*", "names=IP:127.0.0.1", commands_that_write("tls.csr"))
        subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, timeout=60, capture_output=True)
        urls = {name: url.replace("/etc/dpserve-valkey-tls", str(tmp_path)) for name, url in urls.items()}
        tls = {"ssl": True, "ssl_ca_certs": str(tmp_path / "ca.crt")}
    else:
        written = re.sub(r"^tls-(?!port).*\n|^port 0\n", "", written, flags=re.MULTILINE).replace("tls-port", "port")
        urls = {name: url.replace("rediss", "redis").partition("?")[0] for name, url in urls.items()}
    (tmp_path / "valkey.conf").write_text(written)
    for name in os.environ.keys() - configuration.environment_without_settings().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    words = [binary, str(tmp_path / "valkey.conf"), "--bind", "127.0.0.1"]
    running = RunningStore(port, urls, tls, words)
    try:
        running.start()
        yield running
    finally:
        running.kill()


def test_the_owner_runs_every_command_on_the_store_of_the_overlays(store, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_LEDGER", store.urls["dpserve-ledger-owner"])
    with store.client(**ADMINISTRATOR) as administrator:
        use_every_command(Owner(tmp_path), administrator.flushall)
    with store.client() as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    for url in store.urls.values():
        with redis.Redis.from_url(url) as user, pytest.raises(redis.ResponseError, match="permissions"):
            user.flushall()
    if store.tls:
        with (
            redis.Redis(host="127.0.0.1", port=store.port, **ADMINISTRATOR) as plain,
            pytest.raises(redis.ConnectionError),
        ):
            plain.ping()


def test_what_the_service_charges_outlives_the_store(store, tmp_path):
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}

    def command(user, *words):
        return ran([*words], tmp_path, environment | {"DPSERVE_LEDGER": store.urls[user]})

    bundle = small_bundle(tmp_path)
    words = [sys.executable, "-u", "-m", "dpserve", "serve", str(bundle), "--port", "0", "--no-admin"]
    words += ["--rho", "1", "--delta", "1e-6", "--price", "rho:0.001"]
    service_is = environment | {"DPSERVE_LEDGER": store.urls["dpserve-ledger"]}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=service_is) as service:
        try:
            url = next(line.split()[-1] for line in service.stdout if line.startswith("dpserve: serving"))
            added = command("dpserve-ledger-owner", "clients", "add", "alice", "--rho", "0.1", "--delta", "1e-6")
            key = added.stdout.splitlines()[-1]
            answer = httpx.post(
                f"{url}/predict",
                json={"instances": [[0.1, 0.9], [0.2, 0.8]]},
                headers={"Authorization": f"Bearer {key}"},
                timeout=60,
            )
            assert answer.json()["receipt"]["charged_rows"] == 2
            before = command("dpserve-ledger-owner", "lineage", "list", "--json").stdout
            store.kill()
            store.start()  # and reads its file, with the rights of `default`
            assert command("dpserve-ledger-owner", "lineage", "list", "--json").stdout == before
        finally:
            service.terminate()
